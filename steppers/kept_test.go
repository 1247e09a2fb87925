package steppers

import (
	"testing"

	"github.com/swbpf/swbpf/steppers/dataflow"
	"github.com/swbpf/swbpf/unwind"
)

// What is known of the subroutines of a file is bounded.
func TestKeptCallees(t *testing.T) {
	f, snap := loadStacks(t, "cc1plus")
	w := unwind.NewWalker(snap, Default(unwind.NewTables()), nil)
	var k keptRegs
	asked := 0
	for i := range f.Stacks {
		regs := f.Stacks[i].Registers()
		snap.Reset(1, &regs, f.Stacks[i].Regions)
		frames, _ := w.WalkStack(nil, 1)
		for n := range len(frames) - 1 {
			in, out := &frames[n], &frames[n+1]
			m := w.MappingAt(out.PC() - 1)
			if m == nil || m.Image == nil || !m.Contains(in.PC()) {
				continue
			}
			if k.images.Get(m.Image) == nil {
				full := map[uint64]*dataflow.Callee{}
				for vaddr := range uint64(maxCallees) {
					full[vaddr] = &dataflow.Callee{}
				}
				k.images.Put(m.Image, &full)
			}
			k.callee(w, m, in, out)
			if n := len(*k.images.Get(m.Image)); n > maxCallees {
				t.Fatalf("%d subroutines", n)
			}
			if _, full := (*k.images.Get(m.Image))[0]; !full {
				asked++
			}
		}
	}
	if asked == 0 {
		t.Error("no frame has called another directly")
	}
}
