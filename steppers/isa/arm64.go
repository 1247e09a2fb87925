package isa

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
)

const (
	armSP procstate.Reg = 31
	armLR procstate.Reg = 30
)

// DecodeARM64 is the [Decoder] of AArch64 code (A64). Words that the
// architecture leaves unallocated at the top level are invalid; all others
// are instructions, with a Clobber of what they write.
func DecodeARM64(code []byte, pc uint64, in *Inst) bool {
	if len(code) < 4 {
		return false
	}
	w := binary.LittleEndian.Uint32(code)
	*in = Inst{Len: 4, Reg: procstate.NoReg, Base: procstate.NoReg}
	switch op0 := w >> 25 & 15; {
	case op0 == 0: // reserved: udf
		in.Flow = Trap
		return w>>16 == 0
	case op0 == 1 || op0 == 3:
		return false
	case op0 == 2:
		armScalable(w, in)
	case op0&0xe == 8:
		armImmediate(w, pc, in)
	case op0&0xe == 10:
		return armBranch(w, pc, in)
	case op0&5 == 4:
		armLoadStore(w, in)
	case op0&7 == 5:
		armRegister(w, in)
	case op0&7 == 7:
		armVector(w, in)
	}
	return true
}

func bits(w uint32, lo, n uint) uint32 { return w >> lo & (1<<n - 1) }

func signedBits(w uint32, lo, n uint) int64 {
	return int64(int32(w<<(32-lo-n)) >> (32 - n))
}

func armReg(w uint32, lo uint) procstate.Reg { return procstate.Reg(bits(w, lo, 5)) }

// armWrite makes a general register unknown; number 31 is the zero register.
func armWrite(in *Inst, r procstate.Reg) {
	if r != 31 {
		clobber(in, r)
	}
}

func armImmediate(w uint32, pc uint64, in *Inst) {
	rd, rn := armReg(w, 0), armReg(w, 5)
	switch bits(w, 23, 3) {
	case 0, 1: // adr, adrp
		imm := signedBits(w, 5, 19)<<2 | int64(bits(w, 29, 2))
		base := pc
		if w>>31 != 0 {
			base, imm = pc&^0xfff, imm<<12
		}
		if rd != 31 {
			in.add(Op{Kind: Const, Dst: rd, Imm: int64(base) + imm})
		}
	case 2: // add, sub
		imm := int64(bits(w, 10, 12))
		if bits(w, 22, 1) != 0 {
			imm <<= 12
		}
		if bits(w, 30, 1) != 0 {
			imm = -imm
		}
		setsFlags := bits(w, 29, 1) != 0
		switch {
		case w>>31 != 0 && !(setsFlags && rd == 31):
			in.add(Op{Kind: Set, Dst: rd, Src: rn, Imm: imm})
		case !setsFlags:
			clobber(in, rd)
		default:
			armWrite(in, rd)
		}
	case 3: // add, sub with tags
		clobber(in, rd)
	case 4: // logical
		if w>>31 != 0 && bits(w, 29, 2) == 0 {
			if mask, ok := armAlignMask(w); ok {
				if rd != rn {
					in.add(Op{Kind: Set, Dst: rd, Src: rn})
				}
				in.add(Op{Kind: Align, Dst: rd, Imm: mask})
				return
			}
		}
		if bits(w, 29, 2) != 3 {
			clobber(in, rd) // may be SP
		} else {
			armWrite(in, rd)
		}
	case 5: // movz, movn, movk
		imm := int64(bits(w, 5, 16)) << (16 * bits(w, 21, 2))
		switch {
		case rd == 31:
		case bits(w, 29, 2) == 2:
			in.add(Op{Kind: Const, Dst: rd, Imm: imm})
		case bits(w, 29, 2) == 0 && w>>31 != 0:
			in.add(Op{Kind: Const, Dst: rd, Imm: ^imm})
		default:
			clobber(in, rd)
		}
	default:
		armWrite(in, rd)
	}
}

// armAlignMask returns the mask of a 64-bit logical immediate that clears low
// bits and keeps all others.
func armAlignMask(w uint32) (int64, bool) {
	immr, imms := bits(w, 16, 6), bits(w, 10, 6)
	if bits(w, 22, 1) == 0 || immr == 0 {
		return 0, false
	}
	// imms+1 ones, rotated right by immr: they reach the top bit and leave
	// the lowest zero when the rotation is 64 minus the number of zeros.
	if zeros := 63 - imms; zeros == 64-immr && zeros > 0 {
		return -1 << zeros, true
	}
	return 0, false
}

