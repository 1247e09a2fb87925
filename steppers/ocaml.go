package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// OCaml knows where programs in OCaml 5 have their stacks. Their code is walked by its CFI; what that leads
// to is not all on the stack that a capture has: functions of OCaml run on a stack of their own, in the heap, and
// those of C that they call on the thread's. It knows those functions of the runtime for x86-64 that call C: they
// leave the stack of the code in OCaml, and note where. It walks through nothing, and has the kernel side copy that
// stack (see [OCaml.Lacked]).
type OCaml struct {
	switches mcode.VaddrCache // where in the state of a domain the current stack is, in words, by return address; 0: no switch
	code     [ocamlSwitch + mcode.MaxCallLen]byte
}

// NewOCaml makes an OCaml stepper.
func NewOCaml() *OCaml { return &OCaml{} }

// Name implements unwind.FrameStepper.
func (s *OCaml) Name() string { return "ocaml" }

// Priority implements unwind.FrameStepper.
func (s *OCaml) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// ocamlSwitch is how far behind the switch the call of C is, at most, in bytes: arguments may be copied in between.
const ocamlSwitch = 96

// ocamlSwitchCode is how the runtime goes over to the stack of C (SWITCH_OCAML_TO_C in runtime/amd64.S), -1 a byte that
// depends on the version:
//
//	mov current_stack(%r14), %r10
//	mov %rsp, (%r10)
//	mov c_stack(%r14), %r11
//	mov %rsp, 8(%r11)
//	mov %r10, (%r11)
//	mov %r11, %rsp
//	...
//	call *%rax
var ocamlSwitchCode = [...]int{
	0x4d, 0x8b, 0x56, -1,
	0x49, 0x89, 0x22,
	0x4d, 0x8b, 0x5e, -1,
	0x49, 0x89, 0x63, 0x08,
	0x4d, 0x89, 0x13,
	0x4c, 0x89, 0xdc,
}

// ocamlCurrentStack is where in ocamlSwitchCode the offset of the current stack is.
const ocamlCurrentStack = 3

const (
	ocamlState = procstate.Reg(14) // the state of the domain that a thread runs, in all code of OCaml

	// What C is called with at SP (struct c_stack_link), and a stack of OCaml (struct stack_info), in
	// runtime/caml/fiber.h.
	ocamlLinkSP  = 8
	ocamlSP      = 0
	ocamlHandler = 16 // which lies where the stack ends
	ocamlHead    = 24

	// SP in struct stack_info is that of the last call by the runtime: it is not noted where code calls C without it.
	ocamlBelow = 1 << 10
)

// ocamlProcess is what is kept of a process.
type ocamlProcess struct {
	vmread.Found
	image   *procstate.Image // with the runtime; nil: none was met
	asked   vmread.FramesAsked
	mem     vmread.Memory
	walk    uint64 // in which current was found
	current uint64 // address of the word with the current stack of the thread that was walked
	lacks   bool   // and whether that was not captured
}

// CallerFrame implements unwind.FrameStepper.
func (s *OCaml) CallerFrame(w *unwind.Walker, in, _ *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image == nil || in.Flags&unwind.Interrupted != 0 || w.Arch() != procstate.AMD64 {
		return unwind.NotMe, nil
	}
	at := s.switchAt(w, m, in.PC())
	state, ok := in.Regs.Value(ocamlState)
	if at == 0 || !ok {
		return unwind.NotMe, nil
	}
	p, _ := vmread.MachineOf(w, s, findOCaml)
	p.image, p.walk, p.current, p.lacks = m.Image, w.Walks(), state+at, true
	if sp, ok := p.mem.Word(in.SP() + ocamlLinkSP); ok {
		_, ok = p.mem.Word(sp)
		p.lacks = !ok
	}
	return unwind.NotMe, nil
}

// LeavesStack implements unwind.StackLeaver: it knows calls of C by the runtime, and those that OCaml's compiler makes of functions
// that neither allocate nor raise, which go over to the stack of C right before:
//
//	mov c_stack(%r14), %rsp
//	call f
func (s *OCaml) LeavesStack(w *unwind.Walker, in *unwind.Frame) bool {
	const toCurrent = 3 // words from c_stack back to current_stack in runtime/caml/domain_state.tbl
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image == nil || in.Flags&unwind.Interrupted != 0 || w.Arch() != procstate.AMD64 {
		return false
	}
	if s.switchAt(w, m, in.PC()) != 0 {
		return true
	}
	var code [9]byte
	state, ok := in.Regs.Value(ocamlState)
	if !ok || in.PC()-m.Start < uint64(len(code)) || len(mcode.Read(w, m, in.PC()-uint64(len(code)), code[:])) < len(code) {
		return false
	}
	const direct = 0xe8
	if code[0] != 0x49 || code[1] != 0x8b || code[2] != 0x66 || code[4] != direct || code[3]%8 != 0 || code[3]>>3 <= toCurrent || code[3] >= 0x80 {
		return false
	}
	p, _ := vmread.MachineOf(w, s, findOCaml)
	p.image, p.walk, p.current, p.lacks = m.Image, w.Walks(), state+uint64(code[3])-8*toCurrent, true
	return true
}

