package pe

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// memory is a process of Wine with a program, and a stack.
type memory struct {
	image, stack []byte
	snap         *procstate.Snapshot
	s            *Stepper
	w            *unwind.Walker
	vm           *machine
}

// Where it has what, and what stands where a caller is.
const (
	testImage  = 0x140000000
	testSize   = 0x5000
	testCode   = 0x1000
	testTable  = 0x2000
	testInfos  = 0x3000
	testExport = 0x4000
	testStack  = 0x200000
	testCaller = testImage + testCode + 0xf05 // behind a call
)

// testFunctions are the functions: their code, and what is told of them. Each has 0x100 bytes.
var testFunctions = []struct {
	code string
	info []byte
}{
	{ // push %rbp; push %r12; sub $0x28,%rsp; nop ...; at 0x30: add $0x28,%rsp; pop %r12; pop %rbp; ret
		"\x55\x41\x54\x48\x83\xec\x28" + nops(0x29) + "\x48\x83\xc4\x28\x41\x5c\x5d\xc3",
		[]byte{1, 7, 3, 0, 7, 0x42, 3, 0xc0, 1, 0x50},
	},
	{ // push %rbp; sub $0x50,%rsp; lea 0x20(%rsp),%rbp; nop ...; at 0x30: lea 0x30(%rbp),%rsp; pop %rbp; jmp *%rax
		"\x55\x48\x83\xec\x50\x48\x8d\x6c\x24\x20" + nops(0x26) + "\x48\x8d\x65\x30\x5d\x48\xff\xe0",
		[]byte{1, 10, 3, 0x25, 10, 3, 5, 0x92, 1, 0x50},
	},
	{ // a part of the first one, and a jump to another
		nops(0x10) + "\xe9\x0b\xfe\xff\xff",
		[]byte{1 | 4<<3, 0, 0, 0, 0x00, 0x10, 0, 0, 0x38, 0x10, 0, 0, 0x00, 0x30, 0, 0},
	},
	{ // what is interrupted goes on elsewhere
		nops(0x10), []byte{1, 0, 1, 0, 0, 10},
	},
	{ // sub $0x10008,%rsp; mov %rbx,0x20(%rsp); mov %rsi,0x10000(%rsp); nop ...; at 0x30: add $0x10008,%rsp; jmp to the next function
		"\x48\x81\xec\x08\x00\x01\x00\x48\x89\x5c\x24\x20\x48\x89\xb4\x24\x00\x00\x01\x00" + nops(0x1c) +
			"\x48\x81\xc4\x08\x00\x01\x00\xe9\xc4\x00\x00\x00",
		[]byte{1, 20, 8, 0, 20, 0x65, 0, 0, 1, 0, 12, 0x34, 4, 0, 7, 0x11, 8, 0, 1, 0},
	},
}

func nops(n int) string { return string(bytes.Repeat([]byte{0x90}, n)) }

func newMemory() *memory {
	m := &memory{image: make([]byte, testSize), stack: make([]byte, 0x20000)}
	le := binary.LittleEndian
	put := func(at int, v uint32) { le.PutUint32(m.image[at:], v) }
	const header = 0x80
	copy(m.image, "MZ")
	put(0x3c, header)
	copy(m.image[header:], "PE\x00\x00\x64\x86")
	copy(m.image[header+6:], "\x01\x00") // a section, behind the rest of the header
	copy(m.image[header+20:], "\xf0\x00")
	copy(m.image[header+24:], "\x0b\x02")
	put(header+24+240+8, testSize-testCode)
	put(header+24+240+12, testCode)
	put(header+24+240+16, testSize-testCode)
	put(header+24+240+20, testCode)
	put(header+24+56, testSize)
	put(header+24+108, 16)
	put(header+24+112, testExport)
	put(header+24+112+3*8, testTable)
	put(header+24+112+3*8+4, uint32(12*len(testFunctions)))
	for i, f := range testFunctions {
		start, info := testCode+0x100*i, testInfos+0x40*i
		copy(m.image[start:], f.code)
		put(testTable+12*i, uint32(start))
		put(testTable+12*i+4, uint32(start+len(f.code)))
		put(testTable+12*i+8, uint32(info))
		copy(m.image[info:], f.info)
	}
	// A function without an entry: push %rax; nop; pop %rax; ret. It is exported, with the name of the library.
	copy(m.image[testCode+0x800:], "\x50\x90\x58\xc3")
	put(testExport+12, testExport+0x100)
	copy(m.image[testExport+0x100:], "test.dll")
	put(testExport+20, 2)
	put(testExport+24, 2)
	put(testExport+28, testExport+0x40)
	put(testExport+32, testExport+0x50)
	put(testExport+36, testExport+0x60)
	put(testExport+0x40, testCode+0x800)
	put(testExport+0x44, testCode)
	put(testExport+0x50, testExport+0x120)
	put(testExport+0x54, testExport+0x140)
	copy(m.image[testExport+0x60:], "\x01\x00\x00\x00")
	copy(m.image[testExport+0x120:], "first")
	copy(m.image[testExport+0x140:], "leaf")

	var space procstate.AddressSpace
	space.Insert(&procstate.Mapping{Start: testImage + testCode, End: testImage + testTable})
	m.snap = procstate.NewSnapshot(procstate.AMD64, 1, "", &space)
	m.snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testStack, Data: m.stack}, {Addr: testImage, Data: m.image}})
	m.w = unwind.NewWalker(m.snap, unwind.NewGroup(), nil)
	m.s = New()
	m.vm = &machine{Memory: vmread.Memory{Mem: m.snap, Captured: m.snap}, isWine: true, none: map[uint64]miss{}}
	m.vm.Walk = m.w.Walks()
	m.w.Keep(m.s, m.vm)
	return m
}

// frame makes a frame at an offset of a function, with what is on its stack and in its registers.
func (m *memory) frame(function, at int, flags unwind.FrameFlags, words map[int]uint64, regs map[procstate.Reg]uint64) unwind.Frame {
	clear(m.stack)
	for at, v := range words {
		binary.LittleEndian.PutUint64(m.stack[0x8000+at:], v)
	}
	in := unwind.NewFrame(procstate.AMD64, testImage+testCode+uint64(0x100*function+at), testStack+0x8000, 0)
	in.Flags = flags
	for reg, v := range regs {
		in.Regs.Set(reg, v)
	}
	return in
}

// Wherever a function was interrupted, or has called, what it has done is undone, and no more.
func TestUnwind(t *testing.T) {
	const (
		r12, rbx, rsi procstate.Reg = 12, 3, 4
		sp                          = testStack + 0x8000
		interrupted                 = unwind.Interrupted
	)
	type words = map[int]uint64
	type regs = map[procstate.Reg]uint64
	m := newMemory()
	for _, c := range []struct {
		name         string
		function, at int
		flags        unwind.FrameFlags
		words        words
		regs         regs
		above        uint64 // SP of the caller
		want         regs
	}{
		{"entered", 0, 0, interrupted, words{0: testCaller}, regs{rbp: 1, r12: 2}, 8, regs{rbp: 1, r12: 2}},
		{"one push", 0, 1, interrupted, words{0: 1, 8: testCaller}, regs{rbp: 9, r12: 2}, 16, regs{rbp: 1, r12: 2}},
		{"two pushes", 0, 3, interrupted, words{0: 2, 8: 1, 16: testCaller}, regs{rbp: 9, r12: 9}, 24, regs{rbp: 1, r12: 2}},
		{"called in the prolog", 0, 3, 0, words{0: 2, 8: 1, 16: testCaller}, regs{rbp: 9, r12: 9}, 24, regs{rbp: 1, r12: 2}},
		{"body", 0, 7, interrupted, words{40: 2, 48: 1, 56: testCaller}, regs{rbp: 9, r12: 9}, 64, regs{rbp: 1, r12: 2}},
		{"called", 0, 0x20, 0, words{40: 2, 48: 1, 56: testCaller}, regs{rbp: 9, r12: 9}, 64, regs{rbp: 1, r12: 2}},
		{"epilog", 0, 0x30, interrupted, words{40: 2, 48: 1, 56: testCaller}, regs{rbp: 9, r12: 9}, 64, regs{rbp: 1, r12: 2}},
		{"added", 0, 0x34, interrupted, words{0: 2, 8: 1, 16: testCaller}, regs{rbp: 9, r12: 9}, 24, regs{rbp: 1, r12: 2}},
		{"popped", 0, 0x36, interrupted, words{0: 1, 8: testCaller}, regs{rbp: 9, r12: 2}, 16, regs{rbp: 1, r12: 2}},
		{"return", 0, 0x37, interrupted, words{0: testCaller}, regs{rbp: 1, r12: 2}, 8, regs{rbp: 1, r12: 2}},
		{"no frame pointer yet", 1, 5, interrupted, words{0x50: 1, 0x58: testCaller}, regs{rbp: 9}, 0x60, regs{rbp: 1}},
		{"by frame pointer", 1, 10, interrupted, words{0x150: 1, 0x158: testCaller}, regs{rbp: sp + 0x120}, 0x160, regs{rbp: 1}},
		{"called, by frame pointer", 1, 0x20, 0, words{0x150: 1, 0x158: testCaller}, regs{rbp: sp + 0x120}, 0x160, regs{rbp: 1}},
		{"epilog by frame pointer", 1, 0x30, interrupted, words{0x150: 1, 0x158: testCaller}, regs{rbp: sp + 0x120}, 0x160, regs{rbp: 1}},
		{"tail call by register", 1, 0x35, interrupted, words{0: testCaller}, regs{rbp: 1}, 8, regs{rbp: 1}},
		{"part", 2, 8, interrupted, words{40: 2, 48: 1, 56: testCaller}, regs{rbp: 9, r12: 9}, 64, regs{rbp: 1, r12: 2}},
		{"jump back to the function", 2, 0x10, interrupted, words{40: 2, 48: 1, 56: testCaller}, regs{rbp: 9, r12: 9}, 64, regs{rbp: 1, r12: 2}},
		{"large", 4, 0x20, 0, words{0x20: 3, 0x10000: 4, 0x10008: testCaller}, regs{rbx: 9, rsi: 9}, 0x10010, regs{rbx: 3, rsi: 4}},
		{"saved one", 4, 12, interrupted, words{0x20: 3, 0x10008: testCaller}, regs{rbx: 9, rsi: 4}, 0x10010, regs{rbx: 3, rsi: 4}},
		{"tail call", 4, 0x37, interrupted, words{0: testCaller}, regs{rbx: 3, rsi: 4}, 8, regs{rbx: 3, rsi: 4}},
		{"without an entry", 8, 1, interrupted, words{0: 7, 8: testCaller}, regs{rbp: 1}, 16, regs{rbp: 1}},
		{"without an entry, at its return", 8, 3, interrupted, words{0: testCaller}, regs{rbp: 1}, 8, regs{rbp: 1}},
	} {
		in, out := m.frame(c.function, c.at, c.flags, c.words, c.regs), unwind.Frame{}
		v, err := m.s.CallerFrame(m.w, &in, &out)
		if v != unwind.Success || out.PC() != testCaller || out.SP() != sp+c.above || out.Flags != 0 {
			t.Errorf("%s: %v, %v, pc %#x sp %#x flags %v", c.name, v, err, out.PC(), out.SP()-sp, out.Flags)
		}
		for reg, want := range c.want {
			if got, known := out.Regs.Value(reg); !known || got != want {
				t.Errorf("%s: register %d is %#x (%v), want %#x", c.name, reg, got, known, want)
			}
		}
		if _, known := out.Regs.Value(0); known {
			t.Errorf("%s: RAX is known", c.name)
		}
	}
}

