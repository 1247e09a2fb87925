package variables_test

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
	"github.com/swbpf/swbpf/variables"
)

const fuzzSource = `
struct s { struct s *next; int v : 5; union { long l; double d; }; char name[8]; };
enum e { A, B = 4 };
typedef int (*fn_t)(struct s *, enum e);
int apply(fn_t f, struct s *l, enum e e);
static inline __attribute__((always_inline)) int in(int a) { int b = a * 3; { int c = b + a; return apply(0, 0, c) + b; } }
__attribute__((noinline)) static int callee(int a, const char *s, double d) { int t = a + s[0]; apply(0, 0, A); return t + (int)d; }
int top(int n, struct s *l) {
	static int calls;
	int vla[n];
	struct s copy = *l;
	float f = n;
	calls++;
	for (int i = 0; i < n; i++) { int sq = i * i; vla[i] = in(sq); }
	return callee(n, copy.name, f) + vla[n - 1] + copy.v;
}
`

// FuzzValues reads the variables of a frame of a damaged file.
func FuzzValues(f *testing.F) {
	dir := f.TempDir()
	src := filepath.Join(dir, "v.c")
	if err := os.WriteFile(src, []byte(fuzzSource), 0o644); err != nil {
		f.Fatal(err)
	}
	for _, args := range [][]string{
		{"gcc", "-gdwarf-5", "-O2"}, {"gcc", "-gdwarf-4", "-O2"}, {"gcc", "-gdwarf-4", "-O1", "-fdebug-types-section"}, {"gcc", "-gdwarf-5", "-O2", "-gz"}, {"gcc", "-gdwarf-5", "-O0"}, {"clang-19", "-gdwarf-5", "-O2"}, {"gcc", "-g", "-O2", "-m32"},
	} {
		out := filepath.Join(dir, "v.so")
		testenv.Needs(f, args[0])
		testenv.Run(f, exec.Command(args[0], append(args[1:], "-shared", "-fPIC", "-nostdlib", "-o", out, src)...))
		b, err := os.ReadFile(out)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint16(0))
		f.Add(b, uint16(0x80))
	}
	const bias, stack = 0x7f0000000000, 0x7ffe00000000
	f.Fuzz(func(t *testing.T, b []byte, off uint16) {
		im, err := procstate.NewImageBytes(b, "fuzz")
		if err != nil {
			return
		}
		text, ok := im.Section(".text")
		if !ok {
			return
		}
		space := new(procstate.AddressSpace)
		space.Insert(&procstate.Mapping{Start: bias, End: bias + 1<<20, Path: "fuzz", Image: im, Bias: bias})
		a := im.Arch()
		var regs procstate.Regs
		for r := range a.NumRegs {
			regs.Set(procstate.Reg(r), stack+uint64(8*r))
		}
		regs.Set(a.PC, bias+text.Vaddr+uint64(off))
		memory := make([]byte, 4096)
		for i := 0; i < len(memory); i += 8 {
			binary.LittleEndian.PutUint64(memory[i:], bias+text.Vaddr+uint64(i%256))
		}
		snap := procstate.NewSnapshot(a, 1, "fuzz", space)
		snap.Reset(1, &regs, []procstate.Region{{Addr: stack, Data: memory}})
		sym := symbols.New(symbols.Options{DebugDirs: []string{}})
		defer sym.Close()
		w := unwind.NewWalker(snap, steppers.Default(unwind.NewTables()), sym.Process(snap))
		w.MaxFrames = 8
		walk, _ := w.WalkStack(nil, procstate.DefaultThread)
		r := variables.New(w, sym)
		for i := range walk {
			fns, err := r.Functions(&walk[i])
			if err != nil {
				continue
			}
			for _, fn := range fns {
				for _, v := range fn.Variables {
					value, err := r.Value(walk, i, v)
					if err != nil {
						_ = variables.Unknown(err)
						continue
					}
					if s := value.Format(variables.Format{Depth: 3}); s == "" {
						t.Errorf("%s: no text", v.Name)
					}
					if n, ok := value.Size(); ok && n < 1<<16 {
						_, _ = value.Read(make([]byte, n))
					}
				}
			}
		}
	})
}
