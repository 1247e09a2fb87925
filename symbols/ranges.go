package symbols

import (
	"cmp"
	"slices"
)

// none stands for the absence of an id in a rangeSet.
const none = 1<<32 - 1

// rangeSet gives ids to disjoint ranges of 32-bit offsets. It is built in
// order of offset.
type rangeSet struct {
	starts []uint32
	ids    []uint32 // parallel to starts; none for a gap
}

// add makes the offsets from off on belong to id, up to the next range. A
// later range at the same offset replaces an earlier one.
func (r *rangeSet) add(off, id uint32) {
	n := len(r.starts)
	if n > 0 && r.starts[n-1] == off {
		r.ids[n-1] = id
		return
	}
	if n > 0 && r.ids[n-1] == id {
		return
	}
	r.starts = append(r.starts, off)
	r.ids = append(r.ids, id)
}

// find returns the id of the range that holds off.
func (r *rangeSet) find(off uint32) (id uint32, ok bool) {
	i, j := 0, len(r.starts)
	for i < j {
		if h := int(uint(i+j) >> 1); r.starts[h] <= off {
			i = h + 1
		} else {
			j = h
		}
	}
	if i == 0 || r.ids[i-1] == none {
		return 0, false
	}
	return r.ids[i-1], true
}

// beginRanges returns an empty rangeSet to build one in, with room that is reused.
func beginRanges() *rangeSet {
	r := rangeBuffers.Get().(*rangeSet)
	r.starts, r.ids = r.starts[:0], r.ids[:0]
	return r
}

// end returns what was built, in no more room than it needs.
func (r *rangeSet) end() rangeSet {
	out := rangeSet{slices.Clone(r.starts), slices.Clone(r.ids)}
	if cap(r.starts) <= maxPooledRows {
		rangeBuffers.Put(r)
	}
	return out
}

// span is a range of offsets [start, end) with an id.
type span struct{ start, end, id uint32 }

// spanStack holds the spans around the current offset, outermost first, while
// a rangeSet is built from spans in order of start. The innermost span, the
// one that was opened last, owns an offset.
type spanStack []span

// open starts a span.
func (s *spanStack) open(r *rangeSet, sp span) {
	r.add(sp.start, sp.id)
	*s = append(*s, sp)
}

// closeUntil ends the spans that end at or before off, inner ones first, and
// gives what follows to the span around them.
func (s *spanStack) closeUntil(r *rangeSet, off uint32) {
	for len(*s) > 0 {
		end := (*s)[len(*s)-1].end
		if end > off {
			return
		}
		for len(*s) > 0 && (*s)[len(*s)-1].end <= end {
			*s = (*s)[:len(*s)-1]
		}
		next := uint32(none)
		if len(*s) > 0 {
			next = (*s)[len(*s)-1].id
		}
		r.add(end, next)
	}
}

// flatten makes a rangeSet of spans that may nest: an offset belongs to the
// shortest span that begins last; of equal spans to the one with the highest
// id. It sorts spans.
func flatten(spans []span) rangeSet {
	slices.SortFunc(spans, compareSpans)
	r := beginRanges()
	var stack spanStack
	for _, sp := range spans {
		stack.closeUntil(r, sp.start)
		stack.open(r, sp)
	}
	stack.closeUntil(r, none)
	return r.end()
}

// flattenFirst is flatten, but of equal spans the one with the lowest id owns
// the offsets.
func flattenFirst(spans []span) (r rangeSet) {
	slices.SortFunc(spans, compareSpans)
	return flatten(slices.CompactFunc(spans, func(x, y span) bool { return x.start == y.start && x.end == y.end }))
}

// compareSpans orders spans by start, outer ones first, then by id.
func compareSpans(x, y span) int {
	if x.start != y.start {
		return cmp.Compare(x.start, y.start)
	}
	if x.end != y.end {
		return -cmp.Compare(x.end, y.end)
	}
	return cmp.Compare(x.id, y.id)
}
