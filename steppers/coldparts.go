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
	of := map[uint64]uint64{}
	err := eachFunc(img, partSuffix, func(i int, name []byte, vaddr uint64) {
		if base, ok := cutPart(name); ok {
			of[vaddr] = 0 // until found
			if h := maphash.Bytes(seed, base); i >= parts[h].order {
				parts[h] = symbol{vaddr, i}
			}
		}
	})
	if err != nil || len(parts) == 0 {
		return nil
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

var partSuffix = []byte(".cold") // read only

// cutPart returns the name of the function that a part is named after.
func cutPart(name []byte) (function []byte, ok bool) {
	function, rest, ok := bytes.Cut(name, partSuffix)
	return function, ok && (len(rest) == 0 || rest[0] == '.')
}

// isColdPart reports whether a part begins at a link-time address, or whether that
// cannot be told without all names. It reads the symbol table, and few of the names.
func isColdPart(img *procstate.Image, vaddr uint64) bool {
	const most = 8 // symbols of one address
	tab, strs, ok := symbolTable(img)
	if !ok {
		return false
	}
	var names []uint32
	if img.SectionParts(tab, maxSymtab, func(b []byte) {
		for ; len(b) >= elf.Sym64Size; b = b[elf.Sym64Size:] {
			if binary.LittleEndian.Uint64(b[8:]) == vaddr && elf.ST_TYPE(b[4]) == elf.STT_FUNC && len(names) <= most {
				names = append(names, binary.LittleEndian.Uint32(b))
			}
		}
	}) != nil {
		return false
	}
	if len(names) > most || strs.Flags&elf.SHF_COMPRESSED != 0 {
		return true
	}
	room := nameBuffers.Get().(*[]byte)
	defer nameBuffers.Put(room)
	for _, off := range names {
		if uint64(off) >= strs.Size {
			continue
		}
		*room = slices.Grow((*room)[:0], maxSymbolName)[:min(maxSymbolName, strs.Size-uint64(off))]
		if _, err := img.ReadAt(*room, int64(strs.Off)+int64(off)); err != nil {
			return true
		}
		name, _, _ := bytes.Cut(*room, []byte{0})
		if _, ok := cutPart(name); ok {
			return true
		}
	}
	return false
}

// symbolTable returns the sections of the symbols that have names of parts, if there is such a table.
func symbolTable(img *procstate.Image) (tab, strs procstate.Section, ok bool) {
	tab, ok = img.Section(".symtab")
	if !ok || img.Arch().AddressWidth != 8 || tab.Entsize != elf.Sym64Size || int(tab.Link) >= len(img.Sections()) {
		return tab, strs, false
	}
	strs = img.Sections()[tab.Link]
	return tab, strs, max(tab.Size, strs.Size) <= maxSymtab
}

// eachFunc calls f for the symbols of functions, at least for those with some bytes in
// their names: with the place in the table, the name, valid until f returns, and the
// link-time address. They come in order of the names' offsets, roughly.
func eachFunc(img *procstate.Image, with []byte, f func(i int, name []byte, vaddr uint64)) error {
	tab, strs, ok := symbolTable(img)
	if !ok {
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
