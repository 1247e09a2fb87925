package steppers

import (
	"bytes"

	"github.com/swbpf/swbpf/procstate"
)

// Kinds of marks.
const (
	entryMark  = iota // of what isThreadStart and the like recognise
	returnMark        // of a return
	raiseMark         // of what mayRaise
)

// findMarks is for Image.HasMark: it marks in x86-64 code what is part of each place that
// isThreadStart, isThreadEnd, isCloneChild, inContextStart, inCoroutineStart or
// classifyTrampoline recognise, which spares most addresses a look at the code; and where
// a return or OCaml's way to raise an exception may be. Each is
// found by one of its bytes that is rare in code, and the mark is there. What may go on
// before the code or after it is marked, too.
func findMarks(_ *procstate.Arch, code []byte, marks []uint16) []uint16 {
	for _, rare := range [...]byte{0x05, 0xdc, 0xe3, 0xc3, 0xc2, 0x8f} {
		for at := 0; ; at++ {
			n := bytes.IndexByte(code[at:], rare)
			if n < 0 {
				break
			}
			at += n
			switch rare {
			case 0xc3, 0xc2:
				marks = append(marks, uint16(at)+returnMark*procstate.MarkKind)
			case 0x8f:
				if mayRaise(code, at) {
					marks = append(marks, uint16(at)+raiseMark*procstate.MarkKind)
				}
			case 0x05: // syscall
				if at < 1 || code[at-1] == 0x0f {
					marks = append(marks, uint16(at))
				}
			case 0xdc:
				if mayBeAround(code, at, startContextAMD64, 2) {
					marks = append(marks, uint16(at))
				}
			case 0xe3:
				if mayBeAround(code, at, startCoroutine, 2) {
					marks = append(marks, uint16(at))
				}
			}
		}
	}
	return marks
}

// Where the return of a thunk is from its store, and from its call: see isa.InThunk.
const (
	storeToReturn = 4
	callToReturn  = 16
)

// mayReturn reports whether an instruction at a link-time address may be one for which
// isReturn or, in a thunk, mayBeInThunk is true.
func mayReturn(im *procstate.Image, vaddr uint64) bool {
	return im.Arch() != procstate.AMD64 || im.HasMark(vaddr, 0, storeToReturn, returnMark, findMarks) ||
		im.HasMark(vaddr, callToReturn, callToReturn, returnMark, findMarks)
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

// maybeEntry reports whether there may be a place near a link-time address that
// findMarks marks.
func maybeEntry(im *procstate.Image, vaddr uint64) bool {
	return im.Arch() != procstate.AMD64 || im.HasMark(vaddr, -bottomBefore, bottomAfter, entryMark, findMarks)
}
