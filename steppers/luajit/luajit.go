package luajit

import (
	"bytes"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper notes which functions of Lua run in the frames of LuaJIT's interpreter and in those of traces, the code that
// its compiler has made (see unwind.Codes), on amd64: LuaJIT 2.1 with 64-bit references (GC64, the default since 2022),
// stripped or not, in a library or a program that exports what C may call. Several functions are in one frame, which
// call each other. It walks from traces and from where they are left; through the interpreter's frames Debug walks.
//
// What a thread of Lua (a lua_State) runs is in frames on a stack of its own, in the heap. Each has the function and a
// link: where the caller goes on in its bytecode, or how far away its frame is, and why. One that C has called has a
// link of its own kind (lj_frame.h). So the frames up to there run in one frame of C, that of lj_vm_call and the like,
// which has the address of the lua_State:
//
//	 8  how many results are wanted (32 bits)
//	16  lua_State
//	24  where the bytecode goes on, at times
//	32  the C frame before
//	40  R14, R15, RBX, RBP of the caller, and the return address
//
// (vm_x64.dasc). A [Collector] copies the stacks of Lua, or the kernel side does (see [Stepper.Lacked]): they and
// the C stack must be of one moment. Functions are read from the process when they are first met.
type Stepper struct {
	tables *unwind.Tables
	images mcode.PerImage[imageInfo]
}

// New makes a Stepper. The tables tell where the interpreter is; nil are some of its own.
func New(tables *unwind.Tables) *Stepper { return &Stepper{tables: tables} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "luajit" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// imageInfo is what is known of a file that may have LuaJIT: link-time addresses, and distances.
type imageInfo struct {
	arch  *arch
	code  mcode.Range // the interpreter; empty: there is none
	exit  mcode.Range // and of that where a trace is left, at first with a frame that is larger,
	enter mcode.Range // or entered

	dispatch         uint64 // from global_State to where R14 points
	current, jitBase uint64 // in global_State; behind the first is the second
	traces           uint64 // from there to the word with the array of traces
}

// image returns what is known of a file.
func (s *Stepper) image(im *procstate.Image) *imageInfo {
	return s.images.Known(im, func(im *procstate.Image) imageInfo {
		return find(im, vmread.MadeTables(&s.tables))
	})
}

// maxCode bounds the interpreter's code, in bytes.
const maxCode = 1 << 20

// find looks for LuaJIT in a file.
func find(im *procstate.Image, tables *unwind.Tables) (p imageInfo) {
	p.arch = archOf(im.Arch())
	if _, ok := im.ExportedSymbol("luaJIT_setmode"); !ok || p.arch == nil {
		return p
	}
	text, ok := im.Section(".text")
	if !ok {
		return p
	}
	enters := []byte(p.arch.enters) // lj_vm_resume
	at, n := uint64(0), uint64(0)
	if im.SectionParts(text, maxText, func(part []byte) {
		for i := 0; at == 0; i++ {
			j := bytes.Index(part[i:], enters)
			if j < 0 {
				break
			}
			i += j
			at = text.Vaddr + n + uint64(i)
		}
		n += uint64(len(part))
	}) != nil || at == 0 {
		return p
	}
	start, end, ok := tables.For(im).FunctionAt(at)
	if !ok || end <= start || end-start > maxCode {
		return p
	}
	code := make([]byte, end-start)
	if im.ReadVaddr(code, start) != nil || !p.arch.find(&p, code) {
		return p
	}
	for _, r := range []*mcode.Range{&p.exit, &p.enter} {
		r.Start += start
		r.End += start
	}
	p.code = mcode.Range{Start: start, End: end}
	return p
}

// maxText bounds the code that the interpreter is looked for in, in bytes.
const maxText = 256 << 20

// CallerFrame implements unwind.FrameStepper.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	pc := in.LookupPC()
	m := w.MappingAt(pc)
	if m == nil || archOf(w.Arch()) == nil || m.Image == nil && procstate.HasFile(m.Path) {
		return unwind.NotMe, nil
	}
	if m.Image != nil && !s.image(m.Image).code.Holds(pc-m.Bias) {
		return unwind.NotMe, nil
	}
	vm := s.machine(w)
	if vm == nil || m.Image != nil && (m.Image != vm.image || m.Bias != vm.bias) {
		return unwind.NotMe, nil
	}
	if m.Image != nil && vm.arch.isOutside != nil && in.Flags&unwind.Interrupted != 0 {
		if v, ok := vm.outside(w, in, out); ok {
			return v, nil
		}
	}
	isEntered := m.Image != nil && vm.enter.Holds(pc-m.Bias)
	if m.Image != nil && !isEntered && !vm.exit.Holds(pc-m.Bias) {
		in.Code = vm.codeOf(w, in, in.SP(), false)
		return unwind.NotMe, nil
	}
	frame, ok := vm.traceFrame(in, m)
	if !ok {
		return unwind.NotMe, nil
	}
	in.Code = vm.codeOf(w, in, frame, true)
	return vm.leave(w, frame, in, out, isEntered)
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, pc uint64, interrupted bool) (*unwind.Rule, bool) {
	if m == nil {
		return unwind.RuleNotMe, true
	}
	return unwind.RuleNotMe, m.Image != nil && !s.image(m.Image).code.Holds(mcode.LookupPC(pc, interrupted)-m.Bias)
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }
