package unwind

import (
	"debug/elf"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// Synthetic images: a file that is one executable segment at imageBase, with a
// .eh_frame that the tests write byte by byte, and a header for it.

const (
	imageBase = 0x400000
	codeBase  = imageBase + 0x100000 // code has no bytes in the file
	ehFrameAt = 64 + 2*56            // file offset of .eh_frame: after the headers
)

// cfiBuilder makes a .eh_frame that begins at link-time address
// imageBase+ehFrameAt.
type cfiBuilder struct {
	b    []byte
	fdes [][2]uint64 // start of code, offset of FDE
}

func u32(v uint64) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(v)) }

func (c *cfiBuilder) record(body []byte) (at uint64) {
	at = uint64(len(c.b))
	for len(body)%4 != 0 {
		body = append(body, cfaNop)
	}
	c.b = append(append(c.b, u32(uint64(len(body)))...), body...)
	return at
}

// cie adds a CIE: version 1, code alignment 1, data alignment -8. augData
// follows its length when the augmentation begins with z.
func (c *cfiBuilder) cie(augmentation string, augData []byte, ra byte, instructions ...byte) uint64 {
	body := append(u32(0), 1)
	body = append(append(body, augmentation...), 0, 1, 0x78, ra)
	if augmentation != "" && augmentation[0] == 'z' {
		body = append(append(body, byte(len(augData))), augData...)
	}
	return c.record(append(body, instructions...))
}

// zR adds the CIE that compilers use on x86-64.
func (c *cfiBuilder) zR() uint64 {
	return c.cie("zR", []byte{pePcrel | peSdata4}, 16, cfaDefCFA, 7, 8, cfaOffset|16, 1)
}

// fde adds an FDE of a CIE with augmentation zR and relative pointers.
func (c *cfiBuilder) fde(cie, start, size uint64, instructions ...byte) {
	at := uint64(len(c.b))
	body := u32(at + 4 - cie)
	body = append(body, u32(start-(imageBase+ehFrameAt+at+8))...)
	body = append(append(body, u32(size)...), 0)
	c.fdes = append(c.fdes, [2]uint64{start, c.record(append(body, instructions...))})
}

// image makes the file. header is appended after .eh_frame as
// .eh_frame_hdr; nil stands for a right one.
func (c *cfiBuilder) image(t testing.TB, arch *procstate.Arch, header []byte) *procstate.Image {
	t.Helper()
	body := append(slices.Clone(c.b), 0, 0, 0, 0)
	hdrAt := uint64(ehFrameAt + len(body))
	if header == nil {
		header = []byte{1, pePcrel | peSdata4, peUdata4, peDatarel | peSdata4}
		header = append(header, u32(ehFrameAt-(hdrAt+4))...)
		header = append(header, u32(uint64(len(c.fdes)))...)
		slices.SortFunc(c.fdes, func(a, b [2]uint64) int { return int(int64(a[0] - b[0])) })
		for _, f := range c.fdes {
			header = append(header, u32(f[0]-(imageBase+hdrAt))...)
			header = append(header, u32(ehFrameAt+f[1]-hdrAt)...)
		}
	}
	return testImage(t, arch, append(body, header...), hdrAt, uint64(len(header)))
}

