package isa

import "github.com/swbpf/swbpf/procstate"

// kernelEntry is where a thread's block has the address of __kernel_vsyscall, which
// glibc calls: sysinfo of tcbhead_t.
const kernelEntry = 0x10

// i386Regs maps the DWARF numbers of x86-64 to those of i386, which are those of the
// processor.
var i386Regs = [8]procstate.Reg{0, 2, 1, 3, 6, 7, 5, 4}

// shapes1I386 is shapes1 for i386: what REX and what 64-bit mode has taken away are
// instructions there.
const shapes1I386 = "mmmmiI..mmmmiI.p" + "mmmmiI..mmmmiI.." + "mmmmiIp.mmmmiIp." + "mmmmiIp.mmmmiIp." +
	"................" + "................" + "..mmppppIzib...." + "jjjjjjjjjjjjjjjj" +
	"bzbbmmmmmmmmmmmm" + "..........f....." + "oooo....iI......" + "iiiiiiiivvvvvvvv" +
	"bbw.mmbze.w..i.." + "mmmmii..mmmmmmmm" + "jjjjiiiiJJfj...." + "p.pp..mm......mm"

// DecodeI386 is the [Decoder] of 32-bit x86 code. It takes no thunk for one instruction.
func DecodeI386(code []byte, pc uint64, in *Inst) bool {
	var x x86inst
	n := x.parse(code, true)
	if n == 0 {
		return false
	}
	x.decode(n, pc, in)
	in.Target, in.Table = uint64(uint32(in.Target)), uint64(uint32(in.Table))
	in.Reg, in.Base = i386Reg(in.Reg), i386Reg(in.Base)
	for i := range in.Ops[:in.NumOps] {
		op := &in.Ops[i]
		op.Dst, op.Src, op.Index = i386Reg(op.Dst), i386Reg(op.Src), i386Reg(op.Index)
	}
	return true
}

// i386Reg gives the number that i386 has for a register; Temp and NoReg stay what
// they are.
func i386Reg(r procstate.Reg) procstate.Reg {
	if int(r) < len(i386Regs) {
		return i386Regs[r]
	}
	return r
}

// IsPCThunk reports whether code of i386 begins with a function that returns its return
// address in a register, as __x86.get_pc_thunk.bx does in EBX: mov (%esp),%reg; ret.
func IsPCThunk(code []byte) bool {
	return len(code) > 3 && code[0] == 0x8b && code[1]&^0x38 == 0x04 && code[2] == 0x24 && code[3] == 0xc3
}

// bits32Legacy reports whether an opcode that begins VEX or EVEX in 64-bit mode is les,
// lds or bound: these have memory for an operand.
func bits32Legacy(bits32 bool, code []byte) bool {
	return bits32 && (len(code) < 2 || code[1] < 0xc0)
}

// memory16 reads the displacement of a memory operand in 16-bit addressing, of which
// nothing else is told.
func (x *x86inst) memory16(code []byte, i int) int {
	switch {
	case x.mod == 1:
		return x.displacement(code, i, 1)
	case x.mod == 2, x.rm == 6:
		return x.displacement(code, i, 2)
	}
	return i
}

// i386Segment handles the instructions of i386 between those of arithmetic: push and
// pop of segment registers, and daa, das, aaa and aas.
func (x *x86inst) i386Segment(in *Inst) {
	switch {
	case x.op >= 0x20:
		clobber(in, rax)
	case x.op&1 == 0:
		x.pushAny(in)
	default:
		x.popAny(in)
	}
}

// allRegisters handles pusha and popa of i386, as far as there is room for operations:
// EDI is not known to be saved, and what popa does to the registers that calls do not
// preserve is left out, in which functions with either keep nothing of their frames.
func (x *x86inst) allRegisters(in *Inst) {
	const size = 32
	switch {
	case x.size16 && x.op == 0x60: // words of two bytes, for which nobody has a use
		in.add(Op{Kind: Scratch, Dst: rsp, Imm: -size / 2, Size: size / 2})
		in.add(Op{Kind: Set, Dst: rsp, Src: rsp, Imm: -size / 2})
	case x.size16:
		in.add(Op{Kind: Set, Dst: rsp, Src: rsp, Imm: size / 2})
		clobber(in, rbp, rbx, rsi, rdi)
	case x.op == 0x60:
		in.add(Op{Kind: Scratch, Dst: rsp, Imm: -size, Size: size})
		in.add(Op{Kind: Set, Dst: rsp, Src: rsp, Imm: -size})
		in.add(Op{Kind: Store, Dst: rsp, Imm: 4, Src: rsi})
		in.add(Op{Kind: Store, Dst: rsp, Imm: 8, Src: rbp})
		in.add(Op{Kind: Store, Dst: rsp, Imm: 16, Src: rbx})
	default:
		in.add(Op{Kind: Set, Dst: rsp, Src: rsp, Imm: size})
		in.add(Op{Kind: Load, Dst: rdi, Src: rsp, Imm: -size})
		in.add(Op{Kind: Load, Dst: rsi, Src: rsp, Imm: 4 - size})
		in.add(Op{Kind: Load, Dst: rbp, Src: rsp, Imm: 8 - size})
		in.add(Op{Kind: Load, Dst: rbx, Src: rsp, Imm: 16 - size})
	}
}
