package unwind

import (
	"math/rand/v2"
	"testing"
)

// Pieces of code are kept in any order. After each, every address has the rule
// that it was given last. Where one ends within a row of another, as in broken
// files alone, the rest of the row is not kept any more.
func TestKeptRows(t *testing.T) {
	const page, pages = 1 << pageBits, 3
	type address struct {
		rule   int  // 1 + its number; 0 for none
		row    bool // a row begins, or the end of those that are kept
		begins bool // a piece
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 60 {
		base := uint64(page<<groupBits - page) // the second page is in another group
		var k rows
		for range 96 {
			k.rules = append(k.rules, new(Rule))
		}
		is := make([]address, pages*page)
		for range 1 + rng.IntN(40) {
			low := rng.IntN(pages) * page
			start := low + rng.IntN(page)
			end := min(start+1+rng.IntN(page>>rng.IntN(10)), low+page)
			for i := start; i < end && round%3 > 0; i++ { // functions do not overlap
				if is[i].rule != 0 {
					end = i
				}
			}
			if start == end {
				continue
			}
			k.made = k.made[:0]
			id := 0
			for i := start; i < end; {
				id = (id + 1 + rng.IntN(90)) % len(k.rules)
				k.add(uint16(i-low), uint16(id))
				is[i] = address{rule: id + 1, row: true}
				i++
				for n := rng.IntN(40); n > 0 && i < end; n-- {
					is[i] = address{rule: id + 1}
					i++
				}
			}
			is[start].begins = true
			for i := end; i < low+page && !is[i].row; i++ {
				is[i] = address{row: i == end}
			}
			k.keep(base+uint64(start), base+uint64(end), round%2 == 0)
			for i, want := range is {
				got := k.find(base + uint64(i))
				if want.rule == 0 && got != nil || want.rule != 0 && got != k.number(uint16(want.rule-1)) {
					t.Fatalf("round %d: after [%#x, %#x) the rule at %#x is %p, not number %d", round, start, end, i, got, want.rule-1)
				}
				if in := k.inside(base + uint64(i)); in != (want.rule != 0 && !want.begins) {
					t.Fatalf("round %d: after [%#x, %#x) %#x is inside: %v", round, start, end, i, in)
				}
			}
		}
		if n, _ := k.counts(); k.bytes < int64(4*n) {
			t.Errorf("%d rows in %d bytes", n, k.bytes)
		}
	}
}
