package steppers

import "testing"

// A function's bounds are those that the file tells, also where these lie far apart;
// what is too far from the first one is left out, and then not all are known.
func TestFunctionBounds(t *testing.T) {
	const first, far = 1 << 40, 1<<40 + 1<<32
	for _, c := range []struct {
		starts            []uint64
		vaddr, start, end uint64
		whole             bool
	}{
		{nil, first, 0, first + maxFuncCode, true},
		{[]uint64{first, first + 32}, first - 1, 0, first, true},
		{[]uint64{first, first + 32}, first, first, first + 32, true},
		{[]uint64{first, first + 32}, first + 31, first, first + 32, true},
		{[]uint64{first, first + 32}, first + 32, first + 32, first + 32 + maxFuncCode, true},
		{[]uint64{first, far - 1}, far - 2, 0, far - 1, true},
		{[]uint64{first, far - 1}, far + 6, far - 1, far + 6 + maxFuncCode, true},
		{[]uint64{first, far}, far + 7, 0, far + 7 + maxFuncCode, false},
	} {
		im := &imageFrames{whole: true}
		im.setStarts(c.starts)
		if start, end := im.bounds(c.vaddr); start != c.start || end != c.end || im.whole != c.whole {
			t.Errorf("starts %#x: at %#x [%#x, %#x), whole %t; want [%#x, %#x), %t",
				c.starts, c.vaddr, start, end, im.whole, c.start, c.end, c.whole)
		}
	}
}
