package isa

import "github.com/swbpf/swbpf/procstate"

// amd64Regs maps x86 register numbers to those of DWARF.
var amd64Regs = [16]procstate.Reg{0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15}

// Registers that instructions use without naming them, in DWARF numbers.
const (
	rax procstate.Reg = iota
	rdx
	rcx
	rbx
	rsi
	rdi
	rbp
	rsp
	r11 procstate.Reg = 11
)

// DecodeAMD64 is the [Decoder] of x86-64 code. See amd64_thunks.go for what it
// takes for one instruction.
func DecodeAMD64(code []byte, pc uint64, in *Inst) bool {
	var x x86inst
	n := x.parse(code, false)
	if n == 0 {
		return false
	}
	x.decode(n, pc, in)
	if x.enc == encLegacy && x.opmap == 0 {
		fuse(code, in)
	}
	return true
}

// decode fills in from an instruction of n bytes at pc.
func (x *x86inst) decode(n int, pc uint64, in *Inst) {
	*in = Inst{Len: uint8(n), Reg: procstate.NoReg, Base: procstate.NoReg}
	if x.mod != 3 && x.base != noBase && !x.addressOnly() {
		in.Base = amd64Regs[x.base]
	}
	next := pc + uint64(n)
	switch {
	case x.enc != encLegacy:
		x.vector(in)
	case x.opmap == 0:
		x.oneByte(in, next)
	case x.opmap == 1:
		x.twoByte(in, next)
	case x.opmap == 2:
		x.map38(in)
	case x.opmap == 3:
		x.map3A(in)
	}
}

// addressOnly reports whether the instruction does not access the memory that
// its operand names: lea and nop.
func (x *x86inst) addressOnly() bool {
	return x.enc == encLegacy && (x.opmap == 0 && x.op == 0x8d || x.opmap == 1 && (x.op == 0x19 || x.op >= 0x1c && x.op <= 0x1f))
}

func (x *x86inst) regReg() procstate.Reg { return amd64Regs[x.reg&15] }
func (x *x86inst) rmReg() procstate.Reg  { return amd64Regs[x.rm&15] }

// wide reports whether the operands are words.
func (x *x86inst) wide() bool { return x.rex&rexW != 0 || x.bits32 && !x.size16 }

// word is the size of a word.
func (x *x86inst) word() uint8 {
	if x.bits32 {
		return 4
	}
	return 8
}

// plainMem reports whether the ModRM operand is memory at a register plus an
// offset.
func (x *x86inst) plainMem() bool { return x.mod != 3 && x.base != noBase && !x.hasIndex }

// indexedMem reports whether it is memory at a register plus an index and an
// offset.
func (x *x86inst) indexedMem() bool { return x.mod != 3 && x.base != noBase && x.hasIndex }

// indexed makes an operation of the address of that operand, of which dst or
// src, as the kind has it, is the base.
func (x *x86inst) indexed(in *Inst, kind OpKind, dst, src procstate.Reg) {
	in.add(Op{Kind: kind, Dst: dst, Src: src, Index: amd64Regs[x.index], Scale: x.scale, Imm: x.disp})
}

func clobber(in *Inst, regs ...procstate.Reg) {
	for _, r := range regs {
		in.add(Op{Kind: Clobber, Dst: r})
	}
}

// write makes the operand in ModRM.rm, of the given size, something unknown.
func (x *x86inst) write(in *Inst, size uint8) {
	if x.mod == 3 {
		clobber(in, x.byteReg(x.rm, size))
	} else if x.plainMem() {
		disp := x.disp
		if x.enc == encEVEX && x.mod == 1 {
			disp *= int64(size)
		}
		in.add(Op{Kind: Scratch, Dst: amd64Regs[x.base], Imm: disp, Size: size})
	}
}

// byteReg returns the register that a number stands for in an operand of the
// given size: without REX, byte registers 4 to 7 are ah, ch, dh and bh.
func (x *x86inst) byteReg(n, size uint8) procstate.Reg {
	if size == 1 && x.rex == 0 && n >= 4 && n < 8 {
		n -= 4
	}
	return amd64Regs[n&15]
}

