package unwind

import (
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// archs are the architectures that fuzzers choose from.
var archs = []*procstate.Arch{procstate.AMD64, procstate.ARM64}

// seedSections are two small sections: of compilers' FDEs, and of rare ones.
func seedSections() [][]byte {
	var usual, rare cfiBuilder
	cie := usual.zR()
	usual.fde(cie, codeBase, 0x40, cfaAdvanceLoc|1, cfaDefCFAOffset, 16, cfaOffset|6, 2, cfaAdvanceLoc|3, cfaDefCFARegister, 6,
		cfaRememberState, cfaAdvanceLoc1, 20, cfaDefCFA, 7, 8, cfaAdvanceLoc|1, cfaRestoreState)
	usual.fde(cie, codeBase+0x40, 0x2000, cfaAdvanceLoc4, 0, 16, 0, 0, cfaOffset|3, 3, cfaRestore|3, cfaNegateRAState)
	cie = rare.cie("zPLRS", []byte{peIndir | pePcrel | peSdata4, 1, 2, 3, 4, peUdata4, pePcrel | peSdata4}, 17,
		cfaDefCFASf, 7, 0x70, cfaOffsetExtendedSf, 17, 1, cfaExpression, 3, 2, opBreg0+7, 8)
	rare.fde(cie, codeBase, 0x1800, cfaValExpression, 12, 2, opBreg0+6, 16, cfaAdvanceLoc2, 0, 0x10, cfaValOffset, 13, 2, cfaRegister, 14, 15,
		cfaDefCFAExpression, 11, opBreg0+7, 8, opBreg0+16, 0, opLit0+15, opAnd, opLit0+11, opGe, opLit0+3, opShl, opPlus)
	return [][]byte{usual.b, rare.b}
}

// FuzzSection reads a section of arbitrary bytes through, without a header,
// and asks for the rules of all it claims to describe.
func FuzzSection(f *testing.F) {
	for i, s := range seedSections() {
		f.Add(s, false, uint8(i))
		f.Add(s, true, uint8(i))
	}
	f.Fuzz(func(t *testing.T, data []byte, debug bool, arch uint8) {
		img := testImage(t, archs[arch%2], nil, 0, 0)
		s := &source{img: img, debug: debug, data: data, end: uint64(len(data)), cies: map[uint64]*cie{}}
		if !debug {
			s.start += imageBase + ehFrameAt
			s.end += imageBase + ehFrameAt
		}
		if len(data) == 0 {
			return
		}
		s.scan()
		tab := &Table{img: img, windows: new(windows), opened: 2, base: imageBase, sources: []*source{s}, kept: rows{all: new(rulePool)}}
		for i, e := range s.index {
			if i == 100 {
				break
			}
			if e.start >= e.end {
				t.Fatalf("FDE of [%#x, %#x)", e.start, e.end)
			}
			for _, addr := range []uint64{e.start, e.end - 1, e.start + (e.end-e.start)/2, e.start + 0xfff, e.start - 1} {
				checkRule(t, tab, addr)
			}
		}
	})
}

// checkRule compares the rule for an address with the row, with a CFA that
// leaves out what the linkage table pushes mended, and with itself.
func checkRule(t *testing.T, tab *Table, addr uint64) {
	t.Helper()
	row, start, end, err := tab.Row(addr)
	if err == nil {
		if start == tab.fde.start {
			w := tab.windows.take() // that Row has used
			row.CFA.Offset += w.prog.pushedBefore(end)
			tab.windows.give(w)
		}
		row.raiseCFA(row.pushed(tab.img.Arch()))
	}
	r := tab.Rule(addr)
	if again := tab.Rule(addr); again != r && *again != *r {
		t.Fatalf("%#x: another rule the second time", addr)
	}
	if r.Reason() != ReasonOf(err) {
		t.Fatalf("%#x: rule %v, row %v", addr, r.Reason(), err)
	}
	if err != nil {
		return
	}
	if addr < start || addr >= end {
		t.Fatalf("%#x: row of [%#x, %#x)", addr, start, end)
	}
	_, _, plt := pltExpression(tab.img.Arch(), []byte(row.Expression(row.CFA))) // compiled away
	if r.row != nil && *r.row != row && !plt {
		t.Fatalf("%#x: rule of another row", addr)
	}
	// Whatever it says, using it must end.
	w := NewWalker(anyMemory{arch: tab.img.Arch()}, NewGroup(), nil)
	in := NewFrame(w.arch, addr, 0x7000, 0x7100)
	in.Flags = Top | Interrupted
	var out Frame
	v, err := r.CallerFrame(w, &in, &out)
	if (v == Failed) != (err != nil) {
		t.Fatalf("%#x: %v, %v", addr, v, err)
	}
}

// anyMemory is wordMemory of any architecture.
type anyMemory struct {
	wordMemory
	arch *procstate.Arch
}

func (m anyMemory) Arch() *procstate.Arch { return m.arch }

// FuzzHeader searches an arbitrary .eh_frame_hdr over arbitrary FDEs.
func FuzzHeader(f *testing.F) {
	var c cfiBuilder
	cie := c.zR()
	for i := range uint64(5) {
		c.fde(cie, codeBase+i*16, 8)
	}
	img := c.image(f, procstate.AMD64, nil)
	whole := make([]byte, img.Size()-ehFrameAt)
	if _, err := img.ReadAt(whole, ehFrameAt); err != nil {
		f.Fatal(err)
	}
	f.Add(whole, uint16(len(c.b)+4), uint64(codeBase))
	f.Add(whole[:len(whole)-9], uint16(len(c.b)+4), uint64(codeBase+0x40))
	f.Fuzz(func(t *testing.T, body []byte, at uint16, addr uint64) {
		hdrAt := min(uint64(at), uint64(len(body)))
		img := testImage(t, procstate.AMD64, body, ehFrameAt+hdrAt, uint64(len(body))-hdrAt)
		for _, a := range []uint64{addr, codeBase, codeBase + 0x47, 0, ^uint64(0)} {
			// Where the header is out of order, what is found by searching
			// depends on what was found before.
			checkRule(t, NewTable(img), a)
		}
	})
}

// FuzzProgram executes arbitrary call frame instructions, of a CIE and of an
// FDE.
func FuzzProgram(f *testing.F) {
	f.Add([]byte{cfaDefCFA, 7, 8, cfaOffset | 16, 1}, []byte{cfaAdvanceLoc | 4, cfaDefCFAOffset, 32, cfaOffset | 3, 3}, uint8(0))
	f.Add([]byte{cfaDefCFA, 31, 0}, []byte{cfaNegateRAState, cfaAdvanceLoc | 4, cfaDefCFAOffset, 32, cfaOffset | 30, 3}, uint8(1))
	f.Fuzz(func(t *testing.T, initial, code []byte, arch uint8) {
		if len(initial)+len(code) > 4000 {
			return
		}
		var c cfiBuilder
		cie := c.cie("zR", []byte{pePcrel | peSdata4}, 16+14*(arch%2), initial...)
		c.fde(cie, codeBase, 0x2800, code...)
		tab := NewTable(c.image(t, archs[arch%2], nil))
		for _, off := range []uint64{0, 1, 4, 0x100, 0xfff, 0x1000, 0x27ff, 0x2800} {
			checkRule(t, tab, codeBase+off)
		}
	})
}
