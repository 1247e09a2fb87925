package dataflow

import (
	"debug/elf"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// Functions that are looked at alone have the rules that their call frame information has, by
// their symbols or, where these are hidden, by what their code tells.
func TestAloneAgainstCFI(t *testing.T) {
	testenv.Needs(t, "readelf")
	for _, c := range []struct {
		path   string
		symbol float64 // percent of the instructions that have rules by symbols, at least
		code   float64 // and by the code
	}{
		{"/lib/x86_64-linux-gnu/libm.so.6", 50, 20},
		{"/lib/x86_64-linux-gnu/libcrypto.so.3", 25, 10},
		{"/usr/aarch64-linux-gnu/lib/libc.so.6", 30, 4},
		{"/usr/aarch64-linux-gnu/lib/libm.so.6", 60, 20},
	} {
		t.Run(c.path, func(t *testing.T) {
			if _, err := os.Stat(c.path); err != nil {
				testenv.Lacks(t, "%v", err)
			}
			if !strings.HasSuffix(c.path, "/libm.so.6") && !testenv.Long() {
				t.Skip("takes longer than libm: SWBPF_LONG is not set")
			}
			im := hiding(t, c.path)
			whole, err := New(im)
			if err != nil {
				t.Fatal(err)
			}
			fs := NewFunctions(im)
			var known *Code
			lo, hi := uint64(0), uint64(0)
			symbol := compareRulesWithCFI(t, c.path, whole, 0, func(_ *cfiFunc, vaddr uint64) (*Rule, bool) {
				if vaddr < lo || vaddr >= hi {
					var alone bool
					lo, hi, alone = im.FunctionAround(vaddr)
					if known = nil; alone {
						known, _ = fs.Function(lo, hi)
					}
				}
				if known == nil {
					return nil, false
				}
				return known.RuleAt(vaddr)
			})
			fs = NewFunctions(im)
			start, end, asked := uint64(0), uint64(0), (*cfiFunc)(nil)
			code := compareRulesWithCFI(t, c.path, whole, 0, func(fn *cfiFunc, vaddr uint64) (*Rule, bool) {
				if vaddr >= start && vaddr < end {
					return known.RuleAt(vaddr)
				}
				if asked != nil && asked.lo == fn.lo { // once for each, since it takes long
					return nil, false
				}
				asked = fn
				known, start, end = fs.Around(0, vaddr, math.MaxUint64)
				if known == nil {
					start, end = 0, 0
					return nil, false
				}
				return known.RuleAt(vaddr)
			})
			for _, y := range []struct {
				*tally
				least float64
			}{{symbol, c.symbol}, {code, c.code}} {
				if n := float64(y.insts) / 100; float64(y.exact)/n < y.least || float64(y.wrong)/n > 0.002 || float64(y.savedWrong)/n > 0.002 {
					t.Error(y)
				}
				t.Log(y)
			}
		})
	}
}

// What other code has to do with, or what may not return, is nothing that stands alone.
func TestAlone(t *testing.T) {
	pad := func(code string) string { return code + strings.Repeat("\x90", -len(code)&15) }
	end := pad("\x50\x58\xc3") // of the function before
	for name, c := range map[string]struct {
		code               string
		at                 int // of an instruction in it, by which it is looked for
		byBounds, byItself bool
	}{
		"push, pop, ret":                      {"\x53\x31\xdb\x5b\xc3", 3, true, true},
		"a loop":                              {"\x53\x31\xdb\xff\xc3\x75\xfc\x5b\xc3", 5, true, true},
		"a call of a subroutine that returns": {"\x53\xe8\xea\xff\xff\xff\x31\xdb\x5b\xc3", 6, true, true},
		"a call of what is not known":         {"\x53\xff\xd0\x31\xdb\x5b\xc3", 3, true, false},
		"a jump to another function":          {"\x53\x31\xdb\x5b\xeb\xea", 3, true, false},
		"a jump with the frame still there":   {"\x53\x31\xdb\xeb\xeb\x5b\xc3", 1, false, false},
		"a conditional one":                   {"\x53\x31\xdb\x74\xeb\x5b\xc3", 1, false, false},
		"a jump to where a register says":     {"\x53\x31\xdb\xff\xe0\x5b\xc3", 1, false, false},
		"rbx is lost":                         {"\x31\xdb\xc3", 0, false, false},
		"the frame is":                        {"\x53\x31\xc0\xc3", 1, false, false},
		"the rest of a frame":                 {"\x31\xc0\x5b\xc3", 0, false, false},
		"what runs on behind its end":         {"\x53\x85\xff\x74\x02\x5b\xc3\x31\xc0", 1, false, false},
		"code that nothing reaches":           {"\x53\x5b\xc3\x31\xc0\x5b\xc3", 1, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			im := codeImage(t, elf.EM_X86_64, []byte(end+pad(c.code)+end))
			fs := NewFunctions(im)
			lo := uint64(0x1000 + len(end))
			hi := lo + uint64(len(c.code))
			code, err := fs.Function(lo, hi)
			if byBounds := err == nil; byBounds != c.byBounds {
				t.Errorf("by its bounds: %t (%v)", byBounds, err)
			}
			if code != nil {
				if _, ok := code.RuleAt(lo); !ok {
					t.Error("no rule where it begins")
				}
			}
			_, start, _ := fs.Around(0, lo+uint64(c.at), math.MaxUint64)
			if byItself := start == lo; byItself != c.byItself {
				t.Errorf("by itself: %t (at %#x)", byItself, start)
			}
		})
	}
}
