package steppers

import (
	"bytes"

	"github.com/swbpf/swbpf/procstate"
)

// Kinds of marks in x86-64 code, which spare most addresses a look at it. Each is
// found by bytes that it must have.
const (
	// markEntry is part of a place that isThreadStart, isThreadEnd, isCloneChild,
	// inContextStart, inCoroutineStart or classifyTrampoline recognise.
	markEntry  = iota
	markReturn // a return, if an instruction begins there
)

// findMarks is for Image.HasMark.
func findMarks(_ *procstate.Arch, code []byte, marks []procstate.Mark) []procstate.Mark {
	for at := next(code, 0, 0x05); at < len(code); at = next(code, at+1, 0x05) {
		if at >= 1 && code[at-1] == 0x0f { // syscall
			marks = append(marks, procstate.MarkAt(markEntry, at-1))
		}
	}
	for at := next(code, 0, 0xdc); at < len(code); at = next(code, at+1, 0xdc) {
		if at >= 2 && bytes.HasPrefix(code[at-2:], startContextAMD64) {
			marks = append(marks, procstate.MarkAt(markEntry, at-2))
		}
	}
	for at := next(code, 0, 0xe3); at < len(code); at = next(code, at+1, 0xe3) {
		if at >= 2 && bytes.HasPrefix(code[at-2:], startCoroutine) {
			marks = append(marks, procstate.MarkAt(markEntry, at-2))
		}
	}
	for at := next(code, 0, 0xc3); at < len(code); at = next(code, at+1, 0xc3) {
		marks = append(marks, procstate.MarkAt(markReturn, at))
		if at >= 1 && (code[at-1] == 0xf2 || code[at-1] == 0xf3) {
			marks = append(marks, procstate.MarkAt(markReturn, at-1))
		}
	}
	for at := next(code, 0, 0xc2); at < len(code); at = next(code, at+1, 0xc2) {
		marks = append(marks, procstate.MarkAt(markReturn, at))
	}
	return marks
}

// next returns where b is next in code, from an offset on; len(code) when it is
// not there.
func next(code []byte, from int, b byte) int {
	if n := bytes.IndexByte(code[from:], b); n >= 0 {
		return from + n
	}
	return len(code)
}

// mayHave reports whether there may be a mark of a kind from to to bytes after a
// link-time address.
func mayHave(im *procstate.Image, vaddr uint64, kind, from, to int) bool {
	return im.Arch() != procstate.AMD64 || im.HasMark(vaddr, kind, from, to, findMarks)
}

// maybeEntry reports whether there may be something near a link-time address that
// a markEntry is part of.
func maybeEntry(im *procstate.Image, vaddr uint64) bool {
	return mayHave(im, vaddr, markEntry, -bottomBefore, bottomAfter)
}
