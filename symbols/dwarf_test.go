package symbols

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

const cxxSource = `#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>
namespace outer { namespace {
struct S { int a; std::string b; bool operator<(const S &o) const { return a < o.a || b < o.b; } };
template <class T> T sum(const std::vector<T> &v) { T t{}; for (auto &x : v) t += x; return t; }
}}
static inline __attribute__((always_inline)) int leaf(int x) { return x * x + 1; }
static inline __attribute__((always_inline)) int middle(int x) { return leaf(x) ^ leaf(x + 1); }
__attribute__((noinline)) int top(int x) {
	struct L { static int g(int y) { return y * 3 + 1; } };
	auto l = [&](int z) { return L::g(z) + middle(x); };
	if (x > 1000) { std::printf("%d\n", l(x)); throw x; }
	return l(x) + l(x + 1);
}
int main(int argc, char **argv) {
	std::vector<outer::S> v;
	for (int i = 0; i < argc; i++) v.push_back(outer::S{i, argv[i]});
	std::sort(v.begin(), v.end());
	std::vector<int> n;
	for (auto &s : v) n.push_back(top(s.a));
	return outer::sum(n);
}
`

// cSource has 20 functions with nested inlined calls.
func cSource() string {
	var b strings.Builder
	for i := range 20 {
		n := fmt.Sprint(i)
		b.WriteString(strings.NewReplacer("leaf", "leaf"+n, "mid", "mid"+n, "top", "top"+n, "other", "other"+n).Replace(fuzzSource))
	}
	return b.String() + "int main(int n, char **v) { (void)v; return other0(n) + other7(n); }\n"
}

const rustSource = `use std::collections::HashMap;
trait T { fn f(&self, x: u64) -> u64; }
struct A<X>(X);
impl<X: Into<u64> + Copy> T for A<X> { fn f(&self, x: u64) -> u64 { let s: u64 = self.0.into(); s * x + 1 } }
fn main() {
    let mut m: HashMap<String, Vec<u64>> = HashMap::new();
    for (i, a) in std::env::args().enumerate() { m.entry(a).or_default().push(i as u64); }
    let v: Vec<Box<dyn T>> = vec![Box::new(A(3u32)), Box::new(A(7u8))];
    let t: u64 = m.values().flat_map(|v| v.iter()).zip(v.iter().cycle()).map(|(x, t)| t.f(*x)).sum();
    println!("{t} {:?}", m);
}
`

