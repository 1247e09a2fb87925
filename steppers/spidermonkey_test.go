package steppers

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Where things are in the made-up process of the tests.
const (
	smTestFile  = 0x400000
	smTestMade  = 0x7f1000000000
	smTestHeap  = 0x7f3000000000
	smTestStack = 0x7ffc00000000
	smTestFrame = smTestStack + 0x180
)

// smTest makes the memory of a process.
type smTest struct {
	clrMem
	next uint64 // in the heap
}

// alloc returns room for an object.
func (m *smTest) alloc() uint64 {
	m.next += 0x400
	m.words(m.next, make([]uint64, 0x80)...)
	return m.next
}

// cell makes an object of a class.
func (m *smTest) cell(class string) uint64 {
	at, shape, base := m.alloc(), m.alloc(), m.alloc()
	info := smTestFile + (base-smTestHeap)/4
	m.words(at, shape)
	m.words(shape, base)
	m.words(base, info)
	m.words(info, info+0x10)
	m.put(info+0x10, append([]byte(class), make([]byte, 16)...)...)
	return at
}

// function makes a function of two lines with code by the baseline compiler, and returns it and its script.
func (m *smTest) function(name string, notes ...byte) (function, script uint64) {
	function, script = m.cell("Function"), m.alloc()
	object, source, box, text, atom := m.cell("ScriptSource"), m.alloc(), m.alloc(), m.alloc(), m.alloc()
	shared, data, jit, baseline, code := m.alloc(), m.alloc(), m.alloc(), m.alloc(), m.alloc()
	m.put(text, []byte("/app/a.js\x00")...)
	m.words(box, text, 10)
	m.words(source+smSourceFirst+8, box)
	m.words(object+smSourceSlots, source)
	m.words(atom, uint64(smIsAtom|smIsLinear|smIsInline|1<<9)|uint64(len(name))<<32)
	m.put(atom+smStringChars, []byte(name)...)
	m.words(function+smFunctionFlags, smSmallInteger<<32|smHasScript)
	m.words(function+smFunctionScript, script, smStringTag<<47|atom)
	m.words(script+smScriptWarmUp, jit, function, object, 10|20<<32, 5|20<<32, 7|1<<32)
	m.words(script+smScriptShared, shared)
	m.words(shared+smSharedData, data)
	const length = 16
	m.words(data, uint64(smDataCode+length+len(notes))|length<<32)
	m.put(data+smDataCode+length, notes...)
	m.words(jit+0x68, baseline, 0)
	m.words(baseline, code)
	m.words(baseline+smBaselineReturns, 0x40|0x50<<32)
	m.words(baseline+0x40, 0x20|2<<32, 0x40|12<<32)
	start := smTestMade + m.next - smTestHeap
	m.words(start-smCodeCell, code)
	m.words(code, start)
	m.words(code+smCodeSize-4, 0x80<<32)
	return function, script
}

func newSMTest() *smTest { return &smTest{clrMem{}, smTestHeap} }

// vm makes what reads the memory.
func (m *smTest) vm() *smVM {
	vm := &smVM{vmMemory: vmMemory{mem: m}, file: vaddrRange{smTestFile, smTestFile + 1<<20}}
	vm.forget()
	return vm
}

// Notes of a line more at offset 10, as in mozjs 102 and in Firefox 153.
var smTestNotes = [][]byte{{0x5a, 0x30, 0x00, 0x00}, {0x5a, 0x10, 0x80}}

// walk walks from a frame with this token, and returns what it runs.
func (m *smTest) walk(vm *smVM, token, pc uint64, interrupted bool) []unwind.CodeLine {
	stack := make([]byte, 0x400)
	put := func(addr, v uint64) { binary.LittleEndian.PutUint64(stack[addr-smTestStack:], v) }
	put(smTestFrame, smTestFrame+0x100)
	put(smTestFrame+smReturn, smTestMade+1)
	put(smTestFrame+smDescriptor, 0x41)
	put(smTestFrame+smToken, token)
	snap := procstate.NewSnapshot(procstate.AMD64, 1, "", new(procstate.AddressSpace))
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: smTestStack, Data: stack}})
	w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
	in, out := unwind.NewFrame(procstate.AMD64, pc, smTestFrame-0x40, smTestFrame), unwind.Frame{}
	var buf [smCodeLook]byte
	at := smAt{vm: vm, w: w, m: &procstate.Mapping{Start: smTestMade, End: smTestMade + 1<<30}, in: &in, interrupted: interrupted, buf: buf[:]}
	at.callerFrame(&out)
	return w.Codes().Lines(in.Code)
}

