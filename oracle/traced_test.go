package oracle

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/unwind"
)

// callTable is a DynamicHelper for testdata/traced.c: it reads the original
// return addresses from the program's own table.
type callTable struct {
	table      uint64 // address of call_table
	trampoline uint64 // and of return_trampoline
}

// heights has, for each instruction of return_trampoline, how far SP is below
// where it was at the first.
var heights = map[uint64]uint64{0: 0, 4: 8, 5: 16, 6: 24, 7: 32, 12: 32, stored: 32, 18: 24, 19: 16, 20: 8}

// stored is the offset from which on the original is on the stack again.
const stored = 17

// IsInstrumentation implements steppers.DynamicHelper.
func (c *callTable) IsInstrumentation(w *unwind.Walker, f *unwind.Frame) (ins steppers.Instrumentation, ok bool) {
	offset := f.PC() - c.trampoline
	height, ok := heights[offset]
	switch {
	case !ok:
		return ins, false
	case offset == 0 && !f.NonCall():
		ins.OriginalPC = c.original(w, f.SP()-8)
		return ins, true
	}
	slot := f.SP() + height - 8
	if offset >= stored {
		ins.CallerPC, _ = w.ProcessState().ReadWord(slot)
	}
	if offset < stored || ins.CallerPC == c.trampoline {
		ins.CallerPC = c.original(w, slot)
	}
	ins.CallerSP, ins.CallerFP = slot+8, f.FP()
	return ins, true
}

// original returns the return address that was at a place of the stack. Of a
// function that was called in place of a return there are two, and the later
// one is the trampoline's. The call that is just leaving is behind the last.
func (c *callTable) original(w *unwind.Walker, slot uint64) uint64 {
	mem := w.ProcessState()
	depth, _ := mem.ReadWord(c.table)
	entry := func(i uint64) (at, ra uint64) {
		at, _ = mem.ReadWord(c.table + 8 + 16*i)
		ra, _ = mem.ReadWord(c.table + 16 + 16*i)
		return at, ra
	}
	for i := depth; i > 0; i-- {
		if at, ra := entry(i - 1); at == slot && ra != c.trampoline {
			return ra
		}
	}
	if at, ra := entry(depth); at == slot && ra != c.trampoline {
		return ra
	}
	return 0
}

// A program that replaces its own return addresses is walked whole at each of
// its instructions by a helper that knows where it keeps the originals; and
// without, what it has put there is taken for no frame.
func TestTracedFunctions(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the oracle knows x86-64 only")
	}
	testenv.Needs(t, "gcc")
	program := filepath.Join(t.TempDir(), "traced")
	for _, args := range [][]string{{"-O2", "-pg", "-mfentry", "-fno-pie", "-c", "-o", program + ".o", "testdata/traced.c"}, {"-no-pie", "-o", program, program + ".o"}} {
		testenv.Run(t, exec.Command("gcc", args...))
	}
	var helper callTable
	var size uint64
	for _, s := range symbolsOf(t, program) {
		switch s.Name {
		case "call_table":
			helper.table = s.Value
		case "return_trampoline":
			helper.trampoline, size = s.Value, s.Size
		}
	}
	if helper.table == 0 || size != 21 {
		t.Fatalf("%+v, trampoline of %d bytes", helper, size)
	}
	makers["traced"] = func() unwind.FrameStepper { return steppers.NewDynamic(&helper) }
	defer delete(makers, "traced")
	all, err := ConfigByName("all")
	if err != nil {
		t.Fatal(err)
	}
	known := Config{Name: "with the table", Steppers: append([]string{"traced"}, all.Steppers...)}
	r, err := Run(Options{Args: []string{program}, Configs: []Config{known, all}, Trampoline: helper.trampoline})
	if err != nil {
		t.Fatal(err)
	}
	if res := &r.Results[0]; res.Count[Exact] != res.Checked() || res.Checked() < 5000 || r.Unjudged > 100 {
		t.Errorf("%d of %d exact, %d unjudged", res.Count[Exact], res.Checked(), r.Unjudged)
	}
	if r.Results[1].Count[Short] < 1000 {
		t.Errorf("without the table only %d walks are short", r.Results[1].Count[Short])
	}
	for _, s := range r.Results[1].Sites {
		// In the trampoline itself its CFI leads astray, which nothing can tell.
		if s.Class == Wrong && s.Vaddr-helper.trampoline >= size {
			t.Errorf("without the table wrong %d times at %s+%#x\n%s", s.Count, s.Module, s.Vaddr, s.First)
		}
	}
	if t.Failed() {
		r.Print(testWriter{t}, 3)
	}
}
