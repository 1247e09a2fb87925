package oracle

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// points are the places of testdata/instrumented.c that are instrumented.
var points = []string{"leaf", "plain", "rec", "framed", "rec_middle", "framed_middle"}

// buildInstrumented builds testdata/instrumented.c and returns the addresses of
// its symbols.
func buildInstrumented(t *testing.T, flags ...string) (path string, at map[string]uint64) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("the oracle knows x86-64 only")
	}
	testenv.Needs(t, "gcc")
	path = filepath.Join(t.TempDir(), "instrumented")
	args := append(slices.Clone(flags), "-o", path, "testdata/instrumented.c")
	testenv.Run(t, exec.Command("gcc", args...))
	at = map[string]uint64{}
	for _, s := range symbolsOf(t, path) {
		at[s.Name] = s.Value
	}
	return path, at
}

// judgeInstrumented runs the program and judges walks with a stepper for
// instrumentation before all others.
func judgeInstrumented(t *testing.T, path string, tramps []Tramp, stepper func() unwind.FrameStepper) *Report {
	t.Helper()
	makers["tramps"] = stepper
	defer delete(makers, "tramps")
	all, err := ConfigByName("all")
	if err != nil {
		t.Fatal(err)
	}
	with := Config{Name: "with " + stepper().Name(), Steppers: append([]string{"tramps"}, all.Steppers...)}
	r, err := Run(Options{Args: []string{path}, Configs: []Config{with, all}, Tramps: tramps})
	if err != nil {
		t.Fatal(err)
	}
	if n := r.Results[1].Checked(); n < 5000 || r.Results[1].Count[Exact] > n*2/3 {
		t.Errorf("%d of %d exact without the stepper", r.Results[1].Count[Exact], n)
	}
	return r
}

// allExact requires that walks are whole at all instructions, but for those of
// tramps that have no frame where except says so.
func allExact(t *testing.T, r *Report, tramps []Tramp, except Class) {
	t.Helper()
	t.Logf("%s %+v; all %+v", r.Results[0].Config, r.Results[0].Count, r.Results[1].Count)
	for _, s := range r.Results[0].Sites {
		unframed := func(p Tramp) bool {
			return s.Vaddr >= p.Start && s.Vaddr < p.Up || s.Vaddr >= p.Down && s.Vaddr < p.End
		}
		if except == Exact || s.Class > except || !slices.ContainsFunc(tramps, unframed) {
			t.Errorf("%s %d times at %s+%#x\n%s", s.Class, s.Count, s.Module, s.Vaddr, s.First)
		}
	}
	if t.Failed() {
		r.Print(testWriter{t}, 3)
	}
}

// A program that has instrumented itself is walked whole at each of its
// instructions. The mark is all that InstFrame goes by: of the tramps' own code
// it knows that from where the frame is on. A helper that knows the tramps
// is right at all of it.
func TestInstrumentedProcess(t *testing.T) {
	for _, opt := range []string{"-O2", "-O0"} {
		path, at := buildInstrumented(t, opt, "-no-pie")
		var tramps, always []Tramp
		for _, p := range points {
			moved := 0x20000000 - at["tramp_leaf"] // to where the program copies them
			start, end := at["tramp_"+p]+moved, at["end_"+p]+moved
			tramps = append(tramps, Tramp{start, end, at["up_"+p] + moved, at["down_"+p] + moved})
			always = append(always, Tramp{start, end, start, end})
		}
		allExact(t, judgeInstrumented(t, path, tramps, func() unwind.FrameStepper { return steppers.NewInstFrame() }), tramps, Short)
		helper := &trampHelper{tramps: tramps}
		for _, p := range points {
			helper.points = append(helper.points, at[p])
		}
		allExact(t, judgeInstrumented(t, path, always, func() unwind.FrameStepper { return steppers.NewDynamic(helper) }), always, Exact)
	}
}

// trampHelper is a DynamicHelper for the tramps of a program that has
// instrumented itself: it follows their code.
type trampHelper struct {
	tramps []Tramp
	points []uint64
}

