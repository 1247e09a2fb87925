package procstate

import (
	"debug/elf"
	"encoding/binary"
	"math/bits"
	"slices"
)

// Limits on what the tables of a file may make us read.
const (
	maxSymtab = 512 << 20
	maxFDEs   = 16 << 20
)

// FuncStarts returns the link-time addresses at which functions begin, by
// what the file says of itself: symbols of functions in .symtab and .dynsym,
// global ones without a type in code, which are functions written in assembly,
// and the search table of .eh_frame_hdr. They are sorted and unique. A file
// that says nothing gives none; damaged tables are left out. The result is
// made anew by each call.
func (im *Image) FuncStarts() []uint64 {
	var out []uint64
	if t, ok := im.fdeTable(); ok {
		out = make([]uint64, 0, t.n)
		if !im.eachFDEStart(t, func(vaddr uint64) { out = append(out, vaddr) }) {
			out = out[:0]
		}
	}
	slices.Sort(out)
	fdes := len(out)
	for _, name := range funcSymtabs {
		if s, ok := im.Section(name); ok {
			out = im.appendFuncSymbols(out, fdes, s)
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	if cap(out)-len(out) > len(out)/8 {
		out = slices.Clone(out)
	}
	return out
}

// FuncStartsIn returns those of FuncStarts in [lo, hi), a range of which each byte takes a
// bit of memory meanwhile. It keeps nothing, and reads the tables in each call: milliseconds
// in large files.
func (im *Image) FuncStartsIn(lo, hi uint64) []uint64 {
	if hi <= lo {
		return nil
	}
	all, table := make([]uint64, (hi-lo+63)/64), make([]uint64, (hi-lo+63)/64)
	add := func(each func(visit func(uint64)) bool) {
		clear(table)
		if each(func(vaddr uint64) {
			if at := vaddr - lo; at < hi-lo {
				table[at/64] |= 1 << (at % 64)
			}
		}) {
			for i, word := range table {
				all[i] |= word
			}
		}
	}
	if t, ok := im.fdeTable(); ok {
		add(func(visit func(uint64)) bool { return im.eachFDEStart(t, visit) })
	}
	for _, name := range funcSymtabs {
		if s, ok := im.Section(name); ok {
			add(func(visit func(uint64)) bool {
				return im.eachFuncSymbol(s, func(vaddr, _ uint64, _ bool) { visit(vaddr) })
			})
		}
	}
	var out []uint64
	for i, word := range all {
		for ; word != 0; word &= word - 1 {
			out = append(out, lo+uint64(i*64+bits.TrailingZeros64(word)))
		}
	}
	return out
}

// FunctionAround returns the link-time addresses [lo, hi) around vaddr in which no function
// begins but at lo, by what FuncStarts goes by. alone tells that they are a function that
// a global symbol gives the size of; a part that a compiler has moved away from its function
// has no such symbol. Without alone they may be what lies between two functions. It keeps
// nothing, and reads the tables in each call.
func (im *Image) FunctionAround(vaddr uint64) (lo, hi uint64, alone bool) {
	hi = ^uint64(0)
	size, differ := uint64(0), false // as the symbols at lo have it
	add := func(at, bytes uint64, isGlobal bool) {
		switch {
		case at > vaddr:
			hi = min(hi, at)
			return
		case at < lo:
			return
		case at > lo:
			lo, size, differ = at, 0, false
		}
		if isGlobal && bytes > 0 {
			differ = differ || size != 0 && size != bytes
			size = bytes
		}
	}
	if t, ok := im.fdeTable(); ok && !im.eachFDEStart(t, func(at uint64) { add(at, 0, false) }) {
		return vaddr, vaddr + 1, false
	}
	for _, name := range funcSymtabs {
		if s, ok := im.Section(name); ok && !im.eachFuncSymbol(s, add) {
			return vaddr, vaddr + 1, false
		}
	}
	if end := lo + size; !differ && end > lo && end <= hi {
		if vaddr < end {
			return lo, end, true
		}
		lo = end
	}
	return lo, hi, false
}

// funcSymtabs are the sections that have symbols of functions.
var funcSymtabs = [...]string{".symtab", ".dynsym"} // read only

// appendFuncSymbols adds what is not among the first fdes addresses, which most are.
func (im *Image) appendFuncSymbols(out []uint64, fdes int, s Section) []uint64 {
	each := func(add func(vaddr uint64)) bool {
		return im.eachFuncSymbol(s, func(vaddr, _ uint64, _ bool) {
			if _, known := slices.BinarySearch(out[:fdes], vaddr); !known {
				add(vaddr)
			}
		})
	}
	n := 0 // rather than to grow by steps, which takes several times the memory
	if !each(func(uint64) { n++ }) {
		return out
	}
	start := len(out)
	out = slices.Grow(out, n)
	if !each(func(vaddr uint64) { out = append(out, vaddr) }) {
		return out[:start]
	}
	return out
}

// eachFuncSymbol calls visit for the addresses of a table's symbols of functions, with
// their sizes and whether they are global, or weak. It returns whether the table could be read to its end.
func (im *Image) eachFuncSymbol(s Section, visit func(vaddr, bytes uint64, isGlobal bool)) bool {
	size, info, shndx, value, length := 24, 4, 6, 8, 16
	if im.Arch().AddressWidth == 4 {
		size, info, shndx, value, length = 16, 12, 14, 4, 8
	}
	return im.SectionParts(s, maxSymtab, func(b []byte) {
		for ; len(b) >= size; b = b[size:] {
			in := int(binary.LittleEndian.Uint16(b[shndx:]))
			switch elf.SymType(b[info] & 15) {
			case elf.STT_FUNC, elf.STT_GNU_IFUNC:
			case elf.STT_NOTYPE:
				if elf.ST_BIND(b[info]) != elf.STB_GLOBAL || in >= len(im.sections) || im.sections[in].Flags&elf.SHF_EXECINSTR == 0 {
					continue
				}
			default:
				continue
			}
			if in != int(elf.SHN_UNDEF) {
				visit(im.word(b[value:]), im.word(b[length:]), elf.ST_BIND(b[info]) != elf.STB_LOCAL)
			}
		}
	}) == nil
}

// word reads an address of the file's width.
func (im *Image) word(b []byte) uint64 {
	if im.Arch().AddressWidth == 4 {
		return uint64(binary.LittleEndian.Uint32(b))
	}
	return binary.LittleEndian.Uint64(b)
}

// fdeTable is the search table of .eh_frame_hdr (Linux Standard Base, Core, section
// 10.6.2) in the one encoding that linkers write: pairs of 32-bit offsets from the
// start of the header.
type fdeTable struct {
	base uint64 // link-time address of the header
	off  uint64 // of the table, in the file
	n    uint64 // of pairs
}

func (im *Image) fdeTable() (t fdeTable, ok bool) {
	p, ok := im.Prog(elf.PT_GNU_EH_FRAME)
	if !ok || p.Filesz < 12 {
		return t, false
	}
	var hdr [12]byte
	if im.ReadVaddr(hdr[:], p.Vaddr) != nil {
		return t, false
	}
	const udata4, sdata4, pcrel, datarelSdata4 = 0x03, 0x0b, 0x10, 0x3b
	if hdr[0] != 1 || hdr[1] != pcrel|sdata4 && hdr[1] != pcrel|udata4 || hdr[2] != udata4 || hdr[3] != datarelSdata4 {
		return t, false
	}
	t.base, t.n = p.Vaddr, uint64(binary.LittleEndian.Uint32(hdr[8:]))
	if t.n > maxFDEs || t.n*8 > min(p.Filesz, uint64(im.size))-12 {
		return t, false
	}
	t.off, ok = im.OffsetOfVaddr(p.Vaddr+12, t.n*8)
	return t, ok
}

// eachFDEStart calls visit for the addresses in the table, as they follow each other. It
// returns whether all could be read.
func (im *Image) eachFDEStart(t fdeTable, visit func(vaddr uint64)) bool {
	buf := sectionBuffers.Get().(*[sectionPart]byte)
	defer sectionBuffers.Put(buf)
	for at := uint64(0); at < t.n*8; at += sectionPart {
		tab := buf[:min(t.n*8-at, sectionPart)]
		if im.readFull(tab, t.off+at) != nil {
			return false
		}
		for ; len(tab) >= 8; tab = tab[8:] {
			visit(t.base + uint64(int64(int32(binary.LittleEndian.Uint32(tab)))))
		}
	}
	return true
}
