package steppers

import (
	"bytes"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Code is called by that of functions, or jumped to, that sets up no frame, and whose callers are found here. It has no
// name.
const (
	maxJSCMover = 128 // bytes of the code that moves a frame to make room for arguments that are missing

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
	least := vm.leastSP(cell, b, fp)
	if at.interrupted && ok && vm.calls(w, b, top) {
		// It is called with the least SP of the function, or on the way to another.
		next, _ := mem.ReadWord(sp - 8 + jscCallee)
		if sp+8 == least || vm.classOf(next) == jscFunctionCell {
			return to(top, sp+8, unwind.InMemory(sp))
		}
	}
	saved := least - 16 // where the frame pointer is, if it has saved that
	if saved < sp || saved >= fp {
		return false
	}
	v, ok1 := mem.ReadWord(saved)
	ra, ok2 := mem.ReadWord(saved + 8)
	if !ok1 || !ok2 || v != fp || !vm.calls(w, b, ra) {
		return false
	}
	to(ra, least, unwind.InMemory(saved+8))
	out.FPLocation = unwind.InMemory(saved)
	return true
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

// callBefore is what callBefore says of the code before ra.
func (vm *jscVM) callBefore(w *unwind.Walker, ra uint64) (target uint64, direct, ok bool) {
	m := w.MappingAt(ra - 1)
	if m == nil {
		return 0, false, false
	}
	var buf [maxCallLen]byte
	n := min(maxCallLen, ra-m.Start)
	code := readCode(w, m, ra-n, buf[:n])
	if uint64(len(code)) < n {
		return 0, false, false
	}
	return callBefore(w.Arch(), code, ra)
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
