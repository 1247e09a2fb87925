package mcode

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// MaxCallLen is the length of the longest call instruction.
const MaxCallLen = 9

// CallBefore reports whether code, which ends at address pc, ends with a call
// instruction, and where a direct one goes to. The bytes before a return
// address may be read in several ways; any call that fits is one.
func CallBefore(a *procstate.Arch, code []byte, pc uint64) (target uint64, direct, ok bool) {
	if a == procstate.I386 {
		return callBeforeI386(code, pc)
	}
	var in isa.Inst
	for n := 2; n <= min(len(code), MaxCallLen); n++ {
		if uint64(n)%a.PCAlign != 0 || a == procstate.AMD64 && !isa.MayBeginCallAMD64(code[len(code)-n]) {
			continue
		}
		if !Decode(a, code[len(code)-n:], pc-uint64(n), &in) || int(in.Len) != n {
			continue
		}
		switch in.Flow {
		case isa.Call:
			return in.Target, true, true
		case isa.IndirectCall:
			ok = true
		}
	}
	return 0, false, ok
}

// Decode is isa.DecoderFor(a) as a direct call, which needs no memory for in.
func Decode(a *procstate.Arch, code []byte, pc uint64, in *isa.Inst) bool {
	switch a {
	case procstate.AMD64:
		return isa.DecodeAMD64(code, pc, in)
	case procstate.ARM64:
		return isa.DecodeARM64(code, pc, in)
	case procstate.I386:
		return isa.DecodeI386(code, pc, in)
	}
	return false
}

// callBeforeI386 knows the calls of i386: e8 with a distance, and ff /2.
func callBeforeI386(code []byte, pc uint64) (target uint64, direct, ok bool) {
	n := len(code)
	if n >= 5 && code[n-5] == 0xe8 {
		d := code[n-4:]
		rel := int32(uint32(d[0]) | uint32(d[1])<<8 | uint32(d[2])<<16 | uint32(d[3])<<24)
		return uint64(uint32(pc) + uint32(rel)), true, true
	}
	for l := 2; l <= min(n, 7); l++ {
		if code[n-l] != 0xff || code[n-l+1]>>3&7 != 2 {
			continue
		}
		if lengthModRM32(code[n-l+1:]) == l-1 {
			return 0, false, true
		}
	}
	return 0, false, false
}

// lengthModRM32 returns the length of a ModRM byte and what it brings with it
// in 32-bit code.
func lengthModRM32(b []byte) int {
	mod, rm := b[0]>>6, b[0]&7
	n := 1
	if mod == 3 {
		return n
	}
	base := rm
	if rm == 4 {
		n++
		if len(b) < 2 {
			return 0
		}
		base = b[1] & 7
	}
	switch {
	case mod == 1:
		n++
	case mod == 2, mod == 0 && base == 5:
		n += 4
	}
	return n
}
