package steppers

import (
	"math/rand/v2"
	"testing"

	"github.com/swbpf/swbpf/steppers/bash"
	"github.com/swbpf/swbpf/steppers/beam"
	"github.com/swbpf/swbpf/steppers/chez"
	"github.com/swbpf/swbpf/steppers/hotspot"
	"github.com/swbpf/swbpf/steppers/jsc"
	"github.com/swbpf/swbpf/steppers/lua"
	"github.com/swbpf/swbpf/steppers/luajit"
	"github.com/swbpf/swbpf/steppers/perl"
	"github.com/swbpf/swbpf/steppers/php"
	"github.com/swbpf/swbpf/steppers/pypy"
	"github.com/swbpf/swbpf/steppers/python"
	"github.com/swbpf/swbpf/steppers/ruby"
	"github.com/swbpf/swbpf/steppers/spidermonkey"
	"github.com/swbpf/swbpf/steppers/v8"
	"github.com/swbpf/swbpf/unwind"
)

// watched is a stepper that is seen to leave the caller's frame clear when the frame is none
// of its own: the next stepper sets what it knows, and all else would count as known, too.
type watched struct {
	unwind.FrameStepper
	t     *testing.T
	notMe *int
}

func (s *watched) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	v, err := s.FrameStepper.CallerFrame(w, in, out)
	if v == unwind.NotMe {
		if *s.notMe++; *out != (unwind.Frame{}) {
			s.t.Errorf("%s: not me at %#x, and the caller is at %#x, %v", s.Name(), in.PC(), out.PC(), out.PCLocation)
			*out = unwind.Frame{}
		}
	}
	return v, err
}

func TestNotMeLeavesOutClear(t *testing.T) {
	for _, name := range recordedStacks {
		t.Run(name, func(t *testing.T) {
			notMe := 0
			group := unwind.NewGroup()
			for _, s := range []unwind.FrameStepper{NewBottom(), NewDynamic(nil), NewSigHandler(), NewGo(), python.New(unwind.NewTables()), pypy.New(unwind.NewTables()), ruby.New(unwind.NewTables()), php.New(unwind.NewTables()), perl.New(unwind.NewTables()), lua.New(unwind.NewTables()), bash.New(unwind.NewTables()), luajit.New(unwind.NewTables()), v8.New(), jsc.New(), spidermonkey.New(unwind.NewTables()), beam.New(), chez.New(), NewDebug(unwind.NewTables()),
				NewJIT(), hotspot.New(NewFrameAnalyzer()), NewFrameFunc(nil), NewAnalysis(), NewBadCall(), NewWanderer(nil, nil), NewDyninstInstr(), NewInstFrame()} {
				if s.Priority() == unwind.PriorityDebug && s.Name() == "debug" && name != "go" {
					continue // which knows nearly all of these frames
				}
				if err := group.AddStepper(&watched{s, t, &notMe}); err != nil {
					t.Fatal(err)
				}
			}
			f, snap := loadStacks(t, name)
			w := unwind.NewWalker(snap, group, nil)
			w.MaxFrames = 60
			rng := rand.New(rand.NewPCG(5, 6))
			for range 400 {
				s := &f.Stacks[rng.IntN(len(f.Stacks))]
				regs := s.Registers()
				snap.Reset(1, &regs, damage(rng, s.Regions))
				w.WalkStack(nil, 1)
			}
			if notMe < 1000 {
				t.Errorf("%d answers", notMe)
			}
		})
	}
}
