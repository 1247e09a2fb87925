package procstate

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// symbolFile is a file of symbols, each of a function, whose names begin so far in
// a table of names.
func symbolFile(names []byte, at []uint32) []byte {
	le := binary.LittleEndian
	sections := "\x00.symtab\x00.strtab\x00"
	b := make([]byte, 64)
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[16:], uint16(elf.ET_DYN))
	le.PutUint16(b[18:], uint16(elf.EM_X86_64))
	le.PutUint16(b[58:], 64)
	le.PutUint16(b[60:], 3)
	le.PutUint16(b[62:], 2) // the names of sections are among those of symbols
	strtab := append([]byte(sections), names...)
	var symtab []byte
	for i, off := range at {
		var s [elf.Sym64Size]byte
		le.PutUint32(s[:], uint32(len(sections))+off)
		s[4], s[6] = uint8(elf.STT_FUNC), 1
		le.PutUint64(s[8:], uint64(i))
		symtab = append(symtab, s[:]...)
	}
	headers := make([]byte, 3*64)
	section := func(i int, name uint32, typ elf.SectionType, link uint32, contents []byte) {
		h := headers[64*i:]
		le.PutUint32(h, name)
		le.PutUint32(h[4:], uint32(typ))
		le.PutUint64(h[24:], uint64(len(b)))
		le.PutUint64(h[32:], uint64(len(contents)))
		le.PutUint32(h[40:], link)
		le.PutUint64(h[56:], elf.Sym64Size)
		b = append(b, contents...)
	}
	section(1, 1, elf.SHT_SYMTAB, 2, symtab)
	section(2, 9, elf.SHT_STRTAB, 0, strtab)
	le.PutUint64(b[40:], uint64(len(b)))
	return append(b, headers...)
}

// Names may be the ends of one another: of many symbols they are far more than the
// file.
func TestSymbolNamesInNames(t *testing.T) {
	names := append(bytes.Repeat([]byte("a"), 1<<14), 0)
	at := make([]uint32, 1<<14)
	for i := range at {
		at[i] = uint32(i)
	}
	im, err := NewImageBytes(symbolFile(names, at), "names")
	if err != nil {
		t.Fatal(err)
	}
	n, size := 0, 0
	im.EachSymbol(func(s *ELFSymbol) bool {
		if n++; len(s.Name) != len(names)-1-int(s.Value) {
			t.Fatalf("symbol %d has a name of %d", s.Value, len(s.Name))
		}
		size += len(s.Name)
		return true
	})
	if most := nameReads*len(names) + 2*maxSymbolName; n < nameReads || size > most {
		t.Errorf("%d names of %d bytes, at most %d", n, size, most)
	}
}

// A file with holes may be larger than any that is written.
func TestSectionOfHoles(t *testing.T) {
	b := symbolFile([]byte("a\x00"), []uint32{0})
	shoff := binary.LittleEndian.Uint64(b[40:])
	binary.LittleEndian.PutUint64(b[shoff+64+32:], 1<<40) // the size of .symtab
	path := filepath.Join(t.TempDir(), "holes")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<41); err != nil {
		testenv.Lacks(t, "%v", err)
	}
	im := openTestFile(t, path)
	s := mustSection(t, im, ".symtab")
	if err := im.SectionParts(s, 0, func([]byte) { t.Fatal("it is read") }); err == nil {
		t.Error("no error")
	}
	if n := len(im.FuncStarts()); n != 0 {
		t.Errorf("%d functions", n)
	}
}

// Goroutines may say that their stacks are of any size: what is made room for is what
// will be copied.
func TestRoomForStacks(t *testing.T) {
	c := &goroutineCopy{stackLimit: 1 << 20}
	for _, test := range []struct {
		stacks    []area
		each, all uint64
	}{
		{nil, 1 << 20, 0},
		{[]area{{0, 100}, {1 << 20, 3 << 20}}, 1 << 20, 100 + 1<<20},
		{[]area{{0, 1 << 63}, {1, ^uint64(0)}}, 1 << 20, 2 << 20},
		{make([]area, 1<<10), 1 << 20, 0},
	} {
		c.stacks = test.stacks
		if each, all := c.room(); each != test.each || all != test.all {
			t.Errorf("%d stacks: %d of each, %d of all", len(test.stacks), each, all)
		}
	}
	// One that is long is taken whole as long as there is room, and cut before others are.
	c = &goroutineCopy{stackLimit: goroutineBudget}
	const few = 10_000
	c.stacks = append(slices.Repeat([]area{{0, 4096}}, few), area{0, goroutineBudget - few*4096})
	if each, all := c.room(); each != goroutineBudget || all != goroutineBudget {
		t.Errorf("one long stack: %d of each, %d of all", each, all)
	}
	c.stacks[few].end++
	if each, all := c.room(); each != goroutineBudget-few*4096 || all != goroutineBudget {
		t.Errorf("one stack too long: %d of each, %d of all", each, all)
	}
	c = &goroutineCopy{stackLimit: 1 << 20}
	c.stacks = slices.Repeat([]area{{0, 1 << 60}}, 1<<10)
	if each, all := c.room(); each != goroutineBudget>>10 || all != goroutineBudget {
		t.Errorf("%d stacks: %d of each, %d of all", len(c.stacks), each, all)
	}
}

// The end of a segment is behind its start: what lies between is bounded by that.
func TestSegmentsThatWrapAround(t *testing.T) {
	b := coreOf(nil, elf.ET_DYN)
	load := b[64+56:]
	for _, test := range []struct {
		off, vaddr, filesz, memsz uint64
		ok                        bool
	}{
		{0, 0x1000, 16, 16, true}, {0, ^uint64(0) - 0xfff, 0x10, 0xfff, true}, {0, ^uint64(0) - 0xfff, 0x10, 0x1000, false},
		{0, 1 << 63, 1<<63 + 5, 16, false}, {1 << 62, 0, 16, 16, false}, {0, 0, 1 << 62, 16, false},
	} {
		for at, v := range map[int]uint64{8: test.off, 16: test.vaddr, 32: test.filesz, 40: test.memsz} {
			binary.LittleEndian.PutUint64(load[at:], v)
		}
		im, err := NewImageBytes(b, "wraps")
		if err != nil {
			t.Fatal(err)
		}
		if got := len(im.Segments()) == 1; got != test.ok {
			t.Errorf("%+v: %v", test, got)
		}
	}
}