// opSize is the size of an operand of a non-byte instruction.
func (x *x86inst) opSize() uint8 {
	switch {
	case x.wide():
		return x.word()
	case x.size16:
		return 2
	}
	return 4
}

// pushed is how many bytes a push or a pop moves SP by.
func (x *x86inst) pushed() int64 {
	if x.size16 && x.rex&rexW == 0 {
		return 2
	}
	return int64(x.word())
}

func (x *x86inst) push(in *Inst, src procstate.Reg) {
	n := x.pushed()
	if n == 2 {
		x.pushAny(in)
		return
	}
	in.add(Op{Kind: Store, Dst: rsp, Imm: -n, Src: src})
	in.add(Op{Kind: Set, Dst: rsp, Src: rsp, Imm: -n})
}

func (x *x86inst) pushAny(in *Inst) {
	n := x.pushed()
	in.add(Op{Kind: Scratch, Dst: rsp, Imm: -n, Size: uint8(n)})
	in.add(Op{Kind: Set, Dst: rsp, Src: rsp, Imm: -n})
}

func (x *x86inst) pop(in *Inst, dst procstate.Reg) {
	x.popAny(in)
	x.popped(in, dst)
}

// popped makes dst hold what SP has just been moved over.
func (x *x86inst) popped(in *Inst, dst procstate.Reg) {
	n := x.pushed()
	if n == 2 {
		clobber(in, dst)
		return
	}
	in.add(Op{Kind: Load, Dst: dst, Src: rsp, Imm: -n})
}

// popAny takes something off the stack that goes to no general register.
func (x *x86inst) popAny(in *Inst) {
	in.add(Op{Kind: Set, Dst: rsp, Src: rsp, Imm: x.pushed()})
}

func (x *x86inst) oneByte(in *Inst, next uint64) {
	op := x.op
	switch {
	case op < 0x40:
		x.arithmetic(in)
	case op < 0x48: // of i386 alone, as the next ones
		x.addOne(in, amd64Regs[op&7], 1)
	case op < 0x50:
		x.addOne(in, amd64Regs[op&7], -1)
	case op < 0x58:
		x.push(in, amd64Regs[op&7|x.rex&rexB<<3])
	case op < 0x60:
		x.pop(in, amd64Regs[op&7|x.rex&rexB<<3])
	case op >= 0x70 && op < 0x80:
		x.condJump(in, next)
	case op >= 0xb0 && op < 0xb8:
		clobber(in, x.byteReg(op&7|x.rex&rexB<<3, 1))
	case op >= 0xb8 && op < 0xc0:
		imm := x.imm
		if !x.wide() || x.bits32 {
			imm = int64(uint32(imm))
		}
		in.add(Op{Kind: Const, Dst: amd64Regs[op&7|x.rex&rexB<<3], Imm: imm})
	case op >= 0xd8 && op < 0xe0: // x87: only fnstsw ax writes a register
		if op == 0xdf && x.mod == 3 {
			clobber(in, rax)
		} else if x.mod != 3 {
			x.x87Store(in)
		}
	case op > 0x90 && op < 0x98, op == 0x90 && x.rex&rexB != 0: // without it, 0x90 is nop
		x.exchange(in, rax, amd64Regs[op&7|x.rex&rexB<<3])
	default:
		x.oneByteOther(in, next)
	}
}

// x87Store scratches memory that a floating-point store may write: at most
// 108 bytes by fsave, 28 by fstenv, 10 by the rest.
func (x *x86inst) x87Store(in *Inst) {
	if size := x87Sizes[x.op&7][x.reg&7]; size > 0 {
		x.write(in, size)
	}
}

// x87Sizes has the bytes that the x87 instructions store, by opcode from D8
// on and by the field of ModRM: fst, fist, fnstcw and so on.
var x87Sizes = [8][8]uint8{
	1: {2: 4, 3: 4, 6: 28, 7: 2},
	3: {1: 4, 2: 4, 3: 4, 7: 10},
	5: {1: 8, 2: 8, 3: 8, 6: 108, 7: 2},
	7: {1: 2, 2: 2, 3: 2, 6: 10, 7: 8},
}

