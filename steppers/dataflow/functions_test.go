package dataflow

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Of a list that grows beyond its room as many of each address are left as are asked
// for.
func TestAppendFew(t *testing.T) {
	for _, few := range []int{1, 2} {
		rng := rand.New(rand.NewPCG(1, 2))
		var list []uint32
		n := map[uint32]int{}
		for range 300_000 {
			addr := rng.Uint32N(50_000) // some six of each
			list = appendFew(list, addr, few)
			n[addr]++
		}
		if cap(list) > 4*few*len(n) {
			t.Errorf("%d of each: room for %d", few, cap(list))
		}
		var want []uint32
		for addr, n := range n {
			want = append(want, slices.Repeat([]uint32{addr}, min(n, few))...)
		}
		slices.Sort(want)
		if got := sortFew(list, few); !slices.Equal(got, want) {
			t.Errorf("%d of each: %d addresses, want %d", few, len(got), len(want))
		}
	}
}
