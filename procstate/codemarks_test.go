package procstate

import (
	"bytes"
	"os"
	"slices"
	"testing"
)

// A mark is found from anywhere near it, from the page before and after as well,
// and nothing else is; a page is looked at once.
func TestHasMark(t *testing.T) {
	raw, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	im, err := NewImageBytes(raw, "self")
	if err != nil {
		t.Fatal(err)
	}
	var text Segment
	for _, s := range im.Segments() {
		if s.Flags&1 != 0 && s.Filesz > text.Filesz {
			text = s
		}
	}
	if text.Filesz < 64<<10 {
		t.Fatalf("code of %d bytes", text.Filesz)
	}
	pattern := []byte("\x00 mark \x01")
	asked := 0
	find := func(a *Arch, code []byte, marks []uint16) []uint16 {
		if asked++; a != im.Arch() {
			t.Errorf("asked about code of %v", a)
		}
		for _, kind := range []uint16{0, 3} {
			for at := len(code); ; { // in no order
				if at = bytes.LastIndex(code[:at], pattern); at < 0 {
					break
				}
				marks = append(marks, uint16(at)+kind/3*2+kind*MarkKind)
			}
		}
		return marks
	}
	// Marks on the third of five pages, at both ends and in the middle.
	first := (text.Off + 8*markPage) &^ (markPage - 1)
	places := []int{2 * markPage, 2*markPage + 50, 2*markPage + 1000, 3*markPage - 40, 3*markPage - 9}
	for _, off := range places {
		copy(raw[int(first)+off:], pattern)
	}
	has := func(off, from, to int) bool {
		return im.HasMark(first+uint64(off)-text.Off+text.Vaddr, from, to, 0, find)
	}
	for off := markPage; off < 4*markPage; off++ {
		for _, near := range [][2]int{{0, 0}, {-128, 100}, {-24, -4}, {3, 40}} {
			want := slices.ContainsFunc(places, func(at int) bool { return at >= off+near[0] && at <= off+near[1] })
			if got := has(off, near[0], near[1]); got != want {
				t.Fatalf("mark %d to %d from page %d + %d: %v", near[0], near[1], off/markPage, off%markPage, got)
			}
		}
	}
	for off, want := range map[int]bool{2*markPage + 49: false, 2*markPage + 50: true} {
		at := first + uint64(off) - text.Off + text.Vaddr
		if got := im.HasMark(at, 2, 2, 3, find); got != want || im.HasMark(at, 0, 100, 2, find) {
			t.Errorf("mark of another kind at page 2 + %d: %v; or of one that is not there", off-2*markPage, got)
		}
	}
	if asked != 5 {
		t.Errorf("asked %d times about 5 pages", asked)
	}

	many := func(_ *Arch, code []byte, marks []uint16) []uint16 {
		for i := range code {
			marks = append(marks, uint16(i))
		}
		return marks
	}
	if kept := len(im.marks.kept); !im.HasMark(first+5*markPage-text.Off+text.Vaddr, 0, 0, 0, many) || len(im.marks.kept) != kept {
		t.Error("a page of marks is remembered as something else than that")
	}
	if !im.HasMark(^uint64(0), 0, 0, 0, find) {
		t.Error("no mark in no segment")
	}
	im.r = bytes.NewReader(nil)
	if !has(7*markPage, 0, 0) {
		t.Error("no mark in a page that cannot be read")
	}
}

// Nothing is before a file, and nothing behind it.
func TestHasMarkAtEnds(t *testing.T) {
	const size, near = 2*markPage + 10, 128
	raw := bytes.Repeat([]byte{7}, size)
	im := &Image{r: bytes.NewReader(raw), size: size, segs: []Segment{{Filesz: size, Memsz: size}}}
	find := func(_ *Arch, code []byte, marks []uint16) []uint16 {
		for i := 0; i < len(code); i++ {
			if code[i] == 9 {
				marks = append(marks, uint16(i))
			}
		}
		return marks
	}
	raw[0], raw[size-1] = 9, 9
	for off := range uint64(size) {
		if got := im.HasMark(off, -near, near, 0, find); got != (off <= near || off >= size-1-near) {
			t.Fatalf("mark near %d: %v", off, got)
		}
		if got := im.HasMark(off, 0, 0, 0, find); got != (raw[off] == 9) {
			t.Fatalf("mark at %d: %v", off, got)
		}
	}
}