// arithmetic handles add, or, adc, sbb, and, sub, xor and cmp of the regular
// part of the map.
func (x *x86inst) arithmetic(in *Inst) {
	kind, form := x.op>>3, x.op&7
	if form >= 6 {
		x.i386Segment(in)
		return
	}
	size := x.opSize()
	if form&1 == 0 {
		size = 1
	}
	if kind == 7 {
		if form < 4 && size == x.word() && x.mod == 3 {
			in.add(Op{Kind: Compare, Dst: x.rmReg(), Src: x.regReg()})
		}
		return
	}
	switch form {
	case 0, 1:
		if x.mod == 3 && size == x.word() {
			x.regArithmetic(in, kind, x.rmReg(), x.regReg())
			return
		}
		if x.mod == 3 && kind == 6 && x.rm == x.reg && size >= 4 {
			in.add(Op{Kind: Const, Dst: x.rmReg()})
			return
		}
		x.write(in, size)
	case 2, 3:
		if x.mod == 3 && size == x.word() {
			x.regArithmetic(in, kind, x.regReg(), x.rmReg())
			return
		}
		clobber(in, x.byteReg(x.reg, size))
	default:
		if size == x.word() {
			x.immArithmetic(in, kind, rax)
			return
		}
		clobber(in, rax)
	}
}

func (x *x86inst) regArithmetic(in *Inst, kind byte, dst, src procstate.Reg) {
	switch {
	case kind == 0:
		in.add(Op{Kind: Add, Dst: dst, Src: src})
	case kind == 5:
		in.add(Op{Kind: Sub, Dst: dst, Src: src})
	case kind == 6 && dst == src:
		in.add(Op{Kind: Const, Dst: dst})
	default:
		clobber(in, dst)
	}
}

func (x *x86inst) immArithmetic(in *Inst, kind byte, dst procstate.Reg) {
	switch kind {
	case 0:
		in.add(Op{Kind: Set, Dst: dst, Src: dst, Imm: x.imm})
	case 5:
		in.add(Op{Kind: Set, Dst: dst, Src: dst, Imm: -x.imm})
	case 4:
		in.add(Op{Kind: Align, Dst: dst, Imm: x.imm})
	case 7:
	default:
		clobber(in, dst)
	}
}

func (x *x86inst) exchange(in *Inst, a, b procstate.Reg) {
	if x.wide() {
		in.add(Op{Kind: Swap, Dst: a, Src: b})
	} else {
		clobber(in, a, b)
	}
}

func (x *x86inst) condJump(in *Inst, next uint64) {
	in.Flow, in.Target = CondJump, next+uint64(x.imm)
	in.Equal = x.op&15 == 5
}

