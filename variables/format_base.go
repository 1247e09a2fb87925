package variables

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
)

// isSigned reports whether numbers of a type have a sign.
func isSigned(t *symbols.Type) bool {
	if t.Kind == symbols.KindEnum {
		for _, e := range t.Enumerators() {
			if e.Value < 0 {
				return true
			}
		}
		return false
	}
	return t.Encoding == symbols.EncodingSigned || t.Encoding == symbols.EncodingSignedChar
}

// base writes a value of a base type.
func (p *printer) base(v *Value, t *symbols.Type) {
	if t.Encoding == symbols.EncodingFloat && v.sized && isExtended(int(v.size), t.Name, v.f.arch()) {
		v = v.part(t, 0)
		v.size = 10 // the rest is padding, and need not be known
	}
	p.scalar(v, func(b []byte) string {
		switch t.Encoding {
		case symbols.EncodingBoolean:
			switch s := integer(b, false).String(); s {
			case "0":
				return "false"
			case "1":
				return "true"
			default:
				return s
			}
		case symbols.EncodingFloat:
			return formatFloat(b, t.Name, v.f.arch())
		case symbols.EncodingComplex:
			half := len(b) / 2
			part := strings.TrimPrefix(t.Name, "complex ")
			return formatFloat(b[:half], part, v.f.arch()) + " + " + formatFloat(b[half:], part, v.f.arch()) + "i"
		case symbols.EncodingComplexInteger:
			half, signed := len(b)/2, !strings.Contains(t.Name, "unsigned")
			return integer(b[:half], signed).String() + " + " + integer(b[half:], signed).String() + "i"
		case symbols.EncodingDecimal:
			return formatDecimal(b)
		case symbols.EncodingAddress:
			return hexBytes(b)
		case symbols.EncodingSigned, symbols.EncodingSignedChar, symbols.EncodingUnsigned, symbols.EncodingUnsignedChar, symbols.EncodingUTF:
		default:
			return Unknown(fmt.Errorf("numbers of kind %#x: %w", uint8(t.Encoding), symbols.ErrUnsupported))
		}
		n := integer(b, isSigned(t)).String()
		if x, ok := textOf(v.Type); ok && !p.vector {
			n += " " + x.character(b)
		}
		return n
	})
}

// integer reads a little-endian number.
func integer(b []byte, withSign bool) *big.Int {
	be := slices.Clone(b)
	slices.Reverse(be)
	n := new(big.Int).SetBytes(be)
	if withSign && len(b) > 0 && b[len(b)-1]&0x80 != 0 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	return n
}

func hexBytes(b []byte) string { return "0x" + integer(b, false).Text(16) }

// formatFloat writes a floating point number with as many digits as it takes
// to tell it from its neighbours.
func formatFloat(b []byte, typ string, a *procstate.Arch) string {
	le := binary.LittleEndian
	switch {
	case len(b) == 4 && le.Uint32(b)&^(1<<31) > 0xff<<23:
		return notANumber(b[3]&0x80 != 0, uint64(le.Uint32(b)&(1<<23-1)))
	case len(b) == 8 && le.Uint64(b)&^(1<<63) > 0x7ff<<52:
		return notANumber(b[7]&0x80 != 0, le.Uint64(b)&(1<<52-1))
	}
	switch len(b) {
	case 2:
		if typ == "__bf16" || typ == "std::bfloat16_t" {
			return shortest(float64(math.Float32frombits(uint32(le.Uint16(b))<<16)), 4, 32)
		}
		return shortest(half(le.Uint16(b)), 5, 64)
	case 4:
		return shortest(float64(math.Float32frombits(le.Uint32(b))), -1, 32)
	case 8:
		return shortest(math.Float64frombits(le.Uint64(b)), -1, 64)
	case 10, 12, 16:
		if !isExtended(len(b), typ, a) {
			return formatWide(le.Uint64(b), le.Uint64(b[8:])&(1<<48-1), int(le.Uint16(b[14:])), 112, 36)
		}
		return formatWide(0, le.Uint64(b), int(le.Uint16(b[8:])), 63, 21)
	}
	return hexBytes(b)
}

