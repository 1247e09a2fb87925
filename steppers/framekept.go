package steppers

import (
	"bytes"
	"debug/elf"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
)

// keepsFrames reports whether the functions of a file keep a frame pointer, and only that
// tells of their frames: it has no unwind tables, as Bun and Deno have none, and its code begins
// functions with a prologue as often as code does that is compiled with frame pointers. In
// such a file the register is never used for anything else, but by code that is about to save
// or has just restored it.
func keepsFrames(img *procstate.Image) bool {
	if hasTables(img) {
		return false
	}
	const (
		pieces     = 32 // of the code, evenly spread
		perReturns = 4  // there is a prologue for so many returns; the leaves of clang have none
		fewest     = 32 // prologues
	)
	var buf [4 << 10]byte
	prologues, returns := 0, 0
	size, at := codeBytes(img), uint64(0) // at is the offset of a piece in all code
	for _, s := range img.Segments() {
		if s.Flags&elf.PF_X == 0 {
			continue
		}
		for ; at < s.Filesz; at += max(size/pieces, uint64(len(buf))) {
			code := buf[:min(s.Filesz-at, uint64(len(buf)))]
			if img.ReadVaddr(code, s.Vaddr+at) != nil {
				return false
			}
			for p := lastPrologue(img.Arch(), code); p >= 0; p = lastPrologue(img.Arch(), code[:p]) {
				prologues++
			}
			returns += countReturns(img.Arch(), code)
		}
		at -= s.Filesz
	}
	return prologues >= fewest && prologues*perReturns >= returns
}

// countReturns counts in code what looks like an instruction that returns.
func countReturns(a *procstate.Arch, code []byte) (n int) {
	const retAMD64, retARM64 = 0xc3, 0xd65f03c0
	if x86Prologues(a) {
		return bytes.Count(code, []byte{retAMD64})
	}
	for i := 0; i+4 <= len(code); i += 4 {
		if binary.LittleEndian.Uint32(code[i:]) == retARM64 {
			n++
		}
	}
	return n
}