func (x *x86inst) oneByteOther(in *Inst, next uint64) {
	switch x.op {
	case 0x60, 0x61:
		x.allRegisters(in)
	case 0x62: // bound; of i386 alone
	case 0x63: // movsxd; arpl
		if x.bits32 {
			x.write(in, 2)
		} else {
			clobber(in, x.regReg())
		}
	case 0x68, 0x6a:
		x.pushAny(in)
	case 0x69, 0x6b:
		clobber(in, x.regReg())
	case 0x6c, 0x6d, 0xaa, 0xab: // ins, stos
		clobber(in, rdi, rcx)
	case 0x6e, 0x6f, 0xac, 0xad: // outs, lods
		clobber(in, rsi, rcx, rax)
	case 0xa4, 0xa5, 0xa6, 0xa7: // movs, cmps
		clobber(in, rdi, rsi, rcx)
	case 0xae, 0xaf: // scas
		clobber(in, rdi, rcx)
	case 0x80, 0x81, 0x82, 0x83:
		size := x.opSize()
		if x.op&1 == 0 {
			size = 1
		}
		if x.mod == 3 && size == x.word() {
			x.immArithmetic(in, x.reg&7, x.rmReg())
		} else if x.reg&7 != 7 {
			x.write(in, size)
		}
	case 0x86:
		clobber(in, x.byteReg(x.reg, 1))
		x.write(in, 1)
	case 0x87:
		if x.mod == 3 {
			x.exchange(in, x.rmReg(), x.regReg())
		} else {
			clobber(in, x.regReg())
			x.write(in, x.opSize())
		}
	case 0x88:
		x.write(in, 1)
	case 0x89:
		switch {
		case !x.wide():
			x.write(in, x.opSize())
		case x.mod == 3:
			in.add(Op{Kind: Set, Dst: x.rmReg(), Src: x.regReg()})
		case x.plainMem():
			in.add(Op{Kind: Store, Dst: amd64Regs[x.base], Imm: x.disp, Src: x.regReg()})
		case x.indexedMem():
			x.indexed(in, StoreIndexed, amd64Regs[x.base], x.regReg())
		}
	case 0x8a:
		clobber(in, x.byteReg(x.reg, 1))
	case 0x8b:
		switch {
		case x.wide() && x.mod == 3:
			in.add(Op{Kind: Set, Dst: x.regReg(), Src: x.rmReg()})
		case x.wide() && x.plainMem():
			in.add(Op{Kind: Load, Dst: x.regReg(), Src: amd64Regs[x.base], Imm: x.disp})
		case x.wide() && x.indexedMem():
			x.indexed(in, LoadIndexed, x.regReg(), amd64Regs[x.base])
		default:
			clobber(in, x.regReg())
		}
	case 0x8c:
		x.write(in, 2)
	case 0x8d:
		switch {
		case x.wide() && x.plainMem():
			in.add(Op{Kind: Set, Dst: x.regReg(), Src: amd64Regs[x.base], Imm: x.disp})
		case x.wide() && x.ripRel:
			in.add(Op{Kind: Const, Dst: x.regReg(), Imm: int64(next) + x.disp})
		case x.wide() && x.absolute:
			in.add(Op{Kind: Const, Dst: x.regReg(), Imm: int64(uint32(x.disp))})
		case x.wide() && x.indexedMem():
			x.indexed(in, SetIndexed, x.regReg(), amd64Regs[x.base])
		default:
			clobber(in, x.regReg())
		}
	case 0x8f:
		if x.mod == 3 {
			x.pop(in, x.rmReg())
		} else {
			x.popAny(in)
			if x.plainMem() && !x.size16 {
				in.add(Op{Kind: Load, Dst: Temp, Src: rsp, Imm: -x.pushed()})
				in.add(Op{Kind: Store, Dst: amd64Regs[x.base], Imm: x.disp, Src: Temp})
			} else {
				x.write(in, uint8(x.pushed()))
			}
		}
	case 0x98, 0x9f, 0xd4, 0xd5, 0xd6, 0xd7, 0xe4, 0xe5, 0xec, 0xed, 0xa0, 0xa1:
		clobber(in, rax)
	case 0x99:
		clobber(in, rdx)
	case 0x9c:
		x.pushAny(in)
	case 0x9d:
		x.popAny(in)
	case 0xc4, 0xc5: // les, lds; of i386 alone
		clobber(in, x.regReg())
	case 0x9a, 0xea: // far calls and jumps; of i386 alone
		in.Flow = Trap
	case 0xc0, 0xd0, 0xd2:
		x.write(in, 1)
	case 0xc1, 0xd1, 0xd3:
		x.write(in, x.opSize())
	case 0xc2, 0xc3:
		in.Flow, in.Pop = Return, uint16(x.imm)
	case 0xca, 0xcb, 0xcf: // far returns: not of this world
		in.Flow = Trap
	case 0xc6:
		x.write(in, 1)
	case 0xc7:
		imm := x.imm
		if x.bits32 {
			imm = int64(uint32(imm))
		}
		if x.mod == 3 && x.reg&7 == 0 && x.wide() {
			in.add(Op{Kind: Const, Dst: x.rmReg(), Imm: imm})
		} else {
			if x.mod != 3 {
				in.add(Op{Kind: Const, Dst: Temp, Imm: imm}) // perhaps the address of a function
			}
			x.write(in, x.opSize())
		}
	case 0xc8:
		x.push(in, rbp)
		in.add(Op{Kind: Set, Dst: rbp, Src: rsp})
		if x.secondImm&31 != 0 {
			clobber(in, rsp, rbp)
		} else {
			in.add(Op{Kind: Set, Dst: rsp, Src: rsp, Imm: -int64(uint16(x.imm))})
		}
	case 0xc9:
		in.add(Op{Kind: Set, Dst: rsp, Src: rbp, Imm: x.pushed()})
		x.popped(in, rbp)
	case 0xcc, 0xf4:
		in.Flow = Trap
	case 0xcd:
		in.Flow = Syscall
		clobber(in, rax)
	case 0xe0, 0xe1, 0xe2, 0xe3:
		in.Flow, in.Target = CondJump, next+uint64(x.imm)
		if x.op != 0xe3 {
			clobber(in, rcx)
		}
	case 0xe8:
		in.Flow, in.Target = Call, next+uint64(x.imm)
	case 0xe9, 0xeb:
		in.Flow, in.Target = Jump, next+uint64(x.imm)
	case 0xf6, 0xf7:
		x.unary(in)
	case 0xfe, 0xff:
		x.incCallPush(in, next)
	}
}