// Frames have the name of their function, and the line of the call, where all that they have fits together.
func TestSpiderMonkeyNames(t *testing.T) {
	for i, notes := range smTestNotes {
		m := newSMTest()
		function, script := m.function("total", notes...)
		start := m.vm().scriptAt(script).baseline.start
		for name, test := range map[string]struct {
			token, pc   uint64
			interrupted bool
			want        string
			line        int
		}{
			"first call":       {function, start + 0x20, false, "total", 7},
			"second call":      {function, start + 0x40, false, "total", 8},
			"for new":          {function | 1, start + 0x40, false, "total", 8},
			"the script":       {script | smTokenScript, start + 0x40, false, "total", 8},
			"no call":          {function, start + 0x30, false, "total", 0},
			"before the first": {function, start + 0x10, true, "total", 7},
			"between":          {function, start + 0x30, true, "total", 0},
			"last byte":        {function, start + 0x7f, true, "total", 8},
			"behind the code":  {function, start + 0x81, false, "", 0},
			"before the code":  {function, start, false, "", 0},
			"no function":      {script, start + 0x20, false, "", 0},
			"no script":        {function | smTokenScript, start + 0x20, false, "", 0},
			"no token":         {function | smTokenMask, start + 0x20, false, "", 0},
			"not a cell":       {function + 4, start + 0x20, false, "", 0},
			"nothing":          {0, start + 0x20, false, "", 0},
		} {
			lines := m.walk(m.vm(), test.token, test.pc, test.interrupted)
			if len(lines) != min(len(test.want), 1) || len(lines) > 0 && (lines[0].Name != test.want || lines[0].Line != test.line || lines[0].File != "/app/a.js") {
				t.Errorf("notes %d, %s: %+v, want %q line %d", i, name, lines, test.want, test.line)
			}
		}
	}
}

// Source notes are told apart by how they end.
func TestSpiderMonkeyNotes(t *testing.T) {
	for notes, want := range map[string][2]bool{
		"\x5a\x30\x00\x00":         {true, false},
		"\x5a\x30\x00":             {true, true},
		"\x5a\x10\x80":             {false, true},
		"\x5a\x10":                 {false, true},
		"\x35\x00\x00\x00\x00":     {true, false},
		"\x35\x00\x00\x00\x00\x00": {false, true},  // too long
		"\x75":                     {false, false}, // no note
		"\x5f\x1f":                 {false, false}, // further than the bytecode
		"\x35\x80\x00\x00":         {false, false}, // an operand that is cut
		"":                         {false, true},
	} {
		_, older := smReadNotes([]byte(notes), smNotesOlder, 16, 1)
		_, newer := smReadNotes([]byte(notes), smNotesNewer, 16, 1)
		if want != [2]bool{older, newer} {
			t.Errorf("% x: %v, %v", notes, older, newer)
		}
	}
}

// Whatever a process tells, reading it has an end, and an early one.
func TestSpiderMonkeyLies(t *testing.T) {
	liar := steptest.NewLiar(procstate.AMD64, new(procstate.AddressSpace), "")
	for seed := range uint64(200) {
		liar.Begin(seed, smTestMade, smTestStack)
		vm := newSMTest().vm()
		vm.mem, vm.file = liar, vaddrRange{0, maxSMAddress}
		vm.scriptAt(seed << 12)
		vm.scriptOf(seed<<12 | smTokenScript)
		vm.text(seed << 12)
		vm.interpreted(seed<<12, seed<<13, seed<<14)
		vm.codeAround(seed << 12)
		collectSM(liar, 0, &procstate.Regs{}, func(uint64, int) {})
		if liar.Reads > 1<<18 {
			t.Fatalf("seed %d: %d reads", seed, liar.Reads)
		}
	}
}

// FuzzSpiderMonkey has the objects of a frame be anything.
func FuzzSpiderMonkey(f *testing.F) {
	f.Add([]byte{0x28, 0x00, 0xff}, true)
	f.Add([]byte{0x48, 0x08, 0x00, 0x07, 0x08, 0x80}, false)
	f.Fuzz(func(_ *testing.T, changes []byte, interrupted bool) {
		m := newSMTest()
		function, script := m.function("total", smTestNotes[len(changes)&1]...)
		start := m.vm().scriptAt(script).baseline.start
		for ; len(changes) >= 3 && len(changes) < 1<<10; changes = changes[3:] {
			at := smTestHeap + 0x400 + uint64(binary.LittleEndian.Uint16(changes))%(m.next-smTestHeap)
			m.put(at, changes[2])
		}
		m.walk(m.vm(), function, start+0x20, interrupted)
		m.walk(m.vm(), script|smTokenScript, start+0x40, !interrupted)
	})
}
