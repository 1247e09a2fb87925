package variables

import (
	"math/big"
	"slices"
	"strconv"
)

// decimalFormat is a format of decimal floating point numbers, with the
// significand in binary (IEEE 754-2008, section 3.5.2).
type decimalFormat struct {
	exponent, bias int // bits of the exponent, and what is taken off it
	digits         int // of the significand
}

var decimalFormats = map[int]decimalFormat{4: {8, 101, 7}, 8: {10, 398, 16}, 16: {14, 6176, 34}}

// formatDecimal writes a decimal floating point number.
func formatDecimal(b []byte) string {
	format, ok := decimalFormats[len(b)]
	if !ok {
		return hexBytes(b)
	}
	be := slices.Clone(b)
	slices.Reverse(be)
	n, all := new(big.Int).SetBytes(be), 8*len(b)
	field := func(from, bits int) *big.Int {
		mask := new(big.Int).Lsh(big.NewInt(1), uint(bits))
		f := new(big.Int).Rsh(n, uint(from))
		return f.And(f, mask.Sub(mask, big.NewInt(1)))
	}
	sign := ""
	if n.Bit(all-1) != 0 {
		sign = "-"
	}
	stored := all - 1 - format.exponent // bits of the significand
	exp, significand := field(stored, format.exponent), field(0, stored)
	if field(all-3, 2).Int64() == 3 { // a large significand, or no number
		switch field(all-6, 5).Int64() {
		case 30:
			return sign + "Infinity"
		case 31:
			return sign + "NaN"
		}
		exp, significand = field(stored-2, format.exponent), field(0, stored-2)
		significand.SetBit(significand, stored, 1)
	}
	text := significand.String()
	if len(text) > format.digits {
		text = "0" // no encoding of a number: it counts as zero
	}
	return sign + scientific(text, int(exp.Int64())-format.bias)
}

// scientific writes digits times ten to the power of exp.
func scientific(digits string, exp int) string {
	adjusted := exp + len(digits) - 1
	switch {
	case exp == 0:
		return digits
	case exp < 0 && adjusted >= 0:
		return digits[:adjusted+1] + "." + digits[adjusted+1:]
	case exp < 0 && adjusted >= -6:
		zeros := "000000"
		return "0." + zeros[:-adjusted-1] + digits
	}
	if len(digits) > 1 {
		digits = digits[:1] + "." + digits[1:]
	}
	mark := "E"
	if adjusted >= 0 {
		mark = "E+"
	}
	return digits + mark + strconv.Itoa(adjusted)
}
