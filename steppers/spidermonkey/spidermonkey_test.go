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
	arch *arch
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

func newTest() *test { return newTestOf(archOf(procstate.AMD64)) }

func newTestOf(a *arch) *test { return &test{steptest.Memory{}, a, testHeap} }

// vm makes what reads the memory.
func (m *test) vm() *machine {
	vm := &machine{Memory: vmread.Memory{Mem: m}, arch: m.arch, file: mcode.Range{Start: testFile, End: testFile + 1<<20}}
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
	snap := procstate.NewSnapshot(m.arch.Arch, 1, "", new(procstate.AddressSpace))
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testStack, Data: stack}})
	w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
	in, out := unwind.NewFrame(m.arch.Arch, pc, testFrame-0x40, testFrame), unwind.Frame{}
	var buf [codeLook]byte
	at := madeFrame{vm: vm, w: w, m: &procstate.Mapping{Start: testMade, End: testMade + 1<<30}, in: &in, interrupted: interrupted, buf: buf[:]}
	at.callerFrame(&out)
	return w.Codes().Lines(in.Code)
}

// Frames have the name of their function, and the line of the call, where all that they have fits together.
func TestSpiderMonkeyNames(t *testing.T) {
	for _, a := range architectures {
		t.Run(a.Name, func(t *testing.T) { testNames(t, a) })
	}
}

