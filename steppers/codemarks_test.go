package steppers

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
)

// Wherever the code of a C library is a place at which stacks begin, or signal
// handlers return, there are marks near it, and where it returns there is one; of most code
// there are none.
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
				if mayReturn(img, vaddr) {
					returns++
				} else if isReturn(code[pc:]) {
					t.Errorf("%s: nothing is said to return at %#x", path, vaddr)
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
		t.Logf("%s: of %d addresses %d are such places, %d near marks for them; %d near returns", path, total, places, looked, returns)
		if places == 0 || looked > total/2 || returns > total/4 {
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
	for _, c := range []struct {
		name string
		code []byte
	}{{"syscall", []byte{0x0f, 0x05}}, {"__start_context", startContextAMD64}, {"coroutine", startCoroutine}} {
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
			for _, pc := range []uint64{at - 60, at - 20, at, at + 1, at + uint64(len(c.code)), at + 30} {
				if !maybeEntry(img, pc) {
					t.Errorf("%s with %d bytes on the first page: nothing near %+d", c.name, before, int64(pc-at))
				}
			}
			for _, far := range []uint64{at - 2000, at + 2000} {
				if maybeEntry(img, far) {
					t.Errorf("%s with %d bytes on the first page: something is near %+d", c.name, before, int64(far-at))
				}
			}
		}
	}
}
