package isa

import "encoding/binary"

// Operand shapes of the x86-64 opcode maps (Intel SDM volume 2, appendix A),
// one letter an opcode, rows of 16:
//
//	.  nothing            m  ModRM               x  no such instruction
//	i  imm8               b  ModRM and imm8      p  prefix or escape
//	I  imm16 or imm32     z  ModRM and imm16/32  w  imm16
//	j  rel8               J  rel32               e  imm16 and imm8
//	v  imm up to 64 bits  o  absolute address    f  imm16 or imm32, and imm16
const (
	shapes1 = "mmmmiIxxmmmmiIxp" + "mmmmiIxxmmmmiIxx" + "mmmmiIpxmmmmiIpx" + "mmmmiIpxmmmmiIpx" +
		"pppppppppppppppp" + "................" + "xxpmppppIzib...." + "jjjjjjjjjjjjjjjj" +
		"bzxbmmmmmmmmmmmm" + "..........x....." + "oooo....iI......" + "iiiiiiiivvvvvvvv" +
		"bbw.ppbze.w..ix." + "mmmmxxx.mmmmmmmm" + "jjjjiiiiJJxj...." + "p.pp..mm......mm"

	shapes0F = "mmmmx.....x.xm.b" + "mmmmmmmmmmmmmmmm" + "mmmmxxxxmmmmmmmm" + "......x.pxpxxxxx" +
		"mmmmmmmmmmmmmmmm" + "mmmmmmmmmmmmmmmm" + "mmmmmmmmmmmmmmmm" + "bbbbmmm.mmxxmmmm" +
		"JJJJJJJJJJJJJJJJ" + "mmmmmmmmmmmmmmmm" + "...mbmxx...mbmmm" + "mmmmmmmmmmbmmmmm" +
		"mmbmbbbm........" + "mmmmmmmmmmmmmmmm" + "mmmmmmmmmmmmmmmm" + "mmmmmmmmmmmmmmmm"
)

// Bits of x86inst.rex, as in the REX prefix.
const (
	rexB = 1 << iota
	rexX
	rexR
	rexW
	rexAny // there is a REX prefix, if only for a byte register
)

// Encodings of an x86 instruction.
const (
	encLegacy = iota
	encVEX
	encEVEX
	encXOP
)

// x86inst is an instruction taken apart into its fields.
type x86inst struct {
	enc    uint8
	opmap  uint8 // 0: one byte, 1: 0F, 2: 0F38, 3: 0F3A, or the field of VEX
	op     byte
	rex    uint8
	pp     byte // mandatory prefix: 0, 0x66, 0xF3 or 0xF2
	size16 bool // operand size prefix
	addr32 bool // address size prefix
	bits32 bool // the code is of i386: no REX, and words of four bytes
	thread bool // its memory operand counts from FS or GS; i386 alone
	rep    byte // F2 or F3 when given as a prefix
	vvvv   uint8
	vlen   uint8 // vector length in bytes: 16, 32 or 64

	mod       uint8
	reg, rm   uint8 // with their REX bits
	base      uint8 // of a memory operand; noBase when it has none
	hasIndex  bool
	index     uint8
	scale     uint8
	ripRel    bool
	absolute  bool  // disp is the address of the memory operand; i386 alone
	disp      int64 // of one byte in EVEX encoding (mod 1): in units of the operand's size
	imm       int64 // sign-extended, also a branch displacement
	secondImm int64 // of enter: the nesting level
}

const noBase = 0xff

// parse reads the fields of the instruction at the start of code and returns
// its length, or 0 when there is no valid instruction.
func (x *x86inst) parse(code []byte, bits32 bool) int {
	*x = x86inst{base: noBase, vlen: 16, bits32: bits32}
	if len(code) > 15 {
		code = code[:15]
	}
	i := 0
	for ; ; i++ {
		if i >= len(code) {
			return 0
		}
		b := code[i]
		class := prefixes[b]
		if class == noPrefix || class == rexPrefix && bits32 {
			break
		}
		switch {
		case class == rexPrefix:
			// It counts only right before the opcode.
			if i+1 < len(code) && prefixes[code[i+1]] == noPrefix {
				x.rex = b&15 | rexAny
			}
		case b == 0x66:
			x.size16 = true
		case b == 0x67:
			x.addr32 = true
		case b == 0xf2, b == 0xf3:
			x.rep = b
		case b == 0x64, b == 0x65:
			x.thread = bits32
		}
	}
	x.pp = x.rep
	if x.pp == 0 && x.size16 {
		x.pp = 0x66
	}
	shape, i := x.opcode(code, i)
	if i == 0 {
		return 0
	}
	return x.operands(code, i, shape)
}

