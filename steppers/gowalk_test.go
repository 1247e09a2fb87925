package steppers

import (
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// topStepper knows the top frame alone.
type topStepper struct{}

func (topStepper) Name() string              { return "top" }
func (topStepper) Priority() unwind.Priority { return unwind.PriorityBottom }

func (topStepper) CallerFrame(_ *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	if !in.IsTop() {
		return unwind.NotMe, nil
	}
	*out = *in
	out.Flags = 0
	return unwind.Success, nil
}

// What the Go stepper saw in one walk says nothing of the next, also when its
// top frame is another stepper's: C code, or the end of a signal handler.
func TestGoForgetsTheLastWalk(t *testing.T) {
	snap := procstate.NewSnapshot(procstate.AMD64, 1, "", &procstate.AddressSpace{})
	var regs procstate.Regs
	regs.Set(procstate.AMD64.PC, 0x1000)
	regs.Set(procstate.AMD64.SP, 0x2000)
	snap.Reset(1, &regs, nil)
	golang := NewGo()
	group := unwind.NewGroup()
	for _, s := range []unwind.FrameStepper{topStepper{}, golang} {
		if err := group.AddStepper(s); err != nil {
			t.Fatal(err)
		}
	}
	w := unwind.NewWalker(snap, group, nil)
	walks := map[string]func(){
		"WalkStack": func() { _, _ = w.WalkStack(nil, procstate.DefaultThread) },
		"WalkPCs":   func() { _, _ = w.WalkPCs(nil, &regs) },
		"Step": func() {
			var top, next, out unwind.Frame
			if err := w.InitialFrame(procstate.DefaultThread, &top); err != nil {
				t.Fatal(err)
			}
			_, _ = w.Step(&top, &next)
			_, _ = w.Step(&next, &out)
		},
	}
	for name, walk := range walks {
		walk()
		golang.walk.scheduling, golang.walk.callbacks = true, []goCallback{{0x4000, 0x3000}}
		walk()
		if golang.walk.scheduling || len(golang.walk.callbacks) != 0 {
			t.Errorf("%s: still %+v", name, golang.walk)
		}
	}

	// Frames walked one at a time are of one walk.
	golang.walk.scheduling = true
	var in, out unwind.Frame
	in.Load(procstate.AMD64, &regs)
	in.Flags = 0
	_, _ = w.Step(&in, &out)
	if !golang.walk.scheduling {
		t.Error("forgotten between two frames")
	}
}