// testImage makes an image of a 64-bit architecture whose contents after the
// headers are body; hdrAt and hdrSize say where .eh_frame_hdr is in the file.
func testImage(t testing.TB, arch *procstate.Arch, body []byte, hdrAt, hdrSize uint64) *procstate.Image {
	t.Helper()
	img, err := procstate.NewImageBytes(testImageBytes(arch, body, hdrAt, hdrSize), "synthetic")
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// testImageBytes are the contents of that.
func testImageBytes(arch *procstate.Arch, body []byte, hdrAt, hdrSize uint64) []byte {
	le := binary.LittleEndian
	f := make([]byte, ehFrameAt)
	copy(f, "\x7fELF\x02\x01\x01")
	le.PutUint16(f[16:], uint16(elf.ET_EXEC))
	le.PutUint16(f[18:], uint16(arch.Machine))
	le.PutUint64(f[32:], 64) // program headers
	le.PutUint16(f[54:], 56)
	le.PutUint16(f[56:], 2)
	le.PutUint16(f[58:], 64)
	f = append(f, body...)
	prog := func(at int, typ elf.ProgType, flags elf.ProgFlag, off, filesz, memsz uint64) {
		p := f[at:]
		le.PutUint32(p, uint32(typ))
		le.PutUint32(p[4:], uint32(flags))
		le.PutUint64(p[8:], off)
		le.PutUint64(p[16:], imageBase+off)
		le.PutUint64(p[32:], filesz)
		le.PutUint64(p[40:], memsz)
	}
	prog(64, elf.PT_LOAD, elf.PF_R|elf.PF_X, 0, uint64(len(f)), 1<<30)
	prog(64+56, elf.PT_GNU_EH_FRAME, elf.PF_R, hdrAt, hdrSize, hdrSize)
	return f
}

func TestBadRecordsCostThemselves(t *testing.T) {
	deep := make([]byte, maxRememberDepth+1)
	for i := range deep {
		deep[i] = cfaRememberState
	}
	for _, tc := range []struct {
		name string
		code []byte
		want Reason
		cie  func(c *cfiBuilder) uint64 // nil: zR
	}{
		{name: "good", code: []byte{cfaAdvanceLoc | 1, cfaDefCFAOffset, 16}, want: ReasonNone},
		{name: "unknown instruction", code: []byte{0x3f}, want: UnsupportedUnwind},
		{name: "truncated operand", code: []byte{cfaNop, cfaNop, cfaNop, cfaAdvanceLoc4}, want: BadUnwindInfo},
		{name: "endless number", code: []byte{cfaDefCFAOffset, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80}, want: BadUnwindInfo},
		{name: "expression past the end", code: []byte{cfaDefCFAExpression, 0xff, 0xff, 0xff, 0xff, 0x0f, opLit0}, want: BadUnwindInfo},
		{name: "restore without remember", code: []byte{cfaRestoreState}, want: BadUnwindInfo},
		{name: "remember too deep", code: deep, want: UnsupportedUnwind},
		{name: "location goes back", code: []byte{cfaSetLoc, 0, 0, 0, 0}, want: BadUnwindInfo},
		{name: "location past all addresses", code: []byte{cfaAdvanceLoc | 2, cfaDefCFAOffset, 16}, want: BadUnwindInfo, cie: func(c *cfiBuilder) uint64 {
			const align = "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01" // of code: 1<<63
			return c.record(append(u32(0), "\x01zR\x00"+align+"\x78\x10\x01\x1b\x0c\x07\x08\x90\x01"...))
		}},
		{name: "offset of no register", code: []byte{cfaDefCFAExpression, 1, opLit0, cfaDefCFAOffset, 8}, want: BadUnwindInfo},
		{name: "AArch64 on x86", code: []byte{cfaNegateRAState}, want: UnsupportedUnwind},
		{name: "CIE of an unknown version", want: UnsupportedUnwind, cie: func(c *cfiBuilder) uint64 {
			at := c.zR()
			c.b[at+8] = 2
			return at
		}},
		{name: "unknown augmentation before R", want: UnsupportedUnwind, cie: func(c *cfiBuilder) uint64 {
			return c.cie("zXR", []byte{1, pePcrel | peSdata4}, 16, cfaDefCFA, 7, 8, cfaOffset|16, 1)
		}},
		{name: "unknown augmentation after R", want: ReasonNone, cie: func(c *cfiBuilder) uint64 {
			return c.cie("zRX", []byte{pePcrel | peSdata4, 1, 2, 3}, 16, cfaDefCFA, 7, 8, cfaOffset|16, 1)
		}},
		{name: "all known augmentations", want: ReasonNone, cie: func(c *cfiBuilder) uint64 {
			return c.cie("zPLRB", []byte{peIndir | pePcrel | peSdata4, 1, 2, 3, 4, peUdata4, pePcrel | peSdata4}, 16,
				cfaDefCFA, 7, 8, cfaOffset|16, 1)
		}},
		{name: "augmentation too long", want: BadUnwindInfo, cie: func(c *cfiBuilder) uint64 {
			at := c.zR()
			c.b[at+15] = 0x70 // length of the augmentation data
			return at
		}},
		{name: "locations in a CIE", want: BadUnwindInfo, cie: func(c *cfiBuilder) uint64 {
			return c.cie("zR", []byte{pePcrel | peSdata4}, 16, cfaDefCFA, 7, 8, cfaAdvanceLoc|1)
		}},
		{name: "no CFA", want: BadUnwindInfo, cie: func(c *cfiBuilder) uint64 {
			return c.cie("zR", []byte{pePcrel | peSdata4}, 16, cfaOffset|16, 1)
		}},
		{name: "no return address", want: NoRegister, cie: func(c *cfiBuilder) uint64 {
			return c.cie("zR", []byte{pePcrel | peSdata4}, 16, cfaDefCFA, 7, 8)
		}},
		{name: "FDE of no CIE", want: BadUnwindInfo, cie: func(c *cfiBuilder) uint64 { return uint64(len(c.b)) + 0x1000 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var c cfiBuilder
			good := c.zR()
			c.fde(good, codeBase, 0x10, cfaAdvanceLoc|4, cfaDefCFAOffset, 32)
			cie := good
			if tc.cie != nil {
				cie = tc.cie(&c)
			}
			c.fde(cie, codeBase+0x10, 0x10, tc.code...)
			c.fde(good, codeBase+0x20, 0x10, cfaAdvanceLoc|4, cfaDefCFAOffset, 48)
			tab := NewTable(c.image(t, procstate.AMD64, nil))
			if got := step(tab, codeBase+0x10+1); got != tc.want {
				t.Errorf("in the record: %v, want %v", got, tc.want)
			}
			for _, addr := range []uint64{codeBase, codeBase + 0xf, codeBase + 0x20, codeBase + 0x2f} {
				if got := step(tab, addr); got != ReasonNone {
					t.Errorf("%#x, in a good record: %v", addr, got)
				}
			}
			for _, addr := range []uint64{0, codeBase - 1, codeBase + 0x30, 1 << 63, ^uint64(0)} {
				if got := tab.Rule(addr).Reason(); got != NoUnwindInfo {
					t.Errorf("%#x, in no record: %v", addr, got)
				}
			}
		})
	}
}

// Of FDEs that overlap the one that begins last counts, whatever is asked for first.
func TestOverlappingFDEs(t *testing.T) {
	const second = codeBase + 0x10
	for _, order := range [][]uint64{{codeBase, second, second + 0x10}, {second + 0x10, second, codeBase}} {
		var c cfiBuilder
		cie := c.zR()
		c.fde(cie, codeBase, 0x40, cfaDefCFAOffset, 32)
		c.fde(cie, second, 0x10, cfaDefCFAOffset, 48)
		tab := NewTable(c.image(t, procstate.AMD64, nil))
		got := map[uint64]Reason{}
		for _, addr := range order {
			r := tab.Rule(addr)
			got[addr] = r.Reason()
			if want := map[uint64]int64{codeBase: 32, second: 48}[addr]; want != 0 && !r.CFAIs(procstate.AMD64.SP, want) {
				t.Errorf("asked in order %x: %#x has %+v", order, addr, r)
			}
		}
		if got[second+0x10] != NoUnwindInfo {
			t.Errorf("asked in order %x: behind the second: %v", order, got[second+0x10])
		}
	}
}

// An FDE that would end before it begins is bad.
func TestFDEOfNegativeSize(t *testing.T) {
	var c cfiBuilder
	c.fde(c.zR(), codeBase, 1<<32-16) // with sign
	tab := NewTable(c.image(t, procstate.AMD64, nil))
	for _, addr := range []uint64{codeBase - 1, codeBase, codeBase + 1} {
		want := BadUnwindInfo
		if addr < codeBase {
			want = NoUnwindInfo
		}
		if got := tab.Rule(addr).Reason(); got != want {
			t.Errorf("%#x: %v, want %v", addr, got, want)
		}
	}
}

// step walks from a top frame at a link-time address, on a stack where every
// word can be read.
func step(tab *Table, pc uint64) Reason {
	w := NewWalker(wordMemory{}, NewGroup(), nil)
	in := NewFrame(procstate.AMD64, pc, 0x7000, 0x7100)
	in.Flags = Top | Interrupted
	var out Frame
	_, err := tab.Rule(pc).CallerFrame(w, &in, &out)
	return ReasonOf(err)
}

// wordMemory is a process on whose stack each word holds its own address plus
// one.
type wordMemory struct{ procstate.ProcessState }

func (wordMemory) Arch() *procstate.Arch               { return procstate.AMD64 }
func (wordMemory) Libraries() procstate.LibraryState   { return nil }
func (wordMemory) ReadWord(addr uint64) (uint64, bool) { return addr + 1, true }

// TestRowBoundaries checks the first and the last byte of each row.
func TestRowBoundaries(t *testing.T) {
	var c cfiBuilder
	cie := c.zR()
	// Rows of 1, 0xfff and 0x2000 bytes: within a page, across pages.
	c.fde(cie, codeBase+0xffe, 0x3001, cfaAdvanceLoc|1, cfaDefCFAOffset, 16,
		cfaAdvanceLoc2, 0xff, 0x0f, cfaDefCFAOffset, 24, cfaAdvanceLoc4, 0, 0x20, 0, 0, cfaDefCFAOffset, 32)
	tab := NewTable(c.image(t, procstate.AMD64, nil))
	for range 2 { // compiled, then kept
		for _, tc := range []struct {
			addr uint64
			off  int32
		}{
			{0xffe, 8}, {0xfff, 16}, {0x1000, 16}, {0x1ffd, 16}, {0x1ffe, 24}, {0x1fff, 24}, {0x2000, 24},
			{0x3ffd, 24}, {0x3ffe, 32},
		} {
			r := tab.Rule(codeBase + tc.addr)
			row, start, end, err := tab.Row(codeBase + tc.addr)
			if r.cfaOff != tc.off || err != nil || row.CFA.Offset != int64(tc.off) {
				t.Errorf("%#x: rule CFA+%d, row CFA+%d (%v), want %d", tc.addr, r.cfaOff, row.CFA.Offset, err, tc.off)
			}
			if codeBase+tc.addr < start || codeBase+tc.addr >= end {
				t.Errorf("%#x: row of [%#x, %#x)", tc.addr, start, end)
			}
		}
		for _, addr := range []uint64{0xffd, 0x3fff} {
			if r := tab.Rule(codeBase + addr); r.Reason() != NoUnwindInfo {
				t.Errorf("%#x: %v", addr, r.Reason())
			}
		}
	}
}

// TestPointerEncodings finds a function by FDEs whose addresses are encoded in
// all ways.
func TestPointerEncodings(t *testing.T) {
	for _, tc := range []struct {
		enc  byte
		want Reason
	}{
		{peAbsptr, ReasonNone}, {peUdata4, ReasonNone}, {peUdata8, ReasonNone}, {peSdata4, ReasonNone},
		{peSdata8, ReasonNone}, {peULEB, ReasonNone}, {peSLEB, ReasonNone}, {pePcrel | peAbsptr, ReasonNone},
		{pePcrel | peSdata4, ReasonNone}, {pePcrel | peSdata8, ReasonNone}, {peAligned, ReasonNone},
		{peIndir | peAbsptr, UnsupportedUnwind}, // it points to where the file has nothing
		{0x05, BadUnwindInfo}, {0x60, BadUnwindInfo},
	} {
		var c cfiBuilder
		cie := c.cie("zR", []byte{tc.enc}, 16, cfaDefCFA, 7, 8, cfaOffset|16, 1)
		at := uint64(len(c.b))
		body := u32(at + 4 - cie)
		field := imageBase + ehFrameAt + at + 8
		start := uint64(codeBase)
		if tc.enc&peApply == pePcrel {
			start -= field
		}
		for tc.enc == peAligned && (imageBase+ehFrameAt+at+4+uint64(len(body)))%8 != 0 {
			body = append(body, 0)
		}
		for _, v := range []uint64{start, 0x40} {
			switch enc := tc.enc & peFormat; {
			case enc == peULEB:
				body = binary.AppendUvarint(body, v)
			case enc == peSLEB:
				body = append(body, sleb(int64(v))...)
			case pointerSize(tc.enc, 8) == 4:
				body = append(body, u32(v)...)
			default:
				body = binary.LittleEndian.AppendUint64(body, v)
			}
		}
		body = append(body, 0)
		c.fdes = append(c.fdes, [2]uint64{codeBase, c.record(body)})
		tab := NewTable(c.image(t, procstate.AMD64, nil))
		if got := tab.Rule(codeBase + 0x3f).Reason(); got != tc.want {
			t.Errorf("encoding %#x: %v, want %v", tc.enc, got, tc.want)
		}
	}
}

// TestHeaders searches .eh_frame_hdr in its possible and impossible forms.
func TestHeaders(t *testing.T) {
	var c cfiBuilder
	cie := c.zR()
	for i := range uint64(1000) {
		c.fde(cie, codeBase+i*16, 8)
	}
	hdrAt := uint64(ehFrameAt + len(c.b) + 4)
	header := func(count uint64, tableEnc byte, size int, base uint64) []byte {
		h := append([]byte{1, pePcrel | peSdata4, peUdata4, tableEnc}, u32(ehFrameAt-(hdrAt+4))...)
		h = append(h, u32(count)...)
		for _, f := range c.fdes {
			for _, v := range []uint64{f[0], imageBase + ehFrameAt + f[1]} {
				if size == 4 {
					h = append(h, u32(v-base)...)
				} else {
					h = binary.LittleEndian.AppendUint64(h, v-base)
				}
			}
		}
		return h
	}
	good := header(1000, peDatarel|peSdata4, 4, imageBase+hdrAt)
	for _, tc := range []struct {
		name   string
		header []byte
		found  int // functions
	}{
		{"datarel sdata4", good, 1000},
		{"absolute udata8", header(1000, peUdata8, 8, 0), 1000},
		{"absolute udata4", header(1000, peUdata4, 4, 0), 1000},
		{"datarel sdata8", header(1000, peDatarel|peSdata8, 8, imageBase+hdrAt), 1000},
		{"count beyond the table", header(1<<31, peDatarel|peSdata4, 4, imageBase+hdrAt), 1000},
		{"count below the table", header(600, peDatarel|peSdata4, 4, imageBase+hdrAt), 600},
		{"truncated", good[:len(good)-8*500-3], 499},
		{"no table", header(1000, peOmit, 4, 0), 0},
		{"LEB128 table", header(1000, peULEB, 4, 0), 0},
		{"version 2", append([]byte{2}, good[1:]...), 0},
		{"empty", []byte{1}, 0},
	} {
		tab := NewTable(c.image(t, procstate.AMD64, tc.header))
		found := 0
		for i := range uint64(1000) {
			if tab.Rule(codeBase+i*16).Reason() == ReasonNone && tab.Rule(codeBase+i*16+7).Reason() == ReasonNone {
				found++
			}
			if r := tab.Rule(codeBase + i*16 + 8); r.Reason() != NoUnwindInfo {
				t.Errorf("%s: between functions: %v", tc.name, r.Reason())
			}
		}
		if found != tc.found {
			t.Errorf("%s: found %d functions, want %d", tc.name, found, tc.found)
		}
	}
}

// TestPLT checks the rule of a linkage table, whose CFA depends on where in
// its slot of 16 bytes the PC is.
func TestPLT(t *testing.T) {
	var c cfiBuilder
	cie := c.zR()
	c.fde(cie, codeBase+0x20, 0x2010, cfaDefCFAOffset, 16, cfaAdvanceLoc|6, cfaDefCFAOffset, 24, cfaAdvanceLoc|10,
		cfaDefCFAExpression, 11, opBreg0+7, 8, opBreg0+16, 0, opLit0+15, opAnd, opLit0+11, opGe, opLit0+3, opShl, opPlus)
	tab := NewTable(c.image(t, procstate.AMD64, nil))
	for addr := uint64(codeBase + 0x30); addr < codeBase+0x2030; addr++ {
		want := int32(8)
		if addr&15 >= 11 {
			want = 16
		}
		if r := tab.Rule(addr); r.cfaReg != 7 || r.cfaOff != want || r.row != nil {
			t.Fatalf("%#x: CFA is reg %d + %d, want SP + %d", addr, r.cfaReg, r.cfaOff, want)
		}
		if row, _, _, err := tab.Row(addr); err != nil || row.CFA.Kind != ValExpression {
			t.Fatalf("%#x: %v", addr, err)
		} else if v := evalCFA(row, addr); v != 0x7000+uint64(want) {
			t.Fatalf("%#x: the expression gives %#x", addr, v)
		}
	}
}

// TestPLTAtTheEnd: a linkage table that a file puts at the end of all addresses
// has an end.
func TestPLTAtTheEnd(t *testing.T) {
	const start = ^uint64(0) - 0x2f
	var c cfiBuilder
	cie := c.cie("zR", []byte{peAbsptr}, 16, cfaDefCFA, 7, 8, cfaOffset|16, 1)
	body := binary.LittleEndian.AppendUint64(u32(uint64(len(c.b))+4-cie), start)
	body = append(binary.LittleEndian.AppendUint64(body, 0x2f), 0, cfaDefCFAExpression, 11, opBreg0+7, 8, opBreg0+16, 0,
		opLit0+15, opAnd, opLit0+11, opGe, opLit0+3, opShl, opPlus)
	at := c.record(body)
	hdrAt := uint64(ehFrameAt + len(c.b) + 4)
	header := append([]byte{1, pePcrel | peSdata4, peUdata4, peAbsptr}, u32(ehFrameAt-(hdrAt+4))...)
	header = binary.LittleEndian.AppendUint64(append(header, u32(1)...), start)
	header = binary.LittleEndian.AppendUint64(header, imageBase+ehFrameAt+at)
	tab := NewTable(c.image(t, procstate.AMD64, header))
	for _, addr := range []uint64{start, start + 0x20, start + 0x2e} {
		want := int32(8)
		if addr&15 >= 11 {
			want = 16
		}
		if r := tab.Rule(addr); r.cfaReg != 7 || r.cfaOff != want {
			t.Errorf("%#x: CFA is reg %d + %d, want SP + %d", addr, r.cfaReg, r.cfaOff, want)
		}
	}
}

// evalCFA evaluates the CFA of a row at a PC, with SP 0x7000.
func evalCFA(row Row, pc uint64) uint64 {
	in := NewFrame(procstate.AMD64, pc, 0x7000, 0)
	e := expression{regs: &in.Regs, pc: procstate.AMD64.PC, mem: wordMemory{}, width: 8}
	v, _ := row.cfa(&e)
	return v
}

// sparseFile is a file of a terabyte that is all zeros after its head.
type sparseFile []byte

func (f sparseFile) ReadAt(b []byte, off int64) (int, error) {
	clear(b)
	if off < int64(len(f)) {
		copy(b, f[off:])
	}
	return len(b), nil
}

// TestHugeClaims gives a header that claims a table as large as a huge file.
func TestHugeClaims(t *testing.T) {
	const size = 1 << 40
	head := make([]byte, 4096)
	if n, err := testImage(t, procstate.AMD64, make([]byte, 64), ehFrameAt, 64).ReadAt(head, 0); n != ehFrameAt+64 {
		t.Fatal(n, err)
	}
	copy(head[ehFrameAt:], []byte{1, peAbsptr, peUdata8, peUdata8})
	le := binary.LittleEndian
	le.PutUint64(head[ehFrameAt+4:], imageBase+ehFrameAt)
	le.PutUint64(head[ehFrameAt+12:], 1<<60)
	le.PutUint64(head[64+32:], size) // the segment's size in the file
	le.PutUint64(head[64+56+32:], size)
	img, err := procstate.NewImage(sparseFile(head), size, "sparse")
	if err != nil {
		t.Fatal(err)
	}
	tab := NewTable(img)
	for _, addr := range []uint64{0, codeBase, 1 << 40, ^uint64(0)} {
		if r := tab.Rule(addr); r.Reason() == ReasonNone {
			t.Errorf("%#x has a rule", addr)
		}
	}
	if n := tab.size(); n > 4<<20 {
		t.Errorf("%d bytes for nothing", n)
	}
}

// What looks like an epilogue that stands elsewhere, again and again, and much that
// does nothing behind all of it, take no longer than the instructions are many.
func TestManyEpilogues(t *testing.T) {
	const n, fill = 200_000, 2 << 20
	lines := []byte{cfaDefCFAOffset, 64}
	for range n {
		lines = append(lines, cfaRememberState, cfaAdvanceLoc|4, cfaDefCFA, 7, 8, cfaAdvanceLoc|1, cfaRestoreState)
	}
	var c cfiBuilder
	c.fde(c.zR(), codeBase, 5*n+16, append(lines, make([]byte, fill)...)...)
	tab := NewTable(c.image(t, procstate.AMD64, nil))
	begin := testenv.CPUTime(t)
	if r := tab.Rule(codeBase + 5*n); !r.CFAIs(procstate.AMD64.SP, 64) {
		t.Errorf("%+v", r)
	}
	if took := testenv.CPUTime(t) - begin; took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// FDEs that have more CIEs in turn than are kept, and large ones, are read through no
// longer than a section may take.
func TestManyCIEs(t *testing.T) {
	const cies, cieSize, fdes = maxCIEs + 1, 64 << 10, 5000
	var c cfiBuilder
	var at []uint64
	for range cies {
		at = append(at, c.cie("zR", []byte{pePcrel | peSdata4}, 16, append([]byte{cfaDefCFA, 7, 8, cfaOffset | 16, 1}, make([]byte, cieSize)...)...))
	}
	for i := range fdes {
		c.fde(at[i%cies], codeBase+uint64(16*i), 16)
	}
	file := withSection(procstate.AMD64, ".eh_frame", append(c.b, 0, 0, 0, 0))
	img, err := procstate.NewImageBytes(file, "synthetic")
	if err != nil {
		t.Fatal(err)
	}
	tab := NewTable(img)
	if r := tab.Rule(codeBase); !r.CFAIs(procstate.AMD64.SP, 8) {
		t.Errorf("%+v", r)
	}
	if s := tab.sources[0]; s.parsed < maxScan || s.parsed > maxScan+2*cieSize {
		t.Errorf("%d bytes of CIEs were read, %d FDEs of %d", s.parsed, len(s.index), fdes)
	}
}

// Of a section that must be read through no more FDEs are kept than some; the others are as if they were not there.
func TestManyFDEs(t *testing.T) {
	defer func(n int) { maxFDEs = n }(maxFDEs)
	maxFDEs = 100
	var c cfiBuilder
	at := c.zR()
	for i := range maxFDEs + 2 {
		c.fde(at, codeBase+uint64(16*i), 16)
	}
	img, err := procstate.NewImageBytes(withSection(procstate.AMD64, ".eh_frame", append(c.b, 0, 0, 0, 0)), "synthetic")
	if err != nil {
		t.Fatal(err)
	}
	tab := NewTable(img)
	for i, want := range map[int]Reason{0: ReasonNone, maxFDEs - 1: ReasonNone, maxFDEs: NoUnwindInfo, maxFDEs + 1: NoUnwindInfo} {
		if got := tab.Rule(codeBase + uint64(16*i)).Reason(); got != want {
			t.Errorf("FDE %d: %v, want %v", i, got, want)
		}
	}
}

// withSection makes a file that has its call frame information in a section of a name, and
// no header for it.
func withSection(arch *procstate.Arch, name string, body []byte) []byte {
	names := "\x00" + name + "\x00.shstrtab\x00"
	le := binary.LittleEndian
	sections := make([]byte, 3*64)
	section := func(n int, name int, typ elf.SectionType, off, size int) {
		s := sections[n*64:]
		le.PutUint32(s, uint32(name))
		le.PutUint32(s[4:], uint32(typ))
		le.PutUint64(s[8:], uint64(elf.SHF_ALLOC))
		le.PutUint64(s[16:], uint64(imageBase+off))
		le.PutUint64(s[24:], uint64(off))
		le.PutUint64(s[32:], uint64(size))
	}
	section(1, 1, elf.SHT_PROGBITS, ehFrameAt, len(body))
	section(2, 2+len(name), elf.SHT_STRTAB, ehFrameAt+len(body), len(names))
	file := testImageBytes(arch, append(append(slices.Clone(body), names...), sections...), 0, 0)
	le.PutUint64(file[40:], uint64(len(file)-len(sections)))
	le.PutUint16(file[58:], 64)
	le.PutUint16(file[60:], 3)
	le.PutUint16(file[62:], 2)
	return file
}

// Linkers leave the FDEs of functions that they have removed in .debug_frame, with an
// address of 0, which may be in code.
func TestRemovedFDEs(t *testing.T) {
	le := binary.LittleEndian
	var c cfiBuilder
	c.record(append(u32(0xffffffff), "\x01\x00\x01\x78\x10\x0c\x07\x08\x90\x01"...)) // CIE
	for _, start := range []uint64{0, 0x2000} {
		c.record(le.AppendUint64(le.AppendUint64(u32(0), start), 0x100))
	}
	file := withSection(procstate.AMD64, ".debug_frame", c.b)
	le.PutUint64(file[64+16:], 0) // link-time address of the segment
	img, err := procstate.NewImageBytes(file, "synthetic")
	if err != nil {
		t.Fatal(err)
	}
	tab := NewTable(img)
	for addr, want := range map[uint64]Reason{0: NoUnwindInfo, 0xff: NoUnwindInfo, 0x2000: ReasonNone, 0x20ff: ReasonNone, 0x2100: NoUnwindInfo} {
		if got := tab.Rule(addr).Reason(); got != want {
			t.Errorf("%#x: %v, want %v", addr, got, want)
		}
	}
}
