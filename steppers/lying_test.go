package steppers

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/hotspot"
	"github.com/swbpf/swbpf/unwind"
)

// liarWorld is a process that lies, of programs whose code leads to all steppers.
type liarWorld struct {
	*steptest.Liar
	codes []uint64 // addresses of code
	jvm   *procstate.Image
}

// Where a liarWorld has a stack, and code that is in no file.
const (
	liarStack = 0x7ff000000000
	liarCode  = steptest.FakeJVMHeap
)

func newLiarWorld(t testing.TB) *liarWorld {
	testenv.Needs(t, "gcc", "musl-gcc")
	jvm := steptest.FakeJVM(t)
	program := filepath.Join(t.TempDir(), "gocgo")
	build := exec.Command("go", "build", "-o", program, "./testdata/gocgo")
	build.Env = append(os.Environ(), "CGO_ENABLED=1", "GOARCH=amd64")
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	h := newHostileWorld(t, procstate.AMD64, append(hostilePrograms(t), program)...)
	w := &liarWorld{codes: h.codes, jvm: steptest.OpenImage(t, jvm)}
	entry := w.jvm.Entry() &^ 4095
	off, _ := w.jvm.OffsetOfVaddr(entry, 1)
	h.libs.Insert(&procstate.Mapping{Start: entry, End: entry + 4096, Offset: off, Path: jvm, Image: w.jvm})
	h.libs.Insert(&procstate.Mapping{Start: liarCode, End: liarCode + 1<<20})
	for _, l := range h.libs.Libraries() {
		table, err := procstate.Pclntab(l.Image)
		if err != nil {
			continue
		}
		for i := range table.Len() {
			f, ok := table.At(i)
			if ok && f.Flag&procstate.GoFuncAsm != 0 && (strings.HasPrefix(f.Name(), "runtime.") || f.Name() == "crosscall2") {
				w.codes = append(w.codes, f.Entry+l.Bias)
			}
		}
	}
	w.Liar = steptest.NewLiar(procstate.AMD64, h.libs, program)
	w.Leads = append([]uint64{liarStack, liarStack, liarStack + 64, liarStack + 1<<10, liarCode + 0x91, liarCode + 256}, w.codes...)
	return w
}

// Bounds on one walk of a process that lies, for each frame.
const (
	maxLyingReads = 1 << 16
	maxLyingBytes = 1 << 24
)

// walk walks with the registers that were begun with.
func (w *liarWorld) walk(t testing.TB, group *unwind.AddressRangeGroup, live bool, regs *procstate.Regs) {
	t.Helper()
	ps := procstate.ProcessState(w.Liar)
	if live {
		ps = steptest.LiveLiar{Liar: w.Liar}
	}
	walker := unwind.NewWalker(ps, group, nil)
	walker.MaxFrames = 100
	pcs, err := walker.WalkPCs(nil, regs)
	if err != nil && unwind.ReasonOf(err) == unwind.StepperFailed {
		t.Fatalf("seed %d: %v", w.Seed, err)
	}
	if n := uint64(len(pcs)); w.Reads > n*maxLyingReads || w.Bytes > n*maxLyingBytes {
		t.Errorf("seed %d: %d frames take %d reads of %d bytes", w.Seed, n, w.Reads, w.Bytes)
	}
}

// FuzzLyingMemory walks a process whose memory is anything, also that in which
// run-time systems describe themselves.
func FuzzLyingMemory(f *testing.F) {
	w := newLiarWorld(f)
	group := allSteppers()
	for seed := range uint64(64) {
		f.Add(seed, uint16(seed*97), seed%2 == 0)
	}
	f.Fuzz(func(t *testing.T, seed uint64, at uint16, live bool) {
		pc := w.codes[int(at)%len(w.codes)] + uint64(at>>8)
		if at%8 == 0 {
			pc = liarCode + uint64(at)
		}
		w.walk(t, group, live, w.Begin(seed, pc, liarStack+seed%512*8))
	})
}

const (
	javaFields  = 36 // fields that the fake libjvm has
	structBytes = 48 // that a VMStructEntry takes
)

// FuzzHotSpot walks from code whose virtual machine describes it by what the fuzzer
// chooses: the memory, and the offsets of its fields.
func FuzzHotSpot(f *testing.F) {
	w := newLiarWorld(f)
	memory, offsets := steptest.NewFakeJVMHeap()
	for _, pc := range []uint16{0x80, 0x87, 0x88, 0x8c, 0x91, 0x95, 0x9c} {
		f.Add(memory, offsets, pc, uint64(pc))
	}
	f.Add(memory, slices.Concat(offsets[:64], bytes.Repeat([]byte("\xfc\xff\xff\xff\xff\xff\xff\xff"), 5)), uint16(0x91), uint64(3))
	var at uint64
	w.jvm.EachSymbol(func(s *procstate.ELFSymbol) bool {
		if string(s.Name) == "table" {
			at = s.Value
		}
		return at == 0
	})
	table := make([]byte, (javaFields+1)*structBytes)
	if err := w.jvm.ReadVaddr(table, at); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, memory, offsets []byte, pc uint16, seed uint64) {
		for i := 0; i < javaFields && len(offsets) >= 8; i, offsets = i+1, offsets[8:] {
			entry := table[i*structBytes:]
			copy(entry[32:40], offsets)
			copy(entry[40:48], offsets) // of one that is static
		}
		w.True = []procstate.Region{{Addr: liarCode, Data: memory}, {Addr: at, Data: table}}
		group := unwind.NewGroup(hotspot.New(NewFrameAnalyzer()), NewFrameFunc(nil))
		w.walk(t, group, seed%2 == 0, w.Begin(seed, liarCode+uint64(pc), liarStack))
	})
}

// What looks like an unwinder of exceptions is looked through a few times in a walk.
func TestUnwindersInAWalk(t *testing.T) {
	snap := procstate.NewSnapshot(procstate.AMD64, 1, "", &procstate.AddressSpace{})
	w, d := unwind.NewWalker(snap, allSteppers(), nil), NewDebug(unwind.NewTables())
	for range 2 {
		_, _ = w.WalkPCs(nil, &procstate.Regs{})
		for i := range 2 * maxResuming {
			if may := mayLook(w, d); may != (i < maxResuming) {
				t.Errorf("the one after %d others: %v", i, may)
			}
		}
		if !mayLook(w, NewDebug(unwind.NewTables())) {
			t.Error("another stepper's count")
		}
	}
}
