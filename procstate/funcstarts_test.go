package procstate

import (
	"debug/elf"
	"os"
	"slices"
	"testing"
)

func openTestImage(t *testing.T, path string) *Image {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	im, err := NewImageBytes(b, path)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// The starts hold every function symbol that debug/elf reads.
func TestFuncStarts(t *testing.T) {
	for _, path := range []string{"/bin/sh", "/bin/bash"} {
		f, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		syms, _ := f.Symbols()
		dyn, _ := f.DynamicSymbols()
		starts := openTestImage(t, path).FuncStarts()
		if !slices.IsSorted(starts) || len(slices.Compact(slices.Clone(starts))) != len(starts) {
			t.Errorf("%s: starts are not sorted and unique", path)
		}
		for _, s := range append(syms, dyn...) {
			if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Section == elf.SHN_UNDEF {
				continue
			}
			if _, ok := slices.BinarySearch(starts, s.Value); !ok {
				t.Errorf("%s: %s at %#x is missing", path, s.Name, s.Value)
			}
		}
		if len(starts) < 10 {
			t.Errorf("%s: only %d starts", path, len(starts))
		}
	}
}

// What is in a range are those of all starts that are.
func TestFuncStartsIn(t *testing.T) {
	for _, path := range []string{"/bin/sh", "/bin/bash", compile(t, nothing, "gcc", "-static")} {
		im := openTestImage(t, path)
		starts := im.FuncStarts()
		check := func(lo, hi uint64) {
			t.Helper()
			i, _ := slices.BinarySearch(starts, lo)
			j, _ := slices.BinarySearch(starts, hi)
			if got := im.FuncStartsIn(lo, hi); !slices.Equal(got, starts[i:max(i, j)]) {
				t.Errorf("%s: in [%#x, %#x) are %#x, want %#x", path, lo, hi, got, starts[i:max(i, j)])
			}
		}
		first, last := starts[0], starts[len(starts)-1]
		check(first, last+1)
		check(0, first)
		check(last, last)
		check(last, first)
		check(last+1, last+1000)
		for i := 0; i < len(starts)-1; i += 1 + len(starts)/20 {
			check(starts[i], starts[i]+1)
			check(starts[i]+1, starts[i+1])
			check(starts[i]-1, starts[i+1]+1000)
			check(starts[i], starts[i]+100_001)
		}
	}
}

// Around an address is the function that a global symbol gives the size of, if nothing else begins in it.
func TestFunctionAround(t *testing.T) {
	const source = `__asm__(".text\n"
	".globl f, same, nested, other, empty\n.type f, @function\n.type same, @function\n.type nested, @function\n"
	".type other, @function\n.type hidden, @function\n.type empty, @function\n.type inner, @function\n"
	"f: same: .skip 32, 0x90\n.size f, 32\n.size same, 32\n"
	".skip 16, 0x90\n"
	"nested: .skip 16, 0x90\ninner: .skip 16, 0x90\n.size nested, 32\n.size inner, 16\n"
	"other: .skip 32, 0x90\n.size other, 24\n"
	"hidden: .skip 32, 0x90\n.size hidden, 32\n"
	"empty: .skip 32, 0x90\n"
	".globl two, alias\n.type two, @function\n.type alias, @function\n"
	"two: alias: .skip 32, 0x90\n.size two, 32\n.size alias, 16\n"
	".globl last\n.type last, @function\nlast: .skip 32, 0x90\n.size last, 32\n");
`
	im := openTestImage(t, compile(t, source, "gcc", "-c"))
	for _, c := range []struct {
		vaddr, lo, hi uint64
		alone         bool
	}{
		{0, 0, 32, true}, {31, 0, 32, true}, // f, with another name
		{32, 32, 48, false}, {47, 32, 48, false}, // between two
		{48, 48, 64, false}, {64, 64, 80, false}, // another begins in it; that one is local
		{80, 80, 104, true}, {103, 80, 104, true}, {104, 104, 112, false}, // the last bytes are nobody's
		{112, 112, 144, false}, // local
		{144, 144, 176, false}, // without a size
		{176, 176, 208, false}, // with two
		{208, 208, 240, true}, {239, 208, 240, true}, {240, 240, ^uint64(0), false},
	} {
		if lo, hi, alone := im.FunctionAround(c.vaddr); lo != c.lo || hi != c.hi || alone != c.alone {
			t.Errorf("around %d: [%d, %d), %t, want [%d, %d), %t", c.vaddr, lo, hi, alone, c.lo, c.hi, c.alone)
		}
	}
}

// A file whose .eh_frame_hdr claims more entries than it has gives none.
func TestFuncStartsDamagedHeader(t *testing.T) {
	b, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	im, err := NewImageBytes(b, "sh")
	if err != nil {
		t.Fatal(err)
	}
	p, ok := im.Prog(elf.PT_GNU_EH_FRAME)
	if !ok {
		t.Fatal("no PT_GNU_EH_FRAME")
	}
	entries := func() (n int) {
		if t, ok := im.fdeTable(); ok {
			im.eachFDEStart(t, func(uint64) { n++ })
		}
		return n
	}
	before := entries()
	for i := range 4 {
		b[p.Off+8+uint64(i)] = 0xff
	}
	if after := entries(); before == 0 || after != 0 {
		t.Errorf("%d entries before, %d after the count was damaged", before, after)
	}
	if n := len(im.FuncStarts()); n != 0 {
		t.Fatalf("%d functions are left", n)
	}
	if near := im.FuncStartsIn(p.Vaddr-1<<16, p.Vaddr+1<<16); len(near) != 0 {
		t.Errorf("near an address of a file without functions are %#x", near)
	}
}
