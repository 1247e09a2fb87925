package steppers

import (
	"cmp"
	"debug/elf"
	"slices"

	"github.com/swbpf/swbpf/procstate"
)

// How the code that a table of functions tells of is looked for in a file: in pieces of code, so far apart that some are in it, by
// functions that are as far apart as in the table, with as much between them.
const (
	v8Piece    = 8 << 10
	v8Pieces   = 128 << 10 // from one to the next
	maxV8Gap   = 64        // bytes between functions
	maxV8Same  = 64        // pairs of functions that are alike
	maxV8Whole = 64        // times that all functions are compared
)

// v8Pair is what is seen of two functions, one behind the other: how far apart they begin, and the bytes between.
type v8Pair struct{ apart, gap uint32 }

// v8Lies is where functions are in V8's own code, by address.
type v8Lies []v8Layout

func newV8Lies(layout []v8Layout) v8Lies {
	sorted := slices.Clone(layout)
	slices.SortFunc(sorted, func(a, b v8Layout) int { return cmp.Compare(a.start, b.start) })
	return sorted
}

// size returns how long the code is.
func (l v8Lies) size() uint64 {
	last := l[len(l)-1]
	return uint64(last.start) + uint64(last.size)
}

// pairs returns the functions that come second of pairs that are alike.
func (l v8Lies) pairs() map[v8Pair][]v8Layout {
	pairs := map[v8Pair][]v8Layout{}
	for i, second := range l[1:] {
		first := l[i]
		p := v8Pair{second.start - first.start, second.start - first.start - first.size}
		if p.gap > 0 && len(pairs[p]) < maxV8Same {
			pairs[p] = append(pairs[p], second)
		}
	}
	return pairs
}

// fit reports whether a piece of code, at an offset in V8's own, has nothing but int3 between functions.
func (l v8Lies) fit(code []byte, off int64) bool {
	i, _ := slices.BinarySearchFunc(l, off, func(f v8Layout, off int64) int { return cmp.Compare(int64(f.start), off) })
	for ; i < len(l); i++ {
		if i == 0 {
			continue
		}
		from, to := int64(l[i-1].start)+int64(l[i-1].size)-off, int64(l[i].start)-off
		if to > int64(len(code)) {
			break
		}
		if !isFilled(code[max(from, 0):max(to, 0)]) {
			return false
		}
	}
	return true
}

// v8EmbeddedCode finds the code of which a table tells.
func v8EmbeddedCode(im *procstate.Image, layout []v8Layout) (code vaddrRange, ok bool) {
	lies := newV8Lies(layout)
	size, pairs := lies.size(), lies.pairs()
	buf, left := make([]byte, v8Piece), maxV8Whole
	for _, s := range im.Segments() {
		if s.Flags&elf.PF_X == 0 || s.Filesz > maxV8Embedding || s.Filesz < size {
			continue
		}
		end := s.Vaddr + s.Filesz
		for at := (s.Vaddr + v8BlobAlign - 1) &^ (v8BlobAlign - 1); at < end; at += v8Pieces {
			piece := buf[:min(v8Piece, end-at)]
			if im.ReadVaddr(piece, at) != nil {
				break
			}
			if start, found := lies.around(im, s, pairs, piece, at, &left); found {
				return vaddrRange{start, start + size}, true
			}
		}
	}
	return code, false
}

// around returns where the code begins that a piece at a link-time address is of, if it is of that.
func (l v8Lies) around(im *procstate.Image, s procstate.Segment, pairs map[v8Pair][]v8Layout, piece []byte, at uint64, left *int) (start uint64, found bool) {
	before := uint32(0) // where the last function began
	for i := uint32(v8BlobAlign); int(i) < len(piece); i += v8BlobAlign {
		gap := uint32(0)
		for gap < maxV8Gap && gap < i && piece[i-gap-1] == breakpointAMD64 {
			gap++
		}
		if gap == 0 {
			continue
		}
		for _, f := range pairs[v8Pair{i - before, gap}] {
			start := at + uint64(i) - uint64(f.start)
			if start < s.Vaddr || start > at+uint64(i) || start+l.size() > s.Vaddr+s.Filesz || !l.fit(piece, int64(at)-int64(start)) {
				continue
			}
			if *left--; *left < 0 {
				return 0, false
			}
			if whole := readVaddr(im, start, start+l.size()); uint64(len(whole)) == l.size() && l.fit(whole, 0) {
				return start, true
			}
		}
		before = i
	}
	return 0, false
}
