package procstate

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"iter"
	"strings"
)

// ELFSymbol is a symbol that a file defines.
type ELFSymbol struct {
	Name  []byte // as in the file, cut at 64 KB; valid until the function that got it returns
	Value uint64 // link-time address
	Size  uint64 // bytes
	Type  elf.SymType
}

// Limits on the string table of symbols, and on a name in it.
const (
	maxStrtab     = 512 << 20
	maxSymbolName = 64 << 10
	nameReads     = 16 // how often a string table is read for the names of all symbols, at most
)

// EachSymbol calls fn for the symbols that the file defines, those of .symtab
// first, then those of .dynsym, until fn returns false. Many are in both.
// Damaged tables are left out.
func (im *Image) EachSymbol(fn func(*ELFSymbol) bool) {
	for _, name := range []string{".symtab", ".dynsym"} {
		if s, ok := im.Section(name); ok && !im.eachSymbolOf(s, fn) {
			return
		}
	}
}

// DynamicSymbol returns the symbol of .dynsym with an index, as relocations
// have it; ok is false when the file does not define it.
func (im *Image) DynamicSymbol(index uint32) (sym ELFSymbol, ok bool) {
	s, found := im.Section(".dynsym")
	if !found {
		return sym, false
	}
	t, err := im.symbolTable(s)
	if err != nil || uint64(index) >= s.Size/uint64(t.size) {
		return sym, false
	}
	entry := make([]byte, t.size)
	if im.readFull(entry, s.Off+uint64(index)*uint64(t.size)) != nil {
		return sym, false
	}
	ok = t.read(entry, &sym)
	return sym, ok
}

// maxHashChain bounds how many symbols of a hash table are compared; those of one bucket
// are a few.
const maxHashChain = 1 << 10

// ExportedSymbol returns the symbol of .dynsym of a name, by the file's hash table
// (.gnu.hash), which takes a few small reads however many there are. ok is false when the
// file does not define it, and where it has no such table.
func (im *Image) ExportedSymbol(name string) (sym ELFSymbol, ok bool) {
	hashes, hasHashes := im.Section(".gnu.hash")
	symbols, hasSymbols := im.Section(".dynsym")
	if !hasHashes || !hasSymbols || hashes.Type == elf.SHT_NOBITS || symbols.Type == elf.SHT_NOBITS || uint64(symbols.Link) >= uint64(len(im.sections)) {
		return sym, false
	}
	names, width := im.sections[symbols.Link], uint64(im.Arch().AddressWidth)
	var buf [24]byte
	read := func(s Section, off uint64, n uint64) []byte {
		if s.Size < n || off > s.Size-n || im.readFull(buf[:n], s.Off+off) != nil {
			return nil
		}
		return buf[:n]
	}
	le := binary.LittleEndian
	head := read(hashes, 0, 16)
	if head == nil {
		return sym, false
	}
	buckets, first, words := uint64(le.Uint32(head)), uint64(le.Uint32(head[4:])), uint64(le.Uint32(head[8:]))
	if buckets == 0 {
		return sym, false
	}
	hash := uint32(5381)
	for i := range len(name) {
		hash = hash*33 + uint32(name[i])
	}
	table := 16 + words*width // of the first symbol of each bucket; the hashes of all symbols follow
	b := read(hashes, table+4*(uint64(hash)%buckets), 4)
	if b == nil {
		return sym, false
	}
	for i, n := uint64(le.Uint32(b)), 0; i >= first && n < maxHashChain; i, n = i+1, n+1 {
		if b = read(hashes, table+4*(buckets+i-first), 4); b == nil {
			return sym, false
		}
		last := b[0]&1 != 0
		if le.Uint32(b)|1 == hash|1 {
			t := symbolTable{im: im, size: 24}
			if width == 4 {
				t.size = 16
			}
			entry := read(symbols, i*uint64(t.size), uint64(t.size))
			if entry == nil {
				return sym, false
			}
			at := le.Uint32(entry)
			t.named = map[uint32][]byte{at: []byte(name)}
			if im.hasNameAt(names, uint64(at), name) && t.read(entry, &sym) {
				return sym, true
			}
		}
		if last {
			break
		}
	}
	return ELFSymbol{}, false
}

