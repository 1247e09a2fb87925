package jsc

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper notes which functions of JavaScript run in frames of JavaScriptCore, the virtual machine of
// Bun (see unwind.Codes), on x86-64 and AArch64, in programs of Bun from 1.2.21 on (1.4.5 is the last that was tried); and it walks
// from these frames. They are those of its interpreter (LLInt), which is a part of the program's code, and of what its compilers
// have made (Baseline, DFG, FTL), in one range of memory for that alone.
//
// Every frame has a frame pointer. Above the return address it has what it runs, a CodeBlock, and the
// function that was called:
//
//	 0  the caller's frame pointer
//	 8  return address
//	16  CodeBlock
//	24  function
//	32  number of arguments, and where in the CodeBlock the call is (32 bits each)
//
// (Source/JavaScriptCore/interpreter/CallFrame.h). A frame has a name when these fit together: the
// CodeBlock must be that of the function, and the code that it tells of must hold the PC. What is called
// how is read from the process, in a recording some tenths of a second later.
type Stepper struct {
	images mcode.PerImage[image]
	within uint64 // Walker.Walks in which there was a frame of JavaScript
	buf    [lookBefore + lookBehind]byte
}

// New makes a Stepper.
func New() *Stepper { return &Stepper{} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "jsc" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// image returns what is known of a file.
func (s *Stepper) image(im *procstate.Image) *image { return s.images.Known(im, find) }

// CallerFrame implements unwind.FrameStepper.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	pc := in.LookupPC()
	m := w.MappingAt(pc)
	if m == nil || archOf(w.Arch()) == nil {
		return unwind.NotMe, nil
	}
	interprets := m.Image != nil
	if interprets && !s.image(m.Image).mayInterpret(pc-m.Bias) || !interprets && procstate.HasFile(m.Path) {
		return unwind.NotMe, nil
	}
	vm := s.machine(w)
	if vm == nil || interprets && !vm.interpreter.Holds(pc) || !interprets && !vm.made.Holds(pc) {
		return unwind.NotMe, nil
	}
	at := framePoint{pc: pc, interprets: interprets, interrupted: in.Flags&unwind.Interrupted != 0}
	at.calls = s.within == w.Walks() && !at.interrupted
	fp, fpKnown := in.Regs.Value(w.Arch().FP)
	at.frame = fp
	if at.interrupted {
		before := mcode.Read(w, m, pc-lookBefore, s.buf[:])
		n := min(lookBefore, len(before))
		at.find(vm.arch, before[:n], before[n:], in.SP())
	}
	if !fpKnown || at.frame+8 < in.SP() || at.frame%8 != 0 {
		return unwind.NotMe, nil
	}
	known := vm.knows(w, in, &at)
	for _, state := range [...]frameState{jumps, popped} {
		if known || !at.interrupted || interprets || at.enters {
			break
		}
		try := at
		try.state, try.frame, try.enters = state, vm.arch.frameOf(in.SP()), true
		if state == popped {
			try.frame = in.SP() - jscCodeBlock
		}
		if known = vm.knows(w, in, &try); known {
			at = try
		}
	}
	if !known {
		if !interprets && vm.stubCaller(w, in, out, &at) {
			if at.isPart {
				s.within = w.Walks()
			}
			return unwind.Success, nil
		}
		if !interprets {
			vm.noteRegExp(w, in)
		}
		return unwind.NotMe, nil
	}
	v, err := at.callerFrame(w, in, out)
	s.within = w.Walks()
	return v, err
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, pc uint64, interrupted bool) (*unwind.Rule, bool) {
	if m == nil {
		return unwind.RuleNotMe, true
	}
	return unwind.RuleNotMe, m.Image != nil && !s.image(m.Image).mayInterpret(mcode.LookupPC(pc, interrupted)-m.Bias)
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }
