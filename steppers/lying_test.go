package steppers

import (
	"bytes"
	"encoding/binary"
	"fmt"
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
int version = 17;
#define AT(type, name, offset) { #type, #name, "", 0, offset, 0 }
const struct entry table[] = {
	{ "CodeCache", "_heaps", "", 1, 0, &heaps },
	AT(GrowableArrayBase, _len, 0), AT(GrowableArrayBase, _data, 8),
	AT(CodeHeap, _memory, 0), AT(CodeHeap, _segmap, 32), AT(CodeHeap, _log2_segment_size, 64),
	AT(VirtualSpace, _low, 0), AT(VirtualSpace, _high, 8),
	AT(CodeBlob, _frame_complete_offset, 0), AT(CodeBlob, _frame_size, 4),
	AT(CodeBlob, _code_begin, 8), AT(CodeBlob, _code_end, 16), AT(CodeBlob, _name, 24),
	AT(nmethod, _method, 40), AT(nmethod, _compile_id, 48), AT(nmethod, _metadata_offset, 52),
	AT(nmethod, _scopes_pcs_offset, 56), AT(nmethod, _dependencies_offset, 60), AT(nmethod, _scopes_data_begin, 64),
	AT(PcDesc, _pc_offset, 0), AT(PcDesc, _scope_decode_offset, 4), AT(Method, _constMethod, 0),
	AT(ConstMethod, _constants, 0), AT(ConstMethod, _flags, 8), AT(ConstMethod, _constMethod_size, 12),
	AT(ConstMethod, _code_size, 16), AT(ConstMethod, _name_index, 18), AT(ConstMethod, _signature_index, 20),
	AT(ConstantPool, _pool_holder, 0), AT(ConstantPool, _length, 8), AT(Klass, _name, 0),
	AT(Symbol, _length, 0), AT(Symbol, _body, 2), { "Abstract_VM_Version", "_vm_major_version", "", 1, 0, &version },
	AT(ConstantPool, _source_file_name_index, 12), AT(HeapBlock::Header, _used, 8),
	{ 0 }
};
const struct entry *const gHotSpotVMStructs = table;
const struct { const char *name, *super; int is[4]; unsigned long size; } types[] = {
	{ "PcDesc", 0, { 0 }, 8 }, { "ConstMethod", 0, { 0 }, 24 }, { "ConstantPool", 0, { 0 }, 16 },
	{ "HeapBlock", 0, { 0 }, 16 }, { 0 }
}, *const gHotSpotVMTypes = types;
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
// it and what it tells, and the offsets of the fields of all that, as fakeJVM has them.
func javaHeap() (memory, offsets []byte) {
	const array, heap, segments, name = 0x808, 0x840, 0x900, 0xa00
	const header, data, method, constant, pool, class, text = 16, 0xb00, 0xc00, 0xc40, 0xd00, 0xd80, 0xe00
	memory = make([]byte, 0x1000)
	for at, v := range map[int]uint64{
		8: 1, header: 4 | 4<<32, 24: liarCode + 128, 32: liarCode + 0x400, 40: liarCode + name, // the nmethod
		header + 40: liarCode + method, header + 48: 7 | (data-header)<<32, header + 56: data + 0x20 - header | (data+0x38-header)<<32,
		header + 64: liarCode + data + 16,
		0x800:       liarCode + array, array: 1, array + 8: liarCode + 0x820, 0x820: liarCode + heap,
		heap: liarCode, heap + 8: liarCode + 0x400, heap + 32: liarCode + segments, heap + 64: 7,
		// Its scopes: in the method's bytecode 5 one of the same, in 3.
		data: liarCode + method, data + 16: 0x0004_0101_0601_0000, data + 0x20: 0xffffffff, data + 0x28: 12 | 4<<32, data + 0x30: 17 | 4<<32,
		method: liarCode + constant, constant: liarCode + pool, constant + 8: 1 | 6<<32, constant + 16: 8 | 1<<16 | 2<<32,
		pool: liarCode + class, pool + 8: 4 | 3<<32, pool + 24: liarCode + text, pool + 32: liarCode + text + 0x20, pool + 40: liarCode + text + 0x40,
		class: liarCode + text + 0x60,
	} {
		binary.LittleEndian.PutUint64(memory[at:], v)
	}
	copy(memory[constant+24+8:], "\xff\x00\x14\x2b\x00") // line 10 from bytecode 0 on, 13 from 5 on
	for i, s := range []string{"run", "()V", "A.java", "p/A"} {
		copy(memory[text+i*0x20:], string(rune(len(s)))+"\x00"+s)
	}
	copy(memory[128:], "\x89\x84\x24\x00\xc0\xfe\xff\x55\x48\x83\xec\x10\xe8\x00\x00\x00\x00\x48\x83\xc4\x10\x5d\x85\x05\x00\x00\x00\x00\xc3")
	for i := range 8 {
		memory[segments+i] = byte(i)
	}
	copy(memory[name:], "nmethod")
	for _, v := range []uint64{
		liarCode + 0x800, 0, 8, 0, 32, 64, 0, 8, 0, 4, 8, 16, 24,
		40, 48, 52, 56, 60, 64, 0, 4, 0, 0, 8, 12, 16, 18, 20, 0, 8, 0, 0, 2, liarCode + 0xff8, 12, 8,
	} {
		offsets = binary.LittleEndian.AppendUint64(offsets, v)
	}
	return memory, offsets
}

// What such memory tells of a compiled method: its name, what was inlined, and lines.
func TestMadeUpJava(t *testing.T) {
	w := newLiarWorld(t)
	memory, _ := javaHeap()
	mem := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	mem.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: liarCode, Data: memory}})
	read := func(addr uint64, buf []byte) bool {
		n, err := mem.ReadMemory(addr, buf)
		return err == nil && n == len(buf) || w.jvm.ReadVaddr(buf, addr) == nil
	}
	vm := &hotspotVM{mem: mem, fields: findVMFields(w.jvm, 0, read), image: w.jvm}
	vm.heaps = []codeHeap{{low: liarCode, high: liarCode + 0x400, segments: liarCode + 0x900, log2: 7}}
	vm.names.version = 17
	lines := func(pc uint64, interrupted bool) (out []string) {
		b := vm.blobAt(liarCode + pc)
		if b == nil {
			t.Fatal("no method")
		}
		for _, l := range vm.compiledLines(b, liarCode+pc, interrupted) {
			out = append(out, fmt.Sprintf("%s%s %s:%d", l.Name, l.Parameters, l.File, l.Line))
		}
		return out
	}
	const inner, outer, unknown = "p.A.run() p/A.java:10", "p.A.run() p/A.java:13", "p.A.run() p/A.java:0"
	for _, test := range []struct {
		pc          uint64
		interrupted bool
		want        []string
	}{
		{128 + 17, false, []string{inner, outer}},
		{128 + 14, true, []string{inner, outer}}, // between two that say so
		{128 + 17, true, []string{unknown}},      // there is none behind it
		{128 + 14, false, []string{unknown}},     // no call returns there
		{128 + 2, true, []string{unknown}},
	} {
		if got := lines(test.pc, test.interrupted); !slices.Equal(got, test.want) {
			t.Errorf("at %d, interrupted %v: %q, want %q", test.pc-128, test.interrupted, got, test.want)
		}
	}
	memory[0xb00]++ // a scope of another method is not believed,
	vm.names.kept = [keptScopes]javaScopes{}
	if got := lines(128+17, false); !slices.Equal(got, []string{unknown}) {
		t.Errorf("with another method's scopes %q", got)
	}
	memory[16+40]++ // and this is none
	if got := lines(128+17, false); got != nil {
		t.Errorf("of what is no method %q", got)
	}
}

// javaFields is how many fields fakeJVM has.
const javaFields = 36

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
	table := make([]byte, (javaFields+1)*vmStructBytes)
	if err := w.jvm.ReadVaddr(table, at); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, memory, offsets []byte, pc uint16, seed uint64) {
		for i := 0; i < javaFields && len(offsets) >= 8; i, offsets = i+1, offsets[8:] {
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
