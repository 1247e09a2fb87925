package pypy

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Some types of PyPy 7.3.19, and where its machine code has their fields.
var someTypes = []string{
	"GcStruct pypy.interpreter.baseobjspace.W_Root { super }",
	"GcStruct rpy_string { hash, chars }",
	"GcStruct weakref { weakptr }",
	"GcStruct pypy.interpreter.eval.Code { super, inst_co_name, inst_fast_natural_arity, inst_hidden_applevel }",
	"GcStruct pypy.interpreter.pyframe.PyFrame { super, vable_token, inst_space, inst_debugdata, inst_f_backref, inst_f_generator_wref, inst_last_instr, inst_lastblock, inst_locals_cells_stack_w, inst_pycode, inst_valuestackdepth, inst_escaped, inst_frame_finished_execution }",
	"GcStruct pypy.interpreter.pycode.PyCode { super, inst_space, inst__args_as_cellvars, inst__globals_caches, inst__lifeline_, inst__linelist, inst__mapdict_caches, inst__signature, inst__vmprof_unique_id, inst_cell_families, inst_co_argcount, inst_co_cellvars, inst_co_code, inst_co_consts_w, inst_co_filename, inst_co_firstlineno, inst_co_flags, inst_co_freevars, inst_co_kwonlyargcount, inst_co_linetable, inst_co_names_w, inst_co_nlocals, inst_co_posonlyargcount, inst_co_qualname, inst_co_stacksize, inst_co_varnames, inst_magic, inst_w_filename, inst_w_globals, mutate_w_globals }",
	"GcStruct rpython.rlib.rvmprof.rvmprof.WeakCodeObjectList { super, inst_free_list, inst_handles }",
}

