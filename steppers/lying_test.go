package steppers

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// fakeJVM has the table of HotSpot's structures, the list of object files that are
// made at run time, and libgcc's lists of frames.
const fakeJVM = `
struct entry { const char *type, *name, *text; int fixed; unsigned long offset; void *at; };
void *heaps;
#define AT(type, name, offset) { #type, #name, "", 0, offset, 0 }
const struct entry table[] = {
	{ "CodeCache", "_heaps", "", 1, 0, &heaps },
	AT(GrowableArrayBase, _len, 0), AT(GrowableArrayBase, _data, 8),
	AT(CodeHeap, _memory, 0), AT(CodeHeap, _segmap, 32), AT(CodeHeap, _log2_segment_size, 64),
	AT(VirtualSpace, _low, 0), AT(VirtualSpace, _high, 8),
	AT(CodeBlob, _frame_complete_offset, 0), AT(CodeBlob, _frame_size, 4),
	AT(CodeBlob, _code_begin, 8), AT(CodeBlob, _code_end, 16), AT(CodeBlob, _name, 24),
	{ 0 }
};
const struct entry *const gHotSpotVMStructs = table;
struct { unsigned version, action; void *relevant, *first; } __jit_debug_descriptor = { 1, 0, 0, 0 };
void *_start(void) { return __jit_debug_descriptor.first; }
`

// liarWorld is a process that lies, of programs whose code leads to all steppers.
type liarWorld struct {
	*steptest.Liar
	codes []uint64 // addresses of code
	jvm   *procstate.Image
}

// Where a liarWorld has a stack, and code that is in no file.
const (
	liarStack = 0x7ff000000000
	liarCode  = 0x7e0000000000
)

func newLiarWorld(t testing.TB) *liarWorld {
	testenv.Needs(t, "gcc", "musl-gcc")
	jvm := filepath.Join(t.TempDir(), "libjvm.so")
	build := exec.Command("gcc", "-x", "c", "-nostdlib", "-static", "-no-pie", "-fno-pie", "-O1", "-Wl,-Ttext-segment=0x60000000", "-o", jvm, "-")
	build.Stdin = strings.NewReader(fakeJVM)
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	program := filepath.Join(t.TempDir(), "gocgo")
	build = exec.Command("go", "build", "-o", program, "./testdata/gocgo")
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

// javaHeap is memory at liarCode as HotSpot has it: a compiled method, what leads to
// it, and the offsets of the fields of all that, as fakeJVM has them.
func javaHeap() (memory, offsets []byte) {
	const array, heap, segments, name = 0x808, 0x840, 0x900, 0xa00
	memory = make([]byte, 0xa40)
	for at, v := range map[int]uint64{
		8: 1, 16: 4 | 4<<32, 24: liarCode + 128, 32: liarCode + 0x400, 40: liarCode + name, // the method
		0x800: liarCode + array, array: 1, array + 8: liarCode + 0x820, 0x820: liarCode + heap,
		heap: liarCode, heap + 8: liarCode + 0x400, heap + 32: liarCode + segments, heap + 64: 7,
	} {
		binary.LittleEndian.PutUint64(memory[at:], v)
	}
	copy(memory[128:], "\x89\x84\x24\x00\xc0\xfe\xff\x55\x48\x83\xec\x10\xe8\x00\x00\x00\x00\x48\x83\xc4\x10\x5d\x85\x05\x00\x00\x00\x00\xc3")
	for i := range 8 {
		memory[segments+i] = byte(i)
	}
	copy(memory[name:], "nmethod")
	for _, v := range []uint64{liarCode + 0x800, 0, 8, 0, 32, 64, 0, 8, 0, 4, 8, 16, 24} {
		offsets = binary.LittleEndian.AppendUint64(offsets, v)
	}
	return memory, offsets
}

// FuzzHotSpot walks from code whose virtual machine describes it by what the fuzzer
// chooses: the memory, and the offsets of its fields.
func FuzzHotSpot(f *testing.F) {
	w := newLiarWorld(f)
	memory, offsets := javaHeap()
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
	table := make([]byte, 14*vmStructBytes)
	if err := w.jvm.ReadVaddr(table, at); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, memory, offsets []byte, pc uint16, seed uint64) {
		for i := 0; i < 13 && len(offsets) >= 8; i, offsets = i+1, offsets[8:] {
			entry := table[i*vmStructBytes:]
			copy(entry[32:40], offsets)
			copy(entry[40:48], offsets) // of one that is static
		}
		w.True = []procstate.Region{{Addr: liarCode, Data: memory}, {Addr: at, Data: table}}
		group := unwind.NewGroup(NewHotSpot(), NewFrameFunc(nil))
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
