package symbols

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"slices"
	"sort"
	"sync"

	"github.com/swbpf/swbpf/procstate"
)

// entry is a symbol while the index is built.
type entry struct {
	off, size uint32 // from base
	name      uint32
	rank      uint8
	source    uint8
}

// symbolRank orders symbols at one address: function before label, global
// before weak before local, all before PLT entries.
func symbolRank(info uint8) uint8 {
	r := uint8(1)
	switch elf.ST_BIND(info) {
	case elf.STB_GLOBAL, elf.STB_LOOS: // LOOS is GNU_UNIQUE
		r += 2
	case elf.STB_WEAK:
		r++
	}
	if t := elf.ST_TYPE(info); t == elf.STT_FUNC || t == elf.STT_GNU_IFUNC {
		r += 4
	}
	return r
}

// entryBuffers are entries of builders; rangeBuffers are ranges that are being built.
// An index is made for each of many files.
var (
	entryBuffers = sync.Pool{New: func() any { return new([]entry) }}
	rangeBuffers = sync.Pool{New: func() any { return new(rangeSet) }}
)

// maxPooledEntries bounds the buffers that are kept.
const maxPooledEntries = 1 << 16

// maxPackedSymtab bounds a symbol table that is compressed, in bytes when it is not: a small file can have one of
// any size so, and linkers make none.
const maxPackedSymtab = 24 << 20

type symtabBuilder struct {
	base    uint64
	code    []codeRange // executable sections or segments, sorted
	entries []entry
	strtabs []strtab
	strs    [][]byte         // contents of strtabs, while building; nil where each name is read
	wanted  func(entry) bool // of entries, the ones to add; nil for all
	added   func(entry)      // is told of those; may be nil
	from    uint64           // symbols that end at this address or before are left out,
	upTo    uint64           // and those behind this one
	objects bool             // symbols of data instead of code; code are the sections of data then
}

type codeRange struct{ start, end uint64 }

func newSymtabBuilder(im *procstate.Image) *symtabBuilder {
	b := &symtabBuilder{upTo: ^uint64(0)}
	for _, s := range im.Sections() {
		if s.Flags&elf.SHF_EXECINSTR != 0 && s.Flags&elf.SHF_ALLOC != 0 && s.Size > 0 && s.Vaddr+s.Size > s.Vaddr {
			b.code = append(b.code, codeRange{s.Vaddr, s.Vaddr + s.Size})
		}
	}
	if len(b.code) == 0 {
		for _, s := range im.Segments() {
			if s.Flags&elf.PF_X != 0 && s.Vaddr+s.Memsz > s.Vaddr {
				b.code = append(b.code, codeRange{s.Vaddr, s.Vaddr + s.Memsz})
			}
		}
	}
	b.sortCode()
	return b
}

// sortCode puts the ranges of addresses in order and finds the base.
func (b *symtabBuilder) sortCode() {
	slices.SortFunc(b.code, func(a, c codeRange) int { return cmp.Compare(a.start, c.start) })
	b.base = ^uint64(0)
	if len(b.code) > 0 {
		b.base = b.code[0].start
	}
}

// codeAt returns the one of sorted code ranges that holds vaddr.
func codeAt(code []codeRange, vaddr uint64) (codeRange, bool) {
	i := sort.Search(len(code), func(i int) bool { return code[i].start > vaddr }) - 1
	if i < 0 || vaddr >= code[i].end {
		return codeRange{}, false
	}
	return code[i], true
}

// add puts a symbol in; end is that of its section.
func (b *symtabBuilder) add(vaddr, size uint64, end uint64, name uint32, rank, source uint8) {
	off := vaddr - b.base
	size = min(size, end-vaddr)
	if off >= none || off+size >= none {
		return
	}
	e := entry{uint32(off), uint32(size), name, rank, source}
	if b.wanted == nil || b.wanted(e) {
		if b.entries == nil {
			b.entries = (*entryBuffers.Get().(*[]entry))[:0]
		}
		b.entries = append(b.entries, e)
	}
}

// addSource registers a string table; ok is false when there are too many.
func (b *symtabBuilder) addSource(s strtab) (source uint8, ok bool) {
	if len(b.strtabs) == alike {
		return 0, false
	}
	b.strtabs = append(b.strtabs, s)
	b.strs = append(b.strs, s.raw)
	return uint8(len(b.strtabs) - 1), true
}

