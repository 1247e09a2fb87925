package vmread

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// BesideThreadPointer returns how far from the thread pointer of the thread that was walked there is a word of a value,
// where thread-local variables and values of keys are; ok tells whether there is one. A word that has it by chance
// leads to nothing with other threads.
func BesideThreadPointer(w *unwind.Walker, read Reader, value uint64) (from int64, ok bool) {
	EachBesideThreadPointer(w, read, func(at int64, word uint64) (more bool) {
		if word == value {
			from, ok = at, true
		}
		return !ok
	})
	return from, ok
}

// EachBesideThreadPointer calls what with each word near the thread pointer of the thread that was walked, and how far
// from it that is, until it returns false.
func EachBesideThreadPointer(w *unwind.Walker, read Reader, what func(from int64, word uint64) (more bool)) {
	const below, above, piece = 4 << 10, 2 << 10, 512
	var regs procstate.Regs
	if w.ProcessState().Registers(procstate.DefaultThread, &regs) != nil || regs.ThreadPointer == 0 {
		return
	}
	var buf [piece]byte
	for from := int64(-below); from < above; from += piece {
		if !read(regs.ThreadPointer+uint64(from), buf[:]) {
			continue
		}
		for at := 0; at < piece; at += 8 {
			if !what(from+int64(at), binary.LittleEndian.Uint64(buf[at:])) {
				return
			}
		}
	}
}
