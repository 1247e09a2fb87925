package mcode_test

import (
	"debug/elf"
	"fmt"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// Code that was not captured, of a segment that can be written, is read from the file, up to what that has: programs
// that have written themselves to a file have theirs there (GNU Common Lisp).
func TestReadWritableCode(t *testing.T) {
	path := steptest.Compile(t, []string{"gcc", "-nostdlib", "-static", "-Wl,--build-id=none"}, "main.S", `
		.globl _start
		_start: jmp 1f
		.section .written, "awx", @progbits
		1: .fill 64, 1, 0x90
		.byte 0xff, 0x15, 1, 2, 3, 4, 0xcc, 0xc3
		.bss
		.skip 0x3000
		.section .note.GNU-stack, "", @progbits
	`)
	img := steptest.OpenImage(t, path)
	segments := img.Segments()
	i := slices.IndexFunc(segments, func(s procstate.Segment) bool { return s.Flags&elf.PF_W != 0 && s.Filesz >= 72 })
	if i < 0 {
		t.Fatalf("segments: %+v", segments)
	}
	s := segments[i]
	const bias = 0x10000
	m := &procstate.Mapping{Start: s.Vaddr + bias, End: s.Vaddr + s.Memsz + bias, Bias: bias, Image: img}
	w := unwind.NewWalker(steptest.MadeUp(img.Arch(), m), unwind.NewGroup(), nil)
	buf := make([]byte, 16)
	for _, tc := range []struct {
		off  uint64
		want string
	}{
		{64, "ff1501020304ccc3"}, // all that the file has there
		{60, "90909090ff1501020304ccc3"},
		{0, "90909090909090909090909090909090"},
		{s.Filesz + 0x1000, ""},
	} {
		got := mcode.Read(w, m, m.Start+tc.off, buf)
		if n := min(len(got), len(tc.want)/2); fmt.Sprintf("%x", got[:n]) != tc.want {
			t.Errorf("at %d: %x, want %s", tc.off, got, tc.want)
		}
	}
	none := *m
	none.Image = nil
	if got := mcode.Read(w, &none, m.Start, buf); len(got) != 0 {
		t.Errorf("of no file: %x", got)
	}
}