// addTable puts the symbols of a symbol table section in.
func (b *symtabBuilder) addTable(im *procstate.Image, s procstate.Section) error {
	if im.Type() == elf.ET_REL || len(b.code) == 0 || uint64(s.Link) >= uint64(len(im.Sections())) {
		return nil
	}
	str := im.Sections()[s.Link]
	st := strtab{img: im, off: str.Off, size: str.Size}
	if str.Flags&elf.SHF_COMPRESSED != 0 {
		var err error
		if st.raw, err = im.SectionBytes(str, maxBytes); err != nil {
			return err
		}
	}
	limit := uint64(0)
	if s.Flags&elf.SHF_COMPRESSED != 0 {
		limit = maxPackedSymtab
	}
	source, ok := b.addSource(st)
	if !ok {
		return nil
	}
	arm := im.Arch() == procstate.ARM64
	width := im.Arch().AddressWidth
	return im.SectionParts(s, limit, func(data []byte) {
		for size := symSize(width); len(data) >= size; data = data[size:] {
			if b.outside(data, width) {
				continue
			}
			sym := decodeSym(data, width)
			b.addSymbol(&sym, source, arm)
		}
	})
}

// outside reports whether a symbol table entry is of a symbol that is left out
// for its address.
func (b *symtabBuilder) outside(entry []byte, width int) bool {
	le := binary.LittleEndian
	var value, size uint64
	if width == 8 {
		value, size = le.Uint64(entry[8:]), le.Uint64(entry[16:])
	} else {
		value, size = uint64(le.Uint32(entry[4:])), uint64(le.Uint32(entry[8:]))
	}
	return value > b.upTo || value < b.from && size <= b.from-value
}

// addSymbol puts a symbol in, if it names code.
func (b *symtabBuilder) addSymbol(sym *rawSym, source uint8, arm bool) {
	typ := elf.ST_TYPE(sym.info)
	if sym.shndx == elf.SHN_UNDEF || sym.name == 0 {
		return
	}
	switch typ {
	case elf.STT_FUNC, elf.STT_GNU_IFUNC:
		if b.objects {
			return
		}
	case elf.STT_OBJECT, elf.STT_COMMON:
		if !b.objects || sym.size == 0 {
			return
		}
	case elf.STT_NOTYPE:
		if b.objects && sym.size == 0 {
			return
		}
	default:
		return
	}
	sec, ok := codeAt(b.code, sym.value)
	if !ok {
		return
	}
	n := len(b.entries)
	b.add(sym.value, sym.size, sec.end, sym.name, symbolRank(sym.info), source)
	if len(b.entries) == n {
		return
	}
	if typ == elf.STT_NOTYPE && (sym.shndx == elf.SHN_ABS || !isLabel(b.nameOf(&b.entries[n]), arm)) {
		b.entries = b.entries[:n]
	} else if b.added != nil {
		b.added(b.entries[n])
	}
}

// nameOf returns the name of an entry, without its version. A table of which many
// names are asked for is read whole.
func (b *symtabBuilder) nameOf(e *entry) []byte {
	s := &b.strtabs[e.source]
	if b.strs[e.source] == nil && s.missed < s.size {
		if s.missed += readCost; s.missed >= s.size {
			b.strs[e.source] = s.whole()
		}
	}
	if c := b.strs[e.source]; c != nil {
		return nameAt(c, uint64(e.name))
	}
	return []byte(s.read(uint64(e.name)))
}

// isLabel reports whether a symbol without type can name code. Mapping
// symbols ($x, $d) and the notes of annobin cannot.
func isLabel(name []byte, arm bool) bool {
	if len(name) == 0 || bytes.HasPrefix(name, []byte(".annobin")) || bytes.HasPrefix(name, []byte(".L")) {
		return false
	}
	return !(arm && name[0] == '$' && len(name) >= 2 && (name[1] == 'x' || name[1] == 'd') && (len(name) == 2 || name[2] == '.'))
}

// rawSym is a symbol table entry of either class.
type rawSym struct {
	name        uint32
	info        uint8
	shndx       elf.SectionIndex
	value, size uint64
}

// symSize is the size of a symbol table entry, given that of an address.
func symSize(width int) int {
	if width == 8 {
		return 24
	}
	return 16
}

// decodeSym decodes a symbol table entry.
func decodeSym(data []byte, width int) rawSym {
	le := binary.LittleEndian
	if width == 8 {
		return rawSym{le.Uint32(data), data[4], elf.SectionIndex(le.Uint16(data[6:])), le.Uint64(data[8:]), le.Uint64(data[16:])}
	}
	return rawSym{le.Uint32(data), data[12], elf.SectionIndex(le.Uint16(data[14:])), uint64(le.Uint32(data[4:])), uint64(le.Uint32(data[8:]))}
}

// better reports whether the name of x is better than that of y.
func (b *symtabBuilder) better(x, y *entry) bool {
	if x.source == y.source && x.name == y.name {
		return false
	}
	c := compareNames(b.nameOf(x), b.nameOf(y))
	return c < 0 || c == 0 && x.source < y.source
}

// compareNames is negative when n is a better name than m, 0 when they are the same.
func compareNames(n, m []byte) int {
	if u, v := underscores(n), underscores(m); u != v {
		return cmp.Compare(u, v)
	}
	if len(n) != len(m) {
		return cmp.Compare(len(n), len(m))
	}
	return bytes.Compare(n, m)
}

func underscores(name []byte) int {
	n := 0
	for n < len(name) && name[n] == '_' {
		n++
	}
	return n
}

