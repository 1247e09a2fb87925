package symbols

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// splitSeeds are a program, a file that it refers to, and the name of that.
var splitSeeds = []struct {
	name  string
	build [][]string
}{
	{"a.dwo", [][]string{{"gcc", "-g", "-gsplit-dwarf", "-c", "-o", "a.o", "a.c"}, {"gcc", "-o", "a", "a.o"}}},
	{"a.dwo", [][]string{{"gcc", "-gdwarf-4", "-gsplit-dwarf", "-c", "-o", "a.o", "a.c"}, {"gcc", "-o", "a", "a.o"}}},
	{"a.dwo", [][]string{{"clang-19", "-gdwarf-5", "-gsplit-dwarf", "-c", "-o", "a.o", "a.c"}, {"gcc", "-o", "a", "a.o"}}},
	{"a.dwp", [][]string{{"gcc", "-gdwarf-4", "-gsplit-dwarf", "-c", "-o", "a.o", "a.c"}, {"gcc", "-o", "a", "a.o"}, {"dwp", "-e", "a", "-o", "a.dwp"}}},
	{"a.dwp", [][]string{{"clang-19", "-gdwarf-5", "-gsplit-dwarf", "-c", "-o", "a.o", "a.c"}, {"gcc", "-o", "a", "a.o"}, {"llvm-dwp-19", "-e", "a", "-o", "a.dwp"}}},
	{"a.dwp", [][]string{{"gcc", "-gdwarf-4", "-gsplit-dwarf", "-fdebug-types-section", "-c", "-o", "a.o", "a.c"}, {"gcc", "-o", "a", "a.o"}, {"dwp", "-e", "a", "-o", "a.dwp"}}},
	{"a.dwp", [][]string{{"gcc", "-gdwarf-5", "-gsplit-dwarf", "-fdebug-types-section", "-c", "-o", "a.o", "a.c"}, {"gcc", "-o", "a", "a.o"}, {"llvm-dwp-19", "-e", "a", "-o", "a.dwp"}}},
	{"common", [][]string{{"gcc", "-gdwarf-4", "-o", "a", "a.c"}, {"cp", "a", "b"}, {"dwz", "-m", "common", "a", "b"}}},
}

// FuzzSplit reads damaged programs whose debug information goes on in a
// damaged file: a split unit's, a package, or what dwz made.
func FuzzSplit(f *testing.F) {
	for i, s := range splitSeeds {
		dir := f.TempDir()
		write(f, dir, "a.c", fuzzVariables+"\nint apply(fn_t f, struct list *l, enum e e) { return f ? f(l, e) : l ? l->v : e; }\nvoid _start(void) { top(1, 0); }\n")
		for _, args := range s.build {
			if args[0] == "gcc" && args[1] == "-o" || args[len(args)-1] == "a.c" && args[len(args)-2] == "a" {
				args = append(args[:len(args):len(args)], "-nostdlib")
			} else if args[0] == "gcc" || args[0] == "clang-19" {
				args = append(args[:len(args):len(args)], "-O2", "-fPIC", "-fdebug-prefix-map="+dir+"=.")
			}
			run(f, dir, args...)
		}
		var b [2][]byte
		for j, name := range []string{"a", s.name} {
			var err error
			if b[j], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
				f.Fatal(err)
			}
		}
		if lines := splitLines(f, dir, b[0], s.name, b[1]); lines == 0 {
			f.Fatalf("seed %d: no function has a start line", i)
		}
		f.Add(b[0], b[1], s.name)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, program, other []byte, name string) {
		switch name {
		case "a.dwo", "a.dwp", "common":
			defer boundAllocations(t)()
			splitLines(t, dir, program, name, other)
		}
	})
}

// splitLines names addresses of a program beside the file that it refers to,
// asks for its functions, and returns how many frames have what only that file
// tells.
func splitLines(t testing.TB, dir string, program []byte, name string, other []byte) (n int) {
	im, err := procstate.NewImageBytes(program, filepath.Join(dir, "a"))
	if err != nil {
		return 0
	}
	path := filepath.Join(dir, name)
	write(t, dir, name, string(other))
	defer os.Remove(path)
	s := New(Options{DebugDirs: []string{}, Memory: 16 << 20})
	defer s.Close()
	for _, sec := range im.Sections() {
		for _, a := range []uint64{sec.Vaddr, sec.Vaddr + sec.Size/2, sec.Vaddr + sec.Size - 1} {
			for _, l := range s.Lines(nil, im, a) {
				if l.Function == "" {
					t.Errorf("%#x: %+v", a, l)
				}
				if l.StartLine > 0 {
					n++
				}
			}
			fns, _ := s.Functions(im, a)
			for _, fn := range fns {
				readFunction(fn, a)
			}
		}
	}
	return n
}
