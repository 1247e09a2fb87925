package luajit

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Where things are comes from the code of the interpreter, and all of it has to be found.
func TestFindLuaJIT(t *testing.T) {
	testenv.Needs(t, "luajit")
	here, err := exec.LookPath("luajit")
	if err != nil {
		t.Fatal(err)
	}
	files := []string{here}
	for _, root := range filepath.SplitList(os.Getenv("SWBPF_AARCH64_ROOTS")) {
		files = append(files, filepath.Join(root, "usr/bin/luajit"))
	}
	for _, file := range files {
		t.Run(file, func(t *testing.T) { testFindLuaJIT(t, file) })
	}
}

func testFindLuaJIT(t *testing.T, file string) {
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	im, err := procstate.NewImageBytes(raw, file)
	if err != nil {
		t.Fatal(err)
	}
	p := find(im, unwind.NewTables())
	if p.code.End <= p.code.Start || p.traces <= p.jitBase || p.jitBase != p.current+8 {
		t.Errorf("%+v", p)
	}
	for _, r := range []mcode.Range{p.exit, p.enter} {
		if !p.code.Holds(r.Start) || r.End <= r.Start || r.End > p.code.End {
			t.Errorf("%#x is no part of %#x", r, p.code)
		}
	}
	code := make([]byte, p.code.End-p.code.Start)
	if err := im.ReadVaddr(code, p.code.Start); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < len(code); n += 61 { // of less code nothing is found, or the same
		q := imageInfo{arch: p.arch}
		testenv.NoPanic(t, "code that is cut", func() {
			if p.arch.find(&q, code[:n]) && (q.dispatch != p.dispatch || q.current != p.current) {
				t.Errorf("%d bytes: %+v", n, q)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// Places in the memory that FuzzLuaJIT begins with.
const (
	testBase    = 0x7f0000000000
	testMain    = 0x1000 // the main thread
	testGlobal  = testMain + ljStateBytes
	testStack   = 0x2000
	testFrame   = 0x3000 // a frame of C
	testText    = 0x3800 // strings
	testFunc    = 0x4000
	testProto   = 0x4100
	testChunk   = 0x4300 // the function that makes it
	testChunkPt = 0x4400
	testTrace   = 0x5000
	testTraces  = 0x5100
	testSnaps   = 0x5200
	testMap     = 0x5300
	testIR      = 0x5400 // where the constants are
	testCode    = 0x6000 // of the trace
	testSize    = 0x7000
	testVM      = 0x9000 // the interpreter, of which nothing can be read

	testCurrent = 0x80 // in the global_State
	testJumps   = 0x200
)

// memory is captured memory of a thread that runs LuaJIT.
type memory struct {
	*arch
	b    []byte
	snap *procstate.Snapshot
	vm   *machine
	w    *unwind.Walker
}

func newLJMemory(a *arch) *memory {
	m := &memory{arch: a, b: make([]byte, testSize), snap: procstate.NewSnapshot(a.Arch, 1, "", nil)}
	p := &imageInfo{
		arch: a,
		code: mcode.Range{Start: testBase + testVM, End: testBase + testVM + 0x1000}, dispatch: 0x400,
		current: testCurrent, jitBase: testCurrent + 8, traces: testJumps,
	}
	m.load(0, 0, 0)
	m.vm = newVM(p, &procstate.Image{}, 0, vmread.Memory{Mem: m.snap, Captured: m.snap})
	m.vm.codes, m.vm.now = map[code]uint32{}, time.Now()
	m.w = unwind.NewWalker(m.snap, unwind.NewGroup(), nil)
	m.w.WalkStack(nil, 1)
	return m
}

// load captures the memory with registers.
func (m *memory) load(pc, base, next uint64) {
	var regs procstate.Regs
	regs.Set(m.PC, pc)
	regs.Set(m.SP, testBase+testFrame)
	regs.Set(m.base, base)
	regs.Set(m.pc, next)
	regs.Set(m.arch.dispatch, testBase+testGlobal+0x400)
	m.snap.Reset(1, &regs, []procstate.Region{{Addr: testBase, Data: m.b}})
}

func (m *memory) put(at int, words ...uint64) {
	for i, w := range words {
		binary.LittleEndian.PutUint64(m.b[at+8*i:], w)
	}
}
func (m *memory) half(at int, v uint32) { binary.LittleEndian.PutUint32(m.b[at:], v) }

// text puts a GCstr.
func (m *memory) text(at int, s string) uint64 {
	m.half(at+20, uint32(len(s)))
	copy(m.b[at+ljStringBytes:], s+"\x00")
	return testBase + uint64(at)
}

// function puts a GCfunc and its prototype, whose instructions each have a line of their own.
func (m *memory) function(at, proto int, first uint32, code ...uint32) (function uint64) {
	m.b[at+ljKind], m.b[proto+ljKind] = ljFuncKind, ljProtoKind
	m.put(at+ljFuncPC, testBase+uint64(proto)+ljProtoBytes)
	m.half(proto+ljProtoBytecode, uint32(len(code)))
	m.half(proto+ljProtoFirst, first)
	m.half(proto+ljProtoLines, uint32(len(code)))
	m.put(proto+ljProtoChunk, m.text(testText, "@dir/app.lua"))
	lines := proto + ljProtoBytes + 4*len(code)
	m.put(proto+ljProtoLineInfo, testBase+uint64(lines))
	for i, c := range code {
		m.half(proto+ljProtoBytes+4*i, c)
		m.b[lines+i] = byte(i)
	}
	return testBase + uint64(at) | funcTag<<47
}

// fill puts two functions on the stack, of which one has called the other, and a trace of the outer one that has
// inlined that.
func (m *memory) fill() {
	const call, slot = 0x42, 3 // at which the function is in the chunk's frame
	inner := m.function(testFunc, testProto, 5, 1, 2, 3, 4)
	chunk := m.function(testChunk, testChunkPt, 0, 0, ljFNew|1<<8, ljGSet|1<<8|1<<16, call|slot<<8, 4)
	const constants = testChunkPt - 0x10
	m.put(constants, m.text(testText+0x80, "inner"), testBase+testProto)
	m.b[testChunkPt+ljProtoFlags] = ljHasChildren
	m.put(testChunkPt+ljProtoConstants, testBase+testChunkPt)
	m.half(testChunkPt+ljProtoNumber, 2)
	goesOn := uint64(testBase + testChunkPt + ljProtoBytes + 16)

	m.b[testMain+ljKind] = ljStateKind
	m.put(testMain+ljGlobal, testBase+testGlobal)
	const outer, within = testStack + 0x20, testStack + 0x20 + 8*(slot+2) // bases
	m.put(testMain+ljBase, testBase+within, testBase+within+0x40, testBase+testStack+0x400, testBase+testStack)
	m.put(testMain+ljCFrame, testBase+testFrame)
	m.put(testStack+8, ^uint64(0))
	m.put(outer-16, chunk, outer-testStack-16|ljFromC)
	m.put(within-16, inner, goesOn)
	m.put(testGlobal+testCurrent, testBase+testMain)
	m.put(testFrame+m.state, testBase+testMain)
	m.put(testFrame+m.saved[0].at, testBase+0x100)

	m.put(testGlobal+testJumps, testBase+testTraces, 2<<32)
	m.put(testTraces+8, testBase+testTrace)
	m.b[testTrace+ljTraceKind] = ljTraceKind
	m.b[testTrace+ljTraceSnaps] = 2
	const lowest = ljFirstIR - 8
	m.put(testTrace+ljTraceIR, testBase+testIR-8*lowest)
	m.half(testTrace+ljTraceLowest, lowest)
	m.half(testTrace+ljTraceMapSize, 8)
	m.put(testTrace+ljTraceSnap, testBase+testSnaps)
	m.put(testTrace+ljTraceMap, testBase+testMap)
	m.half(testTrace+ljTraceCodeSize, 0x100)
	m.put(testTrace+ljTraceCode, testBase+testCode)
	m.put(testIR+8, testBase+testFunc, 0, goesOn) // constants lowest and lowest+2
	for i := range 2 {
		m.half(testSnaps+ljSnapBytes*i, uint32(4*i))
		m.b[testSnaps+ljSnapBytes*i+ljSnapFrom] = byte(0x40 / m.instruction * i)
		m.b[testSnaps+ljSnapBytes*i+ljSnapCount] = 2
		m.half(testMap+16*i, (slot+2)<<24|lowest)
		m.half(testMap+16*i+4, (slot+3)<<24|ljSnapLink|(lowest+2))
		m.put(testMap+16*i+8, uint64(testBase+testProto+ljProtoBytes+4)<<8|(slot+2))
	}
}

// names returns the functions of the frame of C, and their lines.
func (m *memory) names(in *unwind.Frame, frame uint64, isTrace bool) (names []string) {
	vm := m.vm
	vm.threads, vm.isBegun, vm.isKnown, vm.lacks = vm.threads[:0], false, false, false
	for code := vm.codeOf(m.w, in, frame, isTrace); code != 0; code = m.w.Codes().Outer(code) {
		for _, l := range m.w.Codes().Lines(code) {
			names = append(names, l.Name+" "+l.File+":"+string(rune('0'+l.Line%10)))
		}
	}
	return names
}

func (m *memory) frame(pc uint64) *unwind.Frame {
	var in unwind.Frame
	var regs procstate.Regs
	if m.snap.Registers(1, &regs) == nil {
		in.Load(m.Arch, &regs)
	}
	in.SetPC(m.Arch, pc)
	in.Thread = 1
	return &in
}

// Places in the code that the memory is captured in.
const (
	testPC    = testVM + 0x10
	testInner = testStack + 0x48
	testNext  = testProto + ljProtoBytes + 8
)

// The functions that run in a frame of the interpreter, and in that of a trace, have their names, and the trace is left to
// what has called the interpreter.
func TestLuaJITFrames(t *testing.T) {
	for _, a := range []*arch{amd64, arm64} {
		t.Run(a.Name, func(t *testing.T) {
			m := newLJMemory(a)
			m.fill()
			m.load(testBase+testPC, testBase+testInner, testBase+testNext)
			want := []string{"inner dir/app.lua:5", "<chunk app.lua> dir/app.lua:2"}
			if got := m.names(m.frame(testBase+testPC), testBase+testFrame, false); !slices.Equal(got, want) {
				t.Fatalf("%q are called %q", want, got)
			}
			m.put(testGlobal+testCurrent+8, testBase+testStack+0x20) // a trace of the chunk
			m.load(testBase+testCode+0x20, 0, 0)
			in := m.frame(testBase + testCode + 0x20)
			frame, ok := m.vm.traceFrame(in, &testMapping)
			if got := m.names(in, frame, true); !ok || !slices.Equal(got, want) {
				t.Fatalf("in a trace %q are called %q, in a frame at %#x", want, got, frame)
			}
			m.put(testFrame+m.saved[2].at, 0x1234)
			var out unwind.Frame
			v, _ := m.vm.leave(m.w, frame, in, &out, false)
			if reg := out.Regs.Raw(m.saved[2].reg); v != unwind.Success || out.PC() != testBase+0x100 || out.SP() != frame+uint64(a.bytes) || reg != 0x1234 {
				t.Fatalf("the trace is left to %#x, %v; a register is %#x", out.PC(), v, reg)
			}
		})
	}
}

// testMapping is where traces are.
var testMapping = procstate.Mapping{Start: testBase + testCode, End: testBase + testSize}

// Where the interpreter for AArch64 has no frame yet, or no more, is told by its instructions.
func TestLuaJITOutside(t *testing.T) {
	code := make([]byte, look+4)
	for _, c := range []struct {
		before, is uint32
		bytes      int
		outside    bool
	}{
		{0, 0xd10343ff, 0, true}, {0xd10343ff, 0xa90c7bfd, 208, true}, {0xa90c7bfd, 0x910303fd, 208, true}, {0x910303fd, 0xa90b4ff4, 0, false},
		{0xa94c7bfd, 0x910343ff, 208, true}, {0x910343ff, 0xd65f03c0, 0, true}, {0, 0xd65f03c0, 0, false},
	} {
		binary.LittleEndian.PutUint32(code[look-4:], c.before)
		binary.LittleEndian.PutUint32(code[look:], c.is)
		if bytes, outside := isOutsideARM64(code); bytes != c.bytes || outside != c.outside {
			t.Errorf("%#x: %d bytes, %v", c.is, bytes, outside)
		}
	}
}

func FuzzLuaJIT(f *testing.F) {
	for i, a := range []*arch{amd64, arm64} {
		seed := newLJMemory(a)
		seed.fill()
		f.Add(slices.Clone(seed.b), uint16(testPC), uint16(testInner), uint16(testNext), i == 1)
		seed.put(testGlobal+testCurrent+8, testBase+testStack+0x20)
		f.Add(slices.Clone(seed.b), uint16(testCode+0x20), uint16(testInner), uint16(testNext), i == 1)
	}
	f.Fuzz(func(t *testing.T, memory []byte, pc, base, next uint16, isARM64 bool) {
		a := amd64
		if isARM64 {
			a = arm64
		}
		m := newLJMemory(a)
		clear(m.b[copy(m.b, memory):])
		at := func(offset uint16) uint64 { return testBase + uint64(offset) }
		m.load(at(pc), at(base), at(next))
		in := m.frame(at(pc))
		names := m.names(in, testBase+testFrame, false)
		in.Flags = 0
		names = append(names, m.names(in, testBase+testFrame, false)...)
		if frame, ok := m.vm.traceFrame(in, &testMapping); ok {
			names = append(names, m.names(in, frame, true)...)
			m.vm.leave(m.w, frame, in, &unwind.Frame{}, false)
		}
		if len(names) > 3*maxFrames {
			t.Errorf("%d functions", len(names))
		}
		for _, name := range names {
			if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' }) && !strings.Contains(name, "[string ") {
				t.Errorf("%q", name)
			}
		}
		total := 0
		var regs procstate.Regs
		if err := m.snap.Registers(1, &regs); err != nil {
			t.Fatal(err)
		}
		c := &collector{imageInfo: m.vm.imageInfo, seen: map[uint64]bool{}, left: maxCopied}
		c.collect(m.snap, 1, &regs, func(_ uint64, n int) { total += n })
		if total > 2*maxCopied {
			t.Errorf("%d bytes are collected", total)
		}
	})
}