// build makes the index. The builder cannot be used afterwards.
func (b *symtabBuilder) build() *symtab {
	t := &symtab{base: b.base, strtabs: b.strtabs, cache: map[uint32]symbolName{}}
	if len(b.entries) == 0 {
		return t
	}
	defer func() {
		for i := range t.strtabs {
			t.strtabs[i].missed = 0 // what building cost says nothing of names to come
		}
	}()
	other := *entryBuffers.Get().(*[]entry)
	b.entries, other = sortEntries(b.entries, slices.Grow(other[:0], len(b.entries))[:len(b.entries)])
	defer func() { // nobody else has them
		for _, buf := range [][]entry{b.entries, other} {
			if cap(buf) <= maxPooledEntries {
				entryBuffers.Put(&buf)
			}
		}
		b.entries = nil
	}()
	ranges := beginRanges()
	t.addrs, t.names, t.sources = make([]uint32, 0, len(b.entries)), make([]uint32, 0, len(b.entries)), make([]uint8, 0, len(b.entries))
	var stack spanStack // sized symbols
	for i := 0; i < len(b.entries); {
		j := i + 1
		for j < len(b.entries) && b.entries[j].off == b.entries[i].off {
			j++
		}
		group, next := b.entries[i:j], uint32(none)
		if len(group) > 1 { // the longest first
			slices.SortStableFunc(group, func(x, y entry) int { return -cmp.Compare(x.size, y.size) })
		}
		if j < len(b.entries) {
			next = b.entries[j].off
		}
		i = j
		stack.closeUntil(ranges, group[0].off)
		// The best sized symbol takes its bytes; the longest one what is
		// left beyond it.
		best, longest := b.best(group)
		off, size := best[0].off, best[0].size
		if size == 0 {
			if len(stack) == 0 {
				id := t.addSymbols(best)
				t.open = append(t.open, id)
				ranges.add(off, id)
				ranges.add(min(next, b.sectionEnd(off)), none)
			}
			continue
		}
		if longest.size > size {
			stack.open(ranges, span{off, off + longest.size, t.addSymbols([]entry{longest})})
		}
		stack.open(ranges, span{off, off + size, t.addSymbols(best)})
	}
	stack.closeUntil(ranges, none)
	t.ranges = ranges.end()
	return t
}

// fewEntries are sorted as fast without tables of their offsets, which have to be cleared.
const fewEntries = 256

// sortEntries returns the entries in order of offset, and the other one of both
// slices, of which out is room: a radix sort, as large files have a million of them.
//
// Few of them are sorted where they are, without its tables.
func sortEntries(in, out []entry) (sorted, other []entry) {
	if len(in) < fewEntries {
		slices.SortStableFunc(in, func(x, y entry) int { return cmp.Compare(x.off, y.off) })
		return in, out
	}
	const bits = 11
	for shift := 0; shift < 32; shift += bits {
		var at [1 << bits]int
		for i := range in {
			at[in[i].off>>shift&(1<<bits-1)]++
		}
		sum := 0
		for i, n := range at {
			at[i], sum = sum, sum+n
		}
		for i := range in {
			k := in[i].off >> shift & (1<<bits - 1)
			out[at[k]] = in[i]
			at[k]++
		}
		in, out = out, in
	}
	return in, out
}

// sectionEnd is the end of the section with code at off, from base.
func (b *symtabBuilder) sectionEnd(off uint32) uint32 {
	sec, _ := codeAt(b.code, b.base+uint64(off))
	return uint32(min(sec.end-b.base, none-1))
}

// best moves the best of the symbols at one address, sized ones where there are
// any, to the front of the group, and returns them and the longest. They are several
// where only their names, which are not looked at, tell which is the best.
func (b *symtabBuilder) best(group []entry) (best []entry, longest entry) {
	longest = group[0] // as they are sorted
	sized := len(group)
	if longest.size > 0 {
		sized = 1 + sort.Search(len(group)-1, func(i int) bool { return group[i+1].size == 0 })
	}
	n := 0
	for i := range group[:sized] {
		if n > 0 && group[i].rank < group[0].rank {
			continue
		}
		if n > 0 && group[i].rank > group[0].rank {
			n = 0
		}
		group[n], group[i] = group[i], group[n]
		n++
	}
	first := 0
	for i := range group[:n] {
		if group[i].size != group[0].size {
			for i := range group[:n] {
				if b.better(&group[i], &group[first]) {
					first = i
				}
			}
			return group[first : first+1], longest
		}
	}
	return group[:n], longest
}

// addSymbols adds a symbol that has one name of several.
func (t *symtab) addSymbols(names []entry) (id uint32) {
	id = uint32(len(t.addrs))
	for i, e := range names {
		if i > 0 {
			e.source |= alike
		}
		t.addrs = append(t.addrs, e.off)
		t.names = append(t.names, e.name)
		t.sources = append(t.sources, e.source)
	}
	return id
}