// unary handles test, not, neg, mul, imul, div and idiv.
func (x *x86inst) unary(in *Inst) {
	size := x.opSize()
	if x.op == 0xf6 {
		size = 1
	}
	switch x.reg & 7 {
	case 0, 1:
	case 2, 3:
		x.write(in, size)
	default:
		clobber(in, rax)
		if size > 1 {
			clobber(in, rdx)
		}
	}
}

// addOne adds 1 or -1 to a register.
func (x *x86inst) addOne(in *Inst, reg procstate.Reg, n int64) {
	if x.wide() {
		in.add(Op{Kind: Set, Dst: reg, Src: reg, Imm: n})
	} else {
		clobber(in, reg)
	}
}

func (x *x86inst) incCallPush(in *Inst, next uint64) {
	if x.op == 0xfe {
		x.write(in, 1)
		return
	}
	switch x.reg & 7 {
	case 0:
		if x.mod == 3 {
			x.addOne(in, x.rmReg(), 1)
			return
		}
		x.write(in, x.opSize())
	case 1:
		if x.mod == 3 {
			x.addOne(in, x.rmReg(), -1)
			return
		}
		x.write(in, x.opSize())
	case 2, 4:
		in.Flow = IndirectCall
		if x.reg&7 == 4 {
			in.Flow = IndirectJump
		}
		if x.mod == 3 {
			in.Reg = x.rmReg()
		} else if x.ripRel {
			in.Target = next + uint64(x.disp)
		} else if x.absolute {
			in.Target = uint64(x.disp)
		} else if x.thread && x.disp == kernelEntry {
			in.Kernel = in.Flow == IndirectCall
		} else if x.plainMem() {
			in.add(Op{Kind: Load, Dst: Temp, Src: amd64Regs[x.base], Imm: x.disp})
			in.Word = in.Flow == IndirectJump
			in.Member = in.Word && x.disp != 0 && x.disp == int64(int16(x.disp))
		} else if in.Flow == IndirectJump && x.base == noBase && x.hasIndex && x.scale == x.word() && (x.disp > 0 || x.bits32 && !x.thread) {
			in.Table = uint64(x.disp)
		}
	case 6:
		switch {
		case x.mod == 3:
			x.push(in, x.rmReg())
		case x.plainMem() && !x.size16:
			in.add(Op{Kind: Load, Dst: Temp, Src: amd64Regs[x.base], Imm: x.disp})
			x.push(in, Temp)
		default:
			x.pushAny(in)
		}
	default:
		in.Flow = Trap // far call, far jump, undefined
	}
}
