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

// MarkFunc appends the marks of a piece of code to marks.
type MarkFunc func(a *Arch, code []byte, marks []Mark) []Mark

// codeMarks keeps the marks of those pages of a file that were asked for.
type codeMarks struct {
	// pages holds of each page a bit for each kind that it has marks of, and above
	// these 1 + where in kept they are. It is 0 when the page was not looked at.
	pages atomic.Pointer[[]atomic.Uint32]

	mu   sync.Mutex
	kept []Mark // their number, as a Mark, and they; and so on
	code [markMargin + markPage + markMargin]byte
}

const (
	markPage   = 4096
	markMargin = 128

	// anyMarks stands for a page that cannot be read, or has more than maxMarks.
	anyMarks = 1<<MarkKinds - 1
	maxMarks = 512

	maxMarkedOffset = 4 << 30 // what lies beyond in a file may be any mark
)

// HasMark reports whether find marks a place of a kind that is from to to bytes
// after a link-time address, neither of which is more than 128, or less than
// -128. Each page of the file is read once for that; find must be the same in all
// calls for an Image. HasMark is true where the file cannot be read.
func (im *Image) HasMark(vaddr uint64, kind, from, to int, find MarkFunc) bool {
	off, ok := im.OffsetOfVaddr(vaddr, 1)
	if !ok || off >= min(uint64(im.size), maxMarkedOffset) {
		return true
	}
	k, page := &im.marks, off/markPage
	is := uint32(0)
	if p := k.pages.Load(); p != nil {
		is = (*p)[page].Load()
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
	at := int(off%markPage) + markMargin
	k.mu.Lock()
	defer k.mu.Unlock()
	marks := k.kept[is>>MarkKinds-1:]
	for _, m := range marks[1:][:marks[0]] {
		if m-MarkAt(kind, at+from) <= Mark(to-from) {
			return true
		}
	}
	return false
}

// mark looks for the marks of a page, and of what is near it on either side.
func (im *Image) mark(page uint64, find MarkFunc) (is uint32) {
	k, size := &im.marks, uint64(im.size)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pages.Load() == nil {
		pages := make([]atomic.Uint32, min(size, maxMarkedOffset)/markPage+1)
		k.pages.Store(&pages)
	}
	p := &(*k.pages.Load())[page]
	if is = p.Load(); is != 0 {
		return is
	}
	is = anyMarks
	if code, ok := im.around(page); ok {
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

// around reads a page and what is near it, from markMargin before its start on.
func (im *Image) around(page uint64) (code []byte, ok bool) {
	code = im.marks.code[:]
	into, from := code, int64(page*markPage)-markMargin
	if from < 0 { // nothing is before the file
		clear(code[:markMargin])
		into, from = code[markMargin:], 0
	}
	into = into[:min(int64(len(into)), im.size-from)]
	n, _ := im.r.ReadAt(into, from)
	return code[:len(code)-cap(into)+len(into)], n == len(into)
}
