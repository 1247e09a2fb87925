package steppers

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// Wherever the code of a C library is a place at which stacks begin, or signal
// handlers return, there are marks near it, and where a return may begin is one; of
// most code there are none.
func TestFindMarks(t *testing.T) {
	var paths []string
	for _, pattern := range []string{
		"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6", "/usr/lib/libc.so.6",
		"/usr/lib/x86_64-linux-musl/libc.so",
	} {
		found, _ := filepath.Glob(pattern)
		paths = append(paths, found...)
	}
	if len(paths) == 0 {
		t.Skip("no C library for amd64")
	}
	for _, path := range paths {
		img := steptest.OpenImage(t, path)
		total, places, looked, returns := 0, 0, 0, 0
		for _, s := range img.Segments() {
			if s.Flags&1 == 0 {
				continue
			}
			code := make([]byte, s.Filesz)
			if err := img.ReadVaddr(code, s.Vaddr); err != nil {
				t.Fatal(err)
			}
			total += len(code)
			for pc := range code {
				vaddr := s.Vaddr + uint64(pc)
				near := maybeEntry(img, vaddr)
				if near {
					looked++
				}
				c, next := code[pc], code[min(pc+1, len(code)-1)]
				is := c == 0xc3 || c == 0xc2 || (c == 0xf2 || c == 0xf3) && next == 0xc3
				if is {
					returns++
				}
				// The last byte of a page may be the prefix of a return in the next.
				cut := (s.Off+uint64(pc)+1)%4096 == 0 && (c == 0xf2 || c == 0xf3)
				if got := mayHave(img, vaddr, markReturn, 0, 0); got != is && !(got && cut) {
					t.Errorf("%s: return at %#x: %v", path, vaddr, got)
				}
				from, to := max(0, pc-bottomBefore), min(len(code), pc+bottomAfter)
				window, at := code[from:to], pc-from
				before, after := window[:at], window[at:]
				if isThreadStart(img.Arch(), before, after, true) || isThreadStart(img.Arch(), before, after, false) ||
					isCloneChild(img.Arch(), before, after) || inContextStart(img.Arch(), window, at) ||
					inCoroutineStart(img.Arch(), before, after, true) || inCoroutineStart(img.Arch(), before, after, false) ||
					classifyTrampoline(img.Arch(), before[max(0, at-trampolineBefore):], after[:min(16, len(after))]) != noTrampoline {
					places++
					if !near {
						t.Errorf("%s: nothing is said to be near %#x", path, vaddr)
					}
				}
			}
		}
		t.Logf("%s: of %d addresses %d are such places, %d near marks for them; %d returns", path, total, places, looked, returns)
		if places == 0 || returns == 0 || looked > total/2 {
			t.Error("marks tell nothing")
		}
	}
}

// A place that goes from one page of a file to the next has its mark, wherever it
// is cut.
func TestFindMarksAcrossPages(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the code of this test is not x86-64")
	}
	raw, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	thunk := append(slices.Clone(startThunk), 0x0f, 0xae, 0xe8, 0xeb, 0xf9, 0x48, 0x89, 0x04, 0x24, 0xc3)
	for _, c := range []struct {
		name  string
		code  []byte
		kind  int
		marks []int // offsets in code
	}{
		{"syscall", []byte{0x0f, 0x05}, markEntry, nil},
		{"__start_context", startContextAMD64, markEntry, nil},
		{"coroutine", startCoroutine, markEntry, nil},
		{"return", []byte{0xf3, 0xc3}, markReturn, []int{0, 1}},
		{"thunk", thunk, markThunk, []int{0, isa.ThunkStore - isa.ThunkEntry, thunkRet}},
	} {
		for before := range len(c.code) + 1 { // bytes on the first page
			img, err := procstate.NewImageBytes(raw, "self")
			if err != nil {
				t.Fatal(err)
			}
			var text procstate.Segment
			for _, s := range img.Segments() {
				if s.Flags&1 != 0 {
					text = s
				}
			}
			const page = 4096
			border := (text.Off + 4*page) &^ (page - 1)
			pages := raw[border-page : border+page]
			clear(pages)
			copy(pages[page-before:], c.code)
			at := border - uint64(before) - text.Off + text.Vaddr
			if c.kind == markEntry {
				for _, pc := range []uint64{at - 60, at - 20, at, at + 1, at + uint64(len(c.code)), at + 30} {
					if !maybeEntry(img, pc) {
						t.Errorf("%s with %d bytes on the first page: nothing near %+d", c.name, before, int64(pc-at))
					}
				}
			}
			for _, off := range c.marks {
				if !mayHave(img, at+uint64(off), c.kind, 0, 0) {
					t.Errorf("%s with %d bytes on the first page: nothing at %+d", c.name, before, off)
				}
			}
			for _, far := range []uint64{at - 2000, at + 2000} {
				if maybeEntry(img, far) || mayHave(img, far, c.kind, 0, 0) {
					t.Errorf("%s with %d bytes on the first page: something is near %+d", c.name, before, int64(far-at))
				}
			}
		}
	}
}