// dataOf is data of a file with a list of types, which have the numbers 8, 16 and so on.
func dataOf(t testing.TB, some []string) []byte {
	var text, data bytes.Buffer
	numbers := []byte{0, 0, 0, 0}
	text.WriteString("member0    ?\n")
	for i := range leastTypes {
		name := "GcStruct other { a, b }"
		if i < len(some) {
			name = some[i]
		}
		fmt.Fprintf(&text, "member%-4d %s\n", i+1, name)
		numbers = binary.LittleEndian.AppendUint32(numbers, uint32(8*(i+1)))
	}
	text.WriteString("member9999 ?\n") // that has no number
	var packed bytes.Buffer
	z, err := zlib.NewWriterLevel(&packed, zlib.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = z.Write(text.Bytes())
	_ = z.Close()
	array := func(n int, b []byte) {
		data.Write(make([]byte, 3*word))
		_ = binary.Write(&data, binary.LittleEndian, uint64(n))
		data.Write(b)
		data.Write(make([]byte, 2*word-len(b)%word))
	}
	array(len(numbers)/4, numbers)
	array(packed.Len(), packed.Bytes())
	return data.Bytes()
}

func TestTypes(t *testing.T) {
	types, ok := readTypes(dataOf(t, someTypes))
	if !ok {
		t.Fatal("no types")
	}
	want := layout{
		frameCode: 0x40, uniqueID: 0x50, name: 25 * word, fileName: 16 * word, firstLine: 17 * word, codeBytes: 26 * word,
		handles: 16, code: 48, codes: 56, weakref: 24, str: 16,
	}
	if f := types.layoutOf(); f == nil || *f != want {
		t.Errorf("%+v, want %+v", f, want)
	}
	for i := range someTypes { // all are needed
		some := slices.Clone(someTypes)
		some[i] = "?"
		types, ok := readTypes(dataOf(t, some))
		if f := types.layoutOf(); !ok || f != nil {
			t.Errorf("without %.40s: %+v", someTypes[i], f)
		}
	}
	before311 := slices.Clone(someTypes)
	before311[5] = strings.Replace(before311[5], "inst_co_qualname, ", "", 1)
	types, _ = readTypes(dataOf(t, before311))
	if f := types.layoutOf(); f == nil || f.name != word {
		t.Errorf("without qualified names: %+v", f)
	}
}

func FuzzTypes(f *testing.F) {
	f.Add(dataOf(f, someTypes))
	f.Add(dataOf(f, someTypes[:3]))
	f.Fuzz(func(t *testing.T, data []byte) {
		types, ok := readTypes(data)
		if l := types.layoutOf(); l != nil && (!ok || l.codeBytes > 1<<20) {
			t.Errorf("%t, %+v", ok, l)
		}
	})
}

// All of a real PyPy is found: its machine code has fields where the types have them.
func TestFindPyPy(t *testing.T) {
	var files []string
	for _, root := range append(filepath.SplitList(os.Getenv("SWBPF_ROOTS")), "/") {
		found, _ := filepath.Glob(filepath.Join(root, "usr/lib/*/libpypy3*-c.so"))
		files = append(files, found...)
	}
	if len(files) == 0 {
		t.Skip("no PyPy here")
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		im, err := procstate.NewImage(f, info.Size(), file)
		if err != nil {
			t.Fatal(err)
		}
		if im.Arch() != procstate.AMD64 {
			continue
		}
		p := find(im, unwind.NewTables())
		if p.layout == nil || len(p.enters) == 0 || len(p.lists) == 0 || p.zeroed.End <= p.zeroed.Start {
			t.Errorf("%s: %+v", file, p)
			continue
		}
		calls := 0
		for _, e := range p.enters {
			code := mcode.ReadFile(im, e.Start, e.End)
			if !bytes.Contains(code, []byte{nodeKind, isCode, 0, 0, 0}) {
				t.Errorf("%s: at %#x, % x", file, e.Start, code)
			}
			calls += bytes.Count(code, []byte{0xe8})
		}
		if calls == 0 {
			t.Errorf("%s: no call in %#x", file, p.enters)
		}
	}
}

// What is noted of a loop, of which two functions are inlined, one in the other and later by itself, and of what
// was made for a guard in the inner one.
func TestCalls(t *testing.T) {
	const outer, middle, inner = 8, 12, 16
	loop := &block{Range: mcode.Range{Start: 0x1000, End: 0x1100}, words: []uint64{
		outer, 0, 0xf0, 16,
		middle, 0x20, 0x80, 12,
		inner, 0x30, 0x50, 12,
		inner, 0x90, 0xa0, 16,
	}}
	bridge := &block{Range: loop.Range, words: []uint64{
		outer, 0, 0x100, 16,
		middle, 0, 0x60, 16,
		inner, 0, 0x40, 12,
		inner, 0x50, 0x58, 16,
	}}
	for _, test := range []struct {
		b    *block
		addr uint64
		want []uint64
	}{
		{loop, 0x1000, []uint64{outer}},
		{loop, 0x101f, []uint64{outer}},
		{loop, 0x1020, []uint64{outer, middle}},
		{loop, 0x1030, []uint64{outer, middle, inner}},
		{loop, 0x104f, []uint64{outer, middle, inner}},
		{loop, 0x1050, []uint64{outer, middle}},
		{loop, 0x1080, []uint64{outer}},
		{loop, 0x1090, []uint64{outer, inner}},
		{loop, 0x10ff, []uint64{outer}},
		{bridge, 0x1010, []uint64{outer}}, // perhaps with the others
		{bridge, 0x1050, []uint64{outer, inner}},
		{bridge, 0x1070, []uint64{outer}},
		{&block{Range: loop.Range}, 0x1010, nil},
	} {
		if got, place := test.b.calls(nil, test.addr); !slices.Equal(got, test.want) || len(got) > 0 && test.b.words[place] != got[len(got)-1] {
			t.Errorf("%#x: %v, place %d, want %v", test.addr, got, place, test.want)
		}
	}
}

// listMemory is memory of a process with a list of compiled code: two pieces, and a head at its begin.
func listMemory() []byte {
	b := make([]byte, 0x400)
	put := func(at int, words ...uint64) {
		for i, w := range words {
			binary.LittleEndian.PutUint64(b[at+i*word:], w)
		}
	}
	const first, second = 0x100, 0x200
	put(0, 0, 0, testBase+first, testBase+second)
	put(first, 0x5000, testBase+first+nodeNext+word, testBase+second, 0x100|4<<32, testBase+0x300)
	put(second, 0x6000, testBase+second+nodeNext+2*word, 0, 0, 0x80|8<<32, testBase+0x320)
	put(0x300, 8, 0, 0x100, 4)
	put(0x320, 12, 0, 0x80, 8, 16, 0x10, 0x20, 8)
	return b
}

const testBase = 0x7f0000000000

func listMachine(b []byte) *machine {
	snap := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testBase, Data: b}})
	return &machine{
		Memory: vmread.Memory{Mem: snap}, image: &image{zeroed: mcode.Range{Start: testBase, End: testBase + 0x100}},
	}
}

func TestBlocks(t *testing.T) {
	vm := listMachine(listMemory())
	for _, test := range []struct {
		addr uint64
		want mcode.Range
	}{
		{0x4fff, mcode.Range{}}, {0x5000, mcode.Range{Start: 0x5000, End: 0x5100}}, {0x50ff, mcode.Range{Start: 0x5000, End: 0x5100}},
		{0x5100, mcode.Range{}}, {0x6000, mcode.Range{Start: 0x6000, End: 0x6080}}, {0x6080, mcode.Range{}},
	} {
		b := vm.readBlock(test.addr)
		if b == nil && test.want != (mcode.Range{}) || b != nil && b.Range != test.want {
			t.Errorf("%#x: %v, want %#x", test.addr, b, test.want)
		}
	}
	if vm.head != testBase {
		t.Errorf("the head is at %#x", vm.head)
	}
	unordered := listMemory()
	binary.LittleEndian.PutUint64(unordered[0x200:], 0x4000)
	if vm := listMachine(unordered); vm.readBlock(0x5000) != nil {
		t.Error("a list without an order")
	}
}

