package isa

import "github.com/swbpf/swbpf/procstate"

// access is one load or store of an AArch64 instruction.
type access struct {
	rt     procstate.Reg
	load   bool
	vector bool
	size   uint8
}

// add appends the access at base+off.
func (a access) add(in *Inst, base procstate.Reg, off int64) {
	switch {
	case a.load && a.vector:
	case a.load && a.rt == 31:
	case a.load && a.size == 8:
		in.add(Op{Kind: Load, Dst: a.rt, Src: base, Imm: off})
	case a.load:
		clobber(in, a.rt)
	case !a.vector && a.size == 8 && a.rt != 31:
		in.add(Op{Kind: Store, Dst: base, Imm: off, Src: a.rt})
	default:
		in.add(Op{Kind: Scratch, Dst: base, Imm: off, Size: a.size})
	}
}

// armLoadStore handles loads and stores. The base register is updated last,
// with the offsets of the accesses relative to its old value.
func armLoadStore(w uint32, in *Inst) {
	rt, rn, rt2 := armReg(w, 0), armReg(w, 5), armReg(w, 10)
	vector := bits(w, 26, 1) != 0
	size := uint8(1) << bits(w, 30, 2)
	if literal := bits(w, 27, 3) == 3 && bits(w, 24, 1) == 0; !literal {
		in.Base = rn
	}
	switch {
	case bits(w, 27, 3) == 5: // pairs
		armPair(w, in, rt, rt2, rn, vector)
	case bits(w, 27, 3) == 3 && bits(w, 24, 1) == 0: // literal
		if !vector {
			armWrite(in, rt)
		}
	case bits(w, 27, 3) == 7 && bits(w, 24, 1) != 0: // unsigned offset
		a := armAccess(w, rt, vector, size)
		a.add(in, rn, int64(bits(w, 10, 12))*int64(a.size))
	case bits(w, 27, 3) == 7 && bits(w, 21, 1) == 0: // 9-bit offset
		a := armAccess(w, rt, vector, size)
		off := signedBits(w, 12, 9)
		switch bits(w, 10, 2) {
		case 1: // after
			a.add(in, rn, 0)
			in.add(Op{Kind: Set, Dst: rn, Src: rn, Imm: off})
		case 3: // before
			a.add(in, rn, off)
			in.add(Op{Kind: Set, Dst: rn, Src: rn, Imm: off})
		default:
			a.add(in, rn, off)
		}
	case bits(w, 27, 3) == 7: // register offset, atomics, pointer authentication
		if vector {
			return
		}
		if bits(w, 10, 2) == 2 { // register offset
			if bits(w, 22, 2) != 0 {
				armWrite(in, rt)
			}
			return
		}
		armWrite(in, rt) // what an atomic returns
		if bits(w, 10, 2)&1 != 0 && bits(w, 11, 1) != 0 {
			clobber(in, rn) // ldraa with write-back
		}
	case bits(w, 27, 3) == 1: // exclusive, ordered, compare and swap; vector structures
		if vector {
			if bits(w, 23, 1) != 0 {
				clobber(in, rn) // post-index
			}
			return
		}
		rs := armReg(w, 16)
		armWrite(in, rs) // the status, or what was compared
		if w&0x80a00000 == 0x00200000 && rs < 30 {
			armWrite(in, rs+1) // casp
		}
		if bits(w, 22, 1) != 0 || bits(w, 21, 1) != 0 {
			armWrite(in, rt)
			armWrite(in, rt2)
		}
	default:
		armRareAccess(w, in, rt, rn)
	}
}

// armRareAccess handles tags of memory, which epilogues take away as they give up the frame,
// unscaled and ordered accesses, copies of memory and the wide atomics.
func armRareAccess(w uint32, in *Inst, rt, rn procstate.Reg) {
	const unscaled, written = 0, 2 // kinds of ordered access; written to the base as well
	kind := bits(w, 10, 2)
	switch isTag := w>>24 == 0xd9 && bits(w, 21, 1) != 0; {
	case isTag && kind == 0: // ldg
		armWrite(in, rt)
	case isTag:
		if kind != 2 {
			in.add(Op{Kind: Set, Dst: rn, Src: rn, Imm: signedBits(w, 12, 9) << 4})
		}
	case kind == written && bits(w, 26, 1) != 0: // stlur of a vector
	case kind == unscaled && bits(w, 21, 1) == 0:
		armWrite(in, rt)
	case kind == written && bits(w, 21, 1) == 0:
		armWrite(in, rt)
		armWrite(in, armReg(w, 16))
		clobber(in, rn)
	default:
		armWrite(in, rt)
		armWrite(in, rn)
		armWrite(in, armReg(w, 16))
	}
}

// armAccess tells size and direction of a single-register access.
func armAccess(w uint32, rt procstate.Reg, vector bool, size uint8) access {
	opc := bits(w, 22, 2)
	if vector {
		if opc&2 != 0 {
			size = 16
		}
		return access{rt, opc&1 != 0, true, size}
	}
	if opc >= 2 { // sign-extending loads; prefetch writes nothing
		if size == 8 {
			return access{31, true, false, 8}
		}
		return access{rt, true, false, size}
	}
	return access{rt, opc == 1, false, size}
}

func armPair(w uint32, in *Inst, rt, rt2, rn procstate.Reg, vector bool) {
	load := bits(w, 22, 1) != 0
	size := uint8(4)
	switch opc := bits(w, 30, 2); {
	case vector:
		size = 4 << opc
	case opc == 2:
		size = 8
	}
	off := signedBits(w, 15, 7) * int64(size)
	first := off
	if bits(w, 23, 2) == 1 { // after
		first = 0
	}
	// A loaded base, as in "ldp x29, x30, [x29]", must not be used for the
	// second load: that one goes first.
	a, b := access{rt, load, vector, size}, access{rt2, load, vector, size}
	if load && rt == rn {
		b.add(in, rn, first+int64(size))
		a.add(in, rn, first)
	} else {
		a.add(in, rn, first)
		b.add(in, rn, first+int64(size))
	}
	if bits(w, 23, 1) != 0 {
		in.add(Op{Kind: Set, Dst: rn, Src: rn, Imm: off})
	}
}
