package steppers

import (
	"bytes"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Code is called by that of functions that sets up no frame, and has no name. Its callers are found here.
const (
	maxJSCStub      = 128 // bytes of it between jumps that are looked at,
	maxJSCStubInsts = 64  // instructions up to where it is,
	maxJSCStubWords = 32  // and words on its stack that are looked at
	maxJSCMover     = 128 // bytes of the code that moves a frame to make room for arguments that are missing

	jscMoverReturn procstate.Reg = 8 // where that has its return address,
	jscArityReturn procstate.Reg = 4 // and the code that calls it: %rsi
)

// stubCaller walks from such code. It reports false where it knows none.
func (vm *jscVM) stubCaller(w *unwind.Walker, in, out *unwind.Frame, at *jscAt) bool {
	mem, arch := w.ProcessState(), w.Arch()
	sp, fp := in.SP(), in.FP()
	to := func(ra, sp uint64, from unwind.Location) bool {
		out.SetPC(arch, ra)
		out.SetSP(arch, sp)
		out.SetFP(arch, fp)
		out.PCLocation, out.FPLocation = from, in.FPLocation
		out.Regs.ThreadPointer = in.Regs.ThreadPointer
		return true
	}
	arity, arityKnown := in.Regs.Value(jscArityReturn)
	top, ok := mem.ReadWord(sp)
	if at.interrupted {
		if ra, known := in.Regs.Value(jscMoverReturn); known && vm.movesFrame(w, ra, at.pc) {
			to(ra, sp, unwind.InRegister(jscMoverReturn))
			return vm.keepArity(out, arity, arityKnown)
		}
		if ok && vm.movesFrame(w, top, at.pc) {
			to(top, sp+8, unwind.InMemory(sp))
			return vm.keepArity(out, arity, arityKnown)
		}
	} else if vm.movesFrame(w, in.PC(), 0) {
		// Where SP is in the caller is not known, nor does it need that; it must be further on.
		return arityKnown && to(arity, sp+8, unwind.InRegister(jscArityReturn))
	}
	// The frame pointer is that of the function that has called.
	cell, ok1 := mem.ReadWord(fp + jscCodeBlock)
	callee, ok2 := mem.ReadWord(fp + jscCallee)
	if !ok1 || !ok2 {
		return false
	}
	b := vm.blockAt(cell, at)
	if b == nil || !vm.isOf(b, callee) {
		return false
	}
	if ra, sp, from, ok := vm.calledDirectly(w, in, at); ok {
		return to(ra, sp, from)
	}
	least := vm.leastSP(cell, b, fp)
	if at.interrupted && ok && vm.calls(w, b, top) {
		// It is called with the least SP of the function, or on the way to another.
		next, _ := mem.ReadWord(sp - 8 + jscCallee)
		if sp+8 == least || vm.classOf(next) == jscFunctionCell {
			return to(top, sp+8, unwind.InMemory(sp))
		}
	}
	if saved := least - 16; saved >= sp && saved < fp { // where the frame pointer is, if it has saved that
		v, ok1 := mem.ReadWord(saved)
		ra, ok2 := mem.ReadWord(saved + 8)
		if ok1 && ok2 && v == fp && vm.calls(w, b, ra) {
			to(ra, least, unwind.InMemory(saved+8))
			out.FPLocation = unwind.InMemory(saved)
			return true
		}
	}
	if !vm.goesBack(w, b, in.PC()) {
		return false
	}
	in.Code = vm.codeOf(w.Codes(), b.function, jscPlace{serial: b.serial}, true)
	part := jscAt{frame: fp}
	v, _ := part.callerFrame(w, in, out)
	at.isPart = true
	return v == unwind.Success
}

// goesBack reports whether the code at pc jumps to that of a CodeBlock, when all goes well: it is a part of it that
// was put elsewhere.
func (vm *jscVM) goesBack(w *unwind.Walker, b *jscBlock, pc uint64) bool {
	m := w.MappingAt(pc)
	if m == nil {
		return false
	}
	var buf [maxJSCStub]byte
	var in isa.Inst
	for code := readCode(w, m, pc, buf[:]); decode(w.Arch(), code, pc, &in); code = code[in.Len:] {
		switch in.Flow {
		case isa.Next, isa.CondJump, isa.Call, isa.IndirectCall:
		case isa.Jump:
			return b.code.tier >= jscBaseline && b.code.made.holds(in.Target)
		default:
			return false
		}
		pc += uint64(in.Len)
	}
	return false
}

// calledDirectly returns the return address, what SP is then, and where that was, of code that other such code
// has called by its address, as FTL does what saves registers around calls of C: it is where the code from there
// to pc has put it.
func (vm *jscVM) calledDirectly(w *unwind.Walker, in *unwind.Frame, at *jscAt) (ra, sp uint64, from unwind.Location, ok bool) {
	const scratch procstate.Reg = 0 // %rax, into which it is popped first
	try := func(from unwind.Location) bool {
		if !vm.made.holds(ra - 1) {
			return false
		}
		target, direct, ok := vm.callBefore(w, ra)
		if !ok || !direct || !vm.made.holds(target) {
			return false
		}
		is, after, ok := vm.returnOnPath(w, target, in)
		sp = after
		return ok && is == from
	}
	if at.interrupted {
		if ra, ok = in.Regs.Value(scratch); ok && try(unwind.InRegister(scratch)) {
			return ra, sp, unwind.InRegister(scratch), true
		}
	}
	for n := range uint64(maxJSCStubWords) {
		addr := in.SP() + 8*n
		if ra, ok = w.ProcessState().ReadWord(addr); !ok {
			break
		}
		if try(unwind.InMemory(addr)) {
			if !at.interrupted { // the frame must be further on; that is set up by its frame pointer
				sp = max(sp, in.SP()+8)
			}
			return ra, sp, unwind.InMemory(addr), true
		}
	}
	return 0, 0, unwind.Location{}, false
}

// returnOnPath tells where the return address is at f's PC of code that was called at start, and what SP is once it has
// returned, where the way from there has no jumps but those that are always taken.
func (vm *jscVM) returnOnPath(w *unwind.Walker, start uint64, f *unwind.Frame) (is unwind.Location, sp uint64, ok bool) {
	arch := w.Arch()
	var buf [maxJSCStub]byte
	var code []byte
	state := firstState(arch, start)
	var in isa.Inst
	for n := 0; state.pc != f.PC(); n++ {
		if code == nil {
			m := w.MappingAt(state.pc)
			if m == nil || !vm.made.holds(state.pc) {
				return is, 0, false
			}
			code = readCode(w, m, state.pc, buf[:])
		}
		if n >= maxJSCStubInsts || !decode(arch, code, state.pc, &in) {
			return is, 0, false
		}
		code = code[in.Len:]
		switch in.Flow {
		case isa.Next, isa.CondJump:
			state.apply(arch, &in)
		case isa.Call, isa.IndirectCall:
			for reg := range state.regs {
				if arch.CalleeSaved>>reg&1 == 0 && procstate.Reg(reg) != arch.SP {
					state.regs[reg] = pathValue{}
				}
			}
		case isa.Jump:
			code, state.pc = nil, in.Target
			continue
		default:
			return is, 0, false
		}
		state.pc += uint64(in.Len)
	}
	now := state.regs[arch.SP]
	if now.base != pathSP || now.inMemory {
		return is, 0, false
	}
	first := f.SP() - uint64(int64(now.off)) // SP when it was called
	returns := pathValue{base: pathSP, inMemory: true}
	for i := range state.stores[:state.n] {
		if t := &state.stores[i]; t.value == returns && t.at.base == pathSP && t.at.off >= now.off {
			return unwind.InMemory(first + uint64(int64(t.at.off))), first + 8, true
		}
	}
	if now.off <= 0 && state.wordAt(pathValue{base: pathSP}) == returns {
		return unwind.InMemory(first), first + 8, true
	}
	for reg := range state.regs {
		if state.regs[reg] == returns {
			return unwind.InRegister(procstate.Reg(reg)), first + 8, true
		}
	}
	return is, 0, false
}

// leastSP returns where SP is in the frame of a CodeBlock but for calls of JavaScript, 0 where that is not known.
func (vm *jscVM) leastSP(cell uint64, b *jscBlock, fp uint64) uint64 {
	if b.code.tier != jscBaseline && b.code.tier != jscDFG {
		return 0
	}
	data, ok1 := vm.wordNow(cell + jscBlockData)
	at, ok2 := vm.wordNow(data + jscDataSP)
	if !ok1 || !ok2 || !isJSCCell(data) {
		return 0
	}
	return fp + at
}

// keepArity keeps the register that code leaves alone which moves a frame.
func (vm *jscVM) keepArity(out *unwind.Frame, v uint64, known bool) bool {
	if known {
		out.Regs.Set(jscArityReturn, v)
	}
	return true
}

// calls reports whether ra is where code of a CodeBlock goes on after a call.
func (vm *jscVM) calls(w *unwind.Walker, b *jscBlock, ra uint64) bool {
	if !b.code.made.holds(ra-1) && (b.code.tier > jscBaseline || !vm.interpreter.holds(ra-1)) {
		return false
	}
	_, _, ok := vm.callBefore(w, ra)
	return ok
}

// callBefore is what callBefore says of the code before ra, and where a call goes to by a register that is set before.
func (vm *jscVM) callBefore(w *unwind.Walker, ra uint64) (target uint64, direct, ok bool) {
	m := w.MappingAt(ra - 1)
	if m == nil {
		return 0, false, false
	}
	var buf [jscFarCall + 1]byte
	n := min(uint64(len(buf)), ra-m.Start)
	code := readCode(w, m, ra-n, buf[:n])
	if uint64(len(code)) < n {
		return 0, false, false
	}
	if target, ok := jscFarTarget(code); ok {
		return target, true, true
	}
	return callBefore(w.Arch(), code[max(len(code), maxCallLen)-maxCallLen:], ra)
}

// jscFarCall is how long movabs and call are together, of the first eight registers.
const jscFarCall = 12

// jscFarTarget returns where a call goes to that code ends with: movabs $..., %reg; call *%reg.
func jscFarTarget(code []byte) (target uint64, ok bool) {
	const rex, rexB, mov, call, modRM, extended = 0x48, 0x49, 0xb8, 0xff, 0xd0, 0x41
	n := len(code)
	if n < jscFarCall || code[n-2] != call || code[n-1]&^7 != modRM {
		return 0, false
	}
	reg := code[n-1] & 7
	if at := code[n-jscFarCall:]; at[0] == rex && at[1] == mov|reg {
		return binary.LittleEndian.Uint64(at[2:]), true
	}
	if n > jscFarCall {
		if at := code[n-jscFarCall-1:]; at[0] == rexB && at[1] == mov|reg && at[10] == extended {
			return binary.LittleEndian.Uint64(at[2:]), true
		}
	}
	return 0, false
}

// movesFrame reports whether the code at ra has called, to have arguments added, what pc is in, by
// what stands around it; with 0 for pc anything.
//
//	pop  %rsi
//	call ...
//	push %rsi
//	jmp  ...
func (vm *jscVM) movesFrame(w *unwind.Walker, ra, pc uint64) bool {
	const before = 6
	if !vm.made.holds(ra-before) || !vm.made.holds(ra) {
		return false
	}
	m := w.MappingAt(ra)
	if m == nil {
		return false
	}
	var buf [before + 2]byte
	code := readCode(w, m, ra-before, buf[:])
	if !bytes.HasPrefix(code, []byte{0x5e, 0xe8}) || !bytes.HasSuffix(code, []byte{0x56, 0xe9}) || len(code) < len(buf) {
		return false
	}
	target, direct, ok := vm.callBefore(w, ra)
	return ok && direct && (pc == 0 || pc-target < maxJSCMover)
}
