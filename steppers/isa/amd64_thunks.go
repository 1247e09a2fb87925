package isa

import "github.com/swbpf/swbpf/procstate"

// Compilers replace indirect branches, and returns, by returns whose way the
// processor does not foresee (GCC's -mindirect-branch and -mfunction-return,
// clang's -mretpoline). A call pushes an address that nothing ever goes to, over
// a loop that waits there in its place, and the address is written over:
//
//	call 2f
//	1: pause; lfence; jmp 1b
//	2: mov %rax,(%rsp)         or lea 0x8(%rsp),%rsp
//	ret
//
// So the call is a jump that pushes, the last two instructions are one indirect
// jump, and the whole, where GCC puts it in place of an indirect call, is that:
//
//	jmp 4f
//	3: call 2f ...             as above
//	4: call 3b

// DecodeAMD64 takes the whole for one instruction where it has 25 bytes to look
// at, and the last two for one where it has 5.

const (
	captureLoop = "\xf3\x90\x0f\xae\xe8\xeb\xf9"
	thunkPush   = "\xe8\x07\x00\x00\x00" + captureLoop
)

// The places in an inlined thunk, from its start on, in bytes. Its own call is the
// last instruction.
const (
	ThunkEntry = 2                  // where the call leads to: nothing is pushed but the return address
	ThunkStore = ThunkEntry + 5 + 7 // where a word more is pushed
	thunkRet   = ThunkStore + 4
	thunkCall  = 5 // bytes

	maxInst = 15 // bytes of an instruction
)

// IsThunk reports whether an IndirectCall is an inlined thunk. The code between
// ThunkEntry and Call is executed as a subroutine.
func (in *Inst) IsThunk() bool { return in.Len > maxInst }

// ThunkCall returns where the call of an inlined thunk is, from its start on.
func (in *Inst) ThunkCall() uint64 { return uint64(in.Len) - thunkCall }

// fuse makes of an instruction that has been decoded, the first of code, what it
// is in a thunk.
func fuse(code []byte, in *Inst) {
	switch code[0] {
	case 0xeb:
		if size, reg := inlinedThunk(code); size != 0 {
			*in = Inst{Len: uint8(size), Flow: IndirectCall, Reg: reg, Base: procstate.NoReg}
		}
	case 0xe8:
		if len(code) >= 5+len(captureLoop) && string(code[5:5+len(captureLoop)]) == captureLoop {
			in.Flow = Jump
			(&x86inst{}).pushAny(in)
		}
	case 0x48, 0x4c:
		if reg, ok := storesTarget(code); ok {
			*in = Inst{Len: 5, Flow: IndirectJump, Reg: reg, Base: procstate.NoReg}
			in.add(Op{Kind: Set, Dst: rsp, Src: rsp, Imm: 8})
		}
	}
}

// storesTarget reports whether code writes a register to the top of the stack
// and returns there, and which one.
func storesTarget(code []byte) (reg procstate.Reg, ok bool) {
	if len(code) < 5 || code[0]&^4 != 0x48 || code[1] != 0x89 || code[2]&^0x38 != 0x04 || code[3] != 0x24 || code[4] != 0xc3 {
		return procstate.NoReg, false
	}
	return amd64Regs[code[2]>>3|code[0]&4<<1], true
}

// inlinedThunk returns the length of the inlined thunk that code begins with, and
// the register that holds where it goes; 0 when there is none.
func inlinedThunk(code []byte) (size int, reg procstate.Reg) {
	if len(code) < thunkRet+1+thunkCall || code[0] != 0xeb {
		return 0, procstate.NoReg
	}
	call := int(code[1]) + 2
	reg, ok := storesTarget(code[ThunkStore:])
	if !ok || call != thunkRet+1 && (call != thunkRet+2 || code[thunkRet+1] != 0xcc) || len(code) < call+thunkCall ||
		string(code[ThunkEntry:ThunkStore]) != thunkPush ||
		code[call] != 0xe8 || int(int8(code[call+1])) != ThunkEntry-call-thunkCall || string(code[call+2:call+5]) != "\xff\xff\xff" {
		return 0, procstate.NoReg
	}
	return call + thunkCall, reg
}

// InThunk reports whether the instruction at index at of code, of x86-64, is one
// that the call of an inlined thunk leads to, and how many bytes above SP the CFA is
// there: all registers are still the caller's.
func InThunk(code []byte, at int) (size int64, ok bool) {
	for _, place := range [...]struct {
		off  int
		size int64
	}{{ThunkEntry, 8}, {ThunkStore, 16}, {thunkRet, 16}} {
		if start := at - place.off; start >= 0 && start < len(code) {
			if n, _ := inlinedThunk(code[start:]); n != 0 {
				return place.size, true
			}
		}
	}
	return 0, false
}

// InJumpThunk reports whether the instruction at index at of code, of x86-64, is one
// of a thunk that stands for a jump, or is called as one: to the address in reg. It has
// pushed so many bytes on the stack by then, which has that address itself with
// atTop.
func InJumpThunk(code []byte, at int) (reg procstate.Reg, pushed int64, atTop, ok bool) {
	for i, off := range [...]int{0, ThunkStore - ThunkEntry, thunkRet - ThunkEntry} {
		start := at - off
		if start < 0 || start+ThunkStore-ThunkEntry > len(code) || string(code[start:][:ThunkStore-ThunkEntry]) != thunkPush {
			continue
		}
		if reg, ok = storesTarget(code[start+ThunkStore-ThunkEntry:]); ok {
			return reg, int64(min(i, 1)) * 8, i == 2, true
		}
	}
	return procstate.NoReg, 0, false, false
}
