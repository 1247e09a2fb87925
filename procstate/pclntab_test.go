package procstate

import (
	"bytes"
	"debug/elf"
	"debug/gosym"
	"encoding/binary"
	"errors"
	"io"
	"math/rand"
	"os"
	"runtime"
	"strings"
	"testing"
)

const goProgram = `package main

import (
	"fmt"
	"os"
	"sort"
)

type num interface{ ~int | ~float64 }

//go:noinline
func sum[T num](v []T) (s T) {
	for _, x := range v {
		s = add(s, x)
	}
	return s
}

func add[T num](a, b T) T { return twice(a) + b }
func twice[T num](a T) T  { return a + a }

func main() {
	v := []int{3, 1, 2}
	sort.Slice(v, func(i, j int) bool { return v[i] < v[j] })
	fmt.Println(sum(v), sum([]float64{1}), len(os.Args))
}
`

// buildGo opens what is built of goProgram.
func buildGo(t *testing.T, args ...string) *Image {
	t.Helper()
	return openTestFile(t, goBuilt(t, "local", runtime.GOARCH, goProgram, args...))
}

// gosymTable is the standard library's reading of the same table.
func gosymTable(t *testing.T, path string, text uint64) *gosym.Table {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := f.Section(".gopclntab")
	if s == nil {
		s = f.Section(".data.rel.ro.gopclntab")
	}
	b, err := s.Data()
	if err != nil {
		t.Fatal(err)
	}
	tab, err := gosym.NewTable(nil, gosym.NewLineTable(b, text))
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func TestPclntabAgainstGosym(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
	}{
		{"exe", nil},
		{"stripped", []string{"-ldflags=-s -w"}},
		{"pie", []string{"-buildmode=pie", "-ldflags=-s -w"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			im := buildGo(t, tc.args...)
			tab, err := Pclntab(im)
			if err != nil {
				t.Fatal(err)
			}
			want := gosymTable(t, im.Path, tab.textStart)
			if tab.Len() != len(want.Funcs) || tab.Len() < 1000 {
				t.Fatalf("%d functions, gosym has %d", tab.Len(), len(want.Funcs))
			}
			r := rand.New(rand.NewSource(1))
			for i := range tab.Len() {
				f, ok := tab.At(i)
				w := want.Funcs[i]
				if !ok || f.Entry != w.Entry || f.End != w.End || f.Name() != w.Name {
					t.Fatalf("function %d: %#x-%#x %s, want %#x-%#x %s", i, f.Entry, f.End, f.Name(), w.Entry, w.End, w.Name)
				}
				if f.End == f.Entry {
					continue
				}
				for _, a := range []uint64{f.Entry, f.End - 1, f.Entry + uint64(r.Int63n(int64(f.End-f.Entry)))} {
					g, ok := tab.Func(a)
					if !ok || g.Entry != f.Entry {
						t.Fatalf("%#x: found %s, want %s", a, g.Name(), f.Name())
					}
					lines := tab.Lines(nil, &g, a)
					file, line, _ := want.PCToLine(a)
					if file == "" || line <= 0 { // not told
						file, line = "", 0
					}
					if lines[0].File != file || int(lines[0].Line) != line {
						t.Fatalf("%#x in %s: %s:%d, want %s:%d", a, f.Name(), lines[0].File, lines[0].Line, file, line)
					}
				}
			}
			start, end := tab.Range()
			for _, a := range []uint64{0, start - 1, end, ^uint64(0)} {
				if f, ok := tab.Func(a); ok {
					t.Errorf("%#x is in %s", a, f.Name())
				}
			}
		})
	}
}

func TestPclntabInlines(t *testing.T) {
	for _, args := range [][]string{nil, {"-ldflags=-s -w"}, {"-buildmode=pie", "-ldflags=-s -w"}} {
		im := buildGo(t, args...)
		tab, err := Pclntab(im)
		if err != nil {
			t.Fatal(err)
		}
		var seen bool
		for i := range tab.Len() {
			f, ok := tab.At(i)
			if !ok || GoName(f.Name()) != "main.sum[...]" {
				continue
			}
			for a := f.Entry; a < f.End; a++ {
				l := tab.Lines(nil, &f, a)
				if len(l) != 3 {
					continue
				}
				seen = true
				if GoName(l[0].Name) != "main.twice[...]" || l[0].Line != 20 || !l[0].Inlined || l[0].StartLine != 20 ||
					GoName(l[1].Name) != "main.add[...]" || l[1].Line != 19 || !l[1].Inlined ||
					GoName(l[2].Name) != "main.sum[...]" || l[2].Line != 14 || l[2].Inlined || l[2].StartLine != 12 {
					t.Fatalf("%v: %#x: %+v", args, a, l)
				}
			}
		}
		if !seen {
			t.Errorf("%v: no address with two inlined calls", args)
		}
	}
}

func TestPclntabNone(t *testing.T) {
	im := openTestFile(t, "/bin/sh")
	if _, err := Pclntab(im); err == nil || !strings.Contains(err.Error(), ErrNoPclntab.Error()) {
		t.Errorf("error is %v", err)
	}
}

// meteredReader counts the bytes that are read.
type meteredReader struct {
	io.ReaderAt
	n int64
}

