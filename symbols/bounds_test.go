package symbols

import (
	"bytes"
	"compress/zlib"
	"debug/dwarf"
	"debug/elf"
	"encoding/binary"
	"errors"
	"strings"
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

// A unit has no more functions than some, and those up to there are known.
func TestScopesBounded(t *testing.T) {
	enc := encoding{version: 5, addrSize: 8}
	table := &abbrevTable{enc: enc, dense: []abbrev{
		{tag: dwarf.TagCompileUnit, children: true},
		{tag: dwarf.TagSubprogram, fixed: 9, attrs: []attrSpec{{attr: dwarf.AttrLowpc, form: formAddr}, {attr: dwarf.AttrHighpc, form: formData1}}},
	}}
	function := append(binary.LittleEndian.AppendUint64([]byte{2}, 0x1000), 0x10)
	d := &dwarfData{base: 0x1000, codeRanges: []codeRange{{0x1000, 0x2000}}}
	most := int(d.bound(4, maxScopes))
	entries := append([]byte{1}, bytes.Repeat(function, most+100)...)
	d.allowRanges(uint64(len(entries)))
	out := &unitCode{}
	w := scopeWalk{d: d, u: &unit{enc: enc}, out: out, c: cursor{b: entries}}
	if err := w.walk(table); !errors.Is(err, errDWARF) || len(out.scopes) != most+1 || out.scopes[most].start != 0 {
		t.Errorf("%v after %d functions", err, len(out.scopes))
	}
}

// Looking through tables of abbreviations, which all units can have in common, counts for more than reading as much.
func TestLookedThroughBounded(t *testing.T) {
	const others = 200
	table := bytes.Repeat([]byte{2, byte(dwarf.TagSubprogram), 0, 0, 0}, others)
	table = append(table, 1, byte(dwarf.TagCompileUnit), 0, 0, 0, 0)
	d := &dwarfData{abbrevWork: maxAbbrevWork - 4*uint64(len(table))}
	d.abbrev = dwarfSection{r: bytes.NewReader(table), size: uint64(len(table)), windowLen: windowTables, budget: &budget{}}
	for n, ok := range []bool{true, false} {
		var a abbrev
		err := d.oneAbbrev(0, encoding{version: 4, addrSize: 8}, 1, &a)
		if (err == nil) != ok || err == nil && a.tag != dwarf.TagCompileUnit || err != nil && !errors.Is(err, errDWARF) {
			t.Errorf("the %d. time: %v", n+1, err)
		}
	}
}

// Names in a compressed table are read, unless it expands to more than may be in memory: then no name is told.
func TestPackedNamesBounded(t *testing.T) {
	for _, c := range []struct {
		size  int
		named bool
	}{{100, true}, {maxBytes + 1, false}} {
		names := make([]byte, c.size)
		copy(names, "\x00abc")
		im, err := procstate.NewImageBytes(packedFile(1, names), "packed")
		if err != nil {
			t.Fatal(err)
		}
		s := newSymbolizer(t, Options{DebugDirs: []string{}})
		lines := s.Lines(nil, im, 0x1008)
		if named := len(lines) == 1 && lines[0].Function == "abc"; named != c.named || !named && len(lines) > 0 || named != (len(s.Errors()) == 0) {
			t.Errorf("%d bytes: %v, errors %v", c.size, lines, s.Errors())
		}
	}
}

// A name as long as templates make them is told whole, also that of an inlined call; long ones do not take
// more together than some.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("a", 100_000)
	dir := t.TempDir()
	write(t, dir, "a.c", "volatile int v; static inline __attribute__((always_inline)) void "+long+"(void) { v++; }\nvoid f(void) { "+long+"(); }\n")
	run(t, dir, "gcc", "-g", "-O1", "-shared", "-fPIC", "-o", "a.so", "a.c")
	im := open(t, dir+"/a.so")
	for _, c := range []struct {
		memory int
		want   string
	}{{0, long}, {len(long), long[:usualName] + cutMark}} {
		s := newSymbolizer(t, Options{DebugDirs: []string{}, Memory: c.memory})
		calls := 0
		for _, a := range textAddresses(im, 1000) {
			for _, l := range s.Lines(nil, im, a) {
				if l.Function == c.want && l.Inlined {
					calls++
				} else if l.Inlined {
					t.Fatalf("%#x: a name of %d bytes", a, len(l.Function))
				}
			}
		}
		if calls == 0 {
			t.Errorf("memory of %d: the call is not known", c.memory)
		}
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
func packedSymtabFile(symbols int) []byte { return packedFile(symbols, nil) }

// packedFile is that; names, if there are any, are compressed as well.
func packedFile(symbols int, names []byte) []byte {
	le := binary.LittleEndian
	symbol := make([]byte, elf.Sym64Size)
	symbol[0], symbol[4], symbol[6] = 1, uint8(elf.STB_GLOBAL)<<4|uint8(elf.STT_FUNC), 4
	le.PutUint64(symbol[8:], 0x1000)
	le.PutUint64(symbol[16:], 0x10)
	pack := func(b []byte) []byte {
		var packed bytes.Buffer
		_ = binary.Write(&packed, le, elf.Chdr64{Type: uint32(elf.COMPRESS_ZLIB), Size: uint64(len(b)), Addralign: 8})
		z := zlib.NewWriter(&packed)
		_, _ = z.Write(b) // to memory
		_ = z.Close()
		return packed.Bytes()
	}
	table := pack(bytes.Repeat(symbol, symbols))
	sectionNames := []byte("\x00.symtab\x00.strtab\x00.shstrtab\x00.text\x00")
	flags := uint64(0)
	if names == nil {
		names = []byte("\x00abc\x00")
	} else {
		names, flags = pack(names), uint64(elf.SHF_COMPRESSED)
	}
	const text, head = 0x20, 64 + 56
	at := uint64(head + text)
	sections := []elf.Section64{
		{},
		{Name: 1, Type: uint32(elf.SHT_SYMTAB), Flags: uint64(elf.SHF_COMPRESSED), Off: at, Size: uint64(len(table)), Link: 2, Entsize: elf.Sym64Size},
		{Name: 9, Type: uint32(elf.SHT_STRTAB), Flags: flags, Off: at + uint64(len(table)), Size: uint64(len(names))},
		{Name: 17, Type: uint32(elf.SHT_STRTAB), Off: at + uint64(len(table)+len(names)), Size: uint64(len(sectionNames))},
		{Name: 27, Type: uint32(elf.SHT_PROGBITS), Flags: uint64(elf.SHF_ALLOC | elf.SHF_EXECINSTR), Addr: 0x1000, Off: head, Size: text},
	}
	h := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
		Shoff: at + uint64(len(table)+len(names)+len(sectionNames)), Shentsize: 64, Shnum: uint16(len(sections)), Shstrndx: 3,
	}
	copy(h.Ident[:], "\x7fELF\x02\x01\x01")
	var b bytes.Buffer
	for _, part := range []any{
		h, elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Off: head, Vaddr: 0x1000, Filesz: text, Memsz: text},
		make([]byte, text), table, names, sectionNames, sections,
	} {
		_ = binary.Write(&b, le, part)
	}
	return b.Bytes()
}
