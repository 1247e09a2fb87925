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
// rare in code, and the mark is there. What may go on before the code or after it
// is marked, too.
func findMarks(_ *procstate.Arch, code []byte, marks []procstate.Mark) []procstate.Mark {
	if n := len(code) - 1; code[n] == 0xf2 || code[n] == 0xf3 {
		marks = append(marks, procstate.MarkAt(markReturn, n))
	}
	for at := max(0, len(code)-thunkRet); at < len(code); at++ {
		if mayBeAround(code, at, startThunk, 0) {
			marks = markThunkAt(marks, at, len(code))
		}
	}
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
				if (at < 1 || code[at-1] == 0x24) && mayBeAround(code, at, startThunk, thunkRet) {
					marks = markThunkAt(marks, at-thunkRet, len(code))
				}
				if rare == 0xc3 && at >= 1 && (code[at-1] == 0xf2 || code[at-1] == 0xf3) {
					marks = append(marks, procstate.MarkAt(markReturn, at-1))
				}
			case rare == 0x05 && (at < 1 || code[at-1] == 0x0f), // syscall
				rare == 0xdc && mayBeAround(code, at, startContextAMD64, 2),
				rare == 0xe3 && mayBeAround(code, at, startCoroutine, 2):
				marks = append(marks, procstate.MarkAt(markEntry, at))
			}
		}
	}
	return marks
}

// markThunkAt marks the instructions of a thunk from an offset on, as far as they are
// in a page of a size.
func markThunkAt(marks []procstate.Mark, at, size int) []procstate.Mark {
	for _, off := range [...]int{0, isa.ThunkStore - isa.ThunkEntry, thunkRet} {
		if at+off >= 0 && at+off < size {
			marks = append(marks, procstate.MarkAt(markThunk, at+off))
		}
	}
	return marks
}

// mayBeAround reports whether code has a pattern that begins so many bytes before at,
// which may be before the code, as far as the code goes.
func mayBeAround(code []byte, at int, pattern []byte, before int) bool {
	from := at - before
	if from < 0 {
		pattern = pattern[min(-from, len(pattern)):]
		from = 0
	}
	code = code[from:]
	n := min(len(code), len(pattern))
	return bytes.Equal(code[:n], pattern[:n])
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