func (r *meteredReader) ReadAt(b []byte, off int64) (int, error) {
	n, err := r.ReaderAt.ReadAt(b, off)
	r.n += int64(n)
	return n, err
}

// TestPclntabImposters: a file full of what looks like a table, or like module
// data, is read through a bounded number of times.
func TestPclntabImposters(t *testing.T) {
	const size = 1 << 18
	le := binary.LittleEndian
	file := func() []byte {
		b := make([]byte, size)
		copy(b, elf.ELFMAG)
		b[4], b[5], b[6] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
		le.PutUint16(b[16:], uint16(elf.ET_DYN))
		le.PutUint16(b[18:], uint16(elf.EM_X86_64))
		le.PutUint64(b[32:], 64) // of program headers
		le.PutUint16(b[54:], 56)
		le.PutUint16(b[56:], 2)
		for i, typ := range []elf.ProgType{elf.PT_LOAD, elf.PT_DYNAMIC} {
			p := b[64+56*i:]
			le.PutUint32(p, uint32(typ))
			le.PutUint32(p[4:], uint32(elf.PF_R|elf.PF_W|elf.PF_X))
			le.PutUint64(p[32:], size)
			le.PutUint64(p[40:], size)
		}
		dynamic := b[64+56:]
		le.PutUint64(dynamic[8:], 0x200)
		le.PutUint64(dynamic[32:], 0x100)
		for i, v := range []uint64{uint64(elf.DT_RELA), 0x1000, uint64(elf.DT_RELASZ), size - 0x1000, 0} {
			le.PutUint64(b[0x200+8*i:], v)
		}
		return b
	}
	header := func(b []byte, nfunc uint64) {
		le.PutUint32(b, pclntab120)
		b[6], b[7] = 1, 8
		le.PutUint64(b[8:], nfunc)
	}
	tables, data := file(), file()
	for at := 0x1000; at+80 <= size; at += 80 {
		header(tables[at:], 0)
	}
	header(data[0x400:], 1)
	for at := 0x1000; at+24 <= size; at += 24 { // relocations: a pointer to the table everywhere
		le.PutUint64(data[at:], uint64(at))
		le.PutUint64(data[at+8:], uint64(elf.R_X86_64_RELATIVE))
		le.PutUint64(data[at+16:], 0x400)
	}
	for name, b := range map[string][]byte{"tables": tables, "module data": data} {
		r := &meteredReader{ReaderAt: bytes.NewReader(b)}
		im, err := NewImage(r, size, name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Pclntab(im); err == nil {
			t.Errorf("%s: there is one", name)
		}
		if limit := int64(3 * maxCandidates * size); r.n > limit {
			t.Errorf("%s: %d bytes were read of a file of %d", name, r.n, size)
		}
	}
}

func TestPclntabAllocs(t *testing.T) {
	im := buildGo(t)
	tab, err := Pclntab(im)
	if err != nil {
		t.Fatal(err)
	}
	start, end := tab.Range()
	n := testing.AllocsPerRun(3, func() { // the first of which reads the file
		for pc := start; pc < end; pc += 4093 {
			if f, ok := tab.Func(pc); ok {
				tab.SPDelta(&f, pc)
				_ = f.Name()
			}
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestPclntabMemory checks that of a table only what is asked for is kept, and
// nothing after Forget, which leaves names as they are.
func TestPclntabMemory(t *testing.T) {
	im := buildGo(t)
	if _, err := GoRuntimeOf(im); err != nil { // looks through all functions
		t.Fatal(err)
	}
	tab, err := Pclntab(im)
	if err != nil {
		t.Fatal(err)
	}
	whole := int64(tab.data.size)
	few := tab.Memory()
	if few > whole/4 {
		t.Errorf("keeps %d bytes of %d before anything was asked for", few, whole)
	}
	var names []string
	for i := range tab.Len() {
		f, _ := tab.At(i)
		names = append(names, f.Name())
	}
	if all := tab.Memory(); all <= few || all > whole*5/4 {
		t.Errorf("keeps %d bytes of %d after all names, %d before", all, whole, few)
	}
	tab.Forget()
	if none := tab.Memory(); none > whole/100 {
		t.Errorf("keeps %d bytes of %d after Forget", none, whole)
	}
	for i, want := range names {
		if f, ok := tab.At(i); !ok || f.Name() != want {
			t.Fatalf("function %d: %q, was %q", i, f.Name(), want)
		}
	}
}

// absentReader fails to read while err is set.
type absentReader struct {
	io.ReaderAt
	err error
}

func (r *absentReader) ReadAt(b []byte, off int64) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	return r.ReaderAt.ReadAt(b, off)
}

// A file that cannot be read now says so, and is no bad file for ever.
func TestPclntabUnreadable(t *testing.T) {
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	r := &absentReader{ReaderAt: f}
	im, err := NewImage(r, st.Size(), path)
	if err != nil {
		t.Fatal(err)
	}
	r.err = errors.New("no such luck")
	if _, err := Pclntab(im); !errors.Is(err, r.err) {
		t.Errorf("unreadable: %v, want %v", err, r.err)
	}
	r.err = nil
	if tab, err := Pclntab(im); err != nil || tab.Len() == 0 {
		t.Errorf("readable again: %v", err)
	}
}
