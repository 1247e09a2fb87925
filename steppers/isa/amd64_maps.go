package isa

// twoByte handles the map behind 0F.
func (x *x86inst) twoByte(in *Inst, next uint64) {
	op := x.op
	switch {
	case op >= 0x80 && op < 0x90:
		x.condJump(in, next)
	case op >= 0x40 && op < 0x50: // cmov
		clobber(in, x.regReg())
	case op >= 0x90 && op < 0xa0: // setcc
		x.write(in, 1)
	case op >= 0xc8 && op < 0xd0: // bswap
		clobber(in, amd64Regs[op&7|x.rex&rexB<<3])
	default:
		x.twoByteOther(in)
	}
}

func (x *x86inst) twoByteOther(in *Inst) {
	switch x.op {
	case 0x00, 0x01: // sldt, smsw and the like; xgetbv, rdtscp by ModRM
		if x.mod != 3 {
			if x.reg&7 < 2 || x.reg&7 == 4 {
				x.write(in, 10)
			}
		} else {
			clobber(in, rax, rdx, rcx)
			if x.op == 0 && x.reg&7 < 2 || x.reg&7 == 4 {
				clobber(in, x.rmReg())
			}
		}
	case 0x02, 0x03: // lar, lsl
		clobber(in, x.regReg())
	case 0x05:
		in.Flow = Syscall
		clobber(in, rax, rcx)
		if !x.bits32 {
			clobber(in, r11)
		}
	case 0x34: // sysenter
		if x.bits32 {
			in.Flow = Syscall
			clobber(in, rax, rcx, rdx)
		}
	case 0x0b, 0xb9, 0xff: // ud2, ud1, ud0
		in.Flow = Trap
	case 0x11, 0x13, 0x17, 0x29, 0x2b, 0x7f, 0xd6, 0xe7:
		x.storeVector(in)
	case 0x20, 0x21: // mov from control and debug registers
		clobber(in, x.rmReg())
	case 0x2c, 0x2d:
		if x.pp == 0xf3 || x.pp == 0xf2 {
			clobber(in, x.regReg())
		}
	case 0x31, 0x32, 0x33: // rdtsc, rdmsr, rdpmc
		clobber(in, rax, rdx)
	case 0x50, 0xb2, 0xb4, 0xb5, 0xc5, 0xd7, 0xaf, 0xb6, 0xb7, 0xb8, 0xbc, 0xbd, 0xbe, 0xbf:
		clobber(in, x.regReg())
	case 0x7e:
		if x.pp != 0xf3 {
			x.write(in, x.generalSize())
		}
	case 0xa1, 0xa9: // pop fs, pop gs
		x.popAny(in)
	case 0xa0, 0xa8:
		x.pushAny(in)
	case 0xa2: // cpuid
		clobber(in, rax, rbx, rcx, rdx)
	case 0xa4, 0xa5, 0xab, 0xac, 0xad, 0xb3, 0xbb:
		x.write(in, x.opSize())
	case 0xae:
		if x.mod != 3 && x.pp == 0 && (x.reg&7 == 0 || x.reg&7 == 4 || x.reg&7 == 6) {
			x.write(in, 255) // fxsave, xsave: at least that much
		} else if x.mod != 3 && x.reg&7 == 3 {
			x.write(in, 4)
		} else if x.mod == 3 && x.pp == 0xf3 && x.reg&7 < 2 { // rdfsbase
			clobber(in, x.rmReg())
		} else if x.mod == 3 && x.pp == 0xf3 && x.reg&7 == 5 { // incssp
			return
		}
	case 0x1e: // rdssp among the hint instructions; endbr64 has mod 3, rm 2
		if x.pp == 0xf3 && x.mod == 3 && x.reg&7 == 1 {
			clobber(in, x.rmReg())
		}
	case 0xb0, 0xb1: // cmpxchg
		size := x.opSize()
		if x.op == 0xb0 {
			size = 1
		}
		clobber(in, rax)
		x.write(in, size)
	case 0xba:
		if x.reg&7 > 4 {
			x.write(in, x.opSize())
		}
	case 0xc0:
		clobber(in, x.byteReg(x.reg, 1))
		x.write(in, 1)
	case 0xc1:
		clobber(in, x.regReg())
		x.write(in, x.opSize())
	case 0xc3: // movnti
		x.write(in, x.opSize())
	case 0xc7:
		switch {
		case x.mod == 3:
			clobber(in, x.rmReg()) // rdrand, rdseed, rdpid
		case x.reg&7 == 1: // cmpxchg8b, cmpxchg16b
			clobber(in, rax, rdx)
			x.write(in, 2*x.word())
		default:
			x.write(in, 255) // xsavec, xsaves
		}
	}
}

