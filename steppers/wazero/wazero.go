package wazero

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper walks through what wazero 1.8 to 1.12 compile on amd64, from there to the goroutine that has called it, and
// notes which functions of WebAssembly run (see unwind.Codes), also in frames of wazero's interpreter, and those that
// have called Go. It needs no symbols: the program's function table tells where wazero's own code is, which calls
// with the stack that it is given:
//
//	0  return address to the wrapper of entrypoint, or of afterGoFunctionCallEntrypoint
//	8  the arguments; of the first the third, of the other the second, is the execution context
//
// Above are the wrapper's frame and that of callEngine.callWithStack, whose receiver is the call engine. The code of a
// function begins with push %rbp and mov %rsp,%rbp, and what enters it from Go with RBP 0. While compiled code
// runs SP is on its own stack, and the goroutine's is as it was.
type Stepper struct {
	images mcode.PerImage[imageInfo]
	buf    [lookBefore + lookBehind]byte

	walker *unwind.Walker
	walk   uint64 // as of Walker.Walks
	top    uint64 // SP of the first of its frames that was asked for
}

// New makes a Stepper.
func New() *Stepper { return &Stepper{} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "wazero" }

// Priority implements unwind.FrameStepper. It runs before the Go stepper, to which it leaves Go's own frames.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityGo - 1 }

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }

// image returns what is known of a file.
func (s *Stepper) image(im *procstate.Image) *imageInfo { return s.images.Known(im, find) }

// CallerFrame implements unwind.FrameStepper.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	if s.walker != w || s.walk != w.Walks() {
		s.walker, s.walk, s.top = w, w.Walks(), in.SP()
	}
	pc := in.LookupPC()
	m := w.MappingAt(pc)
	if m == nil || w.Arch() != procstate.AMD64 {
		return unwind.NotMe, nil
	}
	if m.Image != nil {
		return s.goFrame(w, m, in, out)
	}
	if procstate.HasFile(m.Path) {
		return unwind.NotMe, nil
	}
	vm := s.machine(w)
	if vm == nil {
		return unwind.NotMe, nil
	}
	e := vm.between(in)
	if e == nil {
		e = vm.entryOf(w, in)
	}
	if e == nil {
		return unwind.NotMe, nil
	}
	in.Code = vm.compiled(w.Codes(), pc, false, 0)
	f := frame{w: w, vm: vm, e: e, in: in, out: out}
	return f.caller(m, s.buf[:])
}

// goFrame is CallerFrame for code of files: Go's frames are left to the Go stepper, but for one that is Go's no more.
func (s *Stepper) goFrame(w *unwind.Walker, m *procstate.Mapping, in, out *unwind.Frame) (unwind.Verdict, error) {
	p, vaddr := s.image(m.Image), in.LookupPC()-m.Bias
	if !p.knows(vaddr) {
		return unwind.NotMe, nil
	}
	vm := s.machine(w)
	if vm == nil || vm.image != m.Image || vm.bias != m.Bias {
		return unwind.NotMe, nil
	}
	switch {
	case p.interprets.Holds(vaddr):
		in.Code = vm.interpreted(w, m, in, s.buf[:])
	case p.calls.Holds(vaddr):
		in.Code = vm.calling(w, in, s.top)
	case in.Flags&unwind.Interrupted != 0:
		if e := vm.entryOf(w, in); e != nil && e.sp != 0 && in.SP() != e.sp {
			f := frame{w: w, vm: vm, e: e, in: in, out: out}
			return f.resumed()
		}
	}
	return unwind.NotMe, nil
}

// knows reports whether a link-time address is in code that the stepper has something to say of.
func (p *imageInfo) knows(vaddr uint64) bool {
	return p.calls.Holds(vaddr) || p.interprets.Holds(vaddr) || p.resume.Holds(vaddr)
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, pc uint64, interrupted bool) (*unwind.Rule, bool) {
	if m == nil {
		return unwind.RuleNotMe, true
	}
	return unwind.RuleNotMe, m.Image != nil && !s.image(m.Image).knows(mcode.LookupPC(pc, interrupted)-m.Bias)
}
