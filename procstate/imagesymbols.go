package procstate

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// ELFSymbol is a symbol that a file defines.
type ELFSymbol struct {
	Name  []byte // as in the file; valid until the function that got it returns
	Value uint64 // link-time address
	Size  uint64 // bytes
	Type  elf.SymType
}

// maxStrtab limits the string table of symbols.
const maxStrtab = 512 << 20

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

func (im *Image) eachSymbolOf(s Section, fn func(*ELFSymbol) bool) bool {
	if uint64(s.Link) >= uint64(len(im.sections)) {
		return true
	}
	table, err := im.SectionBytes(s, maxSymtab)
	if err != nil {
		return true
	}
	names, err := im.SectionBytes(im.sections[s.Link], maxStrtab)
	if err != nil {
		return true
	}
	le := binary.LittleEndian
	entry, info, shndx, value, size := 24, 4, 6, 8, 16
	if im.arch.AddressWidth == 4 {
		entry, info, shndx, value, size = 16, 12, 14, 4, 8
	}
	var sym ELFSymbol
	for ; len(table) >= entry; table = table[entry:] {
		at := uint64(le.Uint32(table))
		if le.Uint16(table[shndx:]) == uint16(elf.SHN_UNDEF) || at >= uint64(len(names)) {
			continue
		}
		sym.Name = names[at:]
		if n := bytes.IndexByte(sym.Name, 0); n >= 0 {
			sym.Name = sym.Name[:n]
		}
		sym.Value, sym.Size = im.word(table[value:]), im.word(table[size:])
		sym.Type = elf.SymType(table[info] & 15)
		if !fn(&sym) {
			return false
		}
	}
	return true
}
