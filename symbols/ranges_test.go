package symbols

import (
	"math/rand"
	"testing"
)

// TestFlatten compares with the rule applied to each offset: the span that
// begins last owns it, of those the shortest, of those the one with the
// highest id.
func TestFlatten(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for range 2000 {
		// Nested spans, as functions and calls inlined into them are.
		var spans []span
		var nest func(start, end uint32, depth int)
		nest = func(start, end uint32, depth int) {
			for at := start; at < end && depth < 4; {
				from := at + uint32(r.Intn(4))
				to := min(from+1+uint32(r.Intn(12)), end)
				if from >= to {
					break
				}
				spans = append(spans, span{from, to, uint32(len(spans))})
				nest(from, to, depth+1)
				at = to
			}
		}
		nest(0, 60, 0)
		owner := func(off uint32, first bool) uint32 {
			best := span{id: none}
			for _, s := range spans {
				if off < s.start || off >= s.end {
					continue
				}
				equal := s.start == best.start && s.end == best.end
				if best.id == none || s.start > best.start || s.start == best.start && s.end < best.end || equal && !first && s.id > best.id {
					best = s
				}
			}
			return best.id
		}
		for _, first := range []bool{false, true} {
			cp := append([]span(nil), spans...)
			r.Shuffle(len(cp), func(i, j int) { cp[i], cp[j] = cp[j], cp[i] })
			set := flatten
			if first {
				set = flattenFirst
			}
			got := set(cp)
			for off := range uint32(70) {
				id, ok := got.find(off)
				if !ok {
					id = none
				}
				if want := owner(off, first); id != want {
					t.Fatalf("%v first %v: offset %d is %d, want %d", spans, first, off, id, want)
				}
			}
		}
	}
}
