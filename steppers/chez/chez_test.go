//go:build linux && amd64

package chez

import (
	"encoding/binary"
	"os"
	"testing"
	"unsafe"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
	"golang.org/x/sys/unix"
)

// chezSize is the frame of the function of call.
const chezSize = 0x28

// call is what the compiler of 9.5 makes of a function that calls another and returns, with its header where
// the code reads nothing.
var call = []byte{
	0x49, 0x83, 0xc5, chezSize, //           00 add $0x28,%r13
	0x48, 0x8d, 0x0d, 0x30, 0, 0, 0, //      04 lea 3b(%rip),%rcx
	0x49, 0x89, 0x4d, 0x00, //               0b mov %rcx,(%r13)
	0xe9, 0xec, 0xff, 0xff, 0xff, //         0f jmp 0
	0x0f, 0x1f, 0x80, 0x00, 0x00, 0, 0, //   14 nopl 0(%rax)
	31: 0, 32: 0, 58: 0, //                  1b header
	59: 0x49, 60: 0x83, 61: 0xed, chezSize, // 3b sub $0x28,%r13
	0x4d, 0x89, 0x6e, 0x38, //               3f mov %r13,0x38(%r14)
	0xff, 0xd0, //                           43 call *%rax
	0x4d, 0x8b, 0x6e, 0x38, //               45 mov 0x38(%r14),%r13
	0x41, 0xff, 0x65, 0x00, //               49 jmp *(%r13)
}

const chezReturn = 0x3b // where the call returns to

// memory is memory of the test's own process with such a function, and what walks it.
type memory struct {
	b     []byte
	start uint64
	snap  *procstate.Snapshot
	vm    *machine
}

func newMemory(t *testing.T) *memory {
	const size = 4 << 12
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	m := &memory{b: b, start: uint64(uintptr(unsafe.Pointer(&b[0])))}
	m.walkBy(os.Getpid(), exe)
	m.snap.SetLiveCode(procstate.NewLiveCode(os.Getpid(), exe))
	m.vm.Memory = vmread.MemoryOf(m.vm.w)
	return m
}

// walkBy makes what walks the memory of a process.
func (m *memory) walkBy(pid int, exe string) {
	var space procstate.AddressSpace
	space.Insert(&procstate.Mapping{Start: m.start, End: m.start + uint64(len(m.b))})
	m.snap = procstate.NewSnapshot(procstate.AMD64, pid, exe, &space)
	w := unwind.NewWalker(m.snap, unwind.NewGroup(), nil)
	m.vm = &machine{w: w, points: map[uint64]point{}, codes: map[uint64]name{}}
}

func (m *memory) put(at int, words ...uint64) uint64 {
	for i, v := range words {
		binary.LittleEndian.PutUint64(m.b[at+8*i:], v)
	}
	return m.start + uint64(at)
}

// addFunction puts the function into an object, with frames of so many bytes and a first word.
func (m *memory) addFunction(at int, kind, size uint64) (code uint64) {
	m.put(at, kind, uint64(len(call)))
	copy(m.b[at+codeHead:], call)
	header := at + codeHead + chezReturn - 32
	object := m.start + uint64(at)
	m.put(header, 0, m.start+uint64(header)+8-(object-1), size, 0)
	return object + codeHead
}

// The frame of a function is where it is at each of its instructions, also where R13 is not there.
func TestChezPlaces(t *testing.T) {
	m := newMemory(t)
	code := m.addFunction(0x1000, plainCode, chezSize)
	for _, test := range []struct {
		at   uint64
		want place
	}{
		{0x00, place{}}, {0x04, place{frame: -chezSize}}, {0x0b, place{frame: -chezSize}}, {0x0f, place{frame: -chezSize}},
		{0x3b, place{frame: -chezSize}}, {0x3f, place{}}, {0x45, place{kept: 0x38}}, {0x49, place{}},
	} {
		if got, ok := m.vm.follow(code+test.at, 0); !ok || !got.is(test.want) {
			t.Errorf("at %#x: %+v, %v, want %+v", test.at, got, ok, test.want)
		}
	}
	for i := range uint64(len(call)) { // the header's bytes, and those within instructions, are no places of return
		if p, ok := m.vm.pointAt(code + i); ok != (i == chezReturn) || ok && (p.size != chezSize || p.code != code-codeHead) {
			t.Errorf("at %#x: %+v, %v", i, p, ok)
		}
	}
	for _, bad := range [][]uint64{{0, 1 << 60, chezSize}, {0, 0, chezSize}, {0, 0x40, chezSize + 1}} {
		m.put(0x1000+codeHead+chezReturn-32, bad...)
		if p, ok := m.newVM().pointAt(code + chezReturn); ok {
			t.Errorf("header %x: %+v", bad, p)
		}
	}
}

