package spidermonkey

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// arch is what of SpiderMonkey is not the same on all architectures.
type arch struct {
	*procstate.Arch
	pc procstate.Reg // where the baseline interpreter has its place in the bytecode
	// pseudoSP is what code that is made has instead of SP, which needs not be a multiple of 16. It is the same where code
	// calls and is called; elsewhere SP may be lower.
	pseudoSP procstate.Reg

	// stage tells how far code of a function has come, by what is around it, and by how many bytes of it there are before.
	stage func(before, code []byte, off uint64) stage
	// entry is what the code begins with by which C++ calls JavaScript, where that is not as all functions begin.
	entry []byte
	// shifts executes the instruction that code begins with, if that shifts a size to the right that is above other bits.
	shifts func(code []byte, regs *registerState) bool
}

// architectures are those on which the virtual machine is known.
var architectures = [...]*arch{
	{Arch: procstate.AMD64, pc: 14, pseudoSP: procstate.AMD64.SP, stage: stageAMD64, shifts: shiftsAMD64},
	{Arch: procstate.ARM64, pc: 9, pseudoSP: 28, entry: []byte{0xfe, 0x77, 0xbf, 0xa9, 0xfd, 0x03, 0x00, 0x91}, stage: stageARM64, shifts: shiftsARM64},
}

// archOf returns what is known of an architecture, nil where the virtual machine is not known on it.
func archOf(a *procstate.Arch) *arch {
	for _, is := range architectures {
		if is.Arch == a {
			return is
		}
	}
	return nil
}

// stage is how far a function has come in setting up its frame, or in leaving it.
type stage uint8

const (
	frameThere   stage = iota
	framePushed        // the caller's frame pointer is on the top of the stack, and still, or again, in the register
	returnPushed       // the return address is
	onlyCalled         // nothing is on the stack: the return address is in a register
)

// below is how far below the stack pointer the frame is where that is where the caller's frame pointer is saved.
func (s stage) below() uint64 { return 8 * uint64(s-framePushed) }

// How many bytes of code tell, at most.
const (
	stageBefore = 4
	stageBehind = 16
)

// stageAMD64 is arch.stage.
func stageAMD64(_, code []byte, off uint64) stage {
	const push, pop, ret, retN = 0x55, 0x5d, 0xc3, 0xc2 // of %rbp
	switch {
	case len(code) == 0:
	case code[0] == ret || code[0] == retN || code[0] == push && off == 0:
		return returnPushed
	case code[0] == pop || off == 1:
		return framePushed
	}
	return frameThere
}

// Instructions of AArch64, by which functions begin and end.
const (
	pushLR   = 0xf81f8f9e // str x30, [x28, #-8]!
	pushFP   = 0xf81f8f9d
	lowerSP  = 0xd100239f // sub sp, x28, #8
	setFP    = 0xaa1c03fd // mov x29, x28
	popLR    = 0xf840879e // ldr x30, [x28], #8
	popFP    = 0xf840879d
	syncSP   = 0x9100039f // mov sp, x28
	returnLR = 0xd65f03c0
	jumpIf   = 0x54 // in the highest bits
)

// stageARM64 is arch.stage: before each push SP is lowered, and before a return, and perhaps elsewhere, it is set. Between
// what takes off the frame pointer and the return address there may be a jump.
func stageARM64(before, code []byte, off uint64) stage {
	inst := func() (inst uint32) {
		if len(code) >= 4 {
			inst = binary.LittleEndian.Uint32(code)
			code = code[4:]
		}
		return inst
	}
	is := inst()
	for is == syncSP {
		is = inst()
	}
	const prologue = 5 * 4
	switch {
	case is == returnLR:
		return onlyCalled
	case is == popLR, is>>24 == jumpIf && len(before) == 4 && binary.LittleEndian.Uint32(before) == popFP:
		return returnPushed
	case is == popFP:
		return framePushed
	case off >= prologue:
		return frameThere
	}
	if is == lowerSP {
		is = inst()
	}
	switch is {
	case pushLR:
		return onlyCalled
	case pushFP:
		return returnPushed
	case setFP:
		return framePushed
	}
	return frameThere
}

// stackPointer is the stack pointer as code has it that was interrupted.
func (a *arch) stackPointer(f *unwind.Frame) uint64 {
	if sp, ok := f.Regs.Value(a.pseudoSP); ok && sp-f.SP()+maxFrame <= 2*maxFrame {
		return sp
	}
	return f.SP()
}

// makesRoom returns by how much code that begins at start lowers the stack pointer by a constant first, and where it goes on
// then. Where the return address is in a register it saves that before, and may need no more room. Elsewhere it needs none if it
// jumps or returns first.
func (a *arch) makesRoom(code []byte, start uint64) (size, end uint64, ok bool) {
	var in isa.Inst
	saved := false
	for at := start; mcode.Decode(a.Arch, code, at, &in) && (in.Flow == isa.Next || in.Flow == isa.CondJump); at += uint64(in.Len) {
		saves := false
		for i := range in.Ops[:in.NumOps] {
			op := &in.Ops[i]
			switch {
			case op.Kind == isa.Store || op.Kind == isa.Compare:
				saves = saves || op.Kind == isa.Store && op.Src == a.LR
			case op.Dst != a.pseudoSP:
			case op.Kind == isa.Set && op.Src == a.pseudoSP && op.Imm < 0 && in.NumOps == 1:
				return uint64(-op.Imm), at + uint64(in.Len), true
			case !saves:
				return 0, 0, false
			}
		}
		if saved {
			return 0, at, true
		}
		saved = saves
		code = code[in.Len:]
	}
	if a.LR == procstate.NoReg && mcode.Decode(a.Arch, code, start, &in) && (in.Flow == isa.Jump || in.Flow == isa.Return) {
		return 0, start, true
	}
	return 0, 0, false
}

// shiftsAMD64 is arch.shifts: shr $by, %reg.
func shiftsAMD64(code []byte, regs *registerState) bool {
	const rexW, rexWB, shift, right = 0x48, 0x49, 0xc1, 0xe8
	if len(code) < 4 || code[0]&^1 != rexW || code[1] != shift || code[2]&^7 != right || code[3] > 63 {
		return false
	}
	reg := mcode.RegisterX86(procstate.AMD64, code[2]&7)
	if code[0] == rexWB {
		reg = procstate.Reg(8 + code[2]&7)
	}
	v, known := regs.get(reg)
	regs.set(reg, v>>code[3], known)
	return true
}

// shiftsARM64 is arch.shifts: lsr to, reg, #by, and add to, reg, other, lsr #by.
func shiftsARM64(code []byte, regs *registerState) bool {
	const lsr, add, zero = 0xd340fc00, 0x8b400000, 31
	inst := binary.LittleEndian.Uint32(code)
	to, reg, other := procstate.Reg(inst&31), procstate.Reg(inst>>5&31), procstate.Reg(inst>>16&31)
	switch {
	case inst&0xffc0fc00 == lsr && to != zero && reg != zero:
		v, known := regs.get(reg)
		regs.set(to, v>>(inst>>16&63), known)
		return true
	case inst&0xffe00000 != add:
		return false
	}
	a, known1 := regs.get(reg)
	b, known2 := regs.get(other)
	if to == zero || reg == zero || other == zero {
		return false
	}
	regs.set(to, a+b>>(inst>>10&63), known1 && known2)
	return true
}