// notANumber writes a NaN with the bits of its fraction, which tell what is
// wrong with it.
func notANumber(sign bool, fraction uint64) string {
	s := fmt.Sprintf("nan(%#x)", fraction)
	if sign {
		s = "-" + s
	}
	return s
}

// isExtended reports whether a number is in the format of the x87, whatever
// room it takes.
func isExtended(size int, typ string, a *procstate.Arch) bool {
	return size == 10 || size == 12 || size == 16 && a != procstate.ARM64 && !strings.Contains(typ, "128")
}

// shortest writes a number as C does.
func shortest(f float64, digits, bits int) string {
	s := strconv.FormatFloat(f, 'g', digits, bits)
	return strings.ToLower(strings.TrimPrefix(s, "+"))
}

// half is the value of a number of 16 bits (IEEE 754 binary16).
func half(h uint16) float64 {
	sign, exp, frac := h>>15, int(h>>10&31), float64(h&1023)
	var f float64
	switch exp {
	case 0:
		f = math.Ldexp(frac, -24)
	case 31:
		if f = math.Inf(1); frac != 0 {
			f = math.NaN()
		}
	default:
		f = math.Ldexp(1024+frac, exp-25)
	}
	if sign != 0 {
		f = -f
	}
	return f
}

// formatWide writes a number with a 15-bit exponent: the extended format of
// the x87, whose fraction of 64 bits has the leading one, or binary128, whose
// fraction of 112 bits, in lo and hi, has not.
func formatWide(lo, hi uint64, signExp, fraction, digits int) string {
	exp := signExp & 0x7fff
	m := new(big.Int).SetUint64(hi)
	if fraction == 112 {
		m.Lsh(m, 64).Or(m, new(big.Int).SetUint64(lo))
	}
	empty := m.Sign() == 0
	if fraction == 63 {
		empty = hi<<1 == 0
	}
	sign := ""
	if signExp&0x8000 != 0 {
		sign = "-"
	}
	switch {
	case exp == 0x7fff && empty:
		return sign + "inf"
	case exp == 0x7fff:
		return sign + "nan(0x" + m.Text(16) + ")"
	case exp == 0:
		exp = 1
	case fraction == 112:
		m.SetBit(m, 112, 1)
	}
	f := new(big.Float).SetPrec(uint(fraction + 1)).SetInt(m)
	f.SetMantExp(f, exp-16383-fraction)
	return sign + strings.TrimPrefix(f.Text('g', digits), "-")
}

// enum writes a value by its name, or as the sum of flags.
func (p *printer) enum(v *Value, t *symbols.Type) {
	p.scalar(v, func(b []byte) string {
		n := integer(b, isSigned(t))
		names := t.Enumerators()
		flags := len(names) > 0
		for _, e := range names {
			if n.IsInt64() && n.Int64() == e.Value || n.IsUint64() && n.Uint64() == uint64(e.Value) {
				return enumName(t, e.Name)
			}
			flags = flags && e.Value >= 0 && contiguous(uint64(e.Value))
		}
		if !flags || !n.IsUint64() {
			return n.String()
		}
		left := n.Uint64()
		var parts []string
		for _, e := range names {
			if f := uint64(e.Value); f != 0 && left&f == f {
				parts, left = append(parts, enumName(t, e.Name)), left&^f
			}
		}
		switch {
		case len(parts) == 0 && left == 0:
			return "0"
		case len(parts) == 0:
			return fmt.Sprintf("(unknown: %#x)", left)
		case left != 0:
			parts = append(parts, fmt.Sprintf("unknown: %#x", left))
		}
		return "(" + strings.Join(parts, " | ") + ")"
	})
}

// contiguous reports whether the bits that are set are neighbours.
func contiguous(v uint64) bool {
	if v == 0 {
		return true
	}
	for v&1 == 0 {
		v >>= 1
	}
	return v&(v+1) == 0
}

// enumName writes an enumerator, with the names around it, and that of its
// type where the language wants that.
func enumName(t *symbols.Type, name string) string {
	if t.Scoped && t.Name != "" {
		return t.QualifiedName() + "::" + name
	}
	return t.Scope() + name
}
