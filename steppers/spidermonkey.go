package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// SpiderMonkey notes which functions of JavaScript run in frames of code that SpiderMonkey has made (see unwind.Codes), the
// virtual machine of Firefox, of Thunderbird, and of what has libmozjs, as GNOME's gjs; and it walks from these frames, on x86-64:
// those of its baseline interpreter, its baseline compiler and of the optimising one (Ion). mozjs 102 and Firefox 153 were tried.
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
type SpiderMonkey struct {
	images perImage[smImage]
	caller smCaller
	buf    [smCodeLook]byte
}

// smCaller is the frame that the last one of the virtual machine has returned to, where that has told of it.
type smCaller struct {
	walk   uint64 // Walker.Walks
	pc, sp uint64
	frame  uint64 // where its frame pointer is saved, or would be; 0: not known
	kind   smFrameType
}

// NewSpiderMonkey makes a SpiderMonkey.
func NewSpiderMonkey() *SpiderMonkey { return &SpiderMonkey{} }

// Name implements unwind.FrameStepper.
func (s *SpiderMonkey) Name() string { return "spidermonkey" }

// Priority implements unwind.FrameStepper.
func (s *SpiderMonkey) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// CallerFrame implements unwind.FrameStepper.
func (s *SpiderMonkey) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image != nil || w.Arch() != procstate.AMD64 || procstate.HasFile(m.Path) {
		return unwind.NotMe, nil
	}
	vm := s.machine(w)
	if vm == nil {
		return unwind.NotMe, nil
	}
	at := smAt{vm: vm, w: w, m: m, in: in, interrupted: in.Flags&unwind.Interrupted != 0, buf: s.buf[:]}
	if c := &s.caller; c.walk == w.Walks() && c.pc == in.PC() && c.sp == in.SP() && !at.interrupted {
		at.frame, at.kind = c.frame, c.kind
	}
	v, next := at.callerFrame(out)
	if v == unwind.NotMe {
		*out = unwind.Frame{}
		return v, nil
	}
	next.walk, next.pc, next.sp = w.Walks(), out.PC(), out.SP()
	s.caller = next
	return v, at.err
}

// RuleAt implements unwind.RuleStepper.
func (s *SpiderMonkey) RuleAt(_ *unwind.Walker, m *procstate.Mapping, _ uint64, _ bool) (*unwind.Rule, bool) {
	return unwind.RuleNotMe, m == nil || m.Image != nil
}

// ForgetImages implements unwind.ImageForgetter.
func (s *SpiderMonkey) ForgetImages(isKept func(index uint32) bool) { s.images.keepOnly(isKept) }