// newVM forgets what was found out.
func (m *memory) newVM() *machine {
	vm := *m.vm
	vm.points, vm.layout = map[uint64]point{}, unknown
	return m.again(&vm)
}

// again begins with another capture.
func (m *memory) again(vm *machine) *machine {
	if s, ok := vm.w.ProcessState().(*procstate.Snapshot); ok {
		var regs procstate.Regs
		s.Reset(1, &regs, nil)
		s.SetTime(procstate.Monotonic() + 1)
	}
	return vm
}

// A continuation leads to the frames that it has, one that leads to itself to no end, and one that is used up or
// whose frames do not fit nowhere.
func TestChezContinuations(t *testing.T) {
	m := newMemory(t)
	code := m.addFunction(0x1000, plainCode, chezSize)
	underflow := m.addFunction(0x1200, plainCode|systemCode, 0)
	resume := m.addFunction(0x1400, plainCode|continuationCode, chezSize)
	const stack, k, size = 0x2000, 0x3000, 2 * chezSize
	at := m.put(stack, underflow+chezReturn)
	m.put(stack+chezSize, code+chezReturn)
	link := m.start + k - 3 // tagged
	set := func(words ...uint64) *machine {
		m.put(k, words...)
		vm := m.newVM()
		vm.isLinked, vm.link, vm.start = true, link, at
		if _, _, ok := vm.goOn(at); ok {
			t.Error("a continuation is believed that may have been another")
		}
		vm = m.again(vm) // what was read before the next capture
		vm.isLinked, vm.link, vm.start, vm.segments = true, link, at, 0
		return vm
	}
	vm := set(resume, at, size, size, link, code+chezReturn)
	for i := range maxSegments / size {
		if ra, frame, ok := vm.goOn(at); !ok || ra != code+chezReturn || frame != at+size {
			t.Fatalf("turn %d: %#x, %#x, %v", i, ra, frame, ok)
		}
	}
	if _, _, ok := vm.goOn(at); ok {
		t.Error("it goes on without an end")
	}
	vm = m.again(vm)
	vm.isLinked, vm.link, vm.start, vm.segments = true, link, at, 0
	m.put(stack+8, 1) // a word of a frame
	if _, _, ok := vm.goOn(at); ok {
		t.Error("a continuation is believed that has changed")
	}
	if ra, _, ok := set(resume, 0, ^uint64(7), ^uint64(7), 0, 0).goOn(at); !ok || ra != 0 {
		t.Errorf("the continuation that is none: %#x, %v", ra, ok)
	}
	for what, words := range map[string][]uint64{
		"used up":          {resume, at, ^uint64(7), size, link, code + chezReturn},
		"frames are less":  {resume, at - 8, size + 8, size + 8, link, code + chezReturn},
		"frames are more":  {resume, at + 8, size - 8, size - 8, link, code + chezReturn},
		"no frames":        {resume, at, 0, 0, link, code + chezReturn},
		"no place":         {resume, at, size, size, link, code + chezReturn - 1},
		"not in memory":    {resume, 1 << 46, size, size, link, code + chezReturn},
		"no continuation":  {code, at, size, size, link, code + chezReturn},
		"larger than all":  {resume, at, 1 << 62, 1 << 62, link, code + chezReturn},
		"not of whole one": {resume, at, size, size - 4, link, code + chezReturn},
	} {
		vm := set(words...)
		if ra, frame, ok := vm.goOn(at); ok {
			t.Errorf("%s: %#x, %#x", what, ra, frame)
		}
	}
}

// Places in the memory that FuzzChez begins with.
const (
	testBase    = 0x7f0000000000
	testContext = 0x100
	testName    = 0x400
	testCode    = 0x1000
	testStack   = 0x2000
	testBefore  = 0x2800 // the segment of the continuation
	testLink    = 0x3000
	testSize    = 0x4000
)

// newCapture makes captured memory of a thread of Scheme that has called two functions, one before and one after
// the capture of a continuation.
func newCapture() *memory {
	m := &memory{b: make([]byte, testSize), start: testBase}
	m.walkBy(1, "")
	m.vm.Memory = vmread.Memory{Mem: m.snap, Captured: m.snap}
	m.vm.runtime = &procstate.Image{}
	code := m.addFunction(testCode, plainCode, chezSize)
	underflow := m.addFunction(testCode+0x200, plainCode|systemCode, 0)
	resume := m.addFunction(testCode+0x400, plainCode|continuationCode, chezSize)
	const none = testLink + 0x100
	const stackBytes = 0x400
	stack := m.put(testStack, underflow+chezReturn)
	m.put(testStack+chezSize, code+chezReturn)
	before := m.put(testBefore, underflow+chezReturn)
	m.put(testBefore+chezSize, code+chezReturn)
	m.put(none, resume)
	m.put(testLink, resume, before, 2*chezSize, 2*chezSize, m.start+none-3, code+chezReturn)
	m.put(testContext+8*6, stack+stackBytes-0x10)
	m.put(testContext+8*20, stack, 0, m.start+testLink-3, stackBytes)
	m.put(testCode+24, m.start+testName-1)
	m.put(testName, 2<<4|2, 'o'<<40|0x16<<32|'g'<<8|0x16)
	return m
}

