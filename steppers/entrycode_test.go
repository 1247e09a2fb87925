package steppers

import (
	"path/filepath"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
)

// Wherever the code of a C library is a place at which stacks begin or signal
// handlers return, holdsEntryCode says so of its page; of most pages it does not.
func TestHoldsEntryCode(t *testing.T) {
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
		places, pages, rare := 0, 0, 0
		for _, s := range img.Segments() {
			if s.Flags&1 == 0 {
				continue
			}
			code := make([]byte, s.Filesz)
			if err := img.ReadVaddr(code, s.Vaddr); err != nil {
				t.Fatal(err)
			}
			for pc := range code {
				if pc%4096 == 2048 {
					pages++
					if img.HasRareCode(s.Vaddr+uint64(pc), holdsEntryCode) {
						rare++
					}
				}
				from, to := max(0, pc-bottomBefore), min(len(code), pc+80)
				window, at := code[from:to], pc-from
				before, after := window[:at], window[at:]
				if isThreadStart(img.Arch(), before, after, true) || isThreadStart(img.Arch(), before, after, false) ||
					isCloneChild(img.Arch(), before, after) || inContextStart(img.Arch(), window, at) ||
					inCoroutineStart(img.Arch(), before, after, true) || inCoroutineStart(img.Arch(), before, after, false) ||
					classifyTrampoline(img.Arch(), before[max(0, at-trampolineBefore):], after[:min(16, len(after))]) != noTrampoline {
					places++
					if !img.HasRareCode(s.Vaddr+uint64(pc), holdsEntryCode) {
						t.Errorf("%s: nothing is said to be near %#x", path, s.Vaddr+uint64(pc))
					}
				}
			}
		}
		if places == 0 || rare == 0 || rare > pages*2/3 {
			t.Errorf("%s: %d places; %d of %d pages may hold some", path, places, rare, pages)
		}
		t.Logf("%s: %d places; %d of %d pages may hold some", path, places, rare, pages)
	}
}
