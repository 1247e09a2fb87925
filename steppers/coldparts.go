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

// coldPart is coldParts for one link-time address: whether a part begins there, and of
// which function. known is false where that would take all names. It reads the symbol
// table and, where it is a part, the names, and keeps nothing.
func coldPart(img *procstate.Image, vaddr uint64) (function uint64, isPart, known bool) {
	base, known := partName(img, vaddr)
	if base == nil {
		return 0, false, known
	}
	functions, parts, ok := namesWith(img, base)
	if !ok {
		return 0, true, false
	}
	var last uint64 // part of the name
	_ = eachFuncSymbol(img, func(name uint32, at uint64) {
		if slices.Contains(parts, name) {
			last = at
		}
		if slices.Contains(functions, name) && at != vaddr {
			function = at
		}
	})
	if last != vaddr || function == 0 {
		return 0, true, true
	}
	other, known := partName(img, function)
	return function, true, known && other == nil
}

// partName returns the name of the function that the part at a link-time address is
// named after, nil where there is no part. known is false where that cannot be told.
func partName(img *procstate.Image, vaddr uint64) (function []byte, known bool) {
	const most = 8 // symbols of one address
	var names []uint32
	if eachFuncSymbol(img, func(name uint32, at uint64) {
		if at == vaddr && len(names) <= most {
			names = append(names, name)
		}
	}) != nil || len(names) == 0 {
		return nil, true
	}
	_, strs, _ := symbolTable(img)
	if len(names) > most || strs.Flags&elf.SHF_COMPRESSED != 0 {
		return nil, false
	}
	room := nameBuffers.Get().(*[]byte)
	defer nameBuffers.Put(room)
	for _, off := range names {
		if uint64(off) >= strs.Size {
			continue
		}
		n := min(maxSymbolName, strs.Size-uint64(off))
		*room = slices.Grow((*room)[:0], int(n))[:n]
		if _, err := img.ReadAt(*room, int64(strs.Off)+int64(off)); err != nil {
			return nil, false
		}
		name, _, _ := bytes.Cut(*room, []byte{0})
		if function, ok := cutPart(name); ok {
			return bytes.Clone(function), true
		}
	}
	return nil, true
}

// namesWith returns where the name of a function is among all names, and where names of
// its parts are. It reports whether it has all: they may be many in a hostile file.
func namesWith(img *procstate.Image, function []byte) (functions, parts []uint32, ok bool) {
	const most = 64
	_, strs, ok := symbolTable(img)
	if !ok || len(function) == 0 {
		return nil, nil, false
	}
	behind := len(partSuffix) + 1 // bytes that tell what a name is
	carried := len(function) + behind - 1
	var window []byte // from at
	at := 0
	look := func(b []byte) {
		keep := min(len(window), carried)
		at += len(window) - keep
		window = append(append(window[:0], window[len(window)-keep:]...), b...)
		for from := 0; len(functions)+len(parts) <= most; from++ {
			i := bytes.Index(window[from:], function)
			if i < 0 || from+i+carried >= len(window) {
				break
			}
			from += i
			rest := window[from+len(function):]
			switch end := rest[len(partSuffix)]; {
			case rest[0] == 0:
				functions = append(functions, uint32(at+from))
			case bytes.HasPrefix(rest, partSuffix) && (end == 0 || end == '.'):
				parts = append(parts, uint32(at+from))
			}
		}
	}
	if img.SectionParts(strs, maxSymtab, look) != nil {
		return nil, nil, false
	}
	look(make([]byte, behind))
	return functions, parts, len(functions)+len(parts) <= most
}

// eachFuncSymbol calls visit for the symbols of functions: with where in the names that
// of the symbol is, and the link-time address.
func eachFuncSymbol(img *procstate.Image, visit func(name uint32, vaddr uint64)) error {
	tab, _, ok := symbolTable(img)
	if !ok {
		return nil
	}
	return img.SectionParts(tab, maxSymtab, func(b []byte) {
		for ; len(b) >= elf.Sym64Size; b = b[elf.Sym64Size:] {
			if elf.ST_TYPE(b[4]) == elf.STT_FUNC {
				visit(binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint64(b[8:]))
			}
		}
	})
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
// their names: with the number of the symbol, the name, valid until f returns, and the
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
			symbolsErr = eachFuncSymbol(img, func(off uint32, vaddr uint64) {
				i++
				if off -= at; uint64(off) >= uint64(n) || left < 0 {
					return
				}
				name, _, _ := bytes.Cut(names[off:min(uint64(off)+maxSymbolName, uint64(len(names)))], []byte{0})
				left -= len(name)
				f(i, name, vaddr)
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
