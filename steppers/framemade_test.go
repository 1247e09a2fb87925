//go:build linux && amd64

package steppers

import (
	"os"
	"slices"
	"testing"
	"unsafe"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
	"golang.org/x/sys/unix"
)

// TestMadeCodeChanges looks at a frame of code that is in no file, and that is another
// then: what was found is good for as long as the code is the same, and for samples that
// were taken before it was read.
func TestMadeCodeChanges(t *testing.T) {
	const size, at = 3 << 12, 0x1f00
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	start := uint64(uintptr(unsafe.Pointer(&b[0])))
	var space procstate.AddressSpace
	space.Insert(&procstate.Mapping{Start: start, End: start + size})
	snap := procstate.NewSnapshot(procstate.AMD64, os.Getpid(), exe, &space)
	snap.SetLiveCode(procstate.NewLiveCode(os.Getpid(), exe))
	w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
	a := NewFrameAnalyzer()
	now := procstate.Monotonic // by which pages are read, too
	is := func(what string, taken uint64, regions []procstate.Region, sp int32) {
		t.Helper()
		var regs procstate.Regs
		snap.Reset(1, &regs, regions)
		snap.SetTime(taken)
		f := unwind.Frame{Flags: unwind.Interrupted}
		f.SetPC(procstate.AMD64, start+at)
		for range 2 { // found out, and remembered
			if l := a.AllocatesFrame(w, &f); l.State != UnsetFrame || l.SP != sp {
				t.Errorf("%s: %+v, want SP %d", what, l, sp)
			}
		}
	}
	copy(b[at:], []byte{0x48, 0x83, 0xc4, 0x18, 0xc3}) // add $24,%rsp; ret
	first := now()
	is("first", first, nil, 32)
	b[at+3] = 0x28
	is("taken before the change", first, nil, 32)
	is("taken after it", now(), nil, 48)
	b[at+3] = 0x38
	is("after another change", now(), nil, 64)
	earlier := func(what string, want bool, sp int32) {
		t.Helper()
		if ok := snap.UseEarlierCode(); ok != want {
			t.Errorf("%s: %v", what, ok)
		}
		f := unwind.Frame{Flags: unwind.Interrupted}
		f.SetPC(procstate.AMD64, start+at)
		if l := a.AllocatesFrame(w, &f); l.State != UnsetFrame || l.SP != sp {
			t.Errorf("%s: %+v, want SP %d", what, l, sp)
		}
	}
	earlier("before that change", true, 48)
	is("after it once more", now(), nil, 64)
	earlier("without a change", false, 64)
	captured := slices.Clone(b)
	captured[at+3] = 0x08
	is("captured", now(), []procstate.Region{{Addr: start, Data: captured}}, 16)
	b[at+3] = 0x18
	is("as it was first", now(), nil, 32)
}

func TestAddrSet(t *testing.T) {
	var s mcode.AddrSet
	for round := range 2 {
		for i := range uint64(3000) {
			if !s.Add(1+i*i) || s.Add(1+i*i) || s.Add(1+i/2*(i/2)) {
				t.Fatalf("round %d: %d", round, i)
			}
		}
		if s.N != 3000 || s.Add(0) {
			t.Errorf("%d addresses, 0 among them: %v", s.N, s.Add(0))
		}
		s.Clear()
	}
}
