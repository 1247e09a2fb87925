package jsc

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// framePoint is where a frame is in its code.
type framePoint struct {
	pc          uint64 // in the call, where it is in one
	interprets  bool   // pc is in the interpreter
	interrupted bool
	calls       bool // functions of JavaScript, maybe by those of C: what may throw has noted where it is
	enters      bool // it has yet to set up its frame
	isPart      bool // pc is in a part of the function that is elsewhere
	state       frameState
	reg         procstate.Reg // that has the return address, with popped; else not set
	frame       uint64        // where the caller's frame pointer is, or will be
}

// frameState tells how far a function has come in setting up its frame, or in leaving it.
type frameState uint8

const (
	frameSet frameState = iota // the frame pointer is the function's
	fpSaved                    // SP is where the frame pointer is saved that will be set, or was
	noFrame                    // the return address is where the call has left it
	jumps                      // so it is, and the code goes on elsewhere in the same way
	popped                     // the same, but that the return address is in another register
)

// Parts of a frame, by their distance from the frame pointer.
const (
	jscReturn    = 8
	jscCodeBlock = 16
	jscCallee    = 24
	jscArguments = 32 // their number, and behind that where the frame's call is
)

const (
	lookBefore = 4 // bytes of the code before the PC that are looked at, at most,
	lookBehind = 12
)

// find tells where the frame is from the code around an interrupted PC, and the stack pointer.
func (at *framePoint) find(a *arch, before, code []byte, sp uint64) {
	switch at.state, at.enters = a.state(before, code); at.state {
	case noFrame:
		at.frame = a.frameOf(sp)
	case fpSaved:
		at.frame = sp
	}
}

// callerFrame walks from the frame, which is one of JavaScript.
func (at *framePoint) callerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	arch, mem := w.Arch(), w.ProcessState()
	fp, ok := in.FP(), true
	out.FPLocation = in.FPLocation
	reg := at.reg
	if at.state == noFrame || at.state == jumps {
		reg = arch.LR
	}
	if at.state >= noFrame && reg != procstate.NoReg {
		pc, ok := in.Regs.Value(reg)
		if !ok {
			return unwind.NotMe, nil
		}
		out.SetPC(arch, pc)
		out.SetSP(arch, in.SP())
		out.SetFP(arch, fp)
		out.PCLocation = unwind.InRegister(reg)
		out.Regs.ThreadPointer = in.Regs.ThreadPointer
		return unwind.Success, nil
	}
	if at.state == frameSet || at.state == fpSaved {
		fp, ok = mem.ReadWord(at.frame)
		out.FPLocation = unwind.InMemory(at.frame)
	}
	pc, ok2 := mem.ReadWord(at.frame + jscReturn)
	if !ok || !ok2 {
		*out = unwind.Frame{}
		return unwind.Failed, unwind.ReadFailure(mem, at.frame)
	}
	out.SetPC(arch, w.CodeAddress(pc))
	out.SetSP(arch, at.frame+jscCodeBlock)
	out.SetFP(arch, fp)
	out.PCLocation = unwind.InMemory(at.frame + jscReturn)
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	return unwind.Success, nil
}

// knows reports whether the frame is one of JavaScript, and notes what runs in it.
func (vm *machine) knows(w *unwind.Walker, in *unwind.Frame, at *framePoint) bool {
	mem := w.ProcessState()
	cell, ok1 := mem.ReadWord(at.frame + jscCodeBlock)
	callee, ok2 := mem.ReadWord(at.frame + jscCallee)
	if !ok1 || !ok2 {
		return false
	}
	if b := vm.blockAt(cell, at); b != nil && b.code.runs(at) && vm.isOf(b, callee) && b.code.hasFrame(w, vm.arch, at) {
		place := codePlace{serial: b.serial, start: at.start(&b.code)}
		site, ok := mem.ReadWord(at.frame + jscArguments)
		switch {
		case at.calls && b.code.pool != 0:
			if place.origin, ok = vm.originAt(&b.code, uint32(site>>32)); !ok {
				return true // it has no name, as others may be inlined
			}
		case at.calls && b.code.tier <= baseline && ok:
			place.call = bytecodeAt(site>>32) + 1
		}
		in.Code = vm.codeOf(w.Codes(), b.function, b, place, !at.interprets)
		return true
	}
	e := vm.executableOf(callee)
	if e == 0 {
		return false
	}
	if at.interrupted { // it has yet to say in its frame what it runs
		f, start := vm.entered(w, e, at)
		if f != nil {
			in.Code = vm.codeOf(w.Codes(), f, nil, codePlace{serial: f.serial, start: start}, !at.interprets)
		}
		return f != nil
	}
	if cell != 0 || at.interprets {
		return false
	}
	f := vm.nativeAt(e)
	if f != nil && !vm.entersNative(e, at.pc) && !vm.isWithin(mem, at) {
		return false
	}
	if f != nil {
		in.Code = vm.codeOf(w.Codes(), f, nil, codePlace{serial: f.serial}, true)
	}
	return f != nil
}

// isWithin reports whether the frame is one of code within that of its caller, which calls a native function so.
func (vm *machine) isWithin(mem procstate.Memory, at *framePoint) bool {
	fp, ok1 := mem.ReadWord(at.frame)
	pc, ok2 := mem.ReadWord(at.frame + jscReturn)
	cell, ok3 := mem.ReadWord(fp + jscCodeBlock)
	if !ok1 || !ok2 || !ok3 || fp <= at.frame {
		return false
	}
	b := vm.blockAt(cell, at)
	return b != nil && b.code.made.Holds(at.pc) && b.code.made.Holds(pc-1)
}
