package procstate

import (
	"bytes"
	"os"
	"testing"
)

// The answer is that of the page, the file is read once for it, and what lies
// near another page or cannot be read may hold anything.
func TestHasRareCode(t *testing.T) {
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
	// Of three pages in a row the middle one holds the mark, 100 bytes from its end.
	first := (text.Off + 8*rarePageBytes) &^ (rarePageBytes - 1)
	mark := []byte("\x00 rare \x01")
	copy(raw[first+2*rarePageBytes-100:], mark)
	asked := 0
	rare := func(a *Arch, code []byte) bool {
		asked++
		if a != im.Arch() || len(code) != rarePageBytes {
			t.Errorf("asked for %d bytes of %v", len(code), a)
		}
		return bytes.Contains(code, mark)
	}
	for range 2 {
		for i, marked := range []bool{false, true, false} {
			for _, at := range []uint64{0, 127, 128, 2000, rarePageBytes - 129, rarePageBytes - 128, rarePageBytes - 1} {
				vaddr := first + uint64(i)*rarePageBytes + at - text.Off + text.Vaddr
				want := marked || at < 128 || at >= rarePageBytes-128
				if got := im.HasRareCode(vaddr, rare); got != want {
					t.Errorf("page %d + %d: %v", i, at, got)
				}
			}
		}
	}
	if asked != 3 {
		t.Errorf("asked %d times for 3 pages", asked)
	}
	never := func(*Arch, []byte) bool { return false }
	if !im.HasRareCode(^uint64(0), never) {
		t.Error("nothing rare in no segment")
	}
	im.r = bytes.NewReader(nil)
	if !im.HasRareCode(first+5*rarePageBytes+2000-text.Off+text.Vaddr, never) {
		t.Error("nothing rare in a page that cannot be read")
	}
}
