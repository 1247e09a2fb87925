package jsc

import (
	"bytes"

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
	maxAround    = 16  // and of the instructions around the call of that
	maxFarCall   = 20  // bytes of a call by a register, with those that set it
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
	arity, arityKnown := in.Regs.Value(vm.arch.arity)
	called, ok := in.Regs.Value(arch.LR) // where this code has been called, if it has put nothing on the stack since
	calledAt := unwind.InRegister(arch.LR)
	if arch.LR == procstate.NoReg {
		called, ok = mem.ReadWord(sp)
		calledAt = unwind.InMemory(sp)
	}
	callerSP := sp + vm.arch.pushed
	if at.interrupted {
		if ra, known := in.Regs.Value(vm.arch.mover); known && vm.movesFrame(w, ra, at.pc) {
			to(ra, sp, unwind.InRegister(vm.arch.mover))
			return vm.keepArity(out, arity, arityKnown)
		}
		if ok && vm.movesFrame(w, called, at.pc) {
			to(called, callerSP, calledAt)
			return vm.keepArity(out, arity, arityKnown)
		}
	} else if vm.movesFrame(w, in.PC(), 0) {
		// Where SP is in the caller is not known, nor does it need that; it must be further on.
		return arityKnown && to(arity, sp+8, unwind.InRegister(vm.arch.arity))
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
	if at.interrupted && ok && vm.calls(w, b, called) && (arch.LR == procstate.NoReg || !vm.goesBack(w, b, in.PC())) {
		// It is called with the least SP of the function, or on the way to another.
		next, _ := mem.ReadWord(vm.arch.frameOf(sp) + jscCallee)
		if callerSP == least || vm.classOf(next) == functionCell {
			return to(called, callerSP, calledAt)
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
	in.Code = vm.codeOf(w.Codes(), b.function, b, codePlace{serial: b.serial}, true)
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
		if ra, ok = in.Regs.Value(vm.arch.scratch); ok && try(unwind.InRegister(vm.arch.scratch)) {
			return ra, sp, unwind.InRegister(vm.arch.scratch), true
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
	returns := mcode.PathValue{Base: mcode.PathSP, InMemory: true}
	if arch.LR != procstate.NoReg {
		returns = mcode.PathValue{Base: mcode.PathLR}
		state.Regs[arch.LR] = returns
	}
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
	sp = first + vm.arch.pushed
	for i := range state.Stores[:state.N] {
		if t := &state.Stores[i]; t.Value == returns && t.At.Base == mcode.PathSP && t.At.Off >= now.Off {
			return unwind.InMemory(first + uint64(int64(t.At.Off))), sp, true
		}
	}
	if now.Off <= 0 && state.WordAt(mcode.PathValue{Base: mcode.PathSP}) == returns {
		return unwind.InMemory(first), sp, true
	}
	for reg := range state.Regs {
		if state.Regs[reg] == returns {
			return unwind.InRegister(procstate.Reg(reg)), sp, true
		}
	}
	return is, 0, false
}

// leastSP returns where SP is in the frame of a CodeBlock but for calls of JavaScript, 0 where that is not known.
func (vm *machine) leastSP(cell uint64, b *block, fp uint64) uint64 {
	if b.code.tier != baseline && b.code.tier != dfg {
		return 0
	}
	data, ok1 := vm.WordNow(cell + vm.blockCode + 8)
	at, ok2 := vm.WordNow(data + dataSP)
	if !ok1 || !ok2 || !isCell(data) {
		return 0
	}
	return fp + at
}

// keepArity keeps the register that code leaves alone which moves a frame.
func (vm *machine) keepArity(out *unwind.Frame, v uint64, known bool) bool {
	if known {
		out.Regs.Set(vm.arch.arity, v)
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
	var buf [maxFarCall]byte
	n := min(uint64(len(buf)), ra-m.Start)
	code := mcode.Read(w, m, ra-n, buf[:n])
	if uint64(len(code)) < n {
		return 0, false, false
	}
	if target, ok := vm.arch.farTarget(code); ok {
		return target, true, true
	}
	return mcode.CallBefore(w.Arch(), code[max(len(code), mcode.MaxCallLen)-mcode.MaxCallLen:], ra)
}

// movesFrame reports whether the code at ra has called, to have arguments added, what pc is in, by
// what stands around it; with 0 for pc anything.
//
//	pop  %rsi	mov x1, x30
//	call ...
//	push %rsi	mov x30, x1
//	jmp  ...
func (vm *machine) movesFrame(w *unwind.Walker, ra, pc uint64) bool {
	a := vm.arch
	before := a.call + uint64(len(a.take))
	if !vm.made.Holds(ra-before) || !vm.made.Holds(ra) {
		return false
	}
	m := w.MappingAt(ra)
	if m == nil {
		return false
	}
	var buf [maxAround]byte
	code := mcode.Read(w, m, ra-before, buf[:])
	if uint64(len(code)) < before || !bytes.HasPrefix(code, a.take) || !bytes.HasPrefix(code[before:], a.give) {
		return false
	}
	var in isa.Inst
	if !mcode.Decode(a.Arch, code[before:][len(a.give):], ra+uint64(len(a.give)), &in) || in.Flow != isa.Jump {
		return false
	}
	target, direct, ok := vm.callBefore(w, ra)
	return ok && direct && (pc == 0 || pc-target < maxMover)
}
