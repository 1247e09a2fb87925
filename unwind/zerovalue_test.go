package unwind

import (
	"errors"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// What is missing is said, and is no panic.
func TestNothing(t *testing.T) {
	for name, w := range map[string]*Walker{"zero": {}, "of nil": NewWalker(nil, nil, nil)} {
		t.Run(name, func(t *testing.T) {
			var regs procstate.Regs
			var f, out Frame
			_, threads := w.Threads()
			_, stack := w.WalkStack(nil, 0)
			_, from := w.WalkFrom(nil, &f)
			_, pcs := w.WalkPCs(nil, &regs)
			_, _, again := w.WalkPCsAgain(nil, &regs, &Memo{}, ^uint64(0))
			_, step := w.Step(&f, &out)
			for what, err := range map[string]error{
				"Threads": threads, "InitialFrame": w.InitialFrame(0, &f), "WalkStack": stack, "WalkFrom": from,
				"WalkPCs": pcs, "WalkPCsAgain": again, "Step": step,
			} {
				if !errors.Is(err, ErrNoProcess) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if _, _, ok := w.Library(&f); ok || w.Stepper(&f) != nil || w.Arch() != nil || w.MappingAt(0) != nil || w.BeginsStack(1<<12) {
				t.Error("it knows something")
			}
		})
	}
	if err := new(Walker).AddStepper(nil); !errors.Is(err, ErrNoProcess) {
		t.Errorf("AddStepper: %v", err)
	}
	g := NewGroup()
	if err := g.AddStepper(nil); !errors.Is(err, ErrNoStepper) {
		t.Errorf("AddStepper(nil): %v", err)
	}
	if err := g.AddStepperRange(nil, 2, 1); !errors.Is(err, ErrNoStepper) {
		t.Errorf("AddStepperRange(nil): %v", err)
	}
	if err := g.AddStepper((*fakeStepper)(nil)); !errors.Is(err, ErrNoStepper) {
		t.Errorf("AddStepper of a nil pointer: %v", err)
	}
	if err := g.AddStepperRange((*fakeStepper)(nil), 2, 1); !errors.Is(err, ErrNoStepper) {
		t.Errorf("AddStepperRange of a nil pointer: %v", err)
	}
	func() {
		defer func() {
			if err, ok := recover().(error); !ok || !errors.Is(err, ErrNoStepper) {
				t.Errorf("NewGroup(nil): %v", err)
			}
		}()
		NewGroup(nil)
	}()
}

// A Snapshot that nothing was put into is one of a process without memory.
func TestZeroSnapshot(t *testing.T) {
	for name, s := range map[string]*procstate.Snapshot{"zero": {}, "of nil": procstate.NewSnapshot(nil, 0, "", nil)} {
		t.Run(name, func(t *testing.T) {
			if _, ok := s.ReadWord(8); ok {
				t.Error("it has memory")
			}
			w := NewWalker(s, nil, nil)
			if a := procstate.HostArch(); a != nil && w.Arch() != a {
				t.Errorf("its architecture is %v", w.Arch())
			}
			for range 2 { // before Reset, and after it
				if frames, err := w.WalkStack(nil, procstate.DefaultThread); len(frames) != 1 || !errors.Is(err, NoMapping) {
					t.Errorf("%d frames, %v", len(frames), err)
				}
				s.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: 0x1000, Data: []byte{7, 0, 0, 0, 0, 0, 0, 0, 1}}})
			}
			if v, ok := s.ReadWord(0x1000); !ok || v != 7 {
				t.Errorf("%d, %t", v, ok)
			}
		})
	}
}

func zero[T any]() *T { return new(T) }

// What no constructor has made holds nothing.
func TestZeroValues(t *testing.T) {
	for name, ps := range map[string]procstate.ProcessState{
		"Capture": &procstate.Capture{}, "Core": &procstate.Core{}, "ProcDebug": &procstate.ProcDebug{}, "ProcSelf": &procstate.ProcSelf{},
	} {
		t.Run(name, func(t *testing.T) {
			w := NewWalker(ps, nil, nil)
			var f, out Frame
			if frames, err := w.WalkStack(nil, procstate.DefaultThread); len(frames) > 0 || err == nil {
				t.Errorf("%d frames, %v", len(frames), err)
			}
			if err := w.InitialFrame(procstate.DefaultThread, &f); err == nil {
				t.Error("it has a frame")
			}
			if _, err := w.WalkFrom(nil, &f); err == nil {
				t.Error("a walk from nowhere is whole")
			}
			if _, err := w.Step(&f, &out); err == nil {
				t.Error("a step from nowhere")
			}
			if _, err := w.WalkPCs(nil, &procstate.Regs{}); err == nil {
				t.Error("a walk from no registers is whole")
			}
			if w.BeginsStack(1<<12) || w.MappingAt(1) != nil {
				t.Error("it knows something")
			}
			w.Name(&f)
			w.Library(&f)
		})
	}
	var g AddressRangeGroup
	if _, ok := g.StepperFor(1, nil); ok || len(g.Steppers()) > 0 {
		t.Error("a group of nothing has a stepper")
	}
	g.LibraryChanged(&Walker{}, procstate.Library{}, LibraryChange(0))
	var tree CallTree
	var f2 Frame
	if tree.Root() == nil {
		t.Error("a tree without a root")
	}
	tree.Visit(func(*CallNode, int) {})
	tree.Add(Walk{})
	if n := tree.Add(Walk{Frames: []Frame{f2, f2}}); n.Count != 1 || n.Parent().Parent() != tree.Root() {
		t.Error("a tree without a key does not keep frames")
	}
	for _, key := range []FrameKey{ByAddress, ByLibraryAddress, ByFunction, ByLine} {
		if n := NewCallTree(key).Add(Walk{Frames: []Frame{f2}}); n.Walker != nil || n.Count != 1 {
			t.Errorf("a walk of no Walker: %+v", n)
		}
	}
	testenv.KnowsNothing(t, zero[CallNode], nil)
	var set WalkerSet
	if w, err := set.WalkStacks(); len(w) > 0 || err != nil || len(set.Walkers()) > 0 {
		t.Errorf("%d walks, %v", len(w), err)
	}
	set.Add(nil)
	if w, err := set.WalkStacks(); len(w) > 0 || err != nil {
		t.Errorf("%d walks of no Walker, %v", len(w), err)
	}
	none := NewWalker(nil, nil, nil)
	set.Add(none)
	if w, err := set.WalkStacks(); len(w) > 0 || !errors.Is(err, ErrNoProcess) {
		t.Errorf("%d walks of no process, %v", len(w), err)
	}
	set.Remove(none)
	set.Remove(&Walker{})
	testenv.KnowsNothing(t, zero[Memo], nil)
	testenv.KnowsNothing(t, zero[Rule], []string{"CFA", "CFAIs", "Jumps", "Raised", "SavesNone", "TakenOff"}, procstate.AMD64)
	testenv.KnowsNothing(t, zero[Row], nil)
	testenv.KnowsNothing(t, zero[Table], nil)
	if r := NewTable(nil).Rule(0); r.Reason() == 0 {
		t.Error("the table of nil has a rule")
	}
	for _, tables := range []*Tables{{}, NewTables()} {
		if _, _, _, err := tables.For(&procstate.Image{}).Row(1); err == nil {
			t.Error("the table of no file has a row")
		}
	}
	_, _, _ = Reason(200).Error(), Reason(200).Help(), Verdict(200).String()
}
