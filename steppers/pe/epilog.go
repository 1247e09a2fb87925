package pe

import "encoding/binary"

// codeBefore and codeAfter are how much code is looked at for an epilog, before the PC and from it on.
const (
	codeBefore = 8
	codeAfter  = 48
)

// inEpilog reports whether a PC is in an epilog, and undoes the rest of it: one has a form of its own, which is an addition to
// SP, or the same from the frame pointer, pops and a return or a jump that leaves the function.
func (u *unwinder) inEpilog(f *function, in *info, pc uint64) bool {
	code := u.vm.code[:]
	if !u.vm.ReadNow(pc-codeBefore, code) {
		code = code[:codeBefore+1] // up to the end of what can be read
		if !u.vm.ReadNow(pc-codeBefore, code) {
			return false
		}
	}
	before, code := code[:codeBefore], code[codeBefore:]
	sp, n := u.sp, 0
	if add, length := addSP(code); length > 0 {
		sp, n = sp+add, length
	} else if reg, off, length := leaSP(code); length > 0 {
		if in.frame == 0 || reg != in.frame {
			return false
		}
		fp, known := u.regs.Value(registers[reg])
		if !known {
			return false
		}
		sp, n = fp+off, length
	}
	type pop struct {
		register byte
		at       uint64
	}
	var pops []pop
	for n+1 < len(code) {
		reg, length := popped(code[n:])
		if length == 0 {
			break
		}
		pops = append(pops, pop{reg, sp})
		sp, n = sp+8, n+length
	}
	if !u.leaves(f, in, code[n:], before, pc+uint64(n), n == 0) {
		return false
	}
	for _, p := range pops {
		if !u.restore(p.register, p.at) {
			return true
		}
	}
	u.sp = sp
	return true
}

// leaves reports whether an instruction at a PC leaves a function: by a return, or by a jump to another one. Where it is all that
// is left of the epilog, the instruction before it must be of one.
func (u *unwinder) leaves(f *function, in *info, code, before []byte, pc uint64, isAlone bool) bool {
	has := func(bytes ...byte) bool {
		if len(code) < len(bytes) {
			return false
		}
		for i, b := range bytes {
			if code[i] != b {
				return false
			}
		}
		return true
	}
	var target uint64
	switch le := binary.LittleEndian; {
	case has(0xc3), has(0xc2), has(0xf3, 0xc3):
		return true
	case (len(in.codes) > 0 || in.chained != nil) && isAlone && !endsEpilog(before):
		return false
	case has(0xff, 0x25), has(0x48, 0xff, 0x25), has(0x48, 0xff) && len(code) > 2 && code[2]&0xf8 == 0xe0: // by a word in memory, or a register
		return true
	case has(0xeb) && len(code) >= 2:
		target = pc + 2 + uint64(int64(int8(code[1])))
	case has(0xe9) && len(code) >= 5:
		target = pc + 5 + uint64(int64(int32(le.Uint32(code[1:]))))
	default:
		return false
	}
	rva := target - u.im.start
	if rva >= u.im.end-u.im.start {
		return true
	}
	own := u.im.primary(u.vm, f)
	to := u.im.functionAt(uint32(rva))
	return to == nil || uint32(rva) == own.start || u.im.primary(u.vm, to).start != own.start
}

// endsEpilog reports whether the instruction that ends some code may be of an epilog: a pop, or an addition to SP.
func endsEpilog(before []byte) bool {
	n := len(before)
	if before[n-1]&0xf8 == 0x58 {
		return true
	}
	for _, length := range []int{4, 7} {
		if _, is := addSP(before[n-length:]); is == length {
			return true
		}
	}
	return false
}

// addSP returns what an instruction adds to SP, and its length: 0 when it is another one.
func addSP(code []byte) (add uint64, length int) {
	switch {
	case len(code) >= 4 && code[0] == 0x48 && code[1] == 0x83 && code[2] == 0xc4:
		return uint64(int64(int8(code[3]))), 4
	case len(code) >= 7 && code[0] == 0x48 && code[1] == 0x81 && code[2] == 0xc4:
		return uint64(int64(int32(binary.LittleEndian.Uint32(code[3:])))), 7
	}
	return 0, 0
}

// leaSP returns the register, in Windows' numbers, and the offset from it that an instruction makes SP of, and its length: 0 when it is
// another one.
func leaSP(code []byte) (register byte, off uint64, length int) {
	const toSP, sib = 4, 4
	if len(code) < 3 || code[0]&0xfe != 0x48 || code[1] != 0x8d || code[2]>>3&7 != toSP {
		return 0, 0, 0
	}
	register, n := code[2]&7|code[0]&1<<3, 3
	if code[2]&7 == sib {
		n++
	}
	switch mod := code[2] >> 6; {
	case mod == 0 && len(code) >= n:
		return register, 0, n
	case mod == 1 && len(code) > n:
		return register, uint64(int64(int8(code[n]))), n + 1
	case mod == 2 && len(code) >= n+4:
		return register, uint64(int64(int32(binary.LittleEndian.Uint32(code[n:])))), n + 4
	}
	return 0, 0, 0
}

// popped returns the register that an instruction pops, and its length: 0 when it is another one.
func popped(code []byte) (register byte, length int) {
	switch {
	case len(code) >= 1 && code[0]&0xf8 == 0x58:
		return code[0] & 7, 1
	case len(code) >= 2 && code[0] == 0x41 && code[1]&0xf8 == 0x58:
		return code[1]&7 | 8, 2
	}
	return 0, 0
}
