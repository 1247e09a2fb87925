package spidermonkey

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Where things are in the made-up process of the tests.
const (
	testFile  = 0x400000
	testMade  = 0x7f1000000000
	testHeap  = 0x7f3000000000
	testStack = 0x7ffc00000000
	testFrame = testStack + 0x180
)

// test makes the memory of a process.
type test struct {
	steptest.Memory
	next uint64 // in the heap
}

// alloc returns room for an object.
func (m *test) alloc() uint64 {
	m.next += 0x400
	m.Words(m.next, make([]uint64, 0x80)...)
	return m.next
}

// cell makes an object of a class.
func (m *test) cell(class string) uint64 {
	at, shape, base := m.alloc(), m.alloc(), m.alloc()
	info := testFile + (base-testHeap)/4
	m.Words(at, shape)
	m.Words(shape, base)
	m.Words(base, info)
	m.Words(info, info+0x10)
	m.Put(info+0x10, append([]byte(class), make([]byte, 16)...)...)
	return at
}

// function makes a function of two lines with code by the baseline compiler, and returns it and its script.
func (m *test) function(name string, notes ...byte) (function, script uint64) {
	function, script = m.cell("Function"), m.alloc()
	object, source, box, text, atom := m.cell("ScriptSource"), m.alloc(), m.alloc(), m.alloc(), m.alloc()
	shared, data, jit, baseline, code := m.alloc(), m.alloc(), m.alloc(), m.alloc(), m.alloc()
	m.Put(text, []byte("/app/a.js\x00")...)
	m.Words(box, text, 10)
	m.Words(source+sourceFirst+8, box)
	m.Words(object+sourceSlots, source)
	m.Words(atom, uint64(isAtom|isLinear|isInline|1<<9)|uint64(len(name))<<32)
	m.Put(atom+stringChars, []byte(name)...)
	m.Words(function+functionFlags, smallInteger<<32|hasScript)
	m.Words(function+functionScript, script, stringTag<<47|atom)
	m.Words(script+scriptWarmUp, jit, function, object, 10|20<<32, 5|20<<32, 7|1<<32)
	m.Words(script+scriptShared, shared)
	m.Words(shared+sharedData, data)
	const length = 16
	m.Words(data, uint64(dataCode+length+len(notes))|length<<32)
	m.Put(data+dataCode+length, notes...)
	m.Words(jit+0x68, baseline, 0)
	m.Words(baseline, code)
	m.Words(baseline+baselineReturns, 0x40|0x50<<32)
	m.Words(baseline+0x40, 0x20|2<<32, 0x40|12<<32)
	start := testMade + m.next - testHeap
	m.Words(start-codeCell, code)
	m.Words(code, start)
	m.Words(code+codeSize-4, 0x80<<32)
	return function, script
}

func newTest() *test { return &test{steptest.Memory{}, testHeap} }

// vm makes what reads the memory.
func (m *test) vm() *machine {
	vm := &machine{Memory: vmread.Memory{Mem: m}, file: mcode.Range{Start: testFile, End: testFile + 1<<20}}
	vm.forget()
	return vm
}

// Notes of a line more at offset 10, as in mozjs 102 and in Firefox 153.
var testNotes = [][]byte{{0x5a, 0x30, 0x00, 0x00}, {0x5a, 0x10, 0x80}}

// walk walks from a frame with this token, and returns what it runs.
func (m *test) walk(vm *machine, token, pc uint64, interrupted bool) []unwind.CodeLine {
	stack := make([]byte, 0x400)
	put := func(addr, v uint64) { binary.LittleEndian.PutUint64(stack[addr-testStack:], v) }
	put(testFrame, testFrame+0x100)
	put(testFrame+smReturn, testMade+1)
	put(testFrame+smDescriptor, 0x41)
	put(testFrame+smToken, token)
	snap := procstate.NewSnapshot(procstate.AMD64, 1, "", new(procstate.AddressSpace))
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testStack, Data: stack}})
	w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
	in, out := unwind.NewFrame(procstate.AMD64, pc, testFrame-0x40, testFrame), unwind.Frame{}
	var buf [codeLook]byte
	at := madeFrame{vm: vm, w: w, m: &procstate.Mapping{Start: testMade, End: testMade + 1<<30}, in: &in, interrupted: interrupted, buf: buf[:]}
	at.callerFrame(&out)
	return w.Codes().Lines(in.Code)
}

// Frames have the name of their function, and the line of the call, where all that they have fits together.
func TestSpiderMonkeyNames(t *testing.T) {
	for i, notes := range testNotes {
		m := newTest()
		function, script := m.function("total", notes...)
		start := m.vm().scriptAt(script).baseline.Start
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
		_, older := readNotes([]byte(notes), notesOlder, 16, 1)
		_, newer := readNotes([]byte(notes), notesNewer, 16, 1)
		if want != [2]bool{older, newer} {
			t.Errorf("% x: %v, %v", notes, older, newer)
		}
	}
}

// Whatever a process tells, reading it has an end, and an early one.
func TestSpiderMonkeyLies(t *testing.T) {
	liar := steptest.NewLiar(procstate.AMD64, new(procstate.AddressSpace), "")
	for seed := range uint64(200) {
		liar.Begin(seed, testMade, testStack)
		vm := newTest().vm()
		vm.Mem, vm.file = liar, mcode.Range{Start: 0, End: maxAddress}
		vm.scriptAt(seed << 12)
		vm.scriptOf(seed<<12 | smTokenScript)
		vm.text(seed << 12)
		vm.interpreted(seed<<12, seed<<13, seed<<14)
		vm.codeAround(seed << 12)
		collect(liar, 0, &procstate.Regs{}, func(uint64, int) {})
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
		m := newTest()
		function, script := m.function("total", testNotes[len(changes)&1]...)
		start := m.vm().scriptAt(script).baseline.Start
		for ; len(changes) >= 3 && len(changes) < 1<<10; changes = changes[3:] {
			at := testHeap + 0x400 + uint64(binary.LittleEndian.Uint16(changes))%(m.next-testHeap)
			m.Put(at, changes[2])
		}
		m.walk(m.vm(), function, start+0x20, interrupted)
		m.walk(m.vm(), script|smTokenScript, start+0x40, !interrupted)
	})
}