// Kinds of bytes before an opcode.
const (
	noPrefix = iota
	legacyPrefix
	rexPrefix
)

// prefixes tells the kind of a byte.
var prefixes = [256]uint8{
	0x26: legacyPrefix, 0x2e: legacyPrefix, 0x36: legacyPrefix, 0x3e: legacyPrefix, 0x64: legacyPrefix, 0x65: legacyPrefix,
	0x66: legacyPrefix, 0x67: legacyPrefix, 0xf0: legacyPrefix, 0xf2: legacyPrefix, 0xf3: legacyPrefix,
	0x40: rexPrefix, 0x41: rexPrefix, 0x42: rexPrefix, 0x43: rexPrefix, 0x44: rexPrefix, 0x45: rexPrefix, 0x46: rexPrefix, 0x47: rexPrefix,
	0x48: rexPrefix, 0x49: rexPrefix, 0x4a: rexPrefix, 0x4b: rexPrefix, 0x4c: rexPrefix, 0x4d: rexPrefix, 0x4e: rexPrefix, 0x4f: rexPrefix,
}

// MayBeginCallAMD64 reports whether a call instruction of x86-64 code may begin with a byte.
func MayBeginCallAMD64(b byte) bool { return b == 0xe8 || b == 0xff || prefixes[b] != noPrefix }

// opcode reads the opcode that starts at code[i], with its escapes, and
// returns its shape and the index after it, 0 when it is not valid.
func (x *x86inst) opcode(code []byte, i int) (shape byte, next int) {
	rest := code[i:]
	switch rest[0] {
	case 0x0f:
		if len(rest) < 2 {
			return 0, 0
		}
		switch rest[1] {
		case 0x38, 0x3a:
			if len(rest) < 3 {
				return 0, 0
			}
			x.op = rest[2]
			if rest[1] == 0x38 {
				x.opmap = 2
				return 'm', i + 3
			}
			x.opmap = 3
			return 'b', i + 3
		}
		x.opmap, x.op = 1, rest[1]
		return shapes0F[x.op], i + 2
	case 0xc5:
		if bits32Legacy(x.bits32, rest) {
			break
		}
		if len(rest) < 3 {
			return 0, 0
		}
		x.enc, x.opmap, x.op = encVEX, 1, rest[2]
		x.rex = ^rest[1] >> 5 & rexR
		x.vex(rest[1])
		return x.vectorShape(), i + 3
	case 0xc4:
		if bits32Legacy(x.bits32, rest) {
			break
		}
		if len(rest) < 4 {
			return 0, 0
		}
		x.enc, x.opmap, x.op = encVEX, rest[1]&31, rest[3]
		x.rex = ^rest[1]>>5&7 | rest[2]>>7<<3
		x.vex(rest[2])
		return x.vectorShape(), i + 4
	case 0x62:
		if bits32Legacy(x.bits32, rest) {
			break
		}
		if len(rest) < 5 {
			return 0, 0
		}
		x.enc, x.opmap, x.op = encEVEX, rest[1]&7, rest[4]
		x.rex = ^rest[1]>>5&7 | rest[2]>>7<<3
		x.vex(rest[2])
		x.vlen = 16 << min(rest[3]>>5&3, 2)
		return x.vectorShape(), i + 5
	case 0x8f:
		// With a map number below 8 in its place this is pop.
		if len(rest) < 4 || rest[1]&31 < 8 {
			break
		}
		x.enc, x.opmap, x.op = encXOP, rest[1]&31, rest[3]
		x.rex = ^rest[1]>>5&7 | rest[2]>>7<<3
		x.vex(rest[2])
		switch x.opmap {
		case 8:
			return 'b', i + 4
		case 9:
			return 'm', i + 4
		case 10:
			return 'z', i + 4
		}
		return 0, 0
	}
	x.op = rest[0]
	if x.bits32 {
		return shapes1I386[x.op], i + 1
	}
	return shapes1[x.op], i + 1
}

// vex takes the fields that the last payload byte of VEX and the second of
// EVEX share.
func (x *x86inst) vex(b byte) {
	x.vvvv = ^b >> 3 & 15
	if x.bits32 {
		x.rex, x.vvvv = 0, x.vvvv&7 // they are ignored, or must not be there
	}
	x.pp = [4]byte{0, 0x66, 0xf3, 0xf2}[b&3]
	if b&4 != 0 {
		x.vlen = 32
	}
}

func (x *x86inst) vectorShape() byte {
	switch x.opmap {
	case 1:
		if x.op == 0x77 && x.enc == encVEX {
			return '.'
		}
		if shapes0F[x.op] == 'b' {
			return 'b'
		}
		return 'm'
	case 2, 5, 6: // 4 has the instructions of APX, push and pop of two registers among them
		return 'm'
	case 3:
		return 'b'
	case 7:
		return 'z'
	}
	return 0
}

