package pypy

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper notes which functions of Python run in the frames of PyPy's interpreter and in those of its compiler's code (see
// unwind.Codes), on amd64, and walks from the latter. Through the interpreter's frames, which are of C, Debug walks.
//
// Each call of a function of Python from the interpreter goes through one of C that tells PyPy's own profiler of
// it: while it runs, the number of the code object is in a register there, which the CFI of what it calls
// restores. No other code object ever has the same number, so that it may be read at leisure whose it is.
type Stepper struct {
	tables *unwind.Tables
	images mcode.PerImage[image]
}

// New makes a Stepper. The tables tell where functions begin; nil are some of its own.
func New(tables *unwind.Tables) *Stepper { return &Stepper{tables: tables} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "pypy" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// image returns what is known of a file.
func (s *Stepper) image(im *procstate.Image) *image {
	return s.images.Known(im, func(im *procstate.Image) image { return find(im, vmread.MadeTables(&s.tables)) })
}

// entering returns the code around a link-time address that runs a function of Python, nil where that is none.
func (p *image) entering(vaddr uint64) *entering {
	for i := range p.enters {
		if p.layout != nil && p.enters[i].Holds(vaddr) {
			return &p.enters[i]
		}
	}
	return nil
}

// CallerFrame implements unwind.FrameStepper.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	pc := in.LookupPC()
	m := w.MappingAt(pc)
	if m == nil || w.Arch() != procstate.AMD64 || m.Image == nil && procstate.HasFile(m.Path) {
		return unwind.NotMe, nil
	}
	if m.Image != nil {
		e := s.image(m.Image).entering(pc - m.Bias)
		if e == nil || in.NonCall() { // that is just being called, or has returned: it belongs to the caller
			return unwind.NotMe, nil
		}
		number, ok := in.Regs.Value(e.number)
		vm := s.machine(w)
		if !ok || vm == nil || vm.module.Image != m.Image || vm.module.Bias != m.Bias || vm.isShown(w, in) {
			return unwind.NotMe, nil
		}
		in.Code = vm.interpreted(w.Codes(), number)
		return unwind.NotMe, nil
	}
	vm := s.machine(w)
	if vm == nil {
		return unwind.NotMe, nil
	}
	p, ok := vm.place(w, m, in)
	if !ok {
		return unwind.NotMe, nil
	}
	v := vm.leave(p, in, out)
	if v == unwind.Success && !p.isHelper {
		in.Code = s.compiled(w, vm, in, out)
	}
	return v, nil
}

// compiled returns the number in codes of the functions that run in a frame of compiled code with a caller; 0 where it is
// not known.
//
// The outermost is the caller's innermost, too, where that is the interpreter, which has begun a function and goes on
// with it in compiled code, and where it is code that has begun to inline a function, and found it compiled: it is shown
// here alone. Where an inlined function calls itself in the latter way, nobody can tell these apart, and it is shown once.
func (s *Stepper) compiled(w *unwind.Walker, vm *machine, in, caller *unwind.Frame) uint32 {
	b := vm.block(in.LookupPC())
	if b == nil {
		return 0
	}
	calls, place := b.calls(vm.calls[:0], in.LookupPC())
	vm.calls = calls
	isWithout := place > 0 && vm.isShown(w, in)
	if isWithout {
		calls = calls[:len(calls)-1]
	}
	if len(calls) == 0 {
		return 0
	}
	if m := w.MappingAt(caller.LookupPC()); m != nil && m.Image == vm.module.Image {
		if sp, ok := s.begunBy(w, vm, m, caller, calls[0]); ok {
			vm.shownIn, vm.shownAt = w.Walks(), sp
		}
	} else if outer := vm.block(caller.LookupPC()); outer != nil {
		is, inlined := outer.calls(vm.outer[:0], caller.LookupPC())
		if vm.outer = is; inlined > 0 && is[len(is)-1] == calls[0] {
			vm.shownIn, vm.shownAt = w.Walks(), caller.SP()
		}
	}
	return vm.inlined(w.Codes(), calls, code{block: b.serial, place: place, isWithout: isWithout}, b.Start)
}

// begunBy returns SP of the interpreter's frame for a function that it has begun, and goes on with in the compiled code
// that it has called: the frames up to there are of functions that do not call each other again, as they do
// where it goes on by other means, and calls others.
func (s *Stepper) begunBy(w *unwind.Walker, vm *machine, m *procstate.Mapping, caller *unwind.Frame, number uint64) (sp uint64, ok bool) {
	const most = 8
	table := vmread.MadeTables(&s.tables).For(m.Image)
	vm.ahead[0] = *caller
	entry, _, ok := table.FunctionAt(caller.LookupPC() - m.Bias)
	if !ok {
		return 0, false
	}
	for i := range most {
		in, out := &vm.ahead[i%2], &vm.ahead[(i+1)%2]
		if e := vm.entering(in.LookupPC() - m.Bias); e != nil {
			is, known := in.Regs.Value(e.number)
			return in.SP(), known && is == number
		}
		*out = unwind.Frame{}
		if v, _ := table.Rule(in.LookupPC()-m.Bias).CallerFrame(w, in, out); v != unwind.Success || !m.Contains(out.LookupPC()) {
			return 0, false
		}
		if start, _, found := table.FunctionAt(out.LookupPC() - m.Bias); !found || start == entry {
			return 0, false
		}
	}
	return 0, false
}

// isShown reports whether the innermost function of a frame is shown with compiled code that it has called, which goes on with it.
func (vm *machine) isShown(w *unwind.Walker, in *unwind.Frame) bool {
	return vm.shownIn == w.Walks() && vm.shownAt == in.SP()
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, pc uint64, interrupted bool) (*unwind.Rule, bool) {
	if m == nil {
		return unwind.RuleNotMe, true
	}
	return unwind.RuleNotMe, m.Image != nil && s.image(m.Image).entering(mcode.LookupPC(pc, interrupted)-m.Bias) == nil
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }
