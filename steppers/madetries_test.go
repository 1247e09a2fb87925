package steppers

import (
	"bytes"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Code that is in no file and leads to no return is looked at less and less in its process, the
// same place too; when there is other code, that is walked soon, and at once in other processes.
func TestMadeTries(t *testing.T) {
	const start, size, pcs = 0x10000000, 1 << 13, 1 << 10
	const leads, returns = "\xff\xe0", "\x48\x83\xc4\x18\xc3" // jmp *%rax; add $24,%rsp and ret
	long := append(bytes.Repeat([]byte{0x90}, 3<<10), leads...)
	short := bytes.Repeat([]byte(leads), size/2)
	good := append(bytes.Repeat([]byte{0x90}, 3<<10), returns...)

	a := NewFrameAnalyzer()
	find := func(pid int, code []byte, i uint64) (isKnown, isLookedAt bool) {
		var space procstate.AddressSpace
		space.Insert(&procstate.Mapping{Start: start, End: start + size})
		snap := procstate.NewSnapshot(procstate.AMD64, pid, "", &space)
		var regs procstate.Regs
		snap.Reset(1, &regs, []procstate.Region{{Addr: start, Data: code}})
		f := unwind.Frame{Flags: unwind.Interrupted}
		f.SetPC(procstate.AMD64, start+i)
		before := *a.made.triesOf(pid)
		l := a.AllocatesFrame(unwind.NewWalker(snap, unwind.NewGroup(), nil), &f)
		return l.State != UnknownState, a.made.triesOf(pid).insts < before.insts
	}
	many := func(pid int, code []byte) (known, looks int) {
		for i := range uint64(pcs) {
			k, l := find(pid, code, i)
			if k {
				known++
			}
			if l {
				looks++
			}
		}
		return known, looks
	}
	if known, looks := many(1, long); known != 0 || looks < 10 || looks > 30 {
		t.Errorf("%d known of code that leads nowhere, after %d looks", known, looks)
	}
	if known, _ := many(2, good); known != pcs {
		t.Errorf("%d known in another process", known)
	}
	for i := range a.made.layouts {
		clear(a.made.layouts[i][:])
	}
	if known, _ := many(1, good); known < pcs-mostSkips || known == pcs {
		t.Errorf("%d known of code that can be walked, after other", known)
	}
	looks := 0
	for i := range uint64(64) {
		for range 2 * maxFailed {
			if _, l := find(3, short, 2*i); l {
				looks++
			}
		}
	}
	if looks != 64+triedAgain {
		t.Errorf("%d looks at 64 places", looks)
	}
}