// findOCaml returns what is kept of the process that w walks: what is known, unless it executes another program since.
func findOCaml(w *unwind.Walker, libs procstate.LibraryState, known *ocamlProcess) *ocamlProcess {
	if known != nil && libs != nil {
		for _, lib := range libs.Libraries() {
			if lib.Image != nil && lib.Image == known.image {
				return known
			}
		}
	}
	return &ocamlProcess{asked: vmread.FramesAsked{}, mem: vmread.MemoryOf(w)}
}

// switchAt returns where the state of a domain has its current stack, if the code before a return address goes over from that
// to the stack of C; else 0.
func (s *OCaml) switchAt(w *unwind.Walker, m *procstate.Mapping, pc uint64) (offset uint64) {
	const word = 8
	const call, rax = 0xff, 0xd0
	vaddr := pc - m.Bias
	if !m.Image.HasMark(vaddr, -len(s.code), -1, switchMark, findMarks) {
		return 0 // which is nearly all code
	}
	if fact, ok := s.switches.Get(m.Image, vaddr); ok {
		return uint64(fact) * word
	}
	code := s.code[:min(uint64(len(s.code)), pc-m.Start)]
	code = mcode.Read(w, m, pc-uint64(len(code)), code)
	fact := uint8(0)
	if n := len(code) - 2; n > 0 && code[n] == call && code[n+1] == rax {
		for last := n - 1; last >= len(ocamlSwitchCode)-1 && fact == 0; last-- {
			if mayEndSwitch(code, last) {
				fact = code[last+1-len(ocamlSwitchCode)+ocamlCurrentStack] / word
			}
		}
	}
	s.switches.Put(m.Image, vaddr, fact)
	return uint64(fact) * word
}

// mayEndSwitch reports whether an ocamlSwitchCode may end with the byte at an index of code: so may one of which the start
// is not there.
func mayEndSwitch(code []byte, at int) bool {
	for i := len(ocamlSwitchCode) - 1; i >= 0 && at >= 0; i, at = i-1, at-1 {
		if b := ocamlSwitchCode[i]; b >= 0 && code[at] != byte(b) {
			return false
		}
	}
	return true
}

// RuleAt implements unwind.RuleStepper.
func (s *OCaml) RuleAt(w *unwind.Walker, m *procstate.Mapping, pc uint64, interrupted bool) (*unwind.Rule, bool) {
	none := m == nil || m.Image == nil || interrupted || w.Arch() != procstate.AMD64 || s.switchAt(w, m, pc) == 0
	return unwind.RuleNotMe, none
}

// Lacked returns where the current stack of OCaml is of a thread, if the last walk has come to it from C and the capture had
// not copied it.
func (s *OCaml) Lacked(w *unwind.Walker, tid int) (frames procstate.ThreadFrames, lacks bool) {
	p, _ := w.Kept(s).(*ocamlProcess)
	if p == nil || p.walk != w.Walks() || !p.lacks {
		return frames, false
	}
	stack, ok1 := p.mem.WordNow(p.current)
	sp, ok2 := p.mem.WordNow(stack + ocamlSP)
	handler, ok3 := p.mem.WordNow(stack + ocamlHandler)
	if !ok1 || !ok2 || !ok3 || sp <= stack || handler <= sp {
		return frames, true
	}
	if _, ask := p.asked.Ask(tid, true, false); !ask {
		return frames, true
	}
	return procstate.ThreadFrames{
		Current: p.current, Head: ocamlHead, IsFrame: true,
		Low: ocamlSP, High: ocamlHandler, IsDown: true, Below: ocamlBelow,
	}, true
}

// Knows reports whether walks of a Walker have met OCaml's runtime.
func (s *OCaml) Knows(w *unwind.Walker) bool {
	if w.Kept(s) == nil {
		return false
	}
	p, _ := vmread.MachineOf(w, s, findOCaml)
	return p.image != nil
}
