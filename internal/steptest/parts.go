package steptest

import (
	"math"
	"slices"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// NonsenseGroup is a StepperGroup some of whose answers are nonsense, as P's are: no stepper, one of others, or one that
// was tried, for ever, and steppers that answer anything or walk themselves.
type NonsenseGroup struct {
	unwind.StepperGroup
	P *Nonsense
	W *unwind.Walker // that has the group
}

// StepperFor implements unwind.StepperGroup.
func (g *NonsenseGroup) StepperFor(addr uint64, lastTried unwind.FrameStepper) (unwind.FrameStepper, bool) {
	if !g.P.lies() {
		return g.StepperGroup.StepperFor(addr, lastTried)
	}
	all := g.StepperGroup.Steppers()
	switch g.P.Rand.IntN(6) {
	case 0:
		return nil, true
	case 1:
		return nil, false
	case 2:
		return lastTried, true
	case 3:
		return all[g.P.Rand.IntN(len(all))], false
	case 4:
		return all[g.P.Rand.IntN(len(all))], true
	}
	return &nonsenseStepper{g}, true
}

// Steppers implements unwind.StepperGroup.
func (g *NonsenseGroup) Steppers() []unwind.FrameStepper {
	all := g.StepperGroup.Steppers()
	if !g.P.lies() {
		return all
	}
	switch g.P.Rand.IntN(4) {
	case 0:
		return nil
	case 1:
		return make([]unwind.FrameStepper, 1000)
	case 2:
		return slices.Concat(make([]unwind.FrameStepper, 250), all)
	}
	all = slices.Clone(all)
	slices.Reverse(all)
	return all
}

// nonsenseStepper is a stepper of no group.
type nonsenseStepper struct{ g *NonsenseGroup }

func (s *nonsenseStepper) Name() string              { return s.g.P.text() }
func (s *nonsenseStepper) Priority() unwind.Priority { return unwind.Priority(s.g.P.number()) }

func (s *nonsenseStepper) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	p := s.g.P
	for _, f := range [...]*unwind.Frame{out, in} {
		if p.Rand.IntN(3) == 0 {
			*f = unwind.NewFrame(procstate.AMD64, p.number(), p.number(), p.number())
			f.Flags, f.Stepper = unwind.FrameFlags(p.Rand.Uint32()), unwind.StepperID(p.Rand.Uint32())
			f.Code = w.Codes().Add(p.number(), make([]unwind.CodeLine, p.Rand.IntN(3)), uint32(p.Rand.IntN(4)))
		}
	}
	switch p.Rand.IntN(8) {
	case 0:
		_, _ = w.WalkStack(nil, p.tid())
	case 1:
		_, _ = w.WalkFrom(nil, in)
	case 2:
		_, _ = w.WalkPCs(nil, &in.Regs)
	case 3:
		_, _ = w.Step(in, out)
	case 4:
		w.Keep(s, w)
	}
	return unwind.Verdict(p.Rand.IntN(7)), p.error()
}

func (p *Nonsense) tid() procstate.ThreadID { return procstate.ThreadID(p.Rand.IntN(3) - 1) }

// text is a name: none, or a megabyte.
func (p *Nonsense) text() string {
	return [...]string{"", "\x00\xff\n", "f", strings.Repeat("f", 1<<20)}[p.Rand.IntN(4)]
}

// NonsenseNames is a SymbolLookup some of whose answers are nonsense, as P's are.
type NonsenseNames struct {
	*symbols.Lookup
	P *Nonsense
	W *unwind.Walker // whose it is
}

// SymbolAt implements unwind.SymbolLookup.
func (n *NonsenseNames) SymbolAt(addr uint64) (unwind.Symbol, bool) {
	if !n.P.lies() {
		return n.Lookup.SymbolAt(addr)
	}
	if n.P.Rand.IntN(4) == 0 {
		_, _ = n.W.WalkStack(nil, n.P.tid())
	}
	return unwind.Symbol{Name: n.P.text(), Offset: n.P.number(), Object: []int{1}}, n.P.Rand.IntN(4) > 0
}

// Lines is as that of symbols.Lookup.
func (n *NonsenseNames) Lines(dst []symbols.Line, addr uint64) []symbols.Line {
	if !n.P.lies() {
		return n.Lookup.Lines(dst, addr)
	}
	return [...][]symbols.Line{nil, dst, dst[:len(dst)/2], make([]symbols.Line, 1000), append(dst, symbols.Line{Function: n.P.text(), Line: math.MinInt})}[n.P.Rand.IntN(5)]
}

// SourceLine implements unwind.LineLookup.
func (n *NonsenseNames) SourceLine(addr uint64) (string, int, bool) {
	if !n.P.lies() {
		return n.Lookup.SourceLine(addr)
	}
	return n.P.text(), n.P.length(1), n.P.Rand.IntN(4) > 0
}

// Symbolizer is what reads variables.
func (n *NonsenseNames) Symbolizer() *symbols.Symbolizer {
	if n.P.lies() {
		return nil
	}
	return n.Lookup.Symbolizer()
}
