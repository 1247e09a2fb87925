package steppers

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// TestColdParts: a part is known with its function, and symbols that make
// functions parts of each other, or of themselves, come to an end.
func TestColdParts(t *testing.T) {
	testenv.Needs(t, "gcc")
	if procstate.HostArch() != procstate.AMD64 {
		t.Skip("the assembly is of x86-64")
	}
	const source = `
	.type f, @function
	.type g.cold, @function
	.type g, @function
	.type f.cold, @function
	.type h, @function
	.type h.cold, @function
	.type none.cold, @function
	.type real, @function
	.type real.cold, @function
	.set none.cold, 0
f:
g.cold:	nop
	ret
g:
f.cold:	nop
	ret
h:
h.cold:	nop
	ret
real:	push %rbp
	mov %rsp, %rbp
	test %eax, %eax
	je real.cold
	pop %rbp
	ret
real.cold: nop
	pop %rbp
	ret
`
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x.s"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "x")
	testenv.Run(t, exec.Command("gcc", "-nostdlib", "-static", "-Wl,-e,real", "-o", path, filepath.Join(dir, "x.s")))
	img := steptest.OpenImage(t, path)
	at := map[string]uint64{}
	img.EachSymbol(func(s *procstate.ELFSymbol) bool {
		at[string(s.Name)] = s.Value
		return true
	})
	cold := coldParts(img)
	for name, want := range map[string]uint64{"real.cold": at["real"], "f.cold": 0, "g.cold": 0, "h.cold": 0, "none.cold": 0} {
		if got, ok := cold[at[name]]; !ok || got != want {
			t.Errorf("%s is a part of %#x, %v; want %#x", name, got, ok, want)
		}
	}
	a := NewFrameAnalyzer()
	for _, name := range []string{"f", "g", "h"} {
		if l := a.analyzeFile(img, at[name], false); l.State != UnsetFrame || l.SP != 8 {
			t.Errorf("%s: %+v", name, l)
		}
	}
	if l := a.analyzeFile(img, at["real.cold"], false); l.State != SetFrame || l.FP != 16 || l.RA != 8 {
		t.Errorf("real.cold: %+v", l)
	}
}
