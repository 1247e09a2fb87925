package procstate

import "encoding/binary"

// nt386TLS is the block of the descriptors that a thread of a 386 process has
// for segments of its own (NT_386_TLS): struct user_desc of the kernel's
// asm/ldt.h, 16 bytes each.
const nt386TLS = 0x200

// gsWord is the word of a 386 register block that holds the selector gs.
const gsWord = 10

// gsOf returns the selector gs of a 386 register block.
func gsOf(b []byte) uint16 { return binary.LittleEndian.Uint16(b[4*gsWord:]) }

// segmentBase returns the address at which the segment of a selector begins,
// by the descriptors of a thread; 0 when they do not have it.
func segmentBase(descriptors []byte, selector uint16) uint64 {
	const localTable = 1 << 2
	if selector&localTable != 0 {
		return 0
	}
	le := binary.LittleEndian
	for d := descriptors; len(d) >= 16; d = d[16:] {
		if le.Uint32(d) == uint32(selector>>3) {
			return uint64(le.Uint32(d[4:]))
		}
	}
	return 0
}