// IsInstrumentation implements steppers.DynamicHelper.
func (h *trampHelper) IsInstrumentation(w *unwind.Walker, f *unwind.Frame) (ins steppers.Instrumentation, ok bool) {
	i := slices.IndexFunc(h.tramps, func(t Tramp) bool { return f.PC() >= t.Start && f.PC() < t.End })
	if i < 0 {
		return ins, false
	}
	t, mem, arch := h.tramps[i], w.ProcessState(), w.Arch()
	code := make([]byte, t.End-t.Start)
	if n, _ := mem.ReadMemory(t.Start, code); n < len(code) {
		return ins, false
	}
	const inSP, inRAX, inMemory = 0, 1, 2
	where, height, frame, framed := inSP, int64(0), int64(0), false // of the point's SP, from SP
	var in isa.Inst
	for pc := t.Start; pc < f.PC(); pc += uint64(in.Len) {
		if !isa.DecodeAMD64(code[pc-t.Start:], pc, &in) {
			return ins, false
		}
		for _, op := range in.Ops[:in.NumOps] {
			switch {
			case op.Kind == isa.Align:
				where = inRAX
			case where == inRAX && op.Kind == isa.Store && op.Dst == arch.SP:
				where, height = inMemory, 0
			case op.Kind == isa.Load && op.Dst == arch.SP:
				where, height = inSP, 0
			case op.Kind == isa.Set && op.Dst == arch.FP && op.Src == arch.SP:
				framed, frame = true, height
			case op.Kind == isa.Set && op.Dst == arch.SP && op.Src == arch.FP:
				height = frame - op.Imm
			case op.Kind == isa.Load && op.Dst == arch.FP:
				framed = false
			case op.Kind == isa.Set && op.Dst == arch.SP && op.Src == arch.SP:
				height -= op.Imm
			}
		}
	}
	switch where {
	case inSP:
		ins.CallerSP = f.SP() + uint64(height)
	case inRAX:
		ins.CallerSP, _ = f.Regs.Value(0)
	case inMemory:
		ins.CallerSP, _ = mem.ReadWord(f.SP() + uint64(height))
	}
	if ins.CallerFP = f.FP(); framed {
		ins.CallerFP, _ = mem.ReadWord(f.FP())
	}
	ins.CallerPC, ins.Interrupted = h.points[i], true
	return ins, true
}

// The same for a program that was rewritten, at whatever address it is loaded.
// In tramps without a frame, walks may be short, where what leads to them is
// the middle of a function that begins with a tramp itself.
func TestInstrumentedFile(t *testing.T) {
	path, at := buildInstrumented(t, "-O2", "-DREWRITTEN", "-pie", "-fpie")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	offset := func(vaddr uint64) uint64 {
		for _, p := range f.Progs {
			if p.Type == elf.PT_LOAD && vaddr >= p.Vaddr && vaddr < p.Vaddr+p.Filesz {
				return vaddr - p.Vaddr + p.Off
			}
		}
		t.Fatalf("%#x is not in the file", vaddr)
		return 0
	}
	var tramps []Tramp
	for _, p := range points {
		site := b[offset(at[p]):]
		site[0] = 0xe9
		binary.LittleEndian.PutUint32(site[1:], uint32(at["tramp_"+p]-at[p]-5))
		binary.LittleEndian.PutUint64(b[offset(at["point_"+p])-8:], at[p])
		tramps = append(tramps, Tramp{at["tramp_"+p], at["end_"+p], at["up_"+p], at["down_"+p]})
	}
	if err := os.WriteFile(path, b, 0o700); err != nil {
		t.Fatal(err)
	}
	r := judgeInstrumented(t, path, tramps, func() unwind.FrameStepper { return steppers.NewDyninstInstr() })
	allExact(t, r, tramps, Short)
}

// symbolsOf returns the symbols of a program.
func symbolsOf(t *testing.T, path string) []elf.Symbol {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	return symbols
}
