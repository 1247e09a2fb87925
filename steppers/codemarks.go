package steppers

import (
	"bytes"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// Kinds of marks in x86-64 code, which spare most addresses a look at it. Each is
// found by bytes that it must have.
const (
	// markEntry is part of a place that isThreadStart, isThreadEnd, isCloneChild,
	// inContextStart, inCoroutineStart or classifyTrampoline recognise.
	markEntry  = iota
	markReturn // a return, if an instruction begins there
	markThunk  // an instruction of an inlined thunk, see isa.InThunk
)

// startThunk is the code of an inlined thunk at isa.ThunkEntry, its ret that many
// bytes behind.
var startThunk = []byte{0xe8, 7, 0, 0, 0, 0xf3, 0x90}

const thunkRet = isa.ThunkStore + 4 - isa.ThunkEntry

// findMarks is for Image.HasMark. Each place is found by one of its bytes that is
// rare in code.
func findMarks(_ *procstate.Arch, code []byte, marks []procstate.Mark) []procstate.Mark {
	for _, rare := range [...]byte{0x05, 0xdc, 0xe3, 0xc2, 0xc3} {
		for at := 0; ; at++ {
			n := bytes.IndexByte(code[at:], rare)
			if n < 0 {
				break
			}
			at += n
			switch {
			case rare == 0xc2, rare == 0xc3:
				marks = append(marks, procstate.MarkAt(markReturn, at))
				if at >= thunkRet && code[at-1] == 0x24 && bytes.HasPrefix(code[at-thunkRet:], startThunk) {
					for _, off := range [...]int{0, isa.ThunkStore - isa.ThunkEntry, thunkRet} {
						marks = append(marks, procstate.MarkAt(markThunk, at-thunkRet+off))
					}
				}
				if rare == 0xc3 && at >= 1 && (code[at-1] == 0xf2 || code[at-1] == 0xf3) {
					marks = append(marks, procstate.MarkAt(markReturn, at-1))
				}
			case rare == 0x05 && at >= 1 && code[at-1] == 0x0f: // syscall
				marks = append(marks, procstate.MarkAt(markEntry, at-1))
			case rare == 0xdc && at >= 2 && bytes.HasPrefix(code[at-2:], startContextAMD64),
				rare == 0xe3 && at >= 2 && bytes.HasPrefix(code[at-2:], startCoroutine):
				marks = append(marks, procstate.MarkAt(markEntry, at-2))
			}
		}
	}
	return marks
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
