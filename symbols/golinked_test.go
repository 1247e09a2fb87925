package symbols

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// C++ that Go's linker has put into a program, as the race detector's, is named in Go's
// table, and by people as any C++.
func TestGoLinkedNames(t *testing.T) {
	testenv.Needs(t, "go", "gcc")
	if runtime.GOARCH != "amd64" {
		t.Skip("not every machine has a race detector that Go links by itself")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "program")
	cmd := exec.Command("go", "build", "-race", "-o", path, write(t, dir, "main.go", "package main\n\nfunc main() {}\n"))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS=")
	testenv.Run(t, cmd)
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	im := open(t, path)
	for mode, want := range map[DemangleMode][2]string{
		DemangleSimple: {"__tsan::Acquire", "main.main"},
		DemangleFull:   {"__tsan::Acquire(__tsan::ThreadState*, unsigned long, unsigned long)", "main.main"},
		DemangleNone:   {"_ZN6__tsan7AcquireEPNS_11ThreadStateEmm", "main.main"},
	} {
		s := newSymbolizer(t, Options{Demangle: mode})
		seen := 0
		for _, sym := range symbols {
			i := 0
			switch {
			case sym.Name == "main.main":
				i = 1
			case !strings.HasPrefix(sym.Name, "_ZN6__tsan7AcquireE"):
				continue
			}
			seen++
			if lines := s.Lines(nil, im, sym.Value); len(lines) != 1 || lines[0].Function != want[i] || lines[0].SystemName != sym.Name {
				t.Errorf("mode %d, %s: %+v, want %s", mode, sym.Name, lines, want[i])
			}
		}
		if seen != 2 {
			t.Errorf("%d of 2 symbols", seen)
		}
	}
}
