package steppers

import (
	"bytes"

	"github.com/swbpf/swbpf/procstate"
)

// findMarks is for Image.HasMark: it marks in x86-64 code what is part of each place that
// isThreadStart, isThreadEnd, isCloneChild, inContextStart, inCoroutineStart or
// classifyTrampoline recognise, which spares most addresses a look at the code. Each is
// found by one of its bytes that is rare in code, and the mark is there. What may go on
// before the code or after it is marked, too.
func findMarks(_ *procstate.Arch, code []byte, marks []uint16) []uint16 {
	for _, rare := range [...]byte{0x05, 0xdc, 0xe3} {
		for at := 0; ; at++ {
			n := bytes.IndexByte(code[at:], rare)
			if n < 0 {
				break
			}
			at += n
			if rare == 0x05 && (at < 1 || code[at-1] == 0x0f) || // syscall
				rare == 0xdc && mayBeAround(code, at, startContextAMD64, 2) ||
				rare == 0xe3 && mayBeAround(code, at, startCoroutine, 2) {
				marks = append(marks, uint16(at))
			}
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

// maybeEntry reports whether there may be a place near a link-time address that
// findMarks marks.
func maybeEntry(im *procstate.Image, vaddr uint64) bool {
	return im.Arch() != procstate.AMD64 || im.HasMark(vaddr, -bottomBefore, bottomAfter, findMarks)
}
