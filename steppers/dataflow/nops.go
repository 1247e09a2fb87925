package dataflow

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
)

// NopsBehindCalls reports whether a compiler has put a nop behind each call in the x86-64 code
// of a file, as GraalVM's does in native images. In others a nop there fills the gap between a
// function that ends with the call, which does not return, and the next one.
func NopsBehindCalls(im *procstate.Image) bool {
	if im.Arch() != procstate.AMD64 {
		return false
	}
	const (
		pieces  = 16
		fewest  = 64 // calls
		without = 4  // of so many calls, one at most has none: libraries may be linked in
	)
	calls, nops := 0, 0
	ok := im.CodePieces(pieces, func(code []byte, vaddr uint64) {
		for i := 0; i+callLen < len(code); i++ {
			if code[i] != callAMD64 {
				continue
			}
			to := vaddr + uint64(i+callLen) + uint64(int64(int32(binary.LittleEndian.Uint32(code[i+1:]))))
			if _, ok := im.OffsetOfVaddr(to, 1); !ok {
				continue // bytes of something else
			}
			if calls++; code[i+callLen] == nopAMD64 {
				nops++
			}
		}
	})
	return ok && calls >= fewest && (calls-nops)*without <= calls
}

// The nop, and the call with a distance, whose length is callLen.
const (
	nopAMD64  = 0x90
	callAMD64 = 0xe8
	callLen   = 5
)
