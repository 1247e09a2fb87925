package steptest

import (
	"encoding/binary"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// fakeJVMSource has the table of HotSpot's structures, the list of object files that are
// made at run time, and libgcc's lists of frames.
const fakeJVMSource = `
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

// FakeJVMHeap is where NewFakeJVMHeap is, in a process that has a fakeJVMSource.
const FakeJVMHeap = 0x7e0000000000

// FakeJVM compiles a libjvm.so of fakeJVMSource, and returns its path.
func FakeJVM(t testing.TB) string {
	t.Helper()
	testenv.Needs(t, "gcc")
	jvm := filepath.Join(t.TempDir(), "libjvm.so")
	build := exec.Command("gcc", "-x", "c", "-nostdlib", "-static", "-no-pie", "-fno-pie", "-O1", "-Wl,-Ttext-segment=0x60000000", "-o", jvm, "-")
	build.Stdin = strings.NewReader(fakeJVMSource)
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	return jvm
}

// NewFakeJVMHeap is memory at FakeJVMHeap as HotSpot has it: a compiled method, what leads to
// it and what it tells, and the offsets of the fields of all that, as fakeJVMSource has them.
func NewFakeJVMHeap() (memory, offsets []byte) {
	const array, heap, segments, name = 0x808, 0x840, 0x900, 0xa00
	const header, data, method, constant, pool, class, text = 16, 0xb00, 0xc00, 0xc40, 0xd00, 0xd80, 0xe00
	memory = make([]byte, 0x1000)
	for at, v := range map[int]uint64{
		8: 1, header: 4 | 4<<32, 24: FakeJVMHeap + 128, 32: FakeJVMHeap + 0x400, 40: FakeJVMHeap + name, // the nmethod
		header + 40: FakeJVMHeap + method, header + 48: 7 | (data-header)<<32, header + 56: data + 0x20 - header | (data+0x38-header)<<32,
		header + 64: FakeJVMHeap + data + 16,
		0x800:       FakeJVMHeap + array, array: 1, array + 8: FakeJVMHeap + 0x820, 0x820: FakeJVMHeap + heap,
		heap: FakeJVMHeap, heap + 8: FakeJVMHeap + 0x400, heap + 32: FakeJVMHeap + segments, heap + 64: 7,
		// Its scopes: in the method's bytecode 5 one of the same, in 3.
		data: FakeJVMHeap + method, data + 16: 0x0004_0101_0601_0000, data + 0x20: 0xffffffff, data + 0x28: 12 | 4<<32, data + 0x30: 17 | 4<<32,
		method: FakeJVMHeap + constant, constant: FakeJVMHeap + pool, constant + 8: 1 | 6<<32, constant + 16: 8 | 1<<16 | 2<<32,
		pool: FakeJVMHeap + class, pool + 8: 4 | 3<<32, pool + 24: FakeJVMHeap + text, pool + 32: FakeJVMHeap + text + 0x20, pool + 40: FakeJVMHeap + text + 0x40,
		class: FakeJVMHeap + text + 0x60,
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
		FakeJVMHeap + 0x800, 0, 8, 0, 32, 64, 0, 8, 0, 4, 8, 16, 24,
		40, 48, 52, 56, 60, 64, 0, 4, 0, 0, 8, 12, 16, 18, 20, 0, 8, 0, 0, 2, FakeJVMHeap + 0xff8, 12, 8,
	} {
		offsets = binary.LittleEndian.AppendUint64(offsets, v)
	}
	return memory, offsets
}