func testNames(t *testing.T, a *arch) {
	for i, notes := range testNotes {
		m := newTestOf(a)
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
	for _, a := range architectures {
		testLies(t, a)
	}
}

func testLies(t *testing.T, a *arch) {
	liar := steptest.NewLiar(a.Arch, new(procstate.AddressSpace), "")
	for seed := range uint64(200) {
		liar.Begin(seed, testMade, testStack)
		vm := newTestOf(a).vm()
		vm.Mem, vm.file = liar, mcode.Range{Start: 0, End: maxAddress}
		vm.scriptAt(seed << 12)
		vm.scriptOf(seed<<12 | smTokenScript)
		vm.text(seed << 12)
		vm.interpreted(seed<<12, seed<<13, seed<<14)
		vm.codeAround(seed << 12)
		collector{a.Arch}.collect(liar, 0, &procstate.Regs{}, func(uint64, int) {})
		if liar.Reads > 1<<18 {
			t.Fatalf("seed %d: %d reads", seed, liar.Reads)
		}
	}
}

// code4 is instructions of AArch64.
func code4(insts ...uint32) (b []byte) {
	for _, inst := range insts {
		b = binary.LittleEndian.AppendUint32(b, inst)
	}
	return b
}

// How far a function has come is told by its code, as mozjs 102 and 128 make it.
func TestSpiderMonkeyStage(t *testing.T) {
	const sub = 0xd101c39c // sub x28, x28, #0x70
	begins := code4(lowerSP, pushLR, lowerSP, pushFP, setFP, sub, syncSP)
	older := code4(lowerSP, pushLR, sub, syncSP)
	ends := code4(0xaa1d03fc, syncSP, popFP, 0x5400006e, syncSP, 0x14000000, popLR, syncSP, returnLR) // mov x28, x29; ...; b.al; mov, b
	for name, test := range map[string]struct {
		code  []byte
		off   uint64 // of the first of these
		wants []stage
	}{
		"begins":        {begins, 0, []stage{onlyCalled, onlyCalled, returnPushed, returnPushed, framePushed, frameThere, frameThere}},
		"begins, older": {older, 0, []stage{onlyCalled, onlyCalled, frameThere, frameThere}},
		"ends": {ends, 0x100, []stage{frameThere, framePushed, framePushed, returnPushed, frameThere, frameThere,
			returnPushed, onlyCalled, onlyCalled}},
		"pushes": {begins, 0x100, []stage{frameThere, frameThere, frameThere, frameThere, frameThere}},
	} {
		for i, want := range test.wants {
			at := 4 * i
			if got := stageARM64(test.code[max(at, 4)-4:at], test.code[at:], test.off+uint64(at)); got != want {
				t.Errorf("%s: %d: %d, want %d", name, i, got, want)
			}
		}
	}
	for name, test := range map[string]struct {
		code      []byte
		size, end uint64
		ok        bool
	}{
		"room":        {older, 0x70, 12, true},
		"none":        {code4(lowerSP, pushLR, 0xd2934d11, sub), 0, 8, true},
		"no return":   {code4(lowerSP, pushFP, sub), 0, 0, false},
		"cut":         {code4(lowerSP, pushLR), 0, 0, false},
		"moves first": {code4(0xaa1d03fc, pushLR, sub), 0, 0, false},
	} {
		size, end, ok := archOf(procstate.ARM64).makesRoom(test.code, 0)
		if size != test.size || end != test.end || ok != test.ok {
			t.Errorf("%s: %#x, %d, %v", name, size, end, ok)
		}
	}
}

// How much room code makes at first on x86-64, as mozjs 102 makes it.
func TestSpiderMonkeyRoom(t *testing.T) {
	const nops, xor, load = "\x90\x90\x90\x90\x90", "\x31\xc0", "\x48\x8b\x54\x24\x20" // xor %eax, %eax; mov 0x20(%rsp), %rdx
	for name, test := range map[string]struct {
		code      string
		size, end uint64
		ok        bool
	}{
		"room":        {nops + "\x48\x83\xec\x38" + xor, 0x38, 0x10009, true}, // sub $0x38, %rsp
		"jumps":       {nops + xor + load + "\xe9\x54\x00\x00\x00", 0, 0x10000, true},
		"returns":     {nops + xor + "\xc3", 0, 0x10000, true},
		"pushes":      {nops + xor + "\x52\xc3", 0, 0, false}, // push %rdx
		"calls":       {nops + xor + "\xff\xd0", 0, 0, false},
		"goes on":     {nops + xor + load, 0, 0, false},
		"moves first": {"\x48\x89\xc4\xc3", 0, 0, false}, // mov %rax, %rsp
	} {
		size, end, ok := archOf(procstate.AMD64).makesRoom([]byte(test.code), 0x10000)
		if size != test.size || end != test.end || ok != test.ok {
			t.Errorf("%s: %#x, %#x, %v", name, size, end, ok)
		}
	}
}

// Code that has no name is left by what it does, and by where it was called.
func TestSpiderMonkeyLeaves(t *testing.T) {
	const (
		code, sp    = testMade + 0x800000, testStack + 0x100
		returns     = testMade + 0x900004 // behind a call
		blr         = 0xd63f0000
		enterRecord = 0xa9bf77fe // stp x30, x29, [sp, #-16]!
		enterFP     = 0x910003fd // mov x29, sp
	)
	m := newTestOf(archOf(procstate.ARM64))
	function, script := m.function("total", testNotes[1]...)
	called := m.vm().scriptAt(script).baseline.Start + 0x20
	for name, test := range map[string]struct {
		code  []byte
		at    uint64 // of these, that it is interrupted before
		regs  map[procstate.Reg]uint64
		stack map[uint64]uint64
		sized bool
		pc    uint64 // 0: it is not left
		sp    uint64
	}{
		"returns":       {code: code4(syncSP, returnLR), regs: map[procstate.Reg]uint64{28: sp, 30: returns}, pc: returns, sp: sp},
		"takes off":     {code: code4(popLR, syncSP, returnLR), regs: map[procstate.Reg]uint64{28: sp}, stack: map[uint64]uint64{sp: returns}, pc: returns, sp: sp + 8},
		"and arguments": {code: code4(0xf8430790, syncSP, 0xd65f0200), regs: map[procstate.Reg]uint64{28: sp}, stack: map[uint64]uint64{sp: returns}, pc: returns, sp: sp + 48}, // ldr x16, [x28], #48; ret x16
		"by a size": {code: code4(0xf8408790, 0xd348fe10, 0x8b10039c, popLR, syncSP, returnLR), regs: map[procstate.Reg]uint64{28: sp}, // lsr x16, x16, #8; add x28, x28, x16
			stack: map[uint64]uint64{sp: 0x2041, sp + 0x28: returns}, pc: returns, sp: sp + 0x30},
		"by a size at once": {code: code4(0xf8408793, 0x8b53239c, popLR, syncSP, returnLR), regs: map[procstate.Reg]uint64{28: sp}, // add x28, x28, x19, lsr #8
			stack: map[uint64]uint64{sp: 0x2041, sp + 0x28: returns}, pc: returns, sp: sp + 0x30},
		"jumps, returning":        {code: code4(popLR, syncSP, 0xd61f0000), regs: map[procstate.Reg]uint64{28: sp}, stack: map[uint64]uint64{sp: returns}, pc: returns, sp: sp + 8},
		"jumps":                   {code: code4(syncSP, 0xd61f0000), regs: map[procstate.Reg]uint64{28: sp, 30: returns}},
		"to no call":              {code: code4(syncSP, returnLR), regs: map[procstate.Reg]uint64{28: sp, 30: returns + 4}},
		"called by the function":  {code: code4(syncSP, 0xd61f0000), regs: map[procstate.Reg]uint64{28: sp, 29: testFrame, 30: called}, pc: called, sp: sp},
		"entry, first":            {code: code4(enterRecord, enterFP, 0xd61f0000), regs: map[procstate.Reg]uint64{28: 1, 29: 7, 30: returns}, pc: returns, sp: sp},
		"entry, saved":            {code: code4(enterRecord, enterFP, 0xd61f0000), at: 1, regs: map[procstate.Reg]uint64{28: 1, 29: 7, 30: 1}, stack: map[uint64]uint64{sp: returns, sp + 8: 7}, pc: returns, sp: sp + 16},
		"entry, later":            {code: code4(enterRecord, enterFP, 0xd10083ff, 0x910003fc, 0xaa1c03fd, 0xd61f0000), at: 5, regs: map[procstate.Reg]uint64{28: sp - 0x80, 29: sp, 30: 1}, stack: map[uint64]uint64{sp + 0x20: returns, sp + 0x28: 7}, pc: returns, sp: sp + 0x30}, // sub sp, sp, #0x20; mov x28, sp; mov x29, x28
		"entry, behind its call":  {code: code4(enterRecord, enterFP, blr, 0xd61f0000), at: 3, regs: map[procstate.Reg]uint64{28: sp, 29: sp, 30: 1}, stack: map[uint64]uint64{sp: 1}},
		"behind the entry":        {code: code4(enterRecord, enterFP, returnLR, 0xd61f0000), at: 3, regs: map[procstate.Reg]uint64{28: sp, 29: sp, 30: 1}, stack: map[uint64]uint64{sp: returns, sp + 8: 7}},
		"stub's frame":            {code: code4(0xd61f0000), regs: map[procstate.Reg]uint64{28: sp, 29: sp + 8, 30: 1}, stack: map[uint64]uint64{sp + 8: sp + 0x40, sp + 0x18: returns, sp + 0x20: 0x2021}, sized: true, pc: returns, sp: sp + 0x20},
		"stub's frame, elsewhere": {code: code4(0xd61f0000), regs: map[procstate.Reg]uint64{28: sp, 29: sp + 8, 30: 1}, stack: map[uint64]uint64{sp + 8: sp + 0x48, sp + 0x18: returns, sp + 0x20: 0x2021}, sized: true},
	} {
		stack, made := make([]byte, 0x400), make([]byte, maxEntry+codeLook)
		put := func(addr, v uint64) { binary.LittleEndian.PutUint64(stack[addr-testStack:], v) }
		put(testFrame+smToken, function)
		for addr, v := range test.stack {
			put(addr, v)
		}
		copy(made[maxEntry:], test.code)
		space := &procstate.AddressSpace{}
		space.Insert(&procstate.Mapping{Start: testMade, End: testMade + 1<<24})
		snap := procstate.NewSnapshot(procstate.ARM64, 1, "", space)
		calls := code4(blr, blr&^(1<<21), 0, 0) // the other is a jump
		snap.Reset(1, &procstate.Regs{}, []procstate.Region{
			{Addr: called - 12, Data: append(make([]byte, 8), calls...)}, {Addr: code - maxEntry, Data: made},
			{Addr: returns - 12, Data: append(make([]byte, 8), calls...)}, {Addr: testStack, Data: stack},
		})
		w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
		in, out := unwind.NewFrame(procstate.ARM64, code+4*test.at, sp, 0), unwind.Frame{}
		in.Flags |= unwind.Interrupted
		for reg, v := range test.regs {
			in.Regs.Set(reg, v)
		}
		vm, buf := m.vm(), [codeLook]byte{}
		if vm.frames = framesLinked; test.sized {
			vm.frames = framesSized
		}
		at := madeFrame{vm: vm, w: w, m: w.MappingAt(code), in: &in, interrupted: true, buf: buf[:]}
		v, _ := at.callerFrame(&out)
		if ok := v == unwind.Success; ok != (test.pc != 0) || ok && (out.PC() != test.pc || out.SP() != test.sp) {
			t.Errorf("%s: %v, pc %#x, sp %#x, want %#x, %#x", name, v, out.PC(), out.SP(), test.pc, test.sp)
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
