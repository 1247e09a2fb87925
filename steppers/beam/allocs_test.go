//go:build linux && amd64

package beam

import (
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// A frame of Erlang allocates nothing once its code is known, be it that it has called or was interrupted,
// and neither does the way to the scheduler.
func TestBeamAllocs(t *testing.T) {
	code := steptest.NewCode(t, `
	.globl process_main, schedule, returns
	.type process_main, @function
process_main: hlt
	.skip 15, 0x90
	.size process_main, .-process_main
	.type schedule, @function
schedule:
	call process_main
returns: hlt
`)
	m := newMemory()
	if !m.vm.update(m.vm.ReadNow) {
		t.Fatal("not all is known")
	}
	snap := procstate.NewSnapshot(procstate.AMD64, 1, "", code.Space)
	m.vm.main = mcode.Range{Start: code.At["process_main"], End: code.At["schedule"]}
	m.put(0x8000+0x4110+8, code.At["returns"])
	main := code.At["process_main"] - testBase // the library is in the same place
	if err := code.Im.ReadVaddr(m.b[main:main+22], main); err != nil {
		t.Fatal(err)
	}
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testBase, Data: m.b}})
	w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
	m.vm.Captured = snap
	m.vm.updated = time.Now().Add(time.Hour) // the list is not looked at again
	const start = testBase + testModule + 1
	in, out := unwind.NewFrame(procstate.AMD64, start, testBase+testStack, 0), unwind.Frame{}
	in.Regs.Set(amd64.registers, testBase+0x8080)
	in.Regs.Set(procstate.AMD64.FP, testBase+testStack)
	walk := func() {
		for _, flags := range [...]unwind.FrameFlags{0, unwind.Interrupted} {
			for _, at := range [...]uint64{4, 16, 20, 24} {
				in.Flags = flags
				in.SetPC(procstate.AMD64, start+at)
				module, r := m.vm.rangeAt(in.LookupPC())
				if r == nil {
					t.Fatalf("nothing at %d", at)
				}
				m.vm.codeOf(w, &in, r)
				_, _ = m.vm.follow(w, &in, module)
				m.vm.scan(in.SP())
			}
		}
		if v, err := m.vm.scheduler(w, &in, &out); v != unwind.Success || out.PC() != code.At["returns"] {
			t.Fatalf("the scheduler's function: %v, %v, %#x", v, err, out.PC())
		}
	}
	walk()
	if n := testing.AllocsPerRun(100, walk); n != 0 {
		t.Errorf("%.0f allocations", n)
	}
}
