package steppers

import (
	"encoding/binary"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Where things are comes from the code of the interpreter, and all of it has to be found.
func TestFindLuaJIT(t *testing.T) {
	testenv.Needs(t, "luajit")
	file, err := exec.LookPath("luajit")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	im, err := procstate.NewImageBytes(raw, file)
	if err != nil {
		t.Fatal(err)
	}
	if im.Arch() != procstate.AMD64 {
		t.Skip("LuaJIT is known on amd64 alone")
	}
	p := findLuaJIT(im, unwind.NewTables())
	if p.code.end <= p.code.start || p.traces <= p.jitBase || p.jitBase != p.current+8 {
		t.Errorf("%+v", p)
	}
	for _, r := range []vaddrRange{p.exit, p.enter} {
		if !p.code.holds(r.start) || r.end <= r.start || r.end > p.code.end {
			t.Errorf("%#x is no part of %#x", r, p.code)
		}
	}
	code := make([]byte, p.code.end-p.code.start)
	if err := im.ReadVaddr(code, p.code.start); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < len(code); n += 61 { // of less code nothing is found, or the same
		q := luajitImage{}
		testenv.NoPanic(t, "code that is cut", func() {
			if q.findFields(code[:n]) && (q.dispatch != p.dispatch || q.current != p.current) {
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
	ljTestBase    = 0x7f0000000000
	ljTestMain    = 0x1000 // the main thread
	ljTestGlobal  = ljTestMain + ljStateBytes
	ljTestStack   = 0x2000
	ljTestFrame   = 0x3000 // a frame of C
	ljTestText    = 0x3800 // strings
	ljTestFunc    = 0x4000
	ljTestProto   = 0x4100
	ljTestChunk   = 0x4300 // the function that makes it
	ljTestChunkPt = 0x4400
	ljTestTrace   = 0x5000
	ljTestTraces  = 0x5100
	ljTestSnaps   = 0x5200
	ljTestMap     = 0x5300
	ljTestIR      = 0x5400 // where the constants are
	ljTestCode    = 0x6000 // of the trace
	ljTestSize    = 0x7000
	ljTestVM      = 0x9000 // the interpreter, of which nothing can be read

	ljTestCurrent = 0x80 // in the global_State
	ljTestJumps   = 0x200
)

// ljMemory is captured memory of a thread that runs LuaJIT.
type ljMemory struct {
	b    []byte
	snap *procstate.Snapshot
	vm   *luajitVM
	w    *unwind.Walker
}

func newLJMemory() *ljMemory {
	m := &ljMemory{b: make([]byte, ljTestSize), snap: procstate.NewSnapshot(procstate.AMD64, 1, "", nil)}
	p := &luajitImage{
		code: vaddrRange{ljTestBase + ljTestVM, ljTestBase + ljTestVM + 0x1000}, dispatch: 0x400,
		current: ljTestCurrent, jitBase: ljTestCurrent + 8, traces: ljTestJumps,
	}
	m.load(0, 0, 0)
	m.vm = newLuaJITVM(p, &procstate.Image{}, 0, vmMemory{mem: m.snap, captured: m.snap})
	m.vm.codes, m.vm.now = map[luajitCode]uint32{}, time.Now()
	m.w = unwind.NewWalker(m.snap, unwind.NewGroup(), nil)
	m.w.WalkStack(nil, 1)
	return m
}

// load captures the memory with registers.
func (m *ljMemory) load(pc, base, next uint64) {
	var regs procstate.Regs
	regs.Set(16, pc)
	regs.Set(luajitSP, ljTestBase+ljTestFrame)
	regs.Set(luajitBase, base)
	regs.Set(luajitPC, next)
	regs.Set(luajitDispatch, ljTestBase+ljTestGlobal+0x400)
	m.snap.Reset(1, &regs, []procstate.Region{{Addr: ljTestBase, Data: m.b}})
}

func (m *ljMemory) put(at int, words ...uint64) {
	for i, w := range words {
		binary.LittleEndian.PutUint64(m.b[at+8*i:], w)
	}
}
func (m *ljMemory) half(at int, v uint32) { binary.LittleEndian.PutUint32(m.b[at:], v) }

// text puts a GCstr.
func (m *ljMemory) text(at int, s string) uint64 {
	m.half(at+20, uint32(len(s)))
	copy(m.b[at+ljStringBytes:], s+"\x00")
	return ljTestBase + uint64(at)
}

// function puts a GCfunc and its prototype, whose instructions each have a line of their own.
func (m *ljMemory) function(at, proto int, first uint32, code ...uint32) (function uint64) {
	m.b[at+ljKind], m.b[proto+ljKind] = ljFuncKind, ljProtoKind
	m.put(at+ljFuncPC, ljTestBase+uint64(proto)+ljProtoBytes)
	m.half(proto+ljProtoBytecode, uint32(len(code)))
	m.half(proto+ljProtoFirst, first)
	m.half(proto+ljProtoLines, uint32(len(code)))
	m.put(proto+ljProtoChunk, m.text(ljTestText, "@dir/app.lua"))
	lines := proto + ljProtoBytes + 4*len(code)
	m.put(proto+ljProtoLineInfo, ljTestBase+uint64(lines))
	for i, c := range code {
		m.half(proto+ljProtoBytes+4*i, c)
		m.b[lines+i] = byte(i)
	}
	return ljTestBase + uint64(at) | ljFuncTag<<47
}

// fill puts two functions on the stack, of which one has called the other, and a trace of the outer one that has
// inlined that.
func (m *ljMemory) fill() {
	const call, slot = 0x42, 3 // at which the function is in the chunk's frame
	inner := m.function(ljTestFunc, ljTestProto, 5, 1, 2, 3, 4)
	chunk := m.function(ljTestChunk, ljTestChunkPt, 0, 0, ljFNew|1<<8, ljGSet|1<<8|1<<16, call|slot<<8, 4)
	const constants = ljTestChunkPt - 0x10
	m.put(constants, m.text(ljTestText+0x80, "inner"), ljTestBase+ljTestProto)
	m.b[ljTestChunkPt+ljProtoFlags] = ljHasChildren
	m.put(ljTestChunkPt+ljProtoConstants, ljTestBase+ljTestChunkPt)
	m.half(ljTestChunkPt+ljProtoNumber, 2)
	goesOn := uint64(ljTestBase + ljTestChunkPt + ljProtoBytes + 16)

	m.b[ljTestMain+ljKind] = ljStateKind
	m.put(ljTestMain+ljGlobal, ljTestBase+ljTestGlobal)
	const outer, within = ljTestStack + 0x20, ljTestStack + 0x20 + 8*(slot+2) // bases
	m.put(ljTestMain+ljBase, ljTestBase+within, ljTestBase+within+0x40, ljTestBase+ljTestStack+0x400, ljTestBase+ljTestStack)
	m.put(ljTestMain+ljCFrame, ljTestBase+ljTestFrame)
	m.put(ljTestStack+8, ^uint64(0))
	m.put(outer-16, chunk, outer-ljTestStack-16|ljFromC)
	m.put(within-16, inner, goesOn)
	m.put(ljTestGlobal+ljTestCurrent, ljTestBase+ljTestMain)
	m.put(ljTestFrame+luajitFrameState, ljTestBase+ljTestMain)
	m.put(ljTestFrame+luajitFrameBytes-8, ljTestBase+0x100)

	m.put(ljTestGlobal+ljTestJumps, ljTestBase+ljTestTraces, 2<<32)
	m.put(ljTestTraces+8, ljTestBase+ljTestTrace)
	m.b[ljTestTrace+ljTraceKind] = ljTraceKind
	m.b[ljTestTrace+ljTraceSnaps] = 2
	const lowest = ljFirstIR - 8
	m.put(ljTestTrace+ljTraceIR, ljTestBase+ljTestIR-8*lowest)
	m.half(ljTestTrace+ljTraceLowest, lowest)
	m.half(ljTestTrace+ljTraceMapSize, 8)
	m.put(ljTestTrace+ljTraceSnap, ljTestBase+ljTestSnaps)
	m.put(ljTestTrace+ljTraceMap, ljTestBase+ljTestMap)
	m.half(ljTestTrace+ljTraceCodeSize, 0x100)
	m.put(ljTestTrace+ljTraceCode, ljTestBase+ljTestCode)
	m.put(ljTestIR+8, ljTestBase+ljTestFunc, 0, goesOn) // constants lowest and lowest+2
	for i := range 2 {
		m.half(ljTestSnaps+ljSnapBytes*i, uint32(4*i))
		m.b[ljTestSnaps+ljSnapBytes*i+ljSnapFrom] = byte(0x40 * i)
		m.b[ljTestSnaps+ljSnapBytes*i+ljSnapCount] = 2
		m.half(ljTestMap+16*i, (slot+2)<<24|lowest)
		m.half(ljTestMap+16*i+4, (slot+3)<<24|ljSnapLink|(lowest+2))
		m.put(ljTestMap+16*i+8, uint64(ljTestBase+ljTestProto+ljProtoBytes+4)<<8|(slot+2))
	}
}

// names returns the functions of the frame of C, and their lines.
func (m *ljMemory) names(in *unwind.Frame, frame uint64, isTrace bool) (names []string) {
	vm := m.vm
	vm.threads, vm.isBegun, vm.isKnown, vm.lacks = vm.threads[:0], false, false, false
	for code := vm.codeOf(m.w, in, frame, isTrace); code != 0; code = m.w.Codes().Outer(code) {
		for _, l := range m.w.Codes().Lines(code) {
			names = append(names, l.Name+" "+l.File+":"+string(rune('0'+l.Line%10)))
		}
	}
	return names
}

func (m *ljMemory) frame(pc uint64) *unwind.Frame {
	var in unwind.Frame
	var regs procstate.Regs
	if m.snap.Registers(1, &regs) == nil {
		in.Load(procstate.AMD64, &regs)
	}
	in.SetPC(procstate.AMD64, pc)
	in.Thread = 1
	return &in
}

func FuzzLuaJIT(f *testing.F) {
	seed := newLJMemory()
	seed.fill()
	const pc, base, next = ljTestVM + 0x10, ljTestStack + 0x48, ljTestProto + ljProtoBytes + 8
	seed.load(ljTestBase+pc, ljTestBase+base, ljTestBase+next)
	want := []string{"inner dir/app.lua:5", "<chunk app.lua> dir/app.lua:2"}
	if got := seed.names(seed.frame(ljTestBase+pc), ljTestBase+ljTestFrame, false); !slices.Equal(got, want) {
		f.Fatalf("%q are called %q", want, got)
	}
	f.Add(slices.Clone(seed.b), uint16(pc), uint16(base), uint16(next))
	seed.put(ljTestGlobal+ljTestCurrent+8, ljTestBase+ljTestStack+0x20) // a trace of the chunk
	seed.load(ljTestBase+ljTestCode+0x20, 0, 0)
	mapped := procstate.Mapping{Start: ljTestBase + ljTestCode, End: ljTestBase + ljTestSize}
	in := seed.frame(ljTestBase + ljTestCode + 0x20)
	frame, ok := seed.vm.traceFrame(in, &mapped)
	if got := seed.names(in, frame, true); !ok || !slices.Equal(got, want) {
		f.Fatalf("in a trace %q are called %q, in a frame at %#x", want, got, frame)
	}
	var out unwind.Frame
	if v, _ := seed.vm.leave(seed.w, frame, in, &out, false); v != unwind.Success || out.PC() != ljTestBase+0x100 || out.SP() != frame+luajitFrameBytes {
		f.Fatalf("the trace is left to %#x, %v", out.PC(), v)
	}
	f.Add(slices.Clone(seed.b), uint16(ljTestCode+0x20), uint16(base), uint16(next))
	f.Fuzz(func(t *testing.T, memory []byte, pc, base, next uint16) {
		m := newLJMemory()
		clear(m.b[copy(m.b, memory):])
		at := func(offset uint16) uint64 { return ljTestBase + uint64(offset) }
		m.load(at(pc), at(base), at(next))
		in := m.frame(at(pc))
		names := m.names(in, ljTestBase+ljTestFrame, false)
		in.Flags = 0
		names = append(names, m.names(in, ljTestBase+ljTestFrame, false)...)
		if frame, ok := m.vm.traceFrame(in, &mapped); ok {
			names = append(names, m.names(in, frame, true)...)
			m.vm.leave(m.w, frame, in, &unwind.Frame{}, false)
		}
		if len(names) > 3*maxLuaJITFrames {
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
		c := &luajitCollector{luajitImage: m.vm.luajitImage, seen: map[uint64]bool{}, left: maxLuaJITCopied}
		c.collect(m.snap, 1, &regs, func(_ uint64, n int) { total += n })
		if total > 2*maxLuaJITCopied {
			t.Errorf("%d bytes are collected", total)
		}
	})
}
