package steppers

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// Every part of a Walker may be anybody's: whatever they all answer, walks end, and nothing panics but what panics of
// theirs, with what they panic with; and when they answer rightly again, walks are right again.
func TestPartsOfOnesOwn(t *testing.T) {
	names := symbols.New(symbols.Options{DebugDirs: []string{}})
	defer names.Close()
	for _, name := range []string{"depth30", "gocgoarm64"} {
		f, snap := loadStacks(t, name)
		var images []*procstate.Image
		for _, l := range snap.Libraries().Libraries() {
			images = append(images, l.Image)
		}
		images = append(images, new(procstate.Image))
		shared := allSteppers() // by all Walkers
		for seed := range uint64(60) {
			s := &f.Stacks[seed%uint64(len(f.Stacks))]
			regs := s.Registers()
			snap.Reset(1, &regs, s.Regions)
			want, wantEnd := unwind.NewWalker(snap, allSteppers(), nil).WalkStack(nil, 1)
			p := &steptest.Nonsense{ProcessState: snap, Rand: rand.New(rand.NewPCG(seed, 9)), Rate: []int{3, 30, 300, 1000}[seed/2%4], Panics: seed%2 > 0, Images: images}
			group := &steptest.NonsenseGroup{StepperGroup: shared, P: p}
			lookup := &steptest.NonsenseNames{P: p}
			var w *unwind.Walker
			done := time.AfterFunc(time.Minute, func() {
				debug.SetTraceback("all")
				panic(fmt.Sprintf("seed %d does not end", seed))
			})
			guarded(t, p, func() {
				lookup.Lookup = names.Process(p)
				if seed%3 == 0 {
					w = unwind.NewWalker(p, shared, lookup)
				} else {
					w = unwind.NewWalker(p, group, lookup)
				}
			})
			if w == nil || w.Arch() != p.ProcessState.Arch() {
				done.Stop()
				continue
			}
			group.W, lookup.W = w, w
			w.MaxFrames = 60
			for range 5 {
				askParts(t, p, w, &regs)
			}
			done.Stop()
			p.Rate = 0
			w.MaxFrames = 0
			got, end := w.WalkStack(nil, 1)
			pcs, pcsEnd := w.WalkPCs(nil, &regs)
			if !slices.EqualFunc(got, want, isSameFrame) || end != wantEnd {
				t.Errorf("%s, seed %d: %d frames (%v) after the lies, %d (%v) without", name, seed, len(got), end, len(want), wantEnd)
			}
			if len(pcs) != len(want) || pcsEnd != wantEnd {
				t.Errorf("%s, seed %d: %d PCs (%v) after the lies, %d (%v) without", name, seed, len(pcs), pcsEnd, len(want), wantEnd)
			}
			if t.Failed() {
				return
			}
		}
	}
}

func isSameFrame(a, b unwind.Frame) bool {
	return a.PC() == b.PC() && a.SP() == b.SP() && a.Flags == b.Flags && a.Stepper == b.Stepper
}

// askParts asks a Walker all that it can be asked.
func askParts(t *testing.T, p *steptest.Nonsense, w *unwind.Walker, regs *procstate.Regs) {
	var frames []unwind.Frame
	tree := unwind.NewCallTree(unwind.ByLine)
	var set unwind.WalkerSet
	set.Add(w)
	for _, ask := range []func(){
		func() { _, _ = w.Threads() },
		func() { frames, _ = w.WalkStack(nil, 1) },
		func() { _, _ = w.WalkPCs(nil, regs) },
		func() {
			var in, out unwind.Frame
			if w.InitialFrame(1, &in) == nil {
				_, _ = w.Step(&in, &out)
			}
		},
		func() {
			for i := range frames {
				w.Name(&frames[i])
				w.Library(&frames[i])
				w.Stepper(&frames[i])
			}
		},
		func() { tree.Add(unwind.Walk{Walker: w, Thread: 1, Frames: frames}) },
		func() { _, _ = set.WalkStacks() },
	} {
		guarded(t, p, ask)
	}
}

// guarded calls f, in which nothing may panic but a Nonsense.
func guarded(t *testing.T, p *steptest.Nonsense, f func()) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil && r != steptest.Fault {
			t.Errorf("%v \n%s", r, debug.Stack())
		}
	}()
	f()
}
