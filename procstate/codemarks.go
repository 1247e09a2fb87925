package procstate

import (
	"sync"
	"sync/atomic"
)

// Mark is a place in code: its kind and its offset.
type Mark uint16

// MarkAt makes a Mark of a kind, less than MarkKinds, at an offset that is less
// than 8 KB.
func MarkAt(kind, off int) Mark { return Mark(kind<<markOffsetBits | off) }

const (
	// MarkKinds is the number of kinds of marks.
	MarkKinds = 3

	markOffsetBits = 13
)

// MarkFunc appends the marks of a page of code to marks. What may go on before the
// page, or behind it, it has to mark as well.
type MarkFunc func(a *Arch, code []byte, marks []Mark) []Mark

// codeMarks keeps the marks of those pages of a file that were asked for.
type codeMarks struct {
	groups atomic.Pointer[[]atomic.Pointer[markedPages]] // nil where no page was looked at

	mu   sync.Mutex
	kept []Mark // their number, as a Mark, and they; and so on
}

// markedPages holds of each of the pages that follow each other a bit for each kind
// that it has marks of, and above these 1 + where among those that are kept they
// are. It is 0 when the page was not looked at.
type markedPages [markGroup]atomic.Uint32

const (
	markPage  = 4096
	markGroup = 64 // pages

	// anyMarks stands for a page that cannot be read, or has more than maxMarks.
	anyMarks = 1<<MarkKinds - 1
	maxMarks = 512

	maxMarkedOffset = 4 << 30 // what lies beyond in a file may be any mark
)

var markBuffers = sync.Pool{New: func() any { return new([markPage]byte) }}

// HasMark reports whether find marks a place of a kind that is from to to bytes
// after a link-time address. Each page of the file is read once for that; find must
// be the same in all calls for an Image. HasMark is true where the file cannot be
// read.
func (im *Image) HasMark(vaddr uint64, kind, from, to int, find MarkFunc) bool {
	off, ok := im.OffsetOfVaddr(vaddr, 1)
	if !ok || off >= min(uint64(im.size), maxMarkedOffset) {
		return true
	}
	first := int64(off) + int64(from)
	last := min(int64(off)+int64(to), im.size-1)
	for at := max(first, 0); at <= last; {
		page := at / markPage
		end := min(last, page*markPage+markPage-1)
		if im.pageHasMark(uint64(page), kind, int(at%markPage), int(end%markPage), find) {
			return true
		}
		at = end + 1
	}
	return false
}

// pageHasMark is HasMark for the bytes [from, to] of a page.
func (im *Image) pageHasMark(page uint64, kind, from, to int, find MarkFunc) bool {
	k := &im.marks
	is := uint32(0)
	if g := k.groups.Load(); g != nil {
		if pages := (*g)[page/markGroup].Load(); pages != nil {
			is = pages[page%markGroup].Load()
		}
	}
	if is == 0 {
		is = im.mark(page, find)
	}
	switch {
	case is>>kind&1 == 0:
		return false
	case is == anyMarks:
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	marks := k.kept[is>>MarkKinds-1:]
	for _, m := range marks[1:][:marks[0]] {
		if m-MarkAt(kind, from) <= Mark(to-from) {
			return true
		}
	}
	return false
}

// mark looks for the marks of a page.
func (im *Image) mark(page uint64, find MarkFunc) (is uint32) {
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
	if is = p.Load(); is != 0 {
		return is
	}
	is = anyMarks
	buf := markBuffers.Get().(*[markPage]byte)
	defer markBuffers.Put(buf)
	code := buf[:min(size-page*markPage, markPage)]
	if n, _ := im.ReadAt(code, int64(page*markPage)); n == len(code) {
		first := len(k.kept)
		k.kept = find(im.arch, code, append(k.kept, 0))
		if marks := k.kept[first+1:]; len(marks) <= maxMarks {
			k.kept[first] = Mark(len(marks))
			is = uint32(first+1) << MarkKinds
			for _, m := range marks {
				is |= 1 << (m >> markOffsetBits)
			}
		} else {
			k.kept = k.kept[:first]
		}
	}
	p.Store(is)
	return is
}