// textAddresses returns up to n addresses spread over the code of a file.
func textAddresses(im *procstate.Image, n int) (addrs []uint64) {
	for _, s := range im.Sections() {
		if s.Name != ".text" {
			continue
		}
		step := max(s.Size/uint64(n), 1)
		for a := s.Vaddr; a < s.Vaddr+s.Size; a += step {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// frames are the logical frames at an address, one a line.
func frames(lines []Line) string {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%s %s:%d\n", l.SystemName, cleanPath(l.File), l.Line)
	}
	return b.String()
}

func cleanPath(p string) string {
	if p == "" {
		return "?"
	}
	return path.Clean(p)
}

// llvmFrames asks llvm-symbolizer for the frames at addresses.
func llvmFrames(t testing.TB, dir, file string, addrs []uint64) [][]Line {
	t.Helper()
	var in bytes.Buffer
	for _, a := range addrs {
		fmt.Fprintf(&in, "%#x\n", a)
	}
	testenv.Needs(t, "llvm-symbolizer-19")
	cmd := exec.Command("llvm-symbolizer-19", "-e", file, "-f", "-i", "--no-demangle", "--output-style=JSON")
	cmd.Dir, cmd.Stdin = dir, &in
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all [][]Line
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var r struct {
			Symbol []struct {
				FunctionName, FileName string
				Line                   int
			}
		}
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		var lines []Line
		for _, s := range r.Symbol {
			if s.FunctionName != "" {
				lines = append(lines, Line{SystemName: s.FunctionName, File: s.FileName, Line: s.Line})
			}
		}
		all = append(all, lines)
	}
	if len(all) != len(addrs) {
		t.Fatalf("%d answers to %d questions", len(all), len(addrs))
	}
	return all
}

// sameNames makes b use the names of a where both are symbols at one address
// of the file: which of several aliases is chosen differs.
func sameNames(at map[string]uint64, a, b []Line) {
	for i := range min(len(a), len(b)) {
		x, y := at[a[i].SystemName], at[b[i].SystemName]
		if x != 0 && x == y {
			b[i].SystemName = a[i].SystemName
		}
	}
}

func symbolAddresses(t testing.TB, file string) map[string]uint64 {
	t.Helper()
	at := map[string]uint64{}
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range syms {
		at[s.Name] = s.Value
	}
	return at
}

// TestDWARFAgainstLLVM compares functions, inlined calls, files and lines with
// llvm-symbolizer, for what compilers make of a few sources.
func TestDWARFAgainstLLVM(t *testing.T) {
	type program struct {
		name string
		cmds [][]string
	}
	programs := []program{
		{"g++", [][]string{{"g++", "-g", "-O2", "-o", "a", "a.cc"}}},
		{"g++ O0", [][]string{{"g++", "-g", "-O0", "-o", "a", "a.cc"}}},
		{"g++ LTO", [][]string{{"g++", "-g", "-O2", "-flto=1", "-o", "a", "a.cc"}}},
		{"g++ split, type units", [][]string{{"g++", "-gdwarf-5", "-O2", "-gsplit-dwarf", "-fdebug-types-section", "-o", "a", "a.cc"}}},
		{"gcc v3", [][]string{{"gcc", "-gdwarf-3", "-O2", "-o", "a", "a.c"}}},
		{"gcc v4 zlib", [][]string{{"gcc", "-gdwarf-4", "-gz=zlib", "-O2", "-o", "a", "a.c"}}},
		{"gcc v5 64 bit", [][]string{{"gcc", "-gdwarf-5", "-gdwarf64", "-O2", "-o", "a", "a.c"}}},
		{"gcc i386", [][]string{{"gcc", "-g", "-O2", "-m32", "-o", "a", "a.c"}}},
		{"gcc v4 package", [][]string{{"gcc", "-gdwarf-4", "-O2", "-gsplit-dwarf", "-o", "a", "a.c"}, {"dwp", "-e", "a", "-o", "a.dwp"}, {"sh", "-c", "rm *.dwo"}}},
		{"clang++ package", [][]string{{"clang++-19", "-g", "-O2", "-gsplit-dwarf", "-o", "a", "a.cc"}, {"llvm-dwp-19", "-e", "a", "-o", "a.dwp"}, {"sh", "-c", "rm *.dwo"}}},
		{"clang v4 zstd", [][]string{{"clang-19", "-gdwarf-4", "-gz=zstd", "-O2", "-o", "a", "a.c"}}},
		{"clang lines only", [][]string{{"clang-19", "-gline-tables-only", "-O2", "-o", "a", "a.c"}}},
		{"rust", [][]string{{"rustc", "-g", "-O", "-o", "a", "a.rs"}}},
	}
	if testenv.Long() { // what others have in another way besides
		programs = append(programs, []program{
			{"g++ split", [][]string{{"g++", "-g", "-O2", "-gsplit-dwarf", "-o", "a", "a.cc"}}},
			{"gcc v4 split", [][]string{{"gcc", "-gdwarf-4", "-O2", "-gsplit-dwarf", "-o", "a", "a.c"}}},
			{"clang++", [][]string{{"clang++-19", "-g", "-O2", "-o", "a", "a.cc"}}},
		}...)
	}
	for _, tc := range programs {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, "a.cc", cxxSource)
			write(t, dir, "a.rs", rustSource)
			write(t, dir, "a.c", cSource())
			for _, cmd := range tc.cmds {
				run(t, dir, cmd...)
			}
			compareLLVM(t, dir, filepath.Join(dir, "a"))
		})
	}
}

