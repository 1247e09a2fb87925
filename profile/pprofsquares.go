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
func squaresOfPprof(data []byte, n int) (equal []float64) {
	field := fieldOfPprof(data, squaresField)
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
