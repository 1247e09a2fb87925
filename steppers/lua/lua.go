package lua

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper notes which functions of Lua run in the frames of its interpreter (see unwind.Codes): Lua 5.1
// to 5.5, from 5.3.3 on of that, in a library or linked into a program, stripped or not. Several are in one
// frame, which call each other. It walks through no frame, and has all other steppers find them as they do.
//
// What runs is in a list of calls of each coroutine. A [Collector] copies them, or the kernel side does, of one
// coroutine of each thread (see [Stepper.Lacked]): they and the C stack must be of one moment. Which coroutine, and which
// of its calls, a frame of luaV_execute runs is in that frame: the interpreter keeps the addresses of both. What
// functions are called is read from the process when they are first met, and is right if it has the instruction
// that runs.
type Stepper struct {
	tables *unwind.Tables
	images mcode.PerImage[imageInfo]
}

// New makes a Stepper. The tables tell where functions begin; nil are some of its own.
func New(tables *unwind.Tables) *Stepper { return &Stepper{tables: tables} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "lua" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// image returns what is known of a file.
func (s *Stepper) image(im *procstate.Image) *imageInfo {
	if p := s.images.Get(im); p != nil {
		return p
	}
	return s.images.Known(im, func(im *procstate.Image) imageInfo { return find(im, vmread.MadeTables(&s.tables)) })
}

// isExecute reports whether a link-time address of a file is in luaV_execute.
func (s *Stepper) isExecute(im *procstate.Image, p *imageInfo, vaddr uint64) bool {
	return p.fields != nil && p.parts.Has(vmread.MadeTables(&s.tables), im, p.execute, vaddr)
}

// CallerFrame implements unwind.FrameStepper. It is always NotMe.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, _ *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image == nil || m.Image.Arch() != w.Arch() {
		return unwind.NotMe, nil
	}
	p, vaddr := s.image(m.Image), in.LookupPC()-m.Bias
	if !s.isExecute(m.Image, p, vaddr) || in.Flags&unwind.Interrupted != 0 && !p.hasFrame(vaddr) {
		return unwind.NotMe, nil
	}
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.image != m.Image || vm.bias != m.Bias {
		vm = newVM(w, m, p)
		w.Keep(s, vm)
	}
	if vm.walk != w.Walks() {
		vm.begin(w.Walks())
	}
	in.Code = vm.codeOf(w, in)
	return unwind.NotMe, nil
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, pc uint64, interrupted bool) (*unwind.Rule, bool) {
	if m == nil || m.Image == nil {
		return unwind.RuleNotMe, true
	}
	return unwind.RuleNotMe, !s.isExecute(m.Image, s.image(m.Image), mcode.LookupPC(pc, interrupted)-m.Bias)
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }
