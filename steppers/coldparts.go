package steppers

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"hash/maphash"

	"github.com/swbpf/swbpf/procstate"
)

// Bounds on the symbol table that is read for the parts of functions, on a name in
// it, in bytes, and on how often all names together are read: each may be the end of
// another.
const (
	maxSymtab     = 256 << 20
	maxSymbolName = 64 << 10
	nameReads     = 16
)

// coldParts returns the parts of functions that the compiler has moved away
// and named after them, as GCC and LLVM do with code that is unlikely to run:
// the link-time address of each, and that of its function, 0 where there is
// none. Such a part has a symbol like a function, but begins in the middle of a
// frame; none is the part of another.
func coldParts(img *procstate.Image) map[uint64]uint64 {
	tab, ok := img.Section(".symtab")
	if !ok || img.Arch().AddressWidth != 8 || tab.Entsize != elf.Sym64Size || int(tab.Link) >= len(img.Sections()) {
		return nil
	}
	names, err := img.SectionBytes(img.Sections()[tab.Link], maxSymtab)
	if err != nil || !bytes.Contains(names, []byte(".cold")) {
		return nil
	}
	seed := maphash.MakeSeed()
	parts := map[uint64]uint64{} // by name of the function
	each := func(f func(name []byte, vaddr uint64)) error {
		left := nameReads*len(names) + maxSymbolName
		return img.SectionParts(tab, maxSymtab, func(b []byte) {
			for ; len(b) >= elf.Sym64Size; b = b[elf.Sym64Size:] {
				off := uint64(binary.LittleEndian.Uint32(b))
				if elf.ST_TYPE(b[4]) != elf.STT_FUNC || off >= uint64(len(names)) || left < 0 {
					continue
				}
				name, _, _ := bytes.Cut(names[off:min(off+maxSymbolName, uint64(len(names)))], []byte{0})
				left -= len(name)
				f(name, binary.LittleEndian.Uint64(b[8:]))
			}
		})
	}
	err = each(func(name []byte, vaddr uint64) {
		if base, rest, ok := bytes.Cut(name, []byte(".cold")); ok && (len(rest) == 0 || rest[0] == '.') {
			parts[maphash.Bytes(seed, base)] = vaddr
		}
	})
	if err != nil {
		return nil
	}
	of := map[uint64]uint64{}
	for _, vaddr := range parts {
		of[vaddr] = 0 // until found
	}
	_ = each(func(name []byte, vaddr uint64) { // as before
		if part, ok := parts[maphash.Bytes(seed, name)]; ok {
			if _, isPart := of[vaddr]; !isPart {
				of[part] = vaddr
			}
		}
	})
	return of
}
