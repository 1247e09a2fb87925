package procstate

import "debug/elf"

// CodePieces calls visit with pieces of the code of a file, of 4 KB each or less and about n,
// evenly spread, of a large one; code is valid until visit returns. It returns false where there
// is none, or some of it cannot be read.
func (im *Image) CodePieces(n int, visit func(code []byte, vaddr uint64)) bool {
	var buf [4 << 10]byte
	total := uint64(0)
	for _, s := range im.segs {
		if s.Flags&elf.PF_X != 0 {
			total += s.Filesz
		}
	}
	if total == 0 {
		return false
	}
	at := uint64(0) // of the next piece in the segment
	for _, s := range im.segs {
		if s.Flags&elf.PF_X == 0 {
			continue
		}
		for ; at < s.Filesz; at += max(total/uint64(n), uint64(len(buf))) {
			code := buf[:min(s.Filesz-at, uint64(len(buf)))]
			if im.ReadVaddr(code, s.Vaddr+at) != nil {
				return false
			}
			visit(code, s.Vaddr+at)
		}
		at -= s.Filesz
	}
	return true
}
