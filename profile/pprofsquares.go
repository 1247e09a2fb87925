package profile

import (
	"encoding/binary"
	"math"
)

// squaresField is a field of the pprof message that only this package knows;
// others skip it. It has a number for each sample, in their order, as packed
// varints: of how many equal values the sum would be as uncertain as it is,
// times equalScale. That is value² over the sum of the squares; 0 where the value
// is 0. With it, a comparison knows the error of the sum.
const (
	squaresField = 1001
	equalScale   = 64
)

// pprofSquares returns the numbers of squaresField.
func (p *Profile) pprofSquares() []byte {
	var numbers []byte
	for i := range p.samples {
		equal := 0.0
		if s := &p.samples[i]; s.squares > 0 {
			equal = math.Round(equalScale * float64(s.value) * float64(s.value) / s.squares)
		}
		numbers = binary.AppendUvarint(numbers, uint64(max(equal, 0)))
	}
	return numbers
}

// squaresOfPprof returns the numbers of squaresField, without equalScale, in a
// valid message with n samples; nil when there are none.
func squaresOfPprof(data []byte, n int) []float64 {
	for len(data) > 0 {
		key, k := binary.Uvarint(data)
		if k <= 0 {
			return nil
		}
		data = data[k:]
		size, body := uint64(0), 0
		switch key & 7 {
		case 0:
			_, body = binary.Uvarint(data)
		case 1:
			size = 8
		case wireBytes:
			size, body = binary.Uvarint(data)
		case 5:
			size = 4
		}
		if body < 0 || uint64(body)+size > uint64(len(data)) || uint64(body)+size == 0 {
			return nil
		}
		field := data[body:][:size]
		data = data[uint64(body)+size:]
		if key != squaresField<<3|wireBytes {
			continue
		}
		var equal []float64
		for len(field) > 0 && len(equal) < n {
			v, k := binary.Uvarint(field)
			if k <= 0 {
				return nil
			}
			field = field[k:]
			equal = append(equal, float64(v)/equalScale)
		}
		if len(field) > 0 || len(equal) != n {
			return nil
		}
		return equal
	}
	return nil
}
