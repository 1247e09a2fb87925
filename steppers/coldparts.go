package steppers

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync"

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

// So many bytes of names are in memory at a time, of a table for which all symbols
// would be read more than maxSymbolReads bytes in all then, more of them.
const (
	namesWindow    = 2 << 20
	maxSymbolReads = 256 << 20
)

// nameBuffers are for names: files are rarely looked at alone.
var nameBuffers = sync.Pool{New: func() any { return new([]byte) }}

// coldParts returns the parts of functions that the compiler has moved away
// and named after them, as GCC and LLVM do with code that is unlikely to run:
// the link-time address of each, and that of its function, 0 where there is
// none. Such a part has a symbol like a function, but begins in the middle of a
// frame; none is the part of another.
func coldParts(img *procstate.Image) map[uint64]uint64 {
	type symbol struct {
		vaddr uint64
		order int // in the table; of symbols with the same name the last counts
	}
	seed := maphash.MakeSeed()
	parts := map[uint64]symbol{} // by name of the function
	suffix := []byte(".cold")
	err := eachFunc(img, suffix, func(i int, name []byte, vaddr uint64) {
		if base, rest, ok := bytes.Cut(name, suffix); ok && (len(rest) == 0 || rest[0] == '.') {
			if h := maphash.Bytes(seed, base); i >= parts[h].order {
				parts[h] = symbol{vaddr, i}
			}
		}
	})
	if err != nil || len(parts) == 0 {
		return nil
	}
	of := map[uint64]uint64{}
	for _, part := range parts {
		of[part.vaddr] = 0 // until found
	}
	last := map[uint64]int{} // symbol of the function, by address of the part
	_ = eachFunc(img, nil, func(i int, name []byte, vaddr uint64) {
		if part, ok := parts[maphash.Bytes(seed, name)]; ok {
			if _, isPart := of[vaddr]; !isPart && i >= last[part.vaddr] {
				of[part.vaddr], last[part.vaddr] = vaddr, i
			}
		}
	})
	return of
}

// eachFunc calls f for the symbols of functions, at least for those with some bytes in
// their names: with the place in the table, the name, valid until f returns, and the
// link-time address. They come in order of the names' offsets, roughly.
func eachFunc(img *procstate.Image, with []byte, f func(i int, name []byte, vaddr uint64)) error {
	tab, ok := img.Section(".symtab")
	if !ok || img.Arch().AddressWidth != 8 || tab.Entsize != elf.Sym64Size || int(tab.Link) >= len(img.Sections()) {
		return nil
	}
	strs := img.Sections()[tab.Link]
	if max(tab.Size, strs.Size) > maxSymtab {
		return nil
	}
	window := max(namesWindow, int(strs.Size*tab.Size/maxSymbolReads))
	room := nameBuffers.Get().(*[]byte)
	defer nameBuffers.Put(room)
	*room = slices.Grow((*room)[:0], int(min(int64(window+maxSymbolName), int64(strs.Size), img.Size())))
	names := *room // from at
	var at uint32
	var left int
	var symbolsErr error
	use := func(n int) { // the names that begin in the first n bytes
		if at == 0 {
			left = nameReads*max(int(strs.Size), len(names)) + maxSymbolName
		}
		if symbolsErr == nil && bytes.Contains(names, with) {
			i := -1
			symbolsErr = img.SectionParts(tab, maxSymtab, func(b []byte) {
				for ; len(b) >= elf.Sym64Size; b = b[elf.Sym64Size:] {
					i++
					off := uint64(binary.LittleEndian.Uint32(b) - at)
					if off >= uint64(n) || elf.ST_TYPE(b[4]) != elf.STT_FUNC || left < 0 {
						continue
					}
					name, _, _ := bytes.Cut(names[off:min(off+maxSymbolName, uint64(len(names)))], []byte{0})
					left -= len(name)
					f(i, name, binary.LittleEndian.Uint64(b[8:]))
				}
			})
		}
		at += uint32(n)
		names = append(names[:0], names[n:]...)
	}
	err := img.SectionParts(strs, maxSymtab, func(b []byte) {
		names = append(names, b...)
		if len(names) >= window {
			use(len(names) - maxSymbolName)
		}
	})
	if err != nil {
		return err
	}
	use(len(names))
	return symbolsErr
}
