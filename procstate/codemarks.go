package procstate

import (
	"sync"
	"sync/atomic"
)

// MarkFunc appends the marks in a page of code to marks: an offset each, plus MarkKind times
// the kind, of which there are 16, in order of the kinds. What may go on before the page, or behind it, it has to mark
// as well.
type MarkFunc func(a *Arch, code []byte, marks []uint16) []uint16

// MarkKind is what the kinds of marks are multiples of.
const MarkKind = markPage

// codeMarks keeps the marks of those pages of a file that were asked for.
type codeMarks struct {
	groups atomic.Pointer[[]atomic.Pointer[markedPages]] // nil where no page was looked at

	mu   sync.Mutex
	kept []uint16 // their number, and they; and so on
}

// markedPages tells of each of the pages that follow each other what its marks are:
// someMarks plus where among those that are kept they begin, or one of the others.
type markedPages [markGroup]atomic.Uint32

const (
	notLooked uint32 = iota // at the page
	noMarks
	anyMarks // of a page that cannot be read, or has more than maxMarks
	someMarks
)

const (
	markPage  = 4096
	markGroup = 64 // pages
	maxMarks  = 512

	maxMarkedOffset = 4 << 30 // what lies beyond in a file may be any mark
)

var markBuffers = sync.Pool{New: func() any { return new([markPage]byte) }}

// HasMark reports whether find marks a place with a kind that is from to to bytes after a
// link-time address. Each page of the file is read once for that; find must
// be the same in all calls for an Image. HasMark is true where the file cannot be
// read.
func (im *Image) HasMark(vaddr uint64, from, to int, kind uint16, find MarkFunc) bool {
	off, ok := im.OffsetOfVaddr(vaddr, 1)
	if !ok || off >= min(uint64(im.size), maxMarkedOffset) {
		return true
	}
	first := int64(off) + int64(from)
	last := min(int64(off)+int64(to), im.size-1)
	for at := max(first, 0); at <= last; {
		page := at / markPage
		end := min(last, page*markPage+markPage-1)
		if im.pageHasMark(uint64(page), int(at%markPage), int(end%markPage), kind, find) {
			return true
		}
		at = end + 1
	}
	return false
}

// pageHasMark is HasMark for the bytes [from, to] of a page.
func (im *Image) pageHasMark(page uint64, from, to int, kind uint16, find MarkFunc) bool {
	k := &im.marks
	marks := notLooked
	if g := k.groups.Load(); g != nil {
		if pages := (*g)[page/markGroup].Load(); pages != nil {
			marks = pages[page%markGroup].Load()
		}
	}
	if marks == notLooked {
		marks = im.mark(page, find)
	}
	switch marks {
	case noMarks:
		return false
	case anyMarks:
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	kept := k.kept[marks-someMarks:]
	first, n := kind*MarkKind+uint16(from), uint16(to-from)
	for _, at := range kept[1:][:kept[0]] {
		if at-first <= n {
			return true
		}
		if at/MarkKind > kind {
			break
		}
	}
	return false
}

// mark looks for the marks of a page.
func (im *Image) mark(page uint64, find MarkFunc) (marks uint32) {
	k, size := &im.marks, uint64(im.size)
	k.mu.Lock()
	defer k.mu.Unlock()
	groups := k.groups.Load()
	if groups == nil {
		made := make([]atomic.Pointer[markedPages], min(size, maxMarkedOffset)/(markGroup*markPage)+1)
		groups = &made
		k.groups.Store(groups)
	}
	group := &(*groups)[page/markGroup]
	if group.Load() == nil {
		group.Store(new(markedPages))
	}
	p := &group.Load()[page%markGroup]
	if marks = p.Load(); marks != notLooked {
		return marks
	}
	marks = anyMarks
	buf := markBuffers.Get().(*[markPage]byte)
	defer markBuffers.Put(buf)
	code := buf[:min(size-page*markPage, markPage)]
	if n, _ := im.readOnce(code, int64(page*markPage)); n == len(code) {
		begin := len(k.kept)
		k.kept = find(im.arch, code, append(k.kept, 0))
		switch n := len(k.kept) - begin - 1; {
		case n == 0:
			marks, k.kept = noMarks, k.kept[:begin]
		case n > maxMarks:
			k.kept = k.kept[:begin]
		default:
			marks, k.kept[begin] = someMarks+uint32(begin), uint16(n)
		}
	}
	p.Store(marks)
	return marks
}
