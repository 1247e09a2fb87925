package oracle

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// Functions that have another set up their frame are walked right from their first
// instruction on, and so is what runs when that one goes on in their place. Short are
// walks of FrameFunc where a return address has been taken off the stack.
func TestPrologueOfAnother(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the oracle knows x86-64 only")
	}
	testenv.Needs(t, "gcc")
	for _, how := range []string{"DIRECT", "INDIRECT"} {
		t.Run(how, func(t *testing.T) { testPrologueOfAnother(t, how) })
	}
}

func testPrologueOfAnother(t *testing.T, how string) {
	program := filepath.Join(t.TempDir(), "prologue")
	testenv.Run(t, exec.Command("gcc", "-w", "-O2", "-D"+how, "-o", program, "testdata/prologue.c"))
	at := map[string]uint64{}
	for _, s := range symbolsOf(t, program) {
		at[s.Name] = s.Value
	}
	// Behind pop, where it is in a register, which only the Analysis follows, and no
	// more below SP.
	popped := []uint64{at["prologue"] + 0xd, at["prologue"] + 0x10, at["prologue"] + 0x12, at["prologue"] + 0x14}
	may := map[string][]uint64{"all": nil, "debug+frame": popped}
	opt := Options{Args: []string{program}, Marked: true, PCs: true}
	for name := range may {
		c, err := ConfigByName(name)
		if err != nil {
			t.Fatal(err)
		}
		opt.Configs = append(opt.Configs, c)
	}
	r, err := Run(opt)
	if err != nil {
		t.Fatal(err)
	}
	if r.BadSeeds > 0 || r.Unjudged > 250 {
		t.Errorf("%d unjudged, %d not seeded", r.Unjudged, r.BadSeeds)
	}
	for _, res := range r.Results {
		at := map[uint64]bool{}
		for _, addr := range may[res.Config] {
			at[addr] = true
		}
		if res.Checked() < 5000 || len(res.Sites) != len(at) {
			t.Errorf("%s: %d instructions, astray at %d, want %d", res.Config, res.Checked(), len(res.Sites), len(at))
		}
		for _, s := range res.Sites {
			if s.Class != Short || !at[s.Vaddr] {
				t.Errorf("%s: %s %d times at %s+%#x\n%s", res.Config, s.Class, s.Count, s.Module, s.Vaddr, s.First)
			}
		}
	}
}
