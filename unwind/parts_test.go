package unwind

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// fickle is a chain that does something else first when it is asked for a rule.
type fickle struct {
	chain
	act func(w *Walker) // nil for nothing
	nil bool            // it gives no rule, and says that it does
}

func (f *fickle) RuleAt(w *Walker, m *procstate.Mapping, pc uint64, interrupted bool) (*Rule, bool) {
	if f.act != nil {
		f.act(w)
	}
	if f.nil {
		return nil, true
	}
	return f.chain.RuleAt(w, m, pc, interrupted)
}

// A stepper may do anything when it is asked for a rule: the walk ends, and those after it are right.
func TestFickleRules(t *testing.T) {
	const stack, frames, end = 0x8000, 8, 0x2008
	words := make([]byte, 0, 16*frames)
	for i := range uint64(frames) {
		ra := 0x1108 + 16*i
		if i == frames-1 {
			ra = end
		}
		words = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(words, 0x100+i), ra)
	}
	var space procstate.AddressSpace
	space.Insert(&procstate.Mapping{Start: 0x1000, End: 0x3000, Image: testImage(t, procstate.AMD64, nil, 0, 0)})
	state := procstate.NewSnapshot(procstate.AMD64, 1, "", &space)
	var regs procstate.Regs
	regs.Set(procstate.AMD64.PC, 0x1100)
	regs.Set(procstate.AMD64.SP, stack)
	regs.Set(procstate.AMD64.FP, 0)
	state.Reset(1, &regs, []procstate.Region{{Addr: stack, Data: words}})
	for name, act := range map[string]func(w *Walker){
		"panics": func(*Walker) { panic("its own") },
		"walks": func(w *Walker) {
			_, pcs := w.WalkPCs(nil, &regs)
			_, stack := w.WalkStack(nil, 1)
			_, _, again := w.WalkPCsAgain(nil, &regs, new(Memo), 0)
			for _, err := range []error{pcs, stack, again, w.InitialFrame(1, new(Frame))} {
				if !errors.Is(err, ErrWalking) {
					t.Errorf("in a walk: %v", err)
				}
			}
		},
		"walks with another": func(w *Walker) { _, _ = NewWalker(state, NewGroup(), nil).WalkStack(nil, 1) },
		"adds a stepper":     func(w *Walker) { _ = w.AddStepper(&fakeStepper{priority: PriorityBottom}) },
		"adds a range":       func(w *Walker) { _ = w.StepperGroup().AddStepperRange(&fakeStepper{}, 0x1000, 0x2000) },
		"gives none":         nil,
	} {
		t.Run(name, func(t *testing.T) {
			f := &fickle{chain: chain{PlainRule(procstate.AMD64, 16, -16, false), end}, act: act, nil: act == nil}
			w := NewWalker(state, NewGroup(f), nil)
			var memo Memo
			for range 3 {
				func() {
					defer func() {
						if r := recover(); r != nil && r != "its own" {
							t.Error(r)
						}
					}()
					pcs, _, err := w.WalkPCsAgain(nil, &regs, &memo, 0)
					if len(pcs) != frames+1 || err != nil {
						t.Errorf("%d frames, %v", len(pcs), err)
					}
				}()
				f.act, f.nil = nil, false
			}
			if pcs, err := w.WalkPCs(nil, &regs); len(pcs) != frames+1 || err != nil {
				t.Errorf("afterwards: %d frames, %v", len(pcs), err)
			}
		})
	}
}

// A Memo of a walk that has panicked is empty: what has changed before that walk, it does not know.
func TestMemoOfPanic(t *testing.T) {
	var m Memo
	w := &Walker{libs: &procstate.AddressSpace{}}
	rules := new(ruledFrames)
	m.begin(w, rules, 0)
	m.keep([]memoFrame{{1, 2, 3}}, true)
	if m.begin(w, rules, 0); m.next != 1 {
		t.Fatalf("%d frames are known", m.next)
	}
	if m.begin(w, rules, 0); m.next != 0 {
		t.Errorf("%d frames are known, of a walk before the last", m.next)
	}
}

// manySteppers is a group of more steppers than a StepperID can tell, of which the last one knows all frames.
type manySteppers struct {
	*AddressRangeGroup
	all []FrameStepper
}

func (g *manySteppers) StepperFor(uint64, FrameStepper) (FrameStepper, bool) {
	return g.all[len(g.all)-1], true
}
func (g *manySteppers) Steppers() []FrameStepper { return g.all }

// Of steppers beyond those that a StepperID can tell it is not said which it was.
func TestManySteppers(t *testing.T) {
	for _, n := range []int{1, 255, 256, 257, 300} {
		g := &manySteppers{NewGroup(), nil}
		for i := range n - 1 {
			g.all = append(g.all, &fakeStepper{name: fmt.Sprint(i)})
		}
		g.all = append(g.all, countdown(3, StackBottom, nil))
		w := NewWalker(snapshot(0x1000, 0x8000, 1), g, nil)
		frames, err := w.WalkStack(nil, procstate.DefaultThread)
		if len(frames) != 4 || err != nil {
			t.Fatalf("%d: %d frames, %v", n, len(frames), err)
		}
		if s := w.Stepper(&frames[1]); n <= maxSteppers && s != g.all[n-1] || n > maxSteppers && s != nil {
			t.Errorf("%d: %v", n, s)
		}
	}
}

// wrongMapping is a LibraryState that has a mapping for any address.
type wrongMapping struct {
	procstate.LibraryState
	m procstate.Mapping
}

func (l *wrongMapping) MappingAt(uint64) *procstate.Mapping { return &l.m }

// withLibraries is a process with libraries of one's own.
type withLibraries struct {
	procstate.ProcessState
	libs procstate.LibraryState
}

func (p *withLibraries) Libraries() procstate.LibraryState { return p.libs }

// A mapping that does not hold the address counts as none, also for what is told of a frame.
func TestWrongMapping(t *testing.T) {
	for _, bounds := range [][2]uint64{{0x2000, 0x3000}, {0, 0}, {0x1000, 0x1000}, {0xf000, 0x2000}, {^uint64(0), 0x2000}} {
		libs := &wrongMapping{m: procstate.Mapping{Start: bounds[0], End: bounds[1], Path: procstate.UprobesMapping}}
		w := NewWalker(&withLibraries{snapshot(0x1800, 0x8000, 1), libs}, nil, nil)
		frames, err := w.WalkStack(nil, procstate.DefaultThread)
		if len(frames) != 1 || err != NoMapping {
			t.Fatalf("%#x: %d frames, %v", bounds, len(frames), err)
		}
		if lib, _, ok := w.Library(&frames[0]); ok {
			t.Errorf("%#x: it is in %q", bounds, lib.Path)
		}
	}
}

// Steppers that a group could not tell apart it does not take.
func TestGroupRefusesUncomparable(t *testing.T) {
	g := NewGroup()
	for range 2 {
		if err := g.AddStepper(uncomparable{}); err == nil {
			t.Error("it takes a stepper that cannot be compared")
		}
	}
	if len(g.Steppers()) != 0 {
		t.Errorf("%d steppers", len(g.Steppers()))
	}
}

type uncomparable struct {
	unruled
	_ []int
}
