package procstate

import (
	"slices"
	"testing"
)

// Several Collectors are one, which runs them in order; none are none.
func TestJoinCollectors(t *testing.T) {
	var ran []int
	makes := func(n int) Collector {
		return func(_ Memory, tid ThreadID, _ *Regs, add func(addr uint64, n int)) {
			ran = append(ran, n)
			add(uint64(tid), n)
		}
	}
	for _, test := range []struct {
		of   []Collector
		want []int
	}{
		{nil, nil},
		{[]Collector{nil, nil}, nil},
		{[]Collector{nil, makes(1)}, []int{1}},
		{[]Collector{makes(3), nil, makes(2)}, []int{3, 2}},
	} {
		ran = nil
		c := JoinCollectors(test.of...)
		if (c == nil) != (test.want == nil) {
			t.Fatalf("of %d: nil is %v", len(test.of), c == nil)
		}
		if c == nil {
			continue
		}
		c(nil, 7, nil, func(addr uint64, n int) {
			if addr != 7 || n != ran[len(ran)-1] {
				t.Errorf("%d bytes at %d", n, addr)
			}
		})
		if !slices.Equal(ran, test.want) {
			t.Errorf("%d ran, want %d", ran, test.want)
		}
	}
}
