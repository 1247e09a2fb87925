package chez

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper walks from code that the compiler of Chez Scheme has made for x86-64, Racket's too, and notes which
// functions that is of (see unwind.Codes). Scheme has a stack of its own, in the heap, which grows upward:
// R13 has the address of the frame that runs, of which the first word is the return address, and R14 that of
// the thread's context. Functions are jumped to, and before each return address there is a header with the
// size of the frame that goes on there and the way to its code object (IMPLEMENTATION.md and s/cmacros.ss,
// rp-header, in Chez Scheme's sources). The stack is in segments: at the beginning of each the return address
// is that of the code for underflow, and what goes on there is a continuation, an object with the segment
// before. The first has none; C's stack, on which Scheme was called, goes on where RSP is all the time.
//
// Where a function was interrupted, or has called C, its code tells how far R13 is from its frame: see
// path. The kernel side copies the segment that runs (see [Stepper.Lacked]). Continuations do not change but
// by garbage collection, and are read from the process as it is.
type Stepper struct {
	images mcode.PerImage[image]
}

// New makes a Stepper.
func New() *Stepper { return &Stepper{} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "chez" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// CallerFrame implements unwind.FrameStepper. What is no code of Chez Scheme is NotMe, and so is what does not
// show its frame.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image != nil || w.Arch() != procstate.AMD64 {
		return unwind.NotMe, nil
	}
	vm := s.machine(w)
	if vm == nil {
		return unwind.NotMe, nil
	}
	sp := in.SP()
	var frame uint64
	if p, ok := vm.pointAt(in.PC()); ok && in.Flags&unwind.Interrupted == 0 {
		in.Code = vm.codeOf(w, in.PC(), p.code)
		if vm.isInvoke(p.code) {
			return vm.native(w, sp, in, out)
		}
		v, ok := in.Regs.Value(chezFrame)
		if !ok {
			return unwind.Failed, unwind.NoRegister
		}
		frame = v - p.size
	} else {
		vm.noteContext(in)
		at, ok := vm.follow(in.PC(), sp)
		if !ok {
			return unwind.NotMe, nil
		}
		if code, ok := vm.objectAt(in.PC(), at.code); ok {
			in.Code = vm.codeOf(w, in.PC(), code)
		}
		if frame, ok = vm.frameOf(in, at); !ok {
			return unwind.Failed, unwind.ReadFailure(w.ProcessState(), vm.thread)
		}
		sp += uint64(int64(at.sp))
	}
	ra, ok := vm.stackWord(frame)
	if !ok {
		vm.lacks = true
		return unwind.Failed, unwind.ReadFailure(w.ProcessState(), frame)
	}
	p, ok := vm.pointAt(ra)
	if !ok {
		return unwind.Failed, unwind.BadPC
	}
	if p.size == 0 { // underflow
		ra, frame, ok = vm.goOn(frame)
		switch {
		case !ok:
			return unwind.Failed, unwind.MemoryUnreadable
		case ra == 0:
			return vm.native(w, sp, in, out)
		}
	}
	a := w.Arch()
	out.SetPC(a, ra)
	out.SetSP(a, sp)
	out.Regs.Set(chezFrame, frame)
	if v, ok := in.Regs.Value(chezContext); ok {
		out.Regs.Set(chezContext, v)
	}
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	out.Flags |= unwind.StackSwitched
	return unwind.Success, nil
}

// frameOf returns the address of a frame by its place.
func (vm *machine) frameOf(in *unwind.Frame, at place) (frame uint64, ok bool) {
	if at.kept == 0 {
		frame, ok = in.Regs.Value(chezFrame)
	} else if frame, ok = in.Regs.Value(chezContext); ok {
		if frame, ok = vm.Word(frame + uint64(at.kept)); !ok {
			vm.lacks = true
		}
	}
	return frame + uint64(int64(at.frame)), ok && frame%8 == 0
}

// native walks to the function of C that has called Scheme, which is S_call_help: it has called
// S_generic_invoke, which jumps to code that aligns the stack and jumps on.
func (vm *machine) native(w *unwind.Walker, sp uint64, in, out *unwind.Frame) (unwind.Verdict, error) {
	found := uint64(0)
	for _, at := range [...]uint64{sp, sp + 8} {
		ra, ok := vm.Word(at)
		if !ok {
			return unwind.Failed, unwind.ReadFailure(w.ProcessState(), at)
		}
		if vm.callsScheme(ra) {
			if found != 0 {
				return unwind.Failed, unwind.BadPC // one of them was there before
			}
			found = at
		}
	}
	if found == 0 {
		return unwind.Failed, unwind.BadPC
	}
	ra, _ := vm.Word(found)
	a := w.Arch()
	out.SetPC(a, ra)
	out.SetSP(a, found+8)
	out.PCLocation = unwind.InMemory(found)
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	vm.link, vm.isLinked = 0, false
	return unwind.Success, nil
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, _ uint64, _ bool) (*unwind.Rule, bool) {
	return unwind.RuleNotMe, m == nil || m.Image != nil
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }
