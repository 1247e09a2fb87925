package procstate

import (
	"bytes"
	"debug/elf"
	"debug/gosym"
	"encoding/binary"
	"math/rand"
	"os"
	"testing"

	"github.com/go-delve/delve/pkg/dwarf/frame"
)

// to116 writes a table of Go 1.20 or later in the layout of Go 1.16.
func to116(t *testing.T, tab *GoTable) []byte {
	t.Helper()
	le := binary.LittleEndian
	var pcln []byte
	var functab []uint64
	for i := range tab.Len() {
		f, ok := tab.At(i)
		if !ok {
			t.Fatalf("function %d", i)
		}
		functab = append(functab, f.Entry, uint64(len(pcln)))
		pcln = le.AppendUint64(pcln, f.Entry)
		for k := range uint64(8) {
			pcln = le.AppendUint32(pcln, f.field(k))
		}
		pcln = append(pcln, 0, f.Flag, 0, 0)
		for k := range uint64(f.field(6)) {
			v, _ := tab.word(f.rec+tab.fixedSize()+4*k, 4)
			pcln = le.AppendUint32(pcln, uint32(v))
		}
		for len(pcln)%8 != 0 {
			pcln = append(pcln, 0)
		}
	}
	_, end := tab.Range()
	functab = append(functab, end)
	head := len(functab) * 8
	var ft []byte
	for i, v := range functab {
		if i%2 == 1 {
			v += uint64(head)
		}
		ft = le.AppendUint64(ft, v)
	}
	data := make([]byte, tab.data.size)
	if err := tab.img.readFull(data, tab.data.off); err != nil {
		t.Fatal(err)
	}
	parts := [][]byte{
		data[tab.funcNames:tab.cutab], data[tab.cutab:tab.filetab], data[tab.filetab:tab.pctab], data[tab.pctab:tab.pcln],
		append(ft, pcln...),
	}
	out := le.AppendUint32(nil, pclntab116)
	out = append(out, 0, 0, byte(tab.minLC), 8)
	out = le.AppendUint64(out, uint64(tab.Len()))
	out = le.AppendUint64(out, 1<<16)
	off := uint64(8 + 7*8)
	for _, p := range parts {
		out = le.AppendUint64(out, off)
		off += uint64(len(p)+7) &^ 7
	}
	for _, p := range parts {
		out = append(out, p...)
		for len(out)%8 != 0 {
			out = append(out, 0)
		}
	}
	return out
}

func TestPclntab116(t *testing.T) {
	im := buildGo(t)
	real, err := Pclntab(im)
	if err != nil {
		t.Fatal(err)
	}
	data := to116(t, real)
	tab, err := parsePclntab(im, inMemory(data), 0x1000)
	if err != nil {
		t.Fatal(err)
	}
	want, err := gosym.NewTable(nil, gosym.NewLineTable(data, 0))
	if err != nil {
		t.Fatal(err)
	}
	if tab.Len() != len(want.Funcs) {
		t.Fatalf("%d functions, gosym has %d", tab.Len(), len(want.Funcs))
	}
	r := rand.New(rand.NewSource(1))
	for i := range tab.Len() {
		f, ok := tab.At(i)
		if w := want.Funcs[i]; !ok || f.Entry != w.Entry || f.Name() != w.Name {
			t.Fatalf("function %d: %#x %s, want %#x %s", i, f.Entry, f.Name(), w.Entry, w.Name)
		}
		if f.End == f.Entry {
			continue
		}
		a := f.Entry + uint64(r.Int63n(int64(f.End-f.Entry)))
		g, _ := real.At(i)
		file, line := f.fileLine(a)
		wantFile, wantLine := g.fileLine(a)
		if file != wantFile || line != wantLine {
			t.Fatalf("%#x in %s: %s:%d, want %s:%d", a, f.Name(), file, line, wantFile, wantLine)
		}
		d, ok := tab.SPDelta(&f, a)
		if wantDelta, wantOK := real.SPDelta(&g, a); d != wantDelta || ok != wantOK {
			t.Fatalf("%#x in %s: delta %d, want %d", a, f.Name(), d, wantDelta)
		}
	}
}

// TestPclntabWithoutSections finds the table by its header.
func TestPclntabWithoutSections(t *testing.T) {
	for _, args := range [][]string{nil, {"-buildmode=pie"}} {
		im := buildGo(t, args...)
		whole, err := Pclntab(im)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(im.Path)
		if err != nil {
			t.Fatal(err)
		}
		copy(b[40:48], make([]byte, 8)) // e_shoff
		copy(b[60:64], make([]byte, 4)) // e_shnum, e_shstrndx
		bare, err := NewImageBytes(b, "bare")
		if err != nil {
			t.Fatal(err)
		}
		tab, err := Pclntab(bare)
		if err != nil {
			t.Fatal(err)
		}
		if tab.vaddr != whole.vaddr || tab.textStart != whole.textStart || tab.gofunc != whole.gofunc || tab.Len() != whole.Len() {
			t.Errorf("%v: table at %#x, text %#x, gofunc %#x, want %#x, %#x, %#x", args, tab.vaddr, tab.textStart, tab.gofunc, whole.vaddr, whole.textStart, whole.gofunc)
		}
	}
}

// TestSPDeltaAgainstDebugFrame compares with the CFA that the compiler wrote
// to .debug_frame: the return address lies at SP+delta, below the CFA.
func TestSPDeltaAgainstDebugFrame(t *testing.T) {
	im := buildGo(t)
	tab, err := Pclntab(im)
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(im.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := f.Section(".debug_frame").Data()
	if err != nil {
		t.Fatal(err)
	}
	fdes, err := frame.Parse(b, binary.LittleEndian, 0, 8, 0)
	if err != nil {
		t.Fatal(err)
	}
	const rsp = 7
	checked := 0
	for i := range tab.Len() {
		fn, ok := tab.At(i)
		if !ok || fn.Flag&GoFuncSPWrite != 0 {
			continue
		}
		fde, err := fdes.FDEForPC(fn.Entry)
		if err != nil {
			continue
		}
		for a := fn.Entry; a < fn.End && a < fde.End(); a += 3 {
			delta, ok := tab.SPDelta(&fn, a)
			fc, err := fde.EstablishFrame(a)
			if !ok || err != nil || fc.CFA.Reg != rsp {
				continue
			}
			if int64(delta)+8 != fc.CFA.Offset {
				t.Fatalf("%#x in %s: delta %d, CFA is SP+%d", a, fn.Name(), delta, fc.CFA.Offset)
			}
			checked++
		}
	}
	if checked < 10000 {
		t.Errorf("only %d addresses", checked)
	}
}

func FuzzPclntab(f *testing.F) {
	// A table of three functions, in each of the layouts.
	le := binary.LittleEndian
	for _, magic := range []uint32{pclntab116, pclntab118, pclntab120} {
		b := le.AppendUint32(nil, magic)
		b = append(b, 0, 0, 1, 8)
		names, pctab := []byte("\x00main.f\x00main.g[int]\x00"), []byte{0, 2, 10, 4, 30, 0}
		head := uint64(8 + 8*8)
		for _, v := range []uint64{3, 1, 0x1000, head, head + 24, head + 32, head + 40, head + 48} {
			if magic == pclntab116 && v == 0x1000 {
				continue
			}
			b = le.AppendUint64(b, v)
		}
		for uint64(len(b)) < head {
			b = append(b, 0)
		}
		b = append(append(b, names...), make([]byte, 24-len(names))...)
		b = append(b, 1, 0, 0, 0, 0, 0, 0, 0, 'a', '.', 'g', 'o', 0, 0, 0, 0)
		b = append(append(b, pctab...), 0, 0)
		for i := range uint32(7) {
			b = le.AppendUint32(b, i/2*40)
		}
		b = append(b, bytes.Repeat([]byte{1, 0, 0, 0}, 60)...)
		f.Add(b, uint64(0x1010))
	}
	im := &Image{Path: "fuzz"}
	f.Fuzz(func(t *testing.T, b []byte, vaddr uint64) {
		tab, err := parsePclntab(im, inMemory(b), 0x400000)
		if err != nil {
			return
		}
		tab.gofunc = 0x400000
		for i := range min(tab.Len(), 10) {
			fn, ok := tab.At(i)
			if !ok {
				continue
			}
			for _, a := range []uint64{fn.Entry, fn.End - 1, vaddr} {
				if l := tab.Lines(nil, &fn, a); len(l) == 0 || len(l) > maxGoInline+1 {
					t.Errorf("%d lines", len(l))
				}
				tab.SPDelta(&fn, a)
			}
		}
		if fn, ok := tab.Func(vaddr); ok && (vaddr < fn.Entry || vaddr >= fn.End) {
			t.Errorf("%#x is not in %#x-%#x", vaddr, fn.Entry, fn.End)
		}
	})
}
