package luajit

import (
	"bytes"
	"encoding/binary"

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

// Parts of a C frame of the interpreter, by their distance from its lower end.
const (
	frameResults = 8
	frameState   = 16
	framePC      = 24
	frameBefore  = 32
	frameSaved   = 40
	frameBytes   = 80 // with the return address
)

// What the interpreter's registers are for.
const (
	luajitBase     procstate.Reg = 1 // RDX: the frame of Lua that runs
	luajitPC       procstate.Reg = 3 // RBX: the next instruction of the bytecode
	luajitRB       procstate.Reg = 6 // RBP: what RDX is kept in, at times
	luajitSP       procstate.Reg = 7
	luajitDispatch procstate.Reg = 14 // R14: some way behind the global_State; in traces too
)

// imageInfo is what is known of a file that may have LuaJIT: link-time addresses, and distances.
type imageInfo struct {
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
	if _, ok := im.ExportedSymbol("luaJIT_setmode"); !ok || im.Arch() != procstate.AMD64 {
		return p
	}
	text, ok := im.Section(".text")
	if !ok {
		return p
	}
	// lj_vm_resume: mov 0x10(%rbp), %r14; add $n, %r14. With 32-bit references the first one is another.
	enters := []byte("\x4c\x8b\x75\x10\x49\x81\xc6")
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
	if im.ReadVaddr(code, start) != nil || !p.findFields(code) {
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

// findFields learns from the interpreter's code where things are.
func (p *imageInfo) findFields(code []byte) bool {
	const (
		saves    = "\x55\x53\x41\x57\x41\x56\x48\x83\xec\x28" // push %rbp, %rbx, %r15, %r14; sub $0x28, %rsp
		enters   = "\x4c\x8b\x75\x10\x49\x81\xc6"             // mov 0x10(%rbp), %r14; add $n, %r14
		runs     = "\x49\x89\xae"                             // mov %rbp, n(%r14)
		state    = "\x41\xc7\x86"                             // movl $n, n(%r14)
		calls    = "\x48\x8b\x5d\x20"                         // mov 0x20(%rbp), %rbx
		consts   = "\x4c\x8b\x7b\xb4"                         // mov -0x4c(%rbx), %r15
		frames   = "\x4c\x89\x7d\x50"                         // mov %r15, 0x50(%rbp)
		leaves   = "\x41\x55\x41\x54\x41\x53\x41\x52\x41\x51" // push %r13, %r12, %r11, %r10, %r9
		lowers   = "\x4c\x8b\x21\x48\x89\xcc"                 // mov (%rcx), %r12; mov %rcx, %rsp
		goesOn   = "\x41\xff\x24\xee"                         // jmp *(%r14,%rbp,8)
		trace    = "\x48\x8b\x04\xc1\x48\x8b\x40\x58"         // mov (%rcx,%rax,8), %rax; mov 0x58(%rax), %rax
		ofTraces = "\x49\x8b\x8e"                             // mov n(%r14), %rcx
		jumps    = "\xff\xe0"                                 // jmp *%rax
		jitBase  = "\x49\x89\x96"                             // mov %rdx, n(%r14)
	)
	number := func(at int) uint64 { return uint64(int64(int32(binary.LittleEndian.Uint32(code[at:])))) }
	index := func(from int, s string) int {
		if i := bytes.Index(code[from:], []byte(s)); i >= 0 {
			return from + i
		}
		return -1
	}
	for _, s := range []string{saves, calls, consts, frames} {
		if index(0, s) < 0 {
			return false
		}
	}
	enter, run := index(0, enters), -1
	const far = 4 << 10
	if enter < 0 || len(code)-enter < len(enters)+4 {
		return false
	}
	p.dispatch = number(enter + len(enters))
	for i := enter; run < 0; i++ { // what runs is set behind where a thread is entered
		if i = index(i, runs); i < 0 || i > enter+far {
			return false
		}
		if len(code)-i < 16 {
			return false
		}
		if string(code[i+7:i+10]) == state {
			run = i
		}
	}
	p.current = p.dispatch + number(run+len(runs))
	p.jitBase = p.current + 8
	if leave := index(0, leaves); leave >= 0 {
		if lower := index(leave, lowers); lower >= 0 {
			if end := index(lower, goesOn); end >= 0 && end < leave+far {
				p.exit = mcode.Range{Start: uint64(leave), End: uint64(end)}
			}
		}
	}
	for i := 0; ; i++ {
		if i = index(i, trace); i < 0 {
			break // it is built without a compiler
		}
		const load = len(ofTraces) + 4
		const keeps = len("\x48\x8b\x6c\x24\x10") // mov 0x10(%rsp), %rbp
		after := i + len(trace) + keeps
		if i >= load && string(code[i-load:i-4]) == ofTraces && len(code)-after > 8 && string(code[after:after+len(jitBase)]) == jitBase && p.dispatch+number(after+len(jitBase)) == p.jitBase {
			p.traces = p.dispatch + number(i-4)
			if end := index(after, jumps); end >= 0 && end < after+1<<8 {
				p.enter = mcode.Range{Start: uint64(after + len(jitBase) + 4), End: uint64(end + len(jumps))}
			}
			break
		}
	}
	const most = 64 << 10
	return p.dispatch < most && p.current < p.dispatch && p.traces < most
}

// CallerFrame implements unwind.FrameStepper.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	pc := in.LookupPC()
	m := w.MappingAt(pc)
	if m == nil || w.Arch() != procstate.AMD64 || m.Image == nil && procstate.HasFile(m.Path) {
		return unwind.NotMe, nil
	}
	if m.Image != nil && !s.image(m.Image).code.Holds(pc-m.Bias) {
		return unwind.NotMe, nil
	}
	vm := s.machine(w)
	if vm == nil || m.Image != nil && (m.Image != vm.image || m.Bias != vm.bias) {
		return unwind.NotMe, nil
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
