package profile

import (
	"debug/elf"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

const loopSource = `
#include <stdio.h>
__attribute__((noinline)) static int hot(int n) { int s = 0; for (int i = 0; i < n; i++) s ^= i * 7; return s; }
int main(int argc, char **argv) { printf("%d\n", hot(argc * 1000)); return 0; }
`

// TestPprofFindsCode gives the real tool a profile without names. From the
// mappings alone it must find the functions, lines and instructions in the
// program.
func TestPprofFindsCode(t *testing.T) {
	testenv.Needs(t, "gcc")
	for _, flags := range [][]string{{"-O1", "-g", "-pie", "-fPIE"}, {"-O1", "-g", "-no-pie"}} {
		t.Run(flags[2], func(t *testing.T) {
			dir := t.TempDir()
			source, program := filepath.Join(dir, "loop.c"), filepath.Join(dir, "loop")
			if err := os.WriteFile(source, []byte(loopSource), 0o644); err != nil {
				t.Fatal(err)
			}
			args := append(append([]string{}, flags...), "-Wl,--build-id", "-o", program, source)
			testenv.Run(t, exec.Command("gcc", args...))
			b := NewBuilder()
			mod, addrs := describeELF(t, program, "hot", "main")
			m := b.Module(mod)
			b.Add(Thread{PID: 1, TID: 1, Comm: Comm("loop")},
				[]Loc{{m, addrs["hot"] + 4}, {m, addrs["main"] + 8}}, "", 10, 100_000_000)
			file := filepath.Join(dir, "loop.pb.gz")
			if err := os.WriteFile(file, writePprof(t, b.Finish(fixtureMeta(), nil)), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, test := range []struct{ args, want []string }{
				{[]string{"-top"}, []string{"File: loop", "hot", "main"}},
				{[]string{"-list=^hot$"}, []string{"ROUTINE", "loop.c", "static int hot(int n)"}},
				{[]string{"-disasm=hot"}, []string{"ROUTINE", "100ms", ";hot loop.c:3"}},
			} {
				cmd := exec.Command(testenv.Pprof(t), append(test.args, file)...)
				cmd.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir())
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("pprof %v: %v\n%s", test.args, err, out)
				}
				for _, w := range test.want {
					if !strings.Contains(string(out), w) {
						t.Errorf("pprof %v does not print %q:\n%s", test.args, w, out)
					}
				}
			}
		})
	}
}

// describeELF returns a program's module and the addresses of functions.
func describeELF(t *testing.T, path string, functions ...string) (Module, map[string]uint64) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m := Module{Path: path, Kind: Native}
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 {
			m.Start, m.Limit, m.Offset = p.Vaddr, p.Vaddr+p.Memsz, p.Off
		}
	}
	note, err := f.Section(".note.gnu.build-id").Data()
	if err != nil {
		t.Fatal(err)
	}
	m.BuildID = hex.EncodeToString(note[16:])
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	addrs := map[string]uint64{}
	for _, s := range symbols {
		for _, name := range functions {
			if s.Name == name {
				addrs[name] = s.Value
			}
		}
	}
	return m, addrs
}
