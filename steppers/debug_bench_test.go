//go:build linux && amd64

package steppers

import (
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// debugSnapshot is a Snapshot of a real stack: that of deep.cc, with 30 calls
// of step.
func debugSnapshot(t testing.TB) (*procstate.Snapshot, *procstate.Regs) {
	t.Helper()
	p, tid := steptest.StartToTrap(t, debugBuild(t, "g++", "-O2", "-fomit-frame-pointer"), "plain")
	regs := new(procstate.Regs)
	if err := p.Registers(tid, regs); err != nil {
		t.Fatal(err)
	}
	snap := procstate.NewSnapshot(p.Arch(), p.PID(), "", p.Libraries())
	stack := make([]byte, 1<<20)
	low := regs.Raw(p.Arch().SP) - p.Arch().RedZone
	n, _ := p.ReadMemory(low, stack)
	snap.Reset(tid, regs, []procstate.Region{{Addr: low, Data: stack[:n]}})
	return snap, regs
}

func TestDebugDoesNotAllocate(t *testing.T) {
	snap, regs := debugSnapshot(t)
	d := NewDebug(unwind.NewTables())
	w := unwind.NewWalker(snap, unwind.NewGroup(d), nil)
	pcs, err := w.WalkPCs(nil, regs)
	if err != nil || len(pcs) < 60 {
		t.Fatalf("%d frames, %v", len(pcs), err)
	}
	if n := testing.AllocsPerRun(100, func() { pcs, err = w.WalkPCs(pcs[:0], regs) }); n != 0 {
		t.Errorf("%v allocations a walk", n)
	}
}

// BenchmarkDebugWalk walks a real stack again and again: every rule is known.
func BenchmarkDebugWalk(b *testing.B) {
	snap, regs := debugSnapshot(b)
	w := unwind.NewWalker(snap, unwind.NewGroup(NewDebug(unwind.NewTables())), nil)
	var pcs []unwind.PC
	var err error
	b.ReportAllocs()
	for b.Loop() {
		if pcs, err = w.WalkPCs(pcs[:0], regs); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(pcs)), "ns/frame")
}