func FuzzBlocks(f *testing.F) {
	f.Add(listMemory(), uint64(0x5010))
	f.Fuzz(func(t *testing.T, memory []byte, addr uint64) {
		vm := listMachine(memory)
		if b := vm.readBlock(addr); b != nil {
			if calls, _ := b.calls(nil, addr); !b.Holds(addr) || len(calls) > len(b.words)/partWords {
				t.Errorf("%#x: %v, %d calls", addr, b.Range, len(calls))
			}
		}
	})
}

// A frame of compiled code is left at each instruction of its begin and its end, in what it calls, and where a helper
// runs that it has called or gone on with.
func TestFrames(t *testing.T) {
	const (
		codeAt, stackAt = testBase + 0x1000, testBase + 0x8000
		frame           = stackAt + 0x200
		bodyAt          = codeAt + beginBytes
		helperAt        = codeAt + 0x200
		returnAt        = codeAt + 0x300 // of the caller
	)
	memory := make([]byte, 0x9000)
	code, stack := memory[0x1000:0x1400], memory[0x8000:]
	copy(code, beginsBy+beginNode)
	for i := len(beginsBy + beginNode); i < len(code); i++ {
		code[i] = mcode.NopAMD64
	}
	copy(code[beginBytes+0x10:], "\xe8\x00\x00\x00\x00") // call
	endAt := copy(code[beginBytes+0x40:], ends+endRet) + beginBytes + 0x40 - 1
	put := func(addr, value uint64) { binary.LittleEndian.PutUint64(stack[addr-stackAt:], value) }
	saved := map[procstate.Reg]uint64{}
	for i, reg := range savedRegs {
		saved[reg] = uint64(0x100 + i)
		put(frame+frameSaved+uint64(i)*word, saved[reg])
	}
	put(frame+frameNode+nodeNumber, frame)
	put(frame+frameNode+nodeKind, isCompiled)
	put(frame+frameReturn, returnAt)
	const called = bodyAt + 0x15 // behind the call
	for _, test := range []struct {
		name   string
		pc, sp uint64
		isCall bool
		below  uint64 // a word below the frame
		inRegs bool   // registers are the caller's
		want   uint64 // the return address
	}{
		{name: "begin", pc: codeAt, sp: frame + frameReturn, inRegs: true, want: returnAt},
		{name: "frame", pc: codeAt + beginFrameAt, sp: frame, inRegs: true, want: returnAt},
		{name: "node", pc: codeAt + uint64(beginNodeAt), sp: frame, inRegs: true, want: returnAt},
		{name: "last of the begin", pc: codeAt + beginBytes - 1, sp: frame, inRegs: true, want: returnAt},
		{name: "body", pc: bodyAt, sp: frame, want: returnAt},
		{name: "call", pc: called, sp: frame, isCall: true, want: returnAt},
		{name: "return", pc: codeAt + uint64(endAt), sp: frame + frameReturn, inRegs: true, want: returnAt},
		{name: "helper", pc: helperAt, sp: frame - word, below: called, want: called},
		{name: "helper that calls", pc: helperAt + 8, sp: frame - 4*word, isCall: true, below: called, want: called},
		{name: "helper that was jumped to", pc: helperAt, sp: frame - word, below: 0x1234, want: returnAt},
	} {
		put(frame-word, test.below)
		var regs procstate.Regs
		for reg, value := range saved {
			if !test.inRegs {
				value = 0xdead
			}
			regs.Set(reg, value)
		}
		regs.Set(procstate.AMD64.PC, test.pc)
		regs.Set(procstate.AMD64.SP, test.sp)
		var space procstate.AddressSpace
		m := &procstate.Mapping{Start: codeAt, End: codeAt + uint64(len(code))}
		space.Insert(m)
		snap := procstate.NewSnapshot(procstate.AMD64, 1, "", &space)
		snap.Reset(1, &regs, []procstate.Region{{Addr: testBase, Data: memory}})
		w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
		vm := &machine{Memory: vmread.Memory{Mem: snap}, image: &image{}, others: map[uint64]time.Time{}}
		var in, out unwind.Frame
		in.Load(procstate.AMD64, &regs)
		if test.isCall {
			in.Flags &^= unwind.Interrupted
		}
		p, ok := vm.place(w, m, &in)
		if !ok || vm.leave(p, &in, &out) != unwind.Success || out.PC() != test.want {
			t.Errorf("%s: %t, %+v, caller at %#x, want %#x", test.name, ok, p, out.PC(), test.want)
			continue
		}
		if test.want == called {
			if out.SP() != frame {
				t.Errorf("%s: SP %#x", test.name, out.SP())
			}
			continue
		}
		if out.SP() != frame+frameBytes {
			t.Errorf("%s: SP %#x", test.name, out.SP())
		}
		for reg, want := range saved {
			if got, known := out.Regs.Value(reg); !known || got != want {
				t.Errorf("%s: register %d is %#x, %t, want %#x", test.name, reg, got, known, want)
			}
		}
	}
}
