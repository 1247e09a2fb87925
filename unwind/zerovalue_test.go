package unwind

import (
	"errors"
	"testing"

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