// hasNameAt reports whether a string table has a name at an offset.
func (im *Image) hasNameAt(s Section, off uint64, name string) bool {
	n := uint64(len(name)) + 1
	if s.Type == elf.SHT_NOBITS || s.Size < n || off > s.Size-n {
		return false
	}
	b := make([]byte, n)
	return im.readFull(b, s.Off+off) == nil && string(b[:n-1]) == name && b[n-1] == 0
}

func (im *Image) eachSymbolOf(s Section, fn func(*ELFSymbol) bool) bool {
	t, err := im.symbolTable(s)
	return err != nil || t.each(s, fn)
}

// each calls fn for the symbols that are defined until it returns false, and returns what it did last.
func (t *symbolTable) each(s Section, fn func(*ELFSymbol) bool) bool {
	var sym ELFSymbol
	more := true
	_ = t.im.SectionParts(s, maxSymtab, func(b []byte) { // cut short meanwhile: what could be read
		for ; more && len(b) >= t.size; b = b[t.size:] {
			more = !t.read(b, &sym) || fn(&sym)
		}
	})
	return more
}

// symbolTable is what is in memory of a table of symbols.
type symbolTable struct {
	im    *Image
	names []byte
	named map[uint32][]byte // instead of names: those that are wanted, by offset
	size  int               // bytes of an entry
	left  int               // bytes of names that may still be read: each may be the end of another
}

func (im *Image) symbolTable(s Section) (t symbolTable, err error) {
	if s.Type == elf.SHT_NOBITS || uint64(s.Link) >= uint64(len(im.sections)) || s.Off > uint64(im.size) || s.Size > uint64(im.size)-s.Off {
		return t, &FormatError{int64(s.Off), "symbols without names"}
	}
	t = symbolTable{im: im, size: 24}
	if im.Arch().AddressWidth == 4 {
		t.size = 16
	}
	t.names, err = im.SectionBytes(im.sections[s.Link], maxStrtab)
	t.left = nameReads*len(t.names) + maxSymbolName
	return t, err
}

// read reads the entry at the start of b; ok is false when the file does not
// define the symbol.
func (t *symbolTable) read(b []byte, sym *ELFSymbol) (ok bool) {
	le := binary.LittleEndian
	info, shndx, value, size := 4, 6, 8, 16
	if t.size == 16 {
		info, shndx, value, size = 12, 14, 4, 8
	}
	at := uint64(le.Uint32(b))
	if le.Uint16(b[shndx:]) == uint16(elf.SHN_UNDEF) || t.left < 0 {
		return false
	}
	if t.named != nil {
		if sym.Name = t.named[uint32(at)]; sym.Name == nil {
			return false
		}
	} else {
		if at >= uint64(len(t.names)) {
			return false
		}
		sym.Name = t.names[at:min(at+maxSymbolName, uint64(len(t.names)))]
	}
	if n := bytes.IndexByte(sym.Name, 0); n >= 0 {
		sym.Name = sym.Name[:n]
	}
	t.left -= len(sym.Name)
	sym.Value, sym.Size = t.im.word(b[value:]), t.im.word(b[size:])
	sym.Type = elf.SymType(b[info] & 15)
	return true
}

// symbolNamed returns the link-time address and the size of the variable or function of a
// name in the first of some tables that defines it, 0 when none does. It keeps little in
// memory and reads most of a file that has many symbols.
func (im *Image) symbolNamed(name string, typ elf.SymType, tables ...string) (vaddr, size uint64) {
	for _, table := range tables {
		s, ok := im.Section(table)
		if !ok || uint64(s.Link) >= uint64(len(im.sections)) || s.Size > maxSymtab || s.Type == elf.SHT_NOBITS {
			continue
		}
		tries := 0
		for at := range im.findName(im.sections[s.Link], name) {
			if tries++; tries > maxSameName {
				break
			}
			if vaddr, size = im.symbolWithName(s, at, typ); vaddr != 0 {
				return vaddr, size
			}
		}
	}
	return 0, 0
}

const (
	searchBlock = 48 << 10 // bytes of a table that are searched at a time
	maxSameName = 8        // names that end with the one that is looked for

	// rareInNames are characters that few names have, among which are mangled ones: what
	// begins with one is found at once.
	rareInNames = "jqxzwkU."
)

