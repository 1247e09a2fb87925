package symbols

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// A line number program has no more rows than some, also where special opcodes make them.
func TestLineRowsBounded(t *testing.T) {
	d := &dwarfData{base: 0x1000, codeRanges: []codeRange{{0x1000, 1 << 31}}}
	h := lineHeader{minInst: 1, maxOps: 1, lineRange: 1, opcodeBase: 13}
	for name, row := range map[string][]byte{"special": {14}, "copy": {lnsAdvancePC, 1, lnsCopy}} {
		program := append(setAddress(0x1000), bytes.Repeat(row, int(d.bound(2, maxLineRows))+100)...)
		c := &cursor{b: program}
		if err := d.runLines(&lineTable{}, h, c); !errors.Is(err, errDWARF) || c.off != len(program)-100*len(row) {
			t.Errorf("%s: %v after %d of %d bytes", name, err, c.off, len(program))
		}
	}
}

// Entries of range lists are read up to a bound, however large their section is when it is not compressed.
func TestRangesBounded(t *testing.T) {
	d := &dwarfData{}
	d.rnglists.size = 1 << 40
	d.allowRanges(1 << 30)
	n := 0
	most := int(d.bound(2, maxRanges))
	for n <= 2*most && d.mayReadRange() {
		n++
	}
	if n != most {
		t.Errorf("%d entries", n)
	}
}

// A symbol table that expands a thousandfold costs its names, and nothing else.
func TestPackedSymtabBounded(t *testing.T) {
	for _, c := range []struct {
		symbols int
		named   bool
	}{{100, true}, {maxPackedSymtab/elf.Sym64Size + 1, false}} {
		im, err := procstate.NewImageBytes(packedSymtabFile(c.symbols), "packed")
		if err != nil {
			t.Fatal(err)
		}
		s := newSymbolizer(t, Options{DebugDirs: []string{}})
		lines := s.Lines(nil, im, 0x1008)
		if named := len(lines) == 1 && lines[0].Function == "abc"; named != c.named || named != (len(s.Errors()) == 0) {
			t.Errorf("%d symbols: %v, errors %v", c.symbols, lines, s.Errors())
		}
	}
}

// packedSymtabFile is a program with a compressed symbol table, all symbols of which are the same.
func packedSymtabFile(symbols int) []byte {
	le := binary.LittleEndian
	symbol := make([]byte, elf.Sym64Size)
	symbol[0], symbol[4], symbol[6] = 1, uint8(elf.STB_GLOBAL)<<4|uint8(elf.STT_FUNC), 3
	le.PutUint64(symbol[8:], 0x1000)
	le.PutUint64(symbol[16:], 0x10)
	table := bytes.Repeat(symbol, symbols)
	var packed bytes.Buffer
	_ = binary.Write(&packed, le, elf.Chdr64{Type: uint32(elf.COMPRESS_ZLIB), Size: uint64(len(table)), Addralign: 8})
	z := zlib.NewWriter(&packed)
	_, _ = z.Write(table) // to memory
	_ = z.Close()
	names := []byte("\x00abc\x00.symtab\x00.strtab\x00.text\x00")
	const text, head = 0x20, 64 + 56
	sections := []elf.Section64{
		{},
		{Name: 5, Type: uint32(elf.SHT_SYMTAB), Flags: uint64(elf.SHF_COMPRESSED), Off: head + text, Size: uint64(packed.Len()), Link: 2, Entsize: elf.Sym64Size},
		{Name: 13, Type: uint32(elf.SHT_STRTAB), Off: head + text + uint64(packed.Len()), Size: uint64(len(names))},
		{Name: 21, Type: uint32(elf.SHT_PROGBITS), Flags: uint64(elf.SHF_ALLOC | elf.SHF_EXECINSTR), Addr: 0x1000, Off: head, Size: text},
	}
	h := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
		Shoff: head + text + uint64(packed.Len()+len(names)), Shentsize: 64, Shnum: uint16(len(sections)), Shstrndx: 2,
	}
	copy(h.Ident[:], "\x7fELF\x02\x01\x01")
	var b bytes.Buffer
	for _, part := range []any{
		h, elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Off: head, Vaddr: 0x1000, Filesz: text, Memsz: text},
		make([]byte, text), packed.Bytes(), names, sections,
	} {
		_ = binary.Write(&b, le, part)
	}
	return b.Bytes()
}