// operands reads what follows the opcode and returns the instruction's
// length, 0 when there is not enough or no such instruction.
func (x *x86inst) operands(code []byte, i int, shape byte) int {
	switch shape {
	case 'm', 'b', 'z':
		if i = x.modRM(code, i); i == 0 {
			return 0
		}
	}
	immz := 4
	if x.size16 && x.rex&rexW == 0 {
		immz = 2
	}
	n := 0
	switch shape {
	case '.':
	case 'm':
		switch {
		case x.enc != encLegacy:
		case x.opmap == 0 && (x.op == 0xf6 || x.op == 0xf7) && x.reg&7 < 2:
			n = 1
			if x.op == 0xf7 {
				n = immz
			}
		case x.opmap == 1 && x.op == 0x78 && (x.pp == 0x66 || x.pp == 0xf2):
			n = 2 // extrq, insertq: two bytes
		}
	case 'b', 'i', 'j':
		n = 1
	case 'z':
		n = immz
		if x.enc != encLegacy {
			n = 4
		}
		if x.opmap == 0 && x.op == 0xc7 && x.mod == 3 && x.reg&7 == 7 {
			n = 4 // xbegin
		}
	case 'I':
		n = immz
	case 'J':
		n = 4
		if x.bits32 {
			n = immz
		}
	case 'f':
		n = immz + 2
	case 'w':
		n = 2
	case 'e':
		n = 3
	case 'v':
		n = immz
		if x.rex&rexW != 0 {
			n = 8
		}
	case 'o':
		switch {
		case x.bits32 && x.addr32:
			n = 2
		case x.bits32 || x.addr32:
			n = 4
		default:
			n = 8
		}
	default:
		return 0
	}
	if len(code)-i < n {
		return 0
	}
	if shape == 'e' {
		x.secondImm = int64(code[i+2])
		x.imm = signed(code[i : i+2])
		return i + 3
	}
	x.imm = signed(code[i : i+n])
	return i + n
}

// signed reads a little-endian two's complement number of 0, 1, 2, 4 or 8 bytes.
func signed(b []byte) int64 {
	switch len(b) {
	case 1:
		return int64(int8(b[0]))
	case 2:
		return int64(int16(binary.LittleEndian.Uint16(b)))
	case 4:
		return int64(int32(binary.LittleEndian.Uint32(b)))
	case 8:
		return int64(binary.LittleEndian.Uint64(b))
	}
	return 0
}

// modRM reads the ModRM byte at code[i], SIB and displacement included, and
// returns the index after them, 0 when they are cut short.
func (x *x86inst) modRM(code []byte, i int) int {
	if i >= len(code) {
		return 0
	}
	b := code[i]
	i++
	x.mod, x.reg, x.rm = b>>6, b>>3&7, b&7
	if x.rex&rexR != 0 {
		x.reg |= 8
	}
	low := x.rm
	if x.rex&rexB != 0 {
		x.rm |= 8
	}
	if x.enc == encLegacy && x.opmap == 1 && x.op >= 0x20 && x.op < 0x24 {
		x.mod = 3 // moves of control registers ignore the field
	}
	if x.mod == 3 {
		return i
	}
	if x.bits32 && x.addr32 {
		return x.memory16(code, i)
	}
	x.base = x.rm
	if low == 4 {
		if i >= len(code) {
			return 0
		}
		sib := code[i]
		i++
		index := sib >> 3 & 7
		if x.rex&rexX != 0 {
			index |= 8
		}
		x.hasIndex = index != 4
		x.index, x.scale = index, 1<<(sib>>6)
		x.base = sib & 7
		if x.rex&rexB != 0 {
			x.base |= 8
		}
		if sib&7 == 5 && x.mod == 0 {
			x.base, x.mod = noBase, 2 // disp32 without a base
			x.absolute = x.bits32 && !x.hasIndex && !x.thread
			return x.displacement(code, i, 4)
		}
	} else if low == 5 && x.mod == 0 {
		x.base, x.ripRel, x.absolute = noBase, !x.bits32, x.bits32 && !x.thread
		return x.displacement(code, i, 4)
	}
	if x.thread {
		x.base, x.hasIndex = noBase, false
	}
	switch x.mod {
	case 1:
		return x.displacement(code, i, 1)
	case 2:
		return x.displacement(code, i, 4)
	}
	return i
}

func (x *x86inst) displacement(code []byte, i, n int) int {
	if len(code)-i < n {
		return 0
	}
	x.disp = signed(code[i : i+n])
	return i + n
}
