package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// To raise an exception OCaml's code for x86-64 takes the frames off the stack up to that of the
// handler's function, where the runtime's state says that this is, and goes on there:
//
//	mov  16(%r14), %rsp
//	pop  16(%r14)            the next handler
//	pop  %r11                the address of this one
//	jmp  *%r11
//
// or, in the runtime, with a return in place of the last two. From the second instruction
// on no frame of the function that raises is there, but its CFI has it.

// Where the handler's address is while an exception is raised.
const (
	raisesNothing    = iota
	raisesAboveSP    // a word above SP
	raisesAtSP       // at SP
	raisesInRegister // in R11
)

const regR11 = procstate.Reg(11)

// The code above, with bytes between that tell where in the runtime's state something is; and
// how it ends: by itself, and in the runtime for OCaml and for C.
const (
	raiseLoad   = "\x49\x8b\x66"         // mov d(%r14), %rsp
	raisePop    = "\x41\x8f\x46"         // pop d(%r14)
	raiseJump   = "\x41\x5b\x41\xff\xe3" // pop %r11; jmp *%r11
	raiseReturn = "\xc3"
	raiseState  = "\x4d\x8b\x7e" // mov d(%r14), %r15; ret
)

// Where in that code instructions begin, the opcode of the pop, and the code's most bytes.
const (
	raisePopAt    = len(raiseLoad) + 1
	raiseOpcodeAt = raisePopAt + 1
	raiseEndAt    = raisePopAt + len(raisePop) + 1
	raiseLen      = raiseEndAt + len(raiseJump)
)

// mayRaise reports whether code goes on like that around where the opcode of a pop of memory
// may be; so may what is not all there.
func mayRaise(code []byte, at int) bool {
	from := at - raiseOpcodeAt
	return from < 0 || from+raiseLen > len(code) || raiseEnding(code[from:][:raiseLen]) != ""
}

// raiseEnding returns how code ends that raises an exception, "" if it does not.
func raiseEnding(code []byte) string {
	switch end := code[raiseEndAt:]; {
	case string(code[:len(raiseLoad)]) != raiseLoad, string(code[raisePopAt:][:len(raisePop)]) != raisePop, code[raisePopAt-1] != code[raiseEndAt-1]:
	case end[0] == raiseReturn[0]:
		return raiseReturn
	case string(end) == raiseJump:
		return raiseJump
	case string(end[:len(raiseState)]) == raiseState && end[len(raiseState)+1] == raiseReturn[0]:
		return raiseState
	}
	return ""
}

// raising tells where the handler's address is if the instruction at a link-time address is
// one of those, the first one aside.
func (d *Debug) raising(im *procstate.Image, vaddr uint64) int {
	if im.Arch() != procstate.AMD64 || !im.HasMark(vaddr, raiseOpcodeAt-raiseLen, raiseOpcodeAt-raisePopAt, raiseMark, findMarks) {
		return raisesNothing
	}
	for _, at := range [...]struct {
		begins int    // in the code
		ending string // "": any
		where  int
	}{
		{raisePopAt, "", raisesAboveSP},
		{raiseEndAt, "", raisesAtSP},
		{raiseEndAt + 2, raiseJump, raisesInRegister},
		{raiseEndAt + len(raiseState) + 1, raiseState, raisesAtSP},
	} {
		if opcode := raiseOpcodeAt - at.begins; !im.HasMark(vaddr, opcode, opcode, raiseMark, findMarks) {
			continue
		}
		code := d.code[:raiseLen]
		if im.ReadVaddr(code, vaddr-uint64(at.begins)) != nil {
			continue
		}
		if ending := raiseEnding(code); ending != "" && (at.ending == "" || at.ending == ending) {
			return at.where
		}
	}
	return raisesNothing
}

// leaveRaise sets out to the function whose handler is about to run. Where that is the same
// function, it is the caller of that.
func (d *Debug) leaveRaise(w *unwind.Walker, m *procstate.Mapping, in, out *unwind.Frame) (unwind.Verdict, error) {
	a, state := w.Arch(), w.ProcessState()
	vaddr := in.PC() - m.Bias
	sp := in.SP()
	var handler uint64
	var ok bool
	var from unwind.Location
	switch d.raising(m.Image, vaddr) {
	case raisesAboveSP:
		handler, ok = state.ReadWord(sp + 8)
		from, sp = unwind.InMemory(sp+8), sp+16
	case raisesAtSP:
		handler, ok = state.ReadWord(sp)
		from, sp = unwind.InMemory(sp), sp+8
	case raisesInRegister:
		handler, ok = in.Regs.Value(regR11)
		from = unwind.InRegister(regR11)
	}
	to := w.MappingAt(handler)
	if !ok || to == nil || to.Image == nil || to.Image.Arch() != a {
		return unwind.NotMe, nil
	}
	r := d.rule(to.Image, handler-to.Bias)
	if r.Reason() != unwind.ReasonNone {
		return unwind.NotMe, nil
	}
	var f unwind.Frame
	f.Regs = in.Regs
	f.SetPC(a, handler)
	f.SetSP(a, sp)
	f.SetFP(a, in.FP())
	f.PCLocation, f.FPLocation = from, in.FPLocation
	f.Flags = unwind.Interrupted // it goes on there
	start, end, ok := d.tables.For(m.Image).FunctionAt(vaddr)
	if ok && to.Image == m.Image && handler-to.Bias >= start && handler-to.Bias < end {
		return r.CallerFrame(w, &f, out)
	}
	*out = f
	return unwind.Success, nil
}