// What a function that was interrupted goes back to was interrupted, on any stack.
func TestMachineFrame(t *testing.T) {
	m := newMemory()
	in, out := m.frame(3, 4, 0, map[int]uint64{0: testCaller, 24: 0x1234500}, nil), unwind.Frame{}
	if v, err := m.s.CallerFrame(m.w, &in, &out); v != unwind.Success || out.PC() != testCaller || out.SP() != 0x1234500 ||
		out.Flags&unwind.Interrupted == 0 || in.Flags&unwind.Signal == 0 {
		t.Errorf("%v, %v, pc %#x sp %#x flags %v", v, err, out.PC(), out.SP(), out.Flags)
	}
}

// A walk ends where there is no return address, fails where there is no code, and does not begin elsewhere.
func TestEnds(t *testing.T) {
	m := newMemory()
	lost := m.frame(1, 0x20, 0, nil, nil)
	lost.Regs.Forget(rbp)
	for _, c := range []struct {
		name    string
		frame   unwind.Frame
		verdict unwind.Verdict
		err     error
	}{
		{"no return address", m.frame(8, 3, unwind.Interrupted, nil, nil), unwind.StackBottom, nil},
		{"called by what has no entry", m.frame(8, 3, 0, nil, nil), unwind.Failed, unwind.NoUnwindInfo},
		{"frame pointer lost", lost, unwind.Failed, unwind.NoRegister},
		{"outside of the image", unwind.NewFrame(procstate.AMD64, testImage+testCode+0x10000, testStack, 0), unwind.NotMe, nil},
	} {
		var out unwind.Frame
		if v, err := m.s.CallerFrame(m.w, &c.frame, &out); v != c.verdict || err != c.err {
			t.Errorf("%s: %v, %v; want %v, %v", c.name, v, err, c.verdict, c.err)
		}
	}
	m = newMemory()
	in, out := m.frame(8, 3, unwind.Interrupted, map[int]uint64{0: 0xdeadbabe}, nil), unwind.Frame{}
	if v, err := m.s.CallerFrame(m.w, &in, &out); v != unwind.Failed || err != unwind.BadPC {
		t.Errorf("no code: %v, %v", v, err)
	}
	m.vm.isWine = false
	if v, _ := m.s.CallerFrame(m.w, &in, &out); v != unwind.NotMe {
		t.Errorf("without Wine: %v", v)
	}
}