// walk walks from an instruction that was interrupted and returns how many callers there are.
func (m *memory) walk(pc, sp, frame, context uint64) (callers int) {
	var in unwind.Frame
	a := procstate.AMD64
	in.SetPC(a, pc)
	in.SetSP(a, sp)
	in.Regs.Set(chezFrame, frame)
	in.Regs.Set(chezContext, context)
	in.Flags = unwind.Interrupted
	m.snap.Reset(1, &in.Regs, []procstate.Region{{Addr: m.start, Data: m.b}})
	s, w := New(), m.vm.w
	m.vm.Walk = w.Walks()
	w.Keep(s, m.vm)
	for ; callers < maxSegments/8; callers++ {
		var out unwind.Frame
		if v, _ := s.CallerFrame(w, &in, &out); v != unwind.Success {
			break
		}
		in = out
	}
	return callers
}

// What a process has where its runtime would have code, stacks and continuations is read within bounds.
func FuzzChez(f *testing.F) {
	seed := newCapture()
	const pc, sp, frame = testCode + codeHead + 0x49, 0x3800, testStack + chezSize
	if n := seed.walk(testBase+pc, testBase+sp, testBase+frame, testBase+testContext); n != 3 {
		f.Fatalf("%d callers, want 3", n)
	}
	if name := seed.vm.stringAt(testBase + testName - 1); name != "go" {
		f.Fatalf("%q is called go", name)
	}
	for _, at := range []uint16{0, 0x04, 0x43, 0x49} {
		f.Add(seed.b, testCode+codeHead+at, uint16(sp), uint16(frame), uint16(testContext))
	}
	f.Fuzz(func(t *testing.T, memory []byte, pc, sp, frame, context uint16) {
		m := newCapture()
		clear(m.b[copy(m.b, memory):])
		at := func(offset uint16) uint64 { return testBase + uint64(offset) }
		m.walk(at(pc), at(sp), at(frame), at(context))
		if m.vm.segments > maxSegments {
			t.Errorf("%d bytes of segments are read", m.vm.segments)
		}
		for ra, p := range m.vm.points {
			if p.size > maxFrame || p.size%8 != 0 || p.code > ra {
				t.Errorf("at %#x: %+v", ra, p)
			}
		}
		m.vm.stringAt(at(pc))
		var regs procstate.Regs
		regs.Set(chezContext, at(context))
		regs.Set(chezSP, at(sp))
		total := 0
		collect(m.vm.ReadNow, &contextLayout{}, &regs, func(_ uint64, n int) { total += n })
		if total > contextBytes+2*maxSegments+maxLinks*continuationBytes {
			t.Errorf("%d bytes are collected", total)
		}
	})
}

func TestPlainName(t *testing.T) {
	for name, want := range map[string]string{"": "", "map": "map", "[/home/me/app.rkt:4:0": "/home/me/app.rkt:4:0", "][x": "[x", "[": "["} {
		if got := plainName(name); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}

// What is where in a context is found in a segment that is small as well, where the stack pointer is near the end too.
func TestContextLayout(t *testing.T) {
	const context, start, link = 0x1000, 0x42af8000, 0x412441bd
	want := contextLayout{7 * 8, 9 * 8, 39 * 8, 41 * 8}
	for name, test := range map[string]struct {
		frame, end, size uint64
		unknown          bool
	}{
		"large":                 {start + 0x80, start + 0xfc00, 0x10000, false},
		"small":                 {start + 0x80, start + 0xad0, 0xed0, false},
		"small, of another one": {start - 0x10000, start + 0xad0, 0xed0, false},
		"not near the end":      {start + 0x80, start + 0x1000, 0x100000, true},
	} {
		var words [contextBytes / 8]uint64
		words[7], words[9] = test.frame, test.end
		words[39], words[41], words[42] = start, link, test.size
		read := func(addr uint64, buf []byte) bool {
			for i := range buf {
				at := addr - context + uint64(i)
				buf[i] = byte(words[at/8] >> (at % 8 * 8))
			}
			return true
		}
		var got contextLayout
		if found := got.find(read, context); found == test.unknown || found && got != want {
			t.Errorf("%s: %v, %+v", name, found, got)
		}
	}
}
