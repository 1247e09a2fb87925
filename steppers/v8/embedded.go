package v8

import (
	"cmp"
	"debug/elf"
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
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

// pair is what is seen of two functions, one behind the other: how far apart they begin, and the bytes between.
type pair struct{ apart, gap uint32 }

// lies is where functions are in V8's own code, by address.
type lies []builtinRange

func newLies(layout []builtinRange) lies {
	sorted := slices.Clone(layout)
	slices.SortFunc(sorted, func(a, b builtinRange) int { return cmp.Compare(a.start, b.start) })
	return sorted
}

// size returns how long the code is.
func (l lies) size() uint64 {
	last := l[len(l)-1]
	return uint64(last.start) + uint64(last.size)
}

// pairs returns the functions that come second of pairs that are alike.
func (l lies) pairs() map[pair][]builtinRange {
	pairs := map[pair][]builtinRange{}
	for i, second := range l[1:] {
		first := l[i]
		p := pair{second.start - first.start, second.start - first.start - first.size}
		if p.gap > 0 && len(pairs[p]) < maxV8Same {
			pairs[p] = append(pairs[p], second)
		}
	}
	return pairs
}

// fit reports whether a piece of code, at an offset in V8's own, has nothing but int3 between functions.
func (l lies) fit(code []byte, off int64) bool {
	i, _ := slices.BinarySearchFunc(l, off, func(f builtinRange, off int64) int { return cmp.Compare(int64(f.start), off) })
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

// embeddedCode finds the code of which a table tells.
func embeddedCode(im *procstate.Image, layout []builtinRange) (code mcode.Range, ok bool) {
	lies := newLies(layout)
	size, pairs := lies.size(), lies.pairs()
	buf, left := make([]byte, v8Piece), maxV8Whole
	for _, s := range im.Segments() {
		if s.Flags&elf.PF_X == 0 || s.Filesz > maxEmbedding || s.Filesz < size {
			continue
		}
		end := s.Vaddr + s.Filesz
		for at := (s.Vaddr + blobAlign - 1) &^ (blobAlign - 1); at < end; at += v8Pieces {
			piece := buf[:min(v8Piece, end-at)]
			if im.ReadVaddr(piece, at) != nil {
				break
			}
			if start, found := lies.around(im, s, pairs, piece, at, &left); found {
				return mcode.Range{Start: start, End: start + size}, true
			}
		}
	}
	return code, false
}

// around returns where the code begins that a piece at a link-time address is of, if it is of that.
func (l lies) around(im *procstate.Image, s procstate.Segment, pairs map[pair][]builtinRange, piece []byte, at uint64, left *int) (start uint64, found bool) {
	before := uint32(0) // where the last function began
	for i := uint32(blobAlign); int(i) < len(piece); i += blobAlign {
		gap := uint32(0)
		for gap < maxV8Gap && gap < i && piece[i-gap-1] == mcode.BreakpointAMD64 {
			gap++
		}
		if gap == 0 {
			continue
		}
		for _, f := range pairs[pair{i - before, gap}] {
			start := at + uint64(i) - uint64(f.start)
			if start < s.Vaddr || start > at+uint64(i) || start+l.size() > s.Vaddr+s.Filesz || !l.fit(piece, int64(at)-int64(start)) {
				continue
			}
			if *left--; *left < 0 {
				return 0, false
			}
			if whole := mcode.ReadFile(im, start, start+l.size()); uint64(len(whole)) == l.size() && l.fit(whole, 0) {
				return start, true
			}
		}
		before = i
	}
	return 0, false
}
