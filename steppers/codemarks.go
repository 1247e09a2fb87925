package steppers

import (
	"bytes"

	"github.com/swbpf/swbpf/procstate"
)

// Kinds of marks, the most frequent one last, see procstate.MarkFunc.
const (
	entryMark  = iota // of what isThreadStart and the like recognise
	switchMark        // of an ocamlSwitchCode
	raiseMark         // of what mayRaise
	returnMark        // of a return
)

// findMarks is for Image.HasMark: it marks in x86-64 code what is part of each place that
// isThreadStart, isThreadEnd, isCloneChild, inContextStart, inCoroutineStart or
// classifyTrampoline recognise, which spares most addresses a look at the code; and where
// a return or OCaml's way to raise an exception, or to switch stacks, may be. Each is
// found by one of its bytes that is rare in code, and the mark is there. What may go on
// before the code or after it is marked, too.
func findMarks(_ *procstate.Arch, code []byte, marks []uint16) []uint16 {
	for _, rare := range rareBytes {
		for at := 0; ; at++ {
			n := bytes.IndexByte(code[at:], rare.b)
			if n < 0 {
				break
			}
			at += n
			if rare.is == nil || rare.is(code, at) {
				marks = append(marks, uint16(at)+rare.kind*procstate.MarkKind)
			}
		}
	}
	return marks
}

// rareBytes are what findMarks looks for, by kind, and whether what is around such a byte makes it a mark.
var rareBytes = [...]struct {
	b    byte
	kind uint16
	is   func(code []byte, at int) bool // nil: it is one anywhere
}{
	{0x05, entryMark, func(code []byte, at int) bool { return at < 1 || code[at-1] == 0x0f }}, // syscall
	{0xdc, entryMark, func(code []byte, at int) bool { return mayBeAround(code, at, startContextAMD64, 2) }},
	{0xe3, entryMark, func(code []byte, at int) bool { return mayBeAround(code, at, startCoroutine, 2) }},
	{0xdc, switchMark, mayEndSwitch},
	{0x8f, raiseMark, mayRaise},
	{0xc3, returnMark, nil},
	{0xc2, returnMark, nil},
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
