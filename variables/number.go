package variables

import (
	"encoding/binary"
	"math"

	"github.com/swbpf/swbpf/symbols"
)

// number is an entry of an expression's stack. The generic type (DWARF 5,
// section 2.5.1) has the size of an address and no sign of its own; others
// come from base types of the program.
type number struct {
	kind numberKind
	size int    // bytes
	bits uint64 // of integers, extended to 64 bits; of floats those of a float64
	raw  []byte // of kind opaque
}

type numberKind uint8

const (
	generic numberKind = iota
	signed
	unsigned
	float
	opaque // larger than any that can be computed with
)

// numberType returns the kind and size of numbers of a base type.
func numberType(t *symbols.Type) (kind numberKind, size int, ok bool) {
	n, known := t.Size()
	if !known || t.Kind != symbols.KindBase || n == 0 || n > maxOpaque {
		return 0, 0, false
	}
	switch {
	case n > 8:
		return opaque, int(n), true
	case t.Encoding == symbols.EncodingFloat:
		return float, int(n), n == 4 || n == 8
	case t.Encoding == symbols.EncodingSigned || t.Encoding == symbols.EncodingSignedChar:
		return signed, int(n), true
	}
	return unsigned, int(n), true
}

const maxOpaque = 64

// decode makes a number of the bytes of one.
func decode(kind numberKind, b []byte) number {
	n := number{kind: kind, size: len(b)}
	switch kind {
	case opaque:
		n.raw = append([]byte(nil), b...)
	case float:
		if len(b) == 4 {
			n.bits = math.Float64bits(float64(math.Float32frombits(binary.LittleEndian.Uint32(b))))
		} else {
			n.bits = binary.LittleEndian.Uint64(b)
		}
	default:
		var full [8]byte
		copy(full[:], b)
		n.bits = binary.LittleEndian.Uint64(full[:])
		n = n.wrapped()
	}
	return n
}

// bytes returns the number as it would be in memory.
func (n number) bytes() []byte {
	switch {
	case n.kind == opaque:
		return n.raw
	case n.kind == float && n.size == 4:
		return binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(n.float())))
	}
	return binary.LittleEndian.AppendUint64(nil, n.bits)[:n.size]
}

func (n number) float() float64 { return math.Float64frombits(n.bits) }

// wrapped returns an integer cut to its size and extended by its sign.
func (n number) wrapped() number {
	shift := 64 - 8*n.size
	switch n.kind {
	case signed:
		n.bits = uint64(int64(n.bits<<shift) >> shift)
	case unsigned, generic:
		n.bits = n.bits << shift >> shift
	}
	return n
}

// signedBits is an integer as one with sign, of its size.
func (n number) signedBits() int64 {
	shift := 64 - 8*n.size
	return int64(n.bits<<shift) >> shift
}

// withFloat returns n with another value, rounded to its size.
func (n number) withFloat(f float64) number {
	if n.size == 4 {
		f = float64(float32(f))
	}
	n.bits = math.Float64bits(f)
	return n
}

// with returns n with another value.
func (n number) with(bits uint64) number {
	n.bits = bits
	return n.wrapped()
}

// convert returns the number as one of another kind and size; ok is false
// where that cannot be computed.
func (n number) convert(kind numberKind, size int) (out number, ok bool) {
	out = number{kind: kind, size: size}
	switch {
	case n.kind == opaque || kind == opaque:
		if n.kind == opaque && size == n.size {
			return n, true
		}
		return out, false
	case n.kind == float && kind == float:
		return out.withFloat(n.float()), true
	case kind == float && n.kind == signed:
		return out.withFloat(float64(int64(n.bits))), true
	case kind == float:
		return out.withFloat(float64(n.bits)), true
	case n.kind == float:
		f := n.float()
		switch {
		case f >= -(1<<63) && f < 1<<63:
			return out.with(uint64(int64(f))), true
		case f >= 0 && f < 1<<64:
			return out.with(uint64(f)), true
		}
		return out, false
	}
	return out.with(n.bits), true
}

// reinterpret returns the bits of the number as those of another kind.
func (n number) reinterpret(kind numberKind, size int) (out number, ok bool) {
	if n.size != size {
		return out, false
	}
	return decode(kind, n.bytes()), true
}

// truth is the generic number 1 or 0.
func (n number) truth(b bool) number {
	n = number{kind: generic, size: 8}
	if b {
		n.bits = 1
	}
	return n
}