// armBranch reports whether it knows the instruction: where others go on nothing tells.
func armBranch(w uint32, pc uint64, in *Inst) bool {
	switch {
	case w>>26&0x1f == 5: // b, bl
		in.Flow, in.Target = Jump, pc+uint64(signedBits(w, 0, 26)<<2)
		if w>>31 != 0 {
			in.Flow = Call
		}
	case w>>25&0x3f == 0x1a, w>>24 == 0x54: // cbz, cbnz; b.cond, bc.cond
		in.Flow, in.Target = CondJump, pc+uint64(signedBits(w, 5, 19)<<2)
		in.Equal = w>>24 == 0x54 && w&15 == 1
		if w>>24 == 0x54 && w&15 >= 14 { // always
			in.Flow = Jump
		}
	case w>>25&0x3f == 0x1b: // tbz, tbnz
		in.Flow, in.Target = CondJump, pc+uint64(signedBits(w, 5, 14)<<2)
	case w>>25 == 0x6b: // to a register
		in.Reg = armReg(w, 5)
		switch bits(w, 21, 4) {
		case 0, 8:
			in.Flow = IndirectJump
		case 1, 9:
			in.Flow = IndirectCall
		case 2:
			in.Flow = Return
			if in.Reg == 31 { // retaa, retab
				in.Reg = armLR
			}
		default:
			in.Flow = Trap
		}
	case w&0xffc0001f == 0x5500001f: // retaasppc, retabsppc
		in.Flow, in.Reg = Return, armLR
	case w>>24 == 0xd4: // exceptions
		in.Flow = Trap
		if w&0xe0001f == 1 {
			in.Flow = Syscall
			clobber(in, 0)
		}
	case w>>22 == 0x354: // system
		armSystem(w, in)
	default:
		return false
	}
	return true
}

func armSystem(w uint32, in *Inst) {
	switch {
	case w == 0xd503233f || w == 0xd50323bf || w == 0xd503237f || w == 0xd50323ff ||
		w == 0xd503231f || w == 0xd503239f || w == 0xd503235f || w == 0xd50323df:
		// paciasp, autiasp, pacibsp, autibsp and their z forms
		in.add(Op{Kind: Sign, Dst: armLR})
	case w == 0xd50320ff: // xpaclri
		in.add(Op{Kind: Sign, Dst: armLR})
	case bits(w, 19, 3)&4 != 0: // mrs, sysl
		armWrite(in, armReg(w, 0))
	}
}

// armRegister handles data processing of registers.
func armRegister(w uint32, in *Inst) {
	rd, rn, rm := armReg(w, 0), armReg(w, 5), armReg(w, 16)
	switch {
	case w&0x7fe0ffe0 == 0x2a0003e0: // mov (orr rd, xzr, rm)
		switch {
		case rd == 31:
		case w>>31 != 0 && rm != 31:
			in.add(Op{Kind: Set, Dst: rd, Src: rm})
		case rm == 31:
			in.add(Op{Kind: Const, Dst: rd})
		default:
			clobber(in, rd)
		}
	case bits(w, 24, 5) == 0xb && bits(w, 21, 1) != 0: // add, sub with extension: SP allowed
		setsFlags := bits(w, 29, 1) != 0
		if setsFlags && rd == 31 {
			if w>>31 != 0 && bits(w, 30, 1) != 0 && bits(w, 10, 3) == 0 && rm != 31 {
				in.add(Op{Kind: Compare, Dst: rn, Src: rm})
			}
			return
		}
		if w>>31 != 0 && bits(w, 10, 3) == 0 && bits(w, 13, 2) == 3 && rd == rn && rm != 31 {
			kind := Add
			if bits(w, 30, 1) != 0 {
				kind = Sub
			}
			in.add(Op{Kind: kind, Dst: rd, Src: rm})
			return
		}
		clobber(in, rd)
	case bits(w, 24, 5) == 0xb && bits(w, 10, 6) == 0 && w>>31 != 0 && rd == rn && rd != 31 && rm != 31:
		kind := Add
		if bits(w, 30, 1) != 0 {
			kind = Sub
		}
		in.add(Op{Kind: kind, Dst: rd, Src: rm})
	case w&0xffe0fc1f == 0xeb00001f && rn != 31 && rm != 31: // cmp
		in.add(Op{Kind: Compare, Dst: rn, Src: rm})
	case w&0xffff0000 == 0xdac10000: // pac, aut, xpac of any register
		if rd != 31 {
			in.add(Op{Kind: Sign, Dst: rd})
		}
	default:
		armWrite(in, rd)
	}
}

// armVector handles floating point and vectors; some forms write a general
// register.
func armVector(w uint32, in *Inst) {
	rd := armReg(w, 0)
	switch {
	case bits(w, 24, 5) == 0x1e && bits(w, 21, 1) != 0 && bits(w, 10, 6) == 0 && bits(w, 30, 1) == 0:
		// conversions between floating point and integer: opcode 0, 1, 4, 5
		// and fmov to general registers
		if op := bits(w, 16, 3); op < 2 || op == 4 || op == 5 || op == 6 {
			armWrite(in, rd)
		}
	case bits(w, 24, 5) == 0x1e && bits(w, 21, 1) == 0 && bits(w, 30, 1) == 0: // fixed point
		if op := bits(w, 16, 3); op < 2 {
			armWrite(in, rd)
		}
	case w&0xbfe0fc00 == 0x0e003c00, w&0xbfe0fc00 == 0x0e002c00: // umov, smov
		armWrite(in, rd)
	}
}

// armScalable handles SVE, of which few instructions write a general register. Those that
// make a frame for its vectors change SP by what only the processor knows.
func armScalable(w uint32, in *Inst) {
	rd := armReg(w, 0)
	switch {
	case w&0xffa0f000 == 0x04205000: // addvl, addpl
		clobber(in, rd)
	case w&0xffe0f000 == 0x04a05000, // rdvl
		w&0xff20e000 == 0x0420e000, // cntb, incb, sqincb
		w&0xff3fc200 == 0x25208000, // cntp
		w&0xff38f800 == 0x25288800, // incp, sqincp
		w&0xff2ee000 == 0x0520a000: // lasta, clasta
		armWrite(in, rd)
	}
}