// findName finds the offsets of a name in a string table, also where it is the end of
// another one.
func (im *Image) findName(s Section, name string) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		if s.Type == elf.SHT_NOBITS || s.Size > maxStrtab {
			return
		}
		want := append([]byte(name), 0)
		rare := max(0, strings.IndexAny(name, rareInNames), len(name)-len(strings.TrimLeft(name, "_")))
		buf := make([]byte, searchBlock)
		for off := uint64(0); off+uint64(len(want)) <= s.Size; off += uint64(len(buf) - len(want) + 1) {
			b := buf[:min(uint64(len(buf)), s.Size-off)]
			if im.readFull(b, s.Off+off) != nil {
				return
			}
			for from := rare; from < len(b); from++ {
				i := bytes.Index(b[from:], want[rare:])
				if i < 0 {
					break
				}
				from += i
				if at := from - rare; bytes.Equal(b[at:from], want[:rare]) && !yield(uint32(off)+uint32(at)) {
					return
				}
			}
		}
	}
}

// symbolWithName returns the link-time address and the size of the symbol of a type whose
// name is at an offset of the names that belong to a table of symbols, 0 when there is none.
func (im *Image) symbolWithName(s Section, name uint32, typ elf.SymType) (vaddr, bytes uint64) {
	size, info, shndx, value, length := 24, 4, 6, 8, 16
	if im.Arch().AddressWidth == 4 {
		size, info, shndx, value, length = 16, 12, 14, 4, 8
	}
	le := binary.LittleEndian
	buf := make([]byte, searchBlock/size*size)
	for off := uint64(0); off < s.Size; off += uint64(len(buf)) {
		b := buf[:min(uint64(len(buf)), s.Size-off)]
		if im.readFull(b, s.Off+off) != nil {
			return 0, 0
		}
		for ; len(b) >= size; b = b[size:] {
			if le.Uint32(b) == name && elf.SymType(b[info]&15) == typ && le.Uint16(b[shndx:]) != uint16(elf.SHN_UNDEF) {
				return im.word(b[value:]), im.word(b[length:])
			}
		}
	}
	return 0, 0
}

// EachSymbolOf calls fn for the symbols that a table (".symtab", ".dynsym") defines whose names
// begin with one of some prefixes, until fn returns false. It keeps little in memory, also of a
// file with many symbols.
func (im *Image) EachSymbolOf(table string, fn func(*ELFSymbol) bool, prefixes ...string) {
	s, ok := im.Section(table)
	if !ok || uint64(s.Link) >= uint64(len(im.sections)) || s.Size > maxSymtab || s.Type == elf.SHT_NOBITS {
		return
	}
	names := im.namesWith(im.sections[s.Link], prefixes)
	if len(names) == 0 {
		return
	}
	t := symbolTable{im: im, size: 24, named: names, left: maxStrtab}
	if im.Arch().AddressWidth == 4 {
		t.size = 16
	}
	t.each(s, fn)
}

// maxNamesWith bounds the names that namesWith finds.
const maxNamesWith = 1 << 16

// namesWith finds the names in a string table that begin with one of some prefixes, by offset.
func (im *Image) namesWith(s Section, prefixes []string) map[uint32][]byte {
	if s.Type == elf.SHT_NOBITS || s.Size > maxStrtab {
		return nil
	}
	const longest = 1 << 10
	found := map[uint32][]byte{}
	buf := make([]byte, searchBlock+longest)
	for off := uint64(0); off < s.Size; off += searchBlock {
		b := buf[:min(uint64(len(buf)), s.Size-off)]
		if im.readFull(b, s.Off+off) != nil {
			return found
		}
		for _, prefix := range prefixes {
			want := append([]byte{0}, prefix...)
			for from := 0; from < searchBlock && len(found) < maxNamesWith; from++ {
				i := bytes.Index(b[min(from, len(b)):], want)
				if i < 0 {
					break
				}
				from += i
				name, _, whole := bytes.Cut(b[from+1:], []byte{0})
				if whole {
					found[uint32(off)+uint32(from)+1] = bytes.Clone(name)
				}
			}
		}
	}
	return found
}

// Symbol names the code at an address.
type Symbol struct {
	Name   string // function name for people (demangled)
	Offset uint64 // address minus the start of the function
	Object any    // whatever the lookup associates with the name; may be nil
}