// binary computes an operation on two numbers of one type.
func (a number) binary(op symbols.Op, b number) (out number, ok bool) {
	if a.kind == opaque || b.kind == opaque {
		return out, false
	}
	if a.kind == float || b.kind == float {
		return a.binaryFloat(op, b)
	}
	if op != symbols.OpShl && op != symbols.OpShr && op != symbols.OpShra && (a.kind != b.kind || a.size != b.size) {
		return out, false
	}
	sa, sb := a.signedBits(), b.signedBits()
	less := sa < sb
	if a.kind == unsigned {
		less = a.bits < b.bits
	}
	switch op {
	case symbols.OpAnd:
		return a.with(a.bits & b.bits), true
	case symbols.OpOr:
		return a.with(a.bits | b.bits), true
	case symbols.OpXor:
		return a.with(a.bits ^ b.bits), true
	case symbols.OpPlus:
		return a.with(a.bits + b.bits), true
	case symbols.OpMinus:
		return a.with(a.bits - b.bits), true
	case symbols.OpMul:
		return a.with(a.bits * b.bits), true
	case symbols.OpDiv:
		switch {
		case b.bits == 0:
			return out, false
		case a.kind == unsigned:
			return a.with(a.bits / b.bits), true
		}
		return a.with(uint64(sa / sb)), true
	case symbols.OpMod:
		switch {
		case b.bits == 0:
			return out, false
		case a.kind == signed:
			return a.with(uint64(sa % sb)), true
		}
		return a.with(a.bits % b.bits), true
	case symbols.OpShl:
		return a.with(a.bits << b.bits), true
	case symbols.OpShr:
		return a.with(a.bits << (64 - 8*a.size) >> (64 - 8*a.size) >> b.bits), true
	case symbols.OpShra:
		return a.with(uint64(sa >> b.bits)), true
	case symbols.OpEq:
		return a.truth(a.bits == b.bits), true
	case symbols.OpNe:
		return a.truth(a.bits != b.bits), true
	case symbols.OpLt:
		return a.truth(less), true
	case symbols.OpLe:
		return a.truth(less || a.bits == b.bits), true
	case symbols.OpGt:
		return a.truth(!less && a.bits != b.bits), true
	case symbols.OpGe:
		return a.truth(!less), true
	}
	return out, false
}

func (a number) binaryFloat(op symbols.Op, b number) (out number, ok bool) {
	if a.kind != b.kind || a.size != b.size {
		return out, false
	}
	x, y := a.float(), b.float()
	switch op {
	case symbols.OpPlus:
		return a.withFloat(x + y), true
	case symbols.OpMinus:
		return a.withFloat(x - y), true
	case symbols.OpMul:
		return a.withFloat(x * y), true
	case symbols.OpDiv:
		return a.withFloat(x / y), true
	case symbols.OpEq:
		return a.truth(x == y), true
	case symbols.OpNe:
		return a.truth(x != y), true
	case symbols.OpLt:
		return a.truth(x < y), true
	case symbols.OpLe:
		return a.truth(x <= y), true
	case symbols.OpGt:
		return a.truth(x > y), true
	case symbols.OpGe:
		return a.truth(x >= y), true
	}
	return out, false
}

// sizeExtended is the size of the x87's registers in bytes. They hold numbers
// of every type in its extended format.
const sizeExtended = 10

// fromExtended returns the bytes of a number as its type of 4 or 8 bytes has
// it; those of other sizes are as in the register.
func fromExtended(b []byte, size int) []byte {
	if size != 4 && size != 8 {
		return b
	}
	mantissa, head := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint16(b[8:])
	sign, exp := uint64(head>>15), int(head&0x7fff)
	f := math.Copysign(math.Ldexp(float64(mantissa), max(exp, 1)-16383-63), 1-2*float64(sign))
	switch {
	case exp == 0x7fff && size == 4: // infinity, or none
		return binary.LittleEndian.AppendUint32(nil, uint32(sign<<31|0xff<<23|mantissa<<1>>41))
	case exp == 0x7fff:
		return binary.LittleEndian.AppendUint64(nil, sign<<63|0x7ff<<52|mantissa<<1>>12)
	case size == 4:
		return binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(f)))
	}
	return binary.LittleEndian.AppendUint64(nil, math.Float64bits(f))
}