func compareLLVM(t *testing.T, dir, file string) {
	im := open(t, file)
	s := newSymbolizer(t, Options{Demangle: DemangleNone})
	addrs := textAddresses(im, 5000)
	at := symbolAddresses(t, file)
	named, inlined, wrong := 0, 0, 0
	for i, want := range llvmFrames(t, dir, file, addrs) {
		got := s.Lines(nil, im, addrs[i])
		if len(got) > 0 {
			named++
		}
		if len(got) > 1 {
			inlined++
		}
		// Without debug information llvm-symbolizer gives the file of the
		// symbol table, without a line.
		if n := len(want); n > 0 && want[n-1].Line == 0 && len(got) == n && got[n-1].File == "" {
			want[n-1].File = ""
		}
		sameNames(at, got, want)
		if g, w := frames(got), frames(want); g != w {
			if wrong++; wrong <= 3 {
				t.Errorf("%#x:\n%swant:\n%s", addrs[i], g, w)
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d differ", wrong, len(addrs))
	}
	if errs := s.Errors(); len(errs) > 0 {
		t.Errorf("errors: %v", errs)
	}
	if named < 200 {
		t.Errorf("only %d of %d addresses have names", named, len(addrs))
	}
	t.Logf("%d addresses, %d named, %d with inlined calls", len(addrs), named, inlined)
}

// TestDWARF2 takes the code of a unit from .debug_aranges: strict DWARF 2 has
// no ranges.
func TestDWARF2(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.cc", cxxSource)
	run(t, dir, "g++", "-gdwarf-2", "-gstrict-dwarf", "-O2", "-fno-reorder-blocks-and-partition", "-o", "a", "a.cc")
	im := open(t, filepath.Join(dir, "a"))
	s := newSymbolizer(t, Options{Demangle: DemangleNone})
	addrs := textAddresses(im, 5000)
	at := symbolAddresses(t, filepath.Join(dir, "a"))
	inlined := 0
	for i, want := range llvmFrames(t, dir, "a", addrs) {
		got := s.Lines(nil, im, addrs[i])
		if n := len(want); n > 0 && want[n-1].Line == 0 && len(got) == n && got[n-1].File == "" {
			want[n-1].File = ""
		}
		sameNames(at, got, want)
		if g, w := frames(got), frames(want); g != w {
			t.Errorf("%#x:\n%swant:\n%s", addrs[i], g, w)
		}
		if len(got) > 2 {
			inlined++
		}
	}
	if inlined < 100 {
		t.Errorf("only %d addresses within two inlined calls", inlined)
	}
}

// TestDWZ compares a program whose common entries dwz moved to another file
// with the program as it was.
func TestDWZ(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.cc", cxxSource)
	run(t, dir, "g++", "-g", "-O2", "-o", "a", "a.cc")
	run(t, dir, "g++", "-g", "-O1", "-o", "b", "a.cc")
	run(t, dir, "cp", "a", "whole")
	run(t, dir, "dwz", "-m", "common", "a", "b")
	whole, a := open(t, filepath.Join(dir, "whole")), open(t, filepath.Join(dir, "a"))
	if _, ok := a.Section(".gnu_debugaltlink"); !ok {
		t.Fatal("dwz moved nothing")
	}
	s := newSymbolizer(t, Options{})
	inlined := 0
	for _, addr := range textAddresses(whole, 5000) {
		want, got := s.Lines(nil, whole, addr), s.Lines(nil, a, addr)
		if frames(want) != frames(got) {
			t.Fatalf("%#x:\n%swant:\n%s", addr, frames(got), frames(want))
		}
		if len(got) > 1 {
			inlined++
		}
	}
	if errs := s.Errors(); len(errs) > 0 || inlined < 100 {
		t.Errorf("%d addresses with inlined calls, errors %v", inlined, errs)
	}
	// Without the other file names are lost, not lines, and it is said.
	if err := os.Remove(filepath.Join(dir, "common")); err != nil {
		t.Fatal(err)
	}
	s = newSymbolizer(t, Options{})
	for _, addr := range textAddresses(a, 100) {
		s.Lines(nil, a, addr)
	}
	if len(s.Errors()) != 1 {
		t.Errorf("errors: %v", s.Errors())
	}
}

// TestSeparateDWARF names code from a debug file found by build ID.
func TestSeparateDWARF(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.cc", cxxSource)
	run(t, dir, "g++", "-g", "-O2", "-Wl,--build-id=0xabcdef", "-o", "a", "a.cc")
	run(t, dir, "mkdir", "-p", "d/.build-id/ab")
	run(t, dir, "objcopy", "--only-keep-debug", "--compress-debug-sections=zlib", "a", "d/.build-id/ab/cdef.debug")
	run(t, dir, "cp", "a", "whole")
	run(t, dir, "strip", "a")
	whole, a := open(t, filepath.Join(dir, "whole")), open(t, filepath.Join(dir, "a"))
	s := newSymbolizer(t, Options{DebugDirs: []string{filepath.Join(dir, "d")}})
	for _, addr := range textAddresses(whole, 2000) {
		if want, got := s.Lines(nil, whole, addr), s.Lines(nil, a, addr); frames(want) != frames(got) {
			t.Fatalf("%#x:\n%swant:\n%s", addr, frames(got), frames(want))
		}
	}
}

// TestSplitMissing has lines and the names of symbols where the file of a split
// unit is gone or is another's, and says so once a unit.
func TestSplitMissing(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.c", fuzzSource)
	write(t, dir, "b.c", strings.ReplaceAll(fuzzSource, "x > 5", "x > 6"))
	run(t, dir, "gcc", "-g", "-O2", "-gsplit-dwarf", "-shared", "-fPIC", "-nostdlib", "-o", "b.so", "b.c")
	run(t, dir, "mv", "b.so-b.dwo", "other")
	run(t, dir, "gcc", "-g", "-O2", "-gsplit-dwarf", "-shared", "-fPIC", "-nostdlib", "-o", "a.so", "a.c")
	im := open(t, filepath.Join(dir, "a.so"))
	var top uint64
	for _, y := range readelfSymbols(t, filepath.Join(dir, "a.so"), ".symtab") {
		if y.name == "top" {
			top = y.addr
		}
	}
	for _, tc := range []struct {
		name string
		cmd  []string
		want error
	}{
		{"there", []string{"true"}, nil},
		{"another's", []string{"mv", "other", "a.so-a.dwo"}, errNotSameFile},
		{"gone", []string{"rm", "a.so-a.dwo"}, os.ErrNotExist},
	} {
		run(t, dir, tc.cmd...)
		s := newSymbolizer(t, Options{})
		for range 2 {
			l := s.Lines(nil, im, top)
			if len(l) == 0 || l[len(l)-1].SystemName != "top" || filepath.Base(l[0].File) != "a.c" || l[0].Line == 0 {
				t.Errorf("%s: %+v", tc.name, l)
			}
		}
		if errs := s.Errors(); tc.want == nil && len(errs) > 0 || tc.want != nil && (len(errs) != 1 || !errors.Is(errs[0], tc.want)) {
			t.Errorf("%s: errors %v", tc.name, errs)
		}
	}
}

// TestMemoryBudget drops compiled units, and gives the same answers again.
func TestMemoryBudget(t *testing.T) {
	dir := t.TempDir()
	args := []string{"gcc", "-g", "-O2", "-shared", "-fPIC", "-o", "a"}
	for i := range 8 {
		name := fmt.Sprintf("f%d.c", i)
		write(t, dir, name, strings.NewReplacer("top(", fmt.Sprintf("top%d(", i), "other(", fmt.Sprintf("other%d(", i)).Replace(fuzzSource))
		args = append(args, name)
	}
	run(t, dir, args...)
	im := open(t, filepath.Join(dir, "a"))
	const limit = 8 << 10
	large, small := newSymbolizer(t, Options{}), newSymbolizer(t, Options{Memory: limit})
	addrs := textAddresses(im, 300)
	for range 2 {
		for _, a := range addrs {
			if want, got := large.Lines(nil, im, a), small.Lines(nil, im, a); frames(want) != frames(got) {
				t.Fatalf("%#x:\n%swant:\n%s", a, frames(got), frames(want))
			}
		}
	}
	newest := small.budget.items[len(small.budget.items)-1]
	if small.budget.total-newest.size > limit || len(small.budget.items) >= len(large.budget.items) {
		t.Errorf("%d bytes in %d items, without a limit %d in %d", small.budget.total, len(small.budget.items), large.budget.total, len(large.budget.items))
	}
}

// TestConcurrentUse asks from several goroutines while units and decompressed
// sections are dropped for memory.
func TestConcurrentUse(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.c", cSource())
	run(t, dir, "gcc", "-g", "-O2", "-gz=zlib", "-o", "a", "a.c")
	run(t, dir, "gcc", "-g", "-O1", "-gz=zlib", "-o", "b", "a.c")
	large, small := newSymbolizer(t, Options{}), newSymbolizer(t, Options{Memory: 12 << 10})
	var wg sync.WaitGroup
	images := []*procstate.Image{open(t, filepath.Join(dir, "a")), open(t, filepath.Join(dir, "b"))}
	for i := range 8 {
		im := images[i%2]
		wg.Go(func() {
			for range 5 {
				for _, a := range textAddresses(im, 200) {
					if want, got := large.Lines(nil, im, a), small.Lines(nil, im, a); frames(want) != frames(got) {
						t.Errorf("%#x:\n%swant:\n%s", a, frames(got), frames(want))
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if errs := small.Errors(); len(errs) > 0 || len(small.budget.items) >= len(large.budget.items) {
		t.Errorf("%d items, without a limit %d; errors: %v", len(small.budget.items), len(large.budget.items), errs)
	}
}

// A small unit may refer to an entry of a large one with thousands of others below it.
func TestEntriesOfAnotherUnit(t *testing.T) {
	dir := t.TempDir()
	const variables = 6000
	large := "extern int pause(void);\nint large(int parameter) {\n"
	for i := range variables {
		large += fmt.Sprintf("  int v%d;\n", i)
	}
	write(t, dir, "large.c", large+"  pause();\n  return parameter;\n}\n")
	write(t, dir, "main.c", "extern int large(int);\n__attribute__((flatten)) int main(int argc, char **argv) { return large(argc); }\n")
	run(t, dir, "gcc", "-g", "-O2", "-flto", "-o", "a", "main.c", "large.c")
	im := open(t, filepath.Join(dir, "a"))
	s := newSymbolizer(t, Options{})
	inlined := 0
	for _, sym := range readelfSymbols(t, filepath.Join(dir, "a"), ".symtab") {
		for at := sym.addr; sym.name == "main" && at < sym.addr+sym.size; at++ {
			fns, err := s.Functions(im, at)
			if err != nil || len(fns) == 0 {
				t.Fatalf("%#x: %v, %v", at, fns, err)
			}
			if f := fns[0]; f.Inlined {
				inlined++
				if len(f.Variables) != variables+1 {
					t.Fatalf("%#x: %d variables of %s", at, len(f.Variables), f.Name)
				}
			}
		}
	}
	if errs := s.Errors(); len(errs) > 0 || inlined == 0 {
		t.Errorf("%d addresses in the inlined call, errors %v", inlined, errs)
	}
}

// A section of holes may be larger than any that is written: its sets are without an end.
func TestArangesOfHoles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "main.c", "int main(void) { return 0; }\n")
	run(t, dir, "gcc", "-g", "-o", "main", "main.c")
	path := filepath.Join(dir, "main")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(f.Sections, func(s *elf.Section) bool { return s.Name == ".debug_aranges" })
	main := symbolAddresses(t, path)["main"]
	header := binary.LittleEndian.Uint64(b[40:]) + 64*uint64(i) // e_shoff
	binary.LittleEndian.PutUint64(b[header+24:], 1<<30)         // sh_offset
	binary.LittleEndian.PutUint64(b[header+32:], 1<<36)         // sh_size
	if err := errors.Join(os.WriteFile(path, b, 0o700), os.Truncate(path, 1<<37)); err != nil {
		t.Fatal(err)
	}
	began := testenv.CPUTime(t)
	if lines := newSymbolizer(t, Options{}).Lines(nil, open(t, path), main); len(lines) != 1 || lines[0].Line != 1 {
		t.Errorf("lines %v", lines)
	}
	if took := testenv.CPUTime(t) - began; took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}
