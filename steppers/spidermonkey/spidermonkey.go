package spidermonkey

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper notes which functions of JavaScript run in frames of code that SpiderMonkey has made (see unwind.Codes), the
// virtual machine of Firefox, of Thunderbird, and of what has libmozjs, as GNOME's gjs; and it walks from these frames, on x86-64 and
// AArch64: those of its baseline interpreter, its baseline compiler and of the optimising one (Ion). mozjs 102, 128 and 140 and Firefox 153 were tried.
//
// Above its return address a frame has what it runs:
//
//	 0  the caller's frame pointer
//	 8  return address
//	16  descriptor: the kind of the caller's frame
//	24  token: the function, or script, that was called
//
// (js/src/jit/JitFrames.h). In mozjs 102 only frames of the baseline interpreter and compiler have a frame pointer, and the
// descriptor has the size of the caller's frame. A frame has a name when these fit together: the token must be of a
// script whose code holds the PC, or that the frame of the interpreter has as well. What is called how is
// read from the process, in a recording some tenths of a second later.
type Stepper struct {
	tables *unwind.Tables
	images mcode.PerImage[image]
	caller caller
	inner  innermost
	buf    [codeLook]byte
}

// caller is the frame that the last one of the virtual machine has returned to, where that has told of it.
type caller struct {
	walk   uint64 // Walker.Walks
	pc, sp uint64
	frame  uint64 // where its frame pointer is saved, or would be; 0: not known
	kind   frameType
}

// innermost is the last script that a walk has met in code that was made.
type innermost struct {
	walk   uint64
	script *scriptInfo
}

// New makes a Stepper. The tables tell where functions begin; nil are some of its own.
func New(tables *unwind.Tables) *Stepper { return &Stepper{tables: tables} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "spidermonkey" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// CallerFrame implements unwind.FrameStepper.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil || archOf(w.Arch()) == nil {
		return unwind.NotMe, nil
	}
	if m.Image != nil {
		s.inInterpreter(w, m, in)
		return unwind.NotMe, nil
	}
	if procstate.HasFile(m.Path) {
		return unwind.NotMe, nil
	}
	vm := s.machine(w)
	if vm == nil {
		return unwind.NotMe, nil
	}
	at := madeFrame{vm: vm, w: w, m: m, in: in, interrupted: in.Flags&unwind.Interrupted != 0, buf: s.buf[:]}
	if c := &s.caller; c.walk == w.Walks() && c.pc == in.PC() && in.SP()-c.sp <= smPopped && !at.interrupted {
		at.frame, at.kind = c.frame, c.kind
	}
	v, next := at.callerFrame(out)
	if next.walk = w.Walks(); v == unwind.NotMe {
		s.caller = next
		*out = unwind.Frame{}
		return v, nil
	}
	next.pc, next.sp = out.PC(), out.SP()
	s.caller = next
	if at.script != nil {
		s.inner = innermost{w.Walks(), at.script}
	}
	return v, at.err
}

// inInterpreter notes what a frame runs that is one of js::Interpret.
func (s *Stepper) inInterpreter(w *unwind.Walker, m *procstate.Mapping, in *unwind.Frame) {
	p := s.images.Known(m.Image, find)
	if !p.is || p.searched && !p.interprets(in.LookupPC()-m.Bias) {
		return
	}
	vm := s.machine(w)
	if vm == nil {
		return
	}
	if !p.searched {
		p.searched = true
		p.interpret = vm.findInterpret(vmread.MadeTables(&s.tables).For(m.Image), m.Image, m.Bias)
	}
	if !p.interprets(in.LookupPC() - m.Bias) {
		return
	}
	var inner *scriptInfo
	if s.inner.walk == w.Walks() {
		inner = s.inner.script
	}
	s.interprets(vm, w, m, in, inner)
	s.inner = innermost{}
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, pc uint64, interrupted bool) (*unwind.Rule, bool) {
	if m == nil {
		return unwind.RuleNotMe, true
	}
	if m.Image == nil {
		return unwind.RuleNotMe, false
	}
	p := s.images.Known(m.Image, find)
	return unwind.RuleNotMe, !p.is || p.searched && !p.interprets(mcode.LookupPC(pc, interrupted)-m.Bias)
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }
