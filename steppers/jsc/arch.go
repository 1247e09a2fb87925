package jsc

import (
	"bytes"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
)

// arch is what of JavaScriptCore is not the same on all architectures: what its code looks like, and where calls leave
// the return address.
type arch struct {
	*procstate.Arch
	pushed uint64 // bytes that a call puts on the stack

	// Instructions with which functions save the frame pointer, and the return address with it if that is not on
	// the stack, set it to SP, get it back and return; and one that does nothing, to be overwritten by a jump.
	save, set, restore, ret, nop []byte
	reset                        uint64 // bytes of the one before restore, which has SP where it was saved

	// arity is the register that has the return address of a function while what it calls moves its frame, which has its own
	// in mover; take and give are the instructions that bring it there and back, and around the call, which has so many bytes.
	arity, mover procstate.Reg
	take, give   []byte
	call         uint64

	// scratch is the register into which code that saves registers around calls of C takes its return address first.
	scratch procstate.Reg
	// padding is what follows the interpreter's code.
	padding []byte
	// farTarget returns where a call goes to that code ends with, by a register that is set right before.
	farTarget func(code []byte) (target uint64, ok bool)
}

// architectures are those on which the machine is known.
var architectures = [...]*arch{
	{
		Arch: procstate.AMD64, pushed: 8,
		save: []byte{0x55}, set: []byte{0x48, 0x89, 0xe5}, restore: []byte{0x5d}, ret: []byte{0xc3}, nop: []byte{0x90}, reset: 3,
		arity: 4, mover: 8, take: []byte{0x5e}, give: []byte{0x56}, call: 5, // pop %rsi and push %rsi; %r8
		scratch: 0, padding: bytes.Repeat([]byte{mcode.BreakpointAMD64}, 8),
		farTarget: farTargetAMD64,
	}, {
		Arch: procstate.ARM64,
		save: word(0xa9bf7bfd), set: word(0x910003fd), restore: word(0xa8c17bfd), ret: word(0xd65f03c0), nop: word(0xd503201f), reset: 4,
		arity: 1, mover: 30, take: word(0xaa1e03e1), give: word(0xaa0103fe), call: 4, // mov x1, x30 and mov x30, x1
		scratch: 30, padding: make([]byte, 16),
		farTarget: farTargetARM64,
	},
}

// word is an instruction of AArch64.
func word(inst uint32) []byte { return binary.LittleEndian.AppendUint32(nil, inst) }

// archOf returns what is known of an architecture, nil where the machine is not known on it.
func archOf(a *procstate.Arch) *arch {
	for _, is := range architectures {
		if is.Arch == a {
			return is
		}
	}
	return nil
}

// frameOf is where the frame of a function is that begins with this SP, as it saves its frame pointer.
func (a *arch) frameOf(sp uint64) uint64 { return sp + a.pushed - jscCodeBlock }

// prologue is how many bytes set up a frame.
func (a *arch) prologue() uint64 { return uint64(len(a.save) + len(a.set)) }

// leave is how many bytes leave a frame before a jump.
func (a *arch) leave() uint64 { return a.reset + uint64(len(a.restore)) }

// state tells how far a function has come in setting up its frame, or in leaving it, by the code before pc and from there
// on. All functions set up a frame first and leave it last.
func (a *arch) state(before, code []byte) (state frameState, enters bool) {
	switch {
	case bytes.HasPrefix(code, a.ret):
		return noFrame, false
	case bytes.HasPrefix(code, a.restore):
		return fpSaved, false
	case bytes.HasSuffix(before, a.save) && bytes.HasPrefix(code, a.set):
		return fpSaved, true
	}
	code = bytes.TrimPrefix(code, a.nop)
	if bytes.HasPrefix(code, a.save) && bytes.HasPrefix(code[len(a.save):], a.set) {
		return noFrame, true
	}
	return frameSet, false
}

// farTargetAMD64 is arch.farTarget: movabs $..., %reg; call *%reg.
func farTargetAMD64(code []byte) (target uint64, ok bool) {
	const rex, rexB, mov, call, modRM, extended = 0x48, 0x49, 0xb8, 0xff, 0xd0, 0x41
	const farCall = 12 // bytes of both, of the first eight registers
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

// farTargetARM64 is arch.farTarget: movz, and movk up to three times, of a register; blr.
func farTargetARM64(code []byte) (target uint64, ok bool) {
	const size, movz, movk = 4, 0xd2800000, 0xf2800000
	var in isa.Inst
	n := len(code) - size
	if n < 0 || !isa.DecodeARM64(code[n:], 0, &in) || in.Flow != isa.IndirectCall {
		return 0, false
	}
	const half = 1<<16 - 1
	for set := uint64(0); n >= size; {
		n -= size
		inst := binary.LittleEndian.Uint32(code[n:])
		shift := 16 * (inst >> 21 & 3)
		if procstate.Reg(inst&31) != in.Reg || set>>shift&half != 0 {
			return 0, false
		}
		set |= half << shift
		target |= uint64(inst>>5&half) << shift
		switch inst &^ (3<<21 | half<<5 | 31) {
		case movz:
			return target, true
		case movk:
		default:
			return 0, false
		}
	}
	return 0, false
}
