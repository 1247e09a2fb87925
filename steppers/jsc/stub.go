package jsc

import (
	"bytes"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Code is called by that of functions that sets up no frame, and has no name. Its callers are found here.
const (
	maxStub      = 128 // bytes of it between jumps that are looked at,
	maxStubInsts = 64  // instructions up to where it is,
	maxStubWords = 32  // and words on its stack that are looked at
	maxMover     = 128 // bytes of the code that moves a frame to make room for arguments that are missing

	moverReturn procstate.Reg = 8 // where that has its return address,
	arityReturn procstate.Reg = 4 // and the code that calls it: %rsi
)

// stubCaller walks from such code. It reports false where it knows none.
func (vm *machine) stubCaller(w *unwind.Walker, in, out *unwind.Frame, at *framePoint) bool {
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
	arity, arityKnown := in.Regs.Value(arityReturn)
	top, ok := mem.ReadWord(sp)
	if at.interrupted {
		if ra, known := in.Regs.Value(moverReturn); known && vm.movesFrame(w, ra, at.pc) {
			to(ra, sp, unwind.InRegister(moverReturn))
			return vm.keepArity(out, arity, arityKnown)
		}
		if ok && vm.movesFrame(w, top, at.pc) {
			to(top, sp+8, unwind.InMemory(sp))
			return vm.keepArity(out, arity, arityKnown)
		}
	} else if vm.movesFrame(w, in.PC(), 0) {
		// Where SP is in the caller is not known, nor does it need that; it must be further on.
		return arityKnown && to(arity, sp+8, unwind.InRegister(arityReturn))
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
		if sp+8 == least || vm.classOf(next) == functionCell {
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
	in.Code = vm.codeOf(w.Codes(), b.function, codePlace{serial: b.serial}, true)
	part := framePoint{frame: fp}
	v, _ := part.callerFrame(w, in, out)
	at.isPart = true
	return v == unwind.Success
}

// goesBack reports whether the code at pc jumps to that of a CodeBlock, when all goes well: it is a part of it that
// was put elsewhere.
func (vm *machine) goesBack(w *unwind.Walker, b *block, pc uint64) bool {
	m := w.MappingAt(pc)
	if m == nil {
		return false
	}
	var buf [maxStub]byte
	var in isa.Inst
	for code := mcode.Read(w, m, pc, buf[:]); mcode.Decode(w.Arch(), code, pc, &in); code = code[in.Len:] {
		switch in.Flow {
		case isa.Next, isa.CondJump, isa.Call, isa.IndirectCall:
		case isa.Jump:
			return b.code.tier >= baseline && b.code.made.Holds(in.Target)
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
func (vm *machine) calledDirectly(w *unwind.Walker, in *unwind.Frame, at *framePoint) (ra, sp uint64, from unwind.Location, ok bool) {
	const scratch procstate.Reg = 0 // %rax, into which it is popped first
	try := func(from unwind.Location) bool {
		if !vm.made.Holds(ra - 1) {
			return false
		}
		target, direct, ok := vm.callBefore(w, ra)
		if !ok || !direct || !vm.made.Holds(target) {
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
	for n := range uint64(maxStubWords) {
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
func (vm *machine) returnOnPath(w *unwind.Walker, start uint64, f *unwind.Frame) (is unwind.Location, sp uint64, ok bool) {
	arch := w.Arch()
	var buf [maxStub]byte
	var code []byte
	state := mcode.FirstPathState(arch, start)
	var in isa.Inst
	for n := 0; state.PC != f.PC(); n++ {
		if code == nil {
			m := w.MappingAt(state.PC)
			if m == nil || !vm.made.Holds(state.PC) {
				return is, 0, false
			}
			code = mcode.Read(w, m, state.PC, buf[:])
		}
		if n >= maxStubInsts || !mcode.Decode(arch, code, state.PC, &in) {
			return is, 0, false
		}
		code = code[in.Len:]
		switch in.Flow {
		case isa.Next, isa.CondJump:
			state.Apply(arch, &in)
		case isa.Call, isa.IndirectCall:
			for reg := range state.Regs {
				if arch.CalleeSaved>>reg&1 == 0 && procstate.Reg(reg) != arch.SP {
					state.Regs[reg] = mcode.PathValue{}
				}
			}
		case isa.Jump:
			code, state.PC = nil, in.Target
			continue
		default:
			return is, 0, false
		}
		state.PC += uint64(in.Len)
	}
	now := state.Regs[arch.SP]
	if now.Base != mcode.PathSP || now.InMemory {
		return is, 0, false
	}
	first := f.SP() - uint64(int64(now.Off)) // SP when it was called
	returns := mcode.PathValue{Base: mcode.PathSP, InMemory: true}
	for i := range state.Stores[:state.N] {
		if t := &state.Stores[i]; t.Value == returns && t.At.Base == mcode.PathSP && t.At.Off >= now.Off {
			return unwind.InMemory(first + uint64(int64(t.At.Off))), first + 8, true
		}
	}
	if now.Off <= 0 && state.WordAt(mcode.PathValue{Base: mcode.PathSP}) == returns {
		return unwind.InMemory(first), first + 8, true
	}
	for reg := range state.Regs {
		if state.Regs[reg] == returns {
			return unwind.InRegister(procstate.Reg(reg)), first + 8, true
		}
	}
	return is, 0, false
}

// leastSP returns where SP is in the frame of a CodeBlock but for calls of JavaScript, 0 where that is not known.
func (vm *machine) leastSP(cell uint64, b *block, fp uint64) uint64 {
	if b.code.tier != baseline && b.code.tier != dfg {
		return 0
	}
	data, ok1 := vm.WordNow(cell + blockData)
	at, ok2 := vm.WordNow(data + dataSP)
	if !ok1 || !ok2 || !isCell(data) {
		return 0
	}
	return fp + at
}

// keepArity keeps the register that code leaves alone which moves a frame.
func (vm *machine) keepArity(out *unwind.Frame, v uint64, known bool) bool {
	if known {
		out.Regs.Set(arityReturn, v)
	}
	return true
}

// calls reports whether ra is where code of a CodeBlock goes on after a call.
func (vm *machine) calls(w *unwind.Walker, b *block, ra uint64) bool {
	if !b.code.made.Holds(ra-1) && (b.code.tier > baseline || !vm.interpreter.Holds(ra-1)) {
		return false
	}
	_, _, ok := vm.callBefore(w, ra)
	return ok
}

// callBefore is what callBefore says of the code before ra, and where a call goes to by a register that is set before.
func (vm *machine) callBefore(w *unwind.Walker, ra uint64) (target uint64, direct, ok bool) {
	m := w.MappingAt(ra - 1)
	if m == nil {
		return 0, false, false
	}
	var buf [farCall + 1]byte
	n := min(uint64(len(buf)), ra-m.Start)
	code := mcode.Read(w, m, ra-n, buf[:n])
	if uint64(len(code)) < n {
		return 0, false, false
	}
	if target, ok := farTarget(code); ok {
		return target, true, true
	}
	return mcode.CallBefore(w.Arch(), code[max(len(code), mcode.MaxCallLen)-mcode.MaxCallLen:], ra)
}

// farCall is how long movabs and call are together, of the first eight registers.
const farCall = 12

// farTarget returns where a call goes to that code ends with: movabs $..., %reg; call *%reg.
func farTarget(code []byte) (target uint64, ok bool) {
	const rex, rexB, mov, call, modRM, extended = 0x48, 0x49, 0xb8, 0xff, 0xd0, 0x41
	n := len(code)
	if n < farCall || code[n-2] != call || code[n-1]&^7 != modRM {
		return 0, false
	}
	reg := code[n-1] & 7
	if at := code[n-farCall:]; at[0] == rex && at[1] == mov|reg {
		return binary.LittleEndian.Uint64(at[2:]), true
	}
	if n > farCall {
		if at := code[n-farCall-1:]; at[0] == rexB && at[1] == mov|reg && at[10] == extended {
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
func (vm *machine) movesFrame(w *unwind.Walker, ra, pc uint64) bool {
	const before = 6
	if !vm.made.Holds(ra-before) || !vm.made.Holds(ra) {
		return false
	}
	m := w.MappingAt(ra)
	if m == nil {
		return false
	}
	var buf [before + 2]byte
	code := mcode.Read(w, m, ra-before, buf[:])
	if !bytes.HasPrefix(code, []byte{0x5e, 0xe8}) || !bytes.HasSuffix(code, []byte{0x56, 0xe9}) || len(code) < len(buf) {
		return false
	}
	target, direct, ok := vm.callBefore(w, ra)
	return ok && direct && (pc == 0 || pc-target < maxMover)
}