// Functions are called what the library exports, a part of one as that, and others by their place.
func TestNames(t *testing.T) {
	m := newMemory()
	for _, c := range []struct {
		function, at int
		want         string
	}{{0, 8, "first"}, {2, 8, "first"}, {1, 8, "test.dll+0x1100"}, {8, 2, "leaf"}, {7, 2, "test.dll+0x1702"}} {
		in, out := m.frame(c.function, c.at, unwind.Interrupted, nil, nil), unwind.Frame{}
		_, _ = m.s.CallerFrame(m.w, &in, &out)
		if lines := m.w.Codes().Lines(in.Code); len(lines) != 1 || lines[0].Name != c.want {
			t.Errorf("function %d, %d: %v, want %s", c.function, c.at, lines, c.want)
		}
	}
}

// Another image in the place of one that is known is read anew.
func TestAnotherImage(t *testing.T) {
	m := newMemory()
	name := func() string {
		in, out := m.frame(0, 8, unwind.Interrupted, nil, nil), unwind.Frame{}
		_, _ = m.s.CallerFrame(m.w, &in, &out)
		return m.w.Codes().Lines(in.Code)[0].Name
	}
	if got := name(); got != "first" {
		t.Error(got)
	}
	copy(m.image[testExport+0x120:], "other")
	for _, want := range []string{"first", "other"} {
		m.vm.isWine = false // as find sees it here
		if vm := m.s.find(m.w, nil, m.vm); vm != m.vm {
			t.Fatal("another machine")
		}
		m.vm.isWine = true
		if got := name(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		m.image[0x80+8]++ // it was made at another time
	}
}

// What is known of a file serves all processes that have it, and no other file's; one with more symbols than may be read has none.
func TestSharedContents(t *testing.T) {
	m := newMemory()
	file := filepath.Join(t.TempDir(), "test.dll")
	if err := os.WriteFile(file, m.image, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapped, err := unix.Mmap(int(f.Fd()), 0, testSize, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapped)
	m.vm.pid, m.vm.shared = os.Getpid(), map[contentsKey]*contents{}
	start := uint64(uintptr(unsafe.Pointer(&mapped[0])))
	changed := bytes.Clone(m.image) // what a process has in memory need not be what its file has
	clear(changed[testTable : testTable+0x100])
	images := [3]*image{}
	for i := range images {
		if i == 2 {
			changed[0x80+8]++ // another file, made at another time
		}
		read := func(addr uint64, b []byte) bool { return copy(b, changed[addr-start:]) == len(b) }
		images[i] = openImage(read, start)
		if images[i] == nil || !m.vm.fill(images[i], read) {
			t.Fatal("no image")
		}
	}
	if images[0].contents != images[1].contents || images[0].name != "test.dll" || len(images[0].functions) != len(testFunctions) || images[0].names[testCode] != "first" {
		t.Errorf("contents are not those of the file: %+v", images[0].contents)
	}
	if images[2].contents == images[0].contents || len(images[2].functions) != 0 {
		t.Error("of what is no file any more it is not memory that tells")
	}
	if !hasFewSymbols(bytes.NewReader(m.image)) {
		t.Error("a file without symbols")
	}
	binary.LittleEndian.PutUint32(m.image[0x80+16:], maxSymbols+1)
	if hasFewSymbols(bytes.NewReader(m.image)) {
		t.Error("too many symbols")
	}
	if hasFewSymbols(bytes.NewReader(m.image[:0x40])) {
		t.Error("a file that was cut")
	}
}

// Whatever is in memory, walks end.
func FuzzPE(f *testing.F) {
	f.Add([]byte{}, uint16(0), uint16(8))
	f.Add([]byte{1 | 4<<3, 0, 0, 0, 0x00, 0x12, 0, 0, 0x20, 0x12, 0, 0, 0x80, 0x30, 0, 0}, uint16(testInfos+0x80), uint16(0x208))
	f.Fuzz(func(t *testing.T, b []byte, at, pc uint16) {
		m := newMemory()
		if int(at) < len(m.image) {
			copy(m.image[at:], b)
		}
		for _, flags := range []unwind.FrameFlags{0, unwind.Interrupted} {
			in, out := m.frame(0, int(pc%0x1000), flags, map[int]uint64{0: testCaller, 8: testCaller}, map[procstate.Reg]uint64{rbp: testStack + 0x8100}), unwind.Frame{}
			if v, _ := m.s.CallerFrame(m.w, &in, &out); v == unwind.Success && m.w.MappingAt(out.PC()) == nil {
				t.Errorf("a caller at %#x", out.PC())
			}
		}
	})
}