// storeVector handles moves of a vector register, or of its low part, to
// memory.
func (x *x86inst) storeVector(in *Inst) {
	size := x.vlen
	switch {
	case x.mod == 3:
		return
	case x.op == 0x13 || x.op == 0x17 || x.op == 0xd6:
		size = 8
	case (x.op == 0x11 || x.op == 0x2b) && x.pp == 0xf3:
		size = 4
	case (x.op == 0x11 || x.op == 0x2b) && x.pp == 0xf2:
		size = 8
	case (x.op == 0x7f || x.op == 0xe7) && x.pp == 0:
		size = 8 // of an MMX register
	}
	x.write(in, size)
}

// extract handles pextrb, pextrw, pextrd, pextrq and extractps.
func (x *x86inst) extract(in *Inst) {
	switch {
	case x.mod == 3:
		clobber(in, x.rmReg())
	case x.op == 0x14 || x.op == 0x15:
		x.write(in, x.op-0x13)
	case x.op == 0x16:
		x.write(in, x.generalSize())
	default:
		x.write(in, 4)
	}
}

// generalSize is the size of a general register that goes with a vector.
func (x *x86inst) generalSize() uint8 {
	if x.wide() {
		return x.word()
	}
	return 4
}

// map38 handles the map behind 0F 38.
func (x *x86inst) map38(in *Inst) {
	switch x.op {
	case 0xf0:
		clobber(in, x.regReg())
	case 0xf1:
		if x.pp == 0xf2 {
			clobber(in, x.regReg())
		} else {
			x.write(in, x.opSize())
		}
	case 0xf6, 0xfa, 0xfb:
		clobber(in, x.regReg())
	case 0xf9: // movdiri
		x.write(in, x.opSize())
	case 0xf8: // movdir64b
		return
	}
}

// map3A handles the map behind 0F 3A.
func (x *x86inst) map3A(in *Inst) {
	switch {
	case x.op >= 0x14 && x.op <= 0x17:
		x.extract(in)
	case x.op == 0x61, x.op == 0x63: // pcmpestri, pcmpistri
		clobber(in, rcx)
	}
}

// vector handles instructions in VEX, EVEX and XOP encoding.
func (x *x86inst) vector(in *Inst) {
	switch {
	case x.enc == encXOP:
		// TBM and LWP write general registers named in either place.
		if x.opmap == 9 && x.op < 3 || x.opmap == 10 {
			clobber(in, amd64Regs[x.vvvv], x.regReg())
			if x.mod == 3 {
				clobber(in, x.rmReg())
			}
		}
	case x.opmap == 1:
		switch x.op {
		case 0x11, 0x13, 0x17, 0x29, 0x2b, 0x7f, 0xd6, 0xe7:
			x.storeVector(in)
		case 0x2c, 0x2d, 0x50, 0xc5, 0xd7, 0x93:
			clobber(in, x.regReg())
		case 0x78, 0x79:
			if x.enc == encEVEX {
				clobber(in, x.regReg())
			}
		case 0x7e:
			if x.pp == 0x66 {
				x.write(in, x.generalSize())
			}
		case 0x91: // kmov to memory
			x.write(in, 8)
		}
	case x.opmap == 2 && x.enc == encVEX:
		switch x.op {
		case 0xf2, 0xf5, 0xf7: // andn; bzhi, pdep, pext; bextr, shifts
			clobber(in, x.regReg())
		case 0xf3: // blsr, blsmsk, blsi
			clobber(in, amd64Regs[x.vvvv])
		case 0xf6: // mulx
			clobber(in, x.regReg(), amd64Regs[x.vvvv])
		}
		if x.op >= 0xe0 && x.op < 0xf0 { // cmpccxadd
			clobber(in, x.regReg(), amd64Regs[x.vvvv])
		}
	case x.opmap == 5: // of half precision
		switch x.op {
		case 0x11:
			if x.mod != 3 {
				x.write(in, 2)
			}
		case 0x2c, 0x2d, 0x78, 0x79:
			clobber(in, x.regReg())
		case 0x7e:
			x.write(in, 2)
		}
	case x.opmap == 3:
		x.map3A(in)
		switch {
		case x.enc == encVEX && x.op == 0xf0: // rorx
			clobber(in, x.regReg())
		case x.mod == 3:
		case x.op == 0x19 || x.op == 0x39: // vextract of 128 bits
			x.write(in, 16)
		case x.op == 0x1b || x.op == 0x3b: // of 256
			x.write(in, 32)
		}
	}
}
