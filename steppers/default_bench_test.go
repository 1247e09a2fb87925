//go:build linux && amd64

package steppers

import (
	"testing"

	"github.com/swbpf/swbpf/unwind"
)

// BenchmarkDefaultWalk walks a real stack with all steppers in place, as a
// recording does: what it takes longer than BenchmarkDebugWalk is the price of
// asking the others first.
func BenchmarkDefaultWalk(b *testing.B) {
	snap, regs := debugSnapshot(b)
	w := unwind.NewWalker(snap, Default(unwind.NewTables()), nil)
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
