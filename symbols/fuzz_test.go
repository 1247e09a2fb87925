package symbols

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime/metrics"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

const fuzzSource = `
static int leaf(int x) { return x * x + 1; }
static inline __attribute__((always_inline)) int mid(int x) { return leaf(x) ^ leaf(x + 1); }
int top(int x) { int s = 0; for (int i = 0; i < x; i++) s += mid(i); return x > 5 ? s : mid(x); }
void abort(void);
int other(int x) { if (x) abort(); return top(x) + top(x + 1); }
`

// fuzzFiles builds small files with debug information of several versions.
func fuzzFiles(f *testing.F) (paths []string) {
	dir := f.TempDir()
	write(f, dir, "a.c", fuzzSource)
	for i, args := range [][]string{
		{"gcc", "-gdwarf-5", "-O2"}, {"gcc", "-gdwarf-4", "-O2"}, {"gcc", "-gdwarf-2", "-gstrict-dwarf", "-O1"},
		{"clang-19", "-gdwarf-5", "-O2"}, {"gcc", "-g", "-O2", "-m32"}, {"gcc", "-g", "-gz=zlib", "-O2", "-fno-asynchronous-unwind-tables"},
		{"clang-19", "-g", "-gz=zstd", "-O2"},
	} {
		out := filepath.Join(dir, string(rune('a'+i))+".so")
		run(f, dir, append(args, "-shared", "-fPIC", "-nostdlib", "-o", out, "a.c")...)
		paths = append(paths, out)
	}
	return paths
}

// maxAllocated is what the questions of one fuzzed file may allocate, in bytes:
// all fuzzed files are small.
const maxAllocated = 256 << 20

// boundAllocations begins to count what is allocated; the result ends it and
// fails the test when it was too much.
func boundAllocations(t testing.TB) (end func()) {
	allocated := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	begin := allocated()
	return func() {
		if n := allocated() - begin; n > maxAllocated {
			t.Errorf("allocated %d MB", n>>20)
		}
	}
}

// FuzzFile asks a Symbolizer about addresses of a damaged file.
func FuzzFile(f *testing.F) {
	for _, path := range fuzzFiles(f) {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		im, err := procstate.NewImageBytes(b, "fuzz")
		if err != nil {
			return
		}
		defer boundAllocations(t)()
		s := New(Options{DebugDirs: []string{}, Memory: 16 << 20})
		defer s.Close()
		for _, sec := range im.Sections() {
			for _, a := range []uint64{sec.Vaddr, sec.Vaddr + sec.Size/2, sec.Vaddr + sec.Size - 1} {
				for _, l := range s.Lines(nil, im, a) {
					if l.Function == "" {
						t.Errorf("%#x: %+v", a, l)
					}
				}
			}
		}
	})
}

// FuzzDWARF reads damaged debug sections.
func FuzzDWARF(f *testing.F) {
	names := []string{".debug_info", ".debug_abbrev", ".debug_line", ".debug_str", ".debug_line_str", ".debug_ranges", ".debug_rnglists", ".debug_aranges", ".debug_addr", ".debug_str_offsets"}
	for _, path := range fuzzFiles(f) {
		im := open(f, path)
		var b [10][]byte
		for i, n := range names {
			if s, ok := im.Section(n); ok {
				var err error
				if b[i], err = im.SectionBytes(s, 0); err != nil {
					f.Fatal(err)
				}
			}
		}
		f.Add(b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9])
	}
	f.Fuzz(func(t *testing.T, info, abbrev, line, str, lineStr, ranges, rnglists, aranges, addr, strOffsets []byte) {
		section := func(b []byte) dwarfSection {
			return dwarfSection{r: bytes.NewReader(b), size: uint64(len(b)), windowLen: 64, budget: &budget{}}
		}
		const text = 0x1000
		d := &dwarfData{
			group: &fileGroup{}, owner: New(Options{}), img: &procstate.Image{}, base: text, codeRanges: []codeRange{{text, text + 0x1000}}, altDone: true, dwpDone: true,
			info: section(info), abbrev: section(abbrev), line: section(line), strings: section(str), lineStr: section(lineStr),
			ranges: section(ranges), rnglists: section(rnglists), rangeOffsets: section(rnglists), aranges: section(aranges), addr: section(addr), strOffsets: section(strOffsets),
		}
		defer boundAllocations(t)()
		for a := uint64(text); a < text+0x1000; a += 16 {
			out, ok := d.lines(nil, a, Line{})
			if ok != (len(out) > 0) {
				t.Errorf("%#x: %v %+v", a, ok, out)
			}
			for _, l := range out {
				if l.Function == "" {
					t.Errorf("%#x: %+v", a, l)
				}
			}
		}
	})
}
