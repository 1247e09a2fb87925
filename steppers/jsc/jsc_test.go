package jsc

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Where things are in the made-up process of the tests.
const (
	testFile       = 0x400000 // constants of the program
	testLLInt      = 0x500000
	testMade       = 0x7f1000000000
	testStructures = 0x7f2000000000
	testHeap       = 0x7f3000000000
	testStack      = 0x7ffc00000000
	testFrame      = testStack + 0x80
)

// test makes the memory of a process.
type test struct {
	steptest.Memory
	arch       *arch
	structures map[string]uint64
	next       uint64 // in the heap
}

// alloc returns room for an object.
func (m *test) alloc() uint64 {
	m.next += 0x400
	m.Words(m.next, make([]uint64, 0x80)...)
	return m.next
}

// cell makes a cell of a class.
func (m *test) cell(class string) uint64 {
	n, ok := m.structures[class]
	if !ok {
		n = 0x100 * uint64(len(m.structures)+1)
		m.structures[class] = n
		info := testFile + n
		m.Words(testStructures+n+structureClass, info)
		m.Words(info, info+0x10)
		m.Put(info+0x10, append([]byte(class), make([]byte, maxClassName)...)...)
	}
	at := m.alloc()
	m.Words(at, n)
	return at
}

// text makes a StringImpl of 8 bits for each character.
func (m *test) text(s string, flags uint64) uint64 {
	at := m.alloc()
	m.Words(at, 2|uint64(len(s))<<32, at+0x20, flags)
	m.Put(at+0x20, []byte(s)...)
	return at
}

// atom makes the StringImpl of a name.
func (m *test) atom(s string) uint64 { return m.text(s, 0x1234514) }

// executable makes a FunctionExecutable, and an UnlinkedCodeBlock of it. other is what the function has
// beside its name.
func (m *test) executable(at unlinked, name, other uint64) (e, unlinked uint64) {
	e, unlinked = m.cell("FunctionExecutable"), m.cell("UnlinkedFunctionCodeBlock")
	u, provider := m.cell("UnlinkedFunctionExecutable"), m.alloc()
	m.Words(e+at.at, u)
	m.Words(u+at.codes, unlinked, 0, name, other)
	m.Words(e+scriptSource, provider, 70|90<<32)
	m.Words(provider, testFile+8)
	m.Words(provider+sourceURL, m.text("/app/a.js", 4))
	return e, unlinked
}

// function makes a JSFunction.
func (m *test) function(e uint64) uint64 {
	f := m.cell("Function")
	m.Words(f+functionIs, e)
	return f
}

// block makes a CodeBlock.
func (m *test) block(class string, e, unlinked uint64, tier compilerTier, start, size uint64) uint64 {
	b, code, memory := m.cell(class), m.alloc(), m.alloc()
	m.Words(b+blockUnlinked, unlinked, e)
	m.Words(b+blockCodes[0], code)
	m.Words(code+codeTier-4, uint64(tier)<<32, start, memory)
	m.Words(memory, 1|size<<32, start)
	if tier == ftl {
		m.Words(code+codeMemory, 0)
		m.Words(code+0x148, start, memory)
	}
	return b
}

// vm makes what reads the memory.
func (m *test) vm() *machine {
	vm := &machine{
		Memory: vmread.Memory{Mem: m}, arch: m.arch, structures: testStructures, classes: map[uint32]class{},
		file: mcode.Range{Start: testFile, End: testLLInt}, interpreter: mcode.Range{Start: testLLInt, End: testLLInt + 0x1000},
		made: mcode.Range{Start: testMade, End: testMade + 1<<20},
	}
	vm.forget()
	m.Words(testLLInt, 0) // the process goes on
	return vm
}

// names returns what the frame runs of which these are the CodeBlock and the function.
func (m *test) names(vm *machine, block, callee uint64, at framePoint) (lines []unwind.CodeLine, ok bool) {
	stack := make([]byte, 0x400)
	put := func(addr, v uint64) { binary.LittleEndian.PutUint64(stack[addr-testStack:], v) }
	put(testFrame, testFrame+0x100)
	put(testFrame+jscReturn, testMade+0x5001)
	put(testFrame+jscCodeBlock, block)
	put(testFrame+jscCallee, callee)
	put(testFrame+jscArguments, 1|2<<32)
	snap := procstate.NewSnapshot(m.arch.Arch, 1, "", new(procstate.AddressSpace))
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testStack, Data: stack}})
	w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
	in := unwind.NewFrame(m.arch.Arch, at.pc, testFrame-0x40, testFrame)
	at.frame = testFrame
	ok = vm.knows(w, &in, &at)
	return w.Codes().Lines(in.Code), ok
}

func newTest() *test { return newTestOf(archOf(procstate.AMD64)) }

func newTestOf(a *arch) *test {
	return &test{steptest.Memory{}, a, map[string]uint64{}, testHeap}
}

// Frames have the name of their function where all that they have fits together, in all layouts.
func TestJSCNames(t *testing.T) {
	interpreted, compiled := framePoint{pc: testLLInt + 0x10, interprets: true}, framePoint{pc: testMade + 0x5010}
	for _, at := range unlinkeds {
		for _, tier := range []compilerTier{interpreter, baseline, dfg, ftl} {
			m := newTest()
			noString := m.alloc()
			m.Words(noString, 0x2a712345680, 0, 3)
			for _, test := range []struct {
				name, other uint64
				want        string // "": none
			}{
				{m.atom("sum"), noString, "sum"},
				{m.atom("sum"), m.atom("total"), "total"},
				{0, m.atom("total"), "total"},
				{0, noString, "(anonymous) a.js@70"},
				{m.text("", 4), 0, "(anonymous) a.js@70"},
				{m.text("sum", 4), noString, ""}, // no atom
				{noString, noString, ""},
				{m.atom("a\x01b"), 0, ""},
			} {
				vm := m.vm()
				e, unlinked := m.executable(at, test.name, test.other)
				b, callee := m.block("FunctionCodeBlock", e, unlinked, tier, testMade+0x5000, 0x100), m.function(e)
				for _, at := range []framePoint{interpreted, compiled} {
					lines, ok := m.names(vm, b, callee, at)
					mayRun := test.want != "" && (at.interprets && tier <= baseline || !at.interprets && tier >= baseline)
					if ok != mayRun || ok && (lines[0].Name != test.want || lines[0].File != "/app/a.js" || lines[0].IsCompiled == at.interprets) {
						t.Errorf("%v, tier %d, pc %#x: %v, %v, want %q", at, tier, at.pc, ok, lines, test.want)
					}
				}
			}
		}
	}
}

// A frame has no name where something does not fit.
func TestJSCDoubts(t *testing.T) {
	m, at := newTest(), unlinkeds[0]
	e, unlinked := m.executable(at, m.atom("sum"), 0)
	other, _ := m.executable(at, m.atom("other"), 0)
	b := m.block("FunctionCodeBlock", e, unlinked, baseline, testMade+0x5000, 0x100)
	callee, pc := m.function(e), uint64(testMade+0x5010)
	rare, withRare := m.cell("FunctionRareData"), m.cell("Function")
	m.Words(rare+rareIs, e)
	m.Words(withRare+functionIs, rare|rareBit)
	stranger, stray := m.cell("Object"), m.block("FunctionCodeBlock", e, unlinked, baseline, testMade-0x100, 0x200)
	native, code := m.cell("NativeExecutable"), m.alloc()
	m.Words(native+forCall, code)
	m.Words(native+nativeName, m.text("sort", 4))
	m.Words(code+codeEntry, testMade+0x9000)
	file := m.cell("ModuleProgramExecutable")
	m.Words(file+scriptSource, 0)
	module := m.block("ModuleProgramCodeBlock", file, 0, interpreter, testLLInt, 0)
	for name, test := range map[string]struct {
		block, callee uint64
		at            framePoint
		want          string
	}{
		"whole":                {b, callee, framePoint{pc: pc}, "sum"},
		"rare data":            {b, withRare, framePoint{pc: pc}, "sum"},
		"last byte":            {b, callee, framePoint{pc: testMade + 0x50ff}, "sum"},
		"behind the code":      {b, callee, framePoint{pc: testMade + 0x5100}, ""},
		"before the code":      {b, callee, framePoint{pc: testMade + 0x4fff}, ""},
		"not in the region":    {stray, callee, framePoint{pc: testMade}, ""},
		"another function":     {b, m.function(other), framePoint{pc: pc}, ""},
		"no function":          {b, stranger, framePoint{pc: pc}, ""},
		"no block":             {stranger, callee, framePoint{pc: pc}, ""},
		"not a cell":           {b + 4, callee, framePoint{pc: pc}, ""},
		"nothing":              {0, 0, framePoint{pc: pc}, ""},
		"native":               {0, m.function(native), framePoint{pc: testMade + 0x9010}, "sort"},
		"native, elsewhere":    {0, m.function(native), framePoint{pc: testMade + 0x9000 + nativeBytes}, ""},
		"native, interrupted":  {0, m.function(native), framePoint{pc: testMade + 0x9010, interrupted: true}, ""},
		"module":               {module, m.cell("Callee"), framePoint{pc: testLLInt, interprets: true}, "<module>"},
		"module of a function": {module, callee, framePoint{pc: testLLInt, interprets: true}, ""},
	} {
		lines, ok := m.names(m.vm(), test.block, test.callee, test.at)
		if ok != (test.want != "") || ok && lines[0].Name != test.want {
			t.Errorf("%s: %v, %v, want %q", name, ok, lines, test.want)
		}
	}
}

// Code that is entered in a loop has its name from where it has left the frame of the code before.
func TestJSCForLoop(t *testing.T) {
	for _, a := range architectures {
		t.Run(a.Name, func(t *testing.T) { testForLoop(t, a) })
	}
}

func testForLoop(t *testing.T, a *arch) {
	const start, entry, size = testMade + 0x5000, testMade + 0x5080, 0x100
	m := newTestOf(a)
	e, unlinked := m.executable(unlinkeds[0], m.atom("loops"), 0)
	callee := m.function(e)
	block := func(start, entry, arity uint64) uint64 {
		b := m.block("FunctionCodeBlock", e, unlinked, ftl, start, size)
		code, _ := m.ReadWord(b + blockCodes[0])
		m.Words(code+codeEntry, entry)
		m.Words(code+0x148+ftlArity, arity)
		return b
	}
	forLoop, forCall := block(start, entry, entry), block(start, start, entry)
	for name, test := range map[string]struct {
		block uint64
		at    framePoint
		want  bool
	}{
		"first byte":          {forLoop, framePoint{pc: start, interrupted: true, state: noFrame, enters: true}, true},
		"frame pointer saved": {forLoop, framePoint{pc: start + uint64(len(a.save)), interrupted: true, state: fpSaved, enters: true}, true},
		"in the loop":         {forLoop, framePoint{pc: start + 0x20}, true},
		"last byte":           {forLoop, framePoint{pc: start + size - 1}, true},
		"behind the code":     {forLoop, framePoint{pc: start + size}, false},
		"its entry":           {forLoop, framePoint{pc: entry, interrupted: true}, true},
		"at pop":              {forLoop, framePoint{pc: entry + a.reset, interrupted: true, state: fpSaved}, true},
		"at jmp, the caller":  {forLoop, framePoint{pc: entry + a.leave(), interrupted: true}, false},
		"at jmp":              {forLoop, framePoint{pc: entry + a.leave(), interrupted: true, state: jumps, enters: true}, true},
		"jumps elsewhere":     {forLoop, framePoint{pc: entry + a.leave() + a.PCAlign, interrupted: true, state: jumps, enters: true}, false},
		"return popped":       {forLoop, framePoint{pc: start + 0x20, interrupted: true, state: popped, enters: true}, false},
		"for calls":           {forCall, framePoint{pc: start + 0x20}, true},
		"for calls, enters":   {forCall, framePoint{pc: start + 0x20, interrupted: true, state: fpSaved, enters: true}, false},
		"entered elsewhere":   {block(start, start+size, start+size), framePoint{pc: start + 0x20}, false},
		"entered twice":       {block(start, entry, entry+8), framePoint{pc: start + 0x20}, false},
		"in the interpreter":  {forLoop, framePoint{pc: testLLInt, interprets: true}, false},
	} {
		if lines, ok := m.names(m.vm(), test.block, callee, test.at); ok != test.want || ok && lines[0].Name != "loops" {
			t.Errorf("%s: %v, %v, want %v", name, ok, lines, test.want)
		}
	}
}

// Calls that were inlined are those that the place of the call tells, without the ones that ended in a call.
func TestJSCInlined(t *testing.T) {
	m, at := newTest(), unlinkeds[1]
	inlined := func(name string, kind callKind, from uint64) uint64 {
		e, unlinked := m.executable(at, m.atom(name), 0)
		f := m.alloc()
		m.Words(f+inlineBlock, m.block("FunctionCodeBlock", e, unlinked, baseline, testMade, 16), from)
		m.Words(f+inlineKind&^7, uint64(kind)<<60|2)
		return f
	}
	e, unlinked := m.executable(at, m.atom("outer"), 0)
	b := m.block("FunctionCodeBlock", e, unlinked, dfg, testMade+0x5000, 0x100)
	middle := inlined("middle", 0, 5<<48)
	inner := inlined("inner", 0, middle|7<<48)
	last := inlined("last", tailCall, middle|7<<48)
	apart := m.alloc()
	m.Words(apart, inner)
	circle := m.alloc()
	m.Words(circle+inlineBlock, b, circle)
	pool, origins := m.alloc(), m.alloc()
	code, _ := m.ReadWord(b + blockCodes[0])
	m.Words(code+poolDFG, pool)
	m.Words(pool, 1, origins, 3|3<<32)
	for name, test := range map[string]struct {
		origin uint64
		want   []string
	}{
		"none":     {9 << 48, []string{"outer"}},
		"two":      {inner | 9<<48, []string{"inner", "middle", "outer"}},
		"tail":     {last | 9<<48, []string{"last", "outer"}},
		"apart":    {apart | originApart, []string{"inner", "middle", "outer"}},
		"unset":    {inner | originNone, nil},
		"no frame": {testStructures, nil},
		"circle":   {circle, nil},
	} {
		m.Words(origins, 0, 0, test.origin)
		lines, _ := m.names(m.vm(), b, m.function(e), framePoint{pc: testMade + 0x5010, calls: true})
		ok := len(lines) == len(test.want)
		for i := range lines {
			ok = ok && lines[i].Name == test.want[i]
		}
		if !ok {
			t.Errorf("%s: %v, want %v", name, lines, test.want)
		}
	}
}

// Where a frame is that is being set up or left is told by the code.
// A CodeBlock of Bun 1.4.1 has its code 8 bytes further on. What has none yet tells nothing of that.
func TestJSCBlockCode(t *testing.T) {
	at := framePoint{pc: testMade + 0x5010}
	for i, off := range blockCodes {
		m := newTest()
		e, unlinked := m.executable(unlinkeds[0], m.atom("sum"), 0)
		b, callee := m.block("FunctionCodeBlock", e, unlinked, baseline, testMade+0x5000, 0x100), m.function(e)
		code, _ := m.ReadWord(b + blockCodes[0])
		m.Words(b+blockCodes[0], 0, 0)
		vm := m.vm()
		if lines, ok := m.names(vm, b, callee, at); ok || vm.blockCode != 0 {
			t.Errorf("%v of a function without code", lines)
		}
		m.Words(b+off, code)
		if lines, ok := m.names(vm, b, callee, at); !ok || len(lines) != 1 || vm.blockCode != off {
			t.Errorf("%d: %v, code at %#x", i, lines, vm.blockCode)
		}
		m.Words(code+codeTier-4, uint64(interpreter)<<32, 0x1234)
		if lines, ok := m.names(m.vm(), b, callee, framePoint{pc: testLLInt + 0x10, interprets: true}); ok {
			t.Errorf("%d: %v, whose code is nowhere", i, lines)
		}
	}
}

// Code of a regular expression is told by its RegExp, where that is near, in a register, in what was saved of these or in
// the frame that has called it.
func TestJSCRegExp(t *testing.T) {
	for _, a := range architectures {
		m := newTestOf(a)
		cell, block, handle, other := m.cell("RegExp"), m.alloc(), m.alloc(), m.cell("Function")
		m.Words(cell+regExpBlock, block)
		m.Words(block+0x20, testMade+0x100, handle, testMade+0x700, handle)
		m.Words(handle, 1|0x80<<32, testMade+0x100)
		const saved = 3 // a register that calls preserve
		var reg procstate.Reg
		for n, left := procstate.Reg(0), saved; left > 0; n++ {
			if reg = n; a.CalleeSaved>>n&1 != 0 && n != a.SP && n != a.FP {
				left--
			}
		}
		for name, test := range map[string]struct {
			pc       uint64
			at       uint64 // on the stack
			put      uint64
			register bool
			want     bool
		}{
			"saved":                 {testMade + 0x110, testFrame - 0x28, cell, false, true},
			"in the caller's frame": {testMade + 0x100, testFrame + 0x10, cell, false, true},
			"in a register":         {testMade + 0x17f, testFrame, cell, true, true},
			"at SP":                 {testMade + 0x17f, testStack, cell, false, true},
			"behind the code":       {testMade + 0x180, testFrame + 0x10, cell, false, false},
			"before it":             {testMade + 0xff, testFrame + 0x10, cell, false, false},
			"of no memory":          {testMade + 0x701, testFrame + 0x10, cell, false, false},
			"another cell":          {testMade + 0x110, testFrame + 0x10, other, false, false},
			"far away":              {testMade + 0x110, testFrame + regExpBehind + 0x100, cell, false, false},
		} {
			stack := make([]byte, 0x400)
			in := unwind.NewFrame(a.Arch, test.pc, testStack, testFrame)
			if test.register {
				in.Regs.Set(reg, test.put)
			} else {
				binary.LittleEndian.PutUint64(stack[test.at-testStack:], test.put)
			}
			snap := procstate.NewSnapshot(a.Arch, 1, "", new(procstate.AddressSpace))
			snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testStack, Data: stack}})
			w, vm := unwind.NewWalker(snap, unwind.NewGroup(), nil), m.vm()
			in.Flags |= unwind.Interrupted
			vm.noteRegExp(w, &in)
			lines := w.Codes().Lines(in.Code)
			if got := len(lines) == 1 && lines[0].Name == "RegExp"; got != test.want {
				t.Errorf("%s, %s: %v", a.Name, name, lines)
			}
			if !test.want {
				continue
			}
			// It is known now, until that is looked at again.
			in = unwind.NewFrame(a.Arch, test.pc, testStack+0x380, testStack+0x3f0)
			in.Flags |= unwind.Interrupted
			if vm.noteRegExp(w, &in); len(w.Codes().Lines(in.Code)) != 1 {
				t.Errorf("%s, %s: forgotten", a.Name, name)
			}
			vm.regExps[0].checked = vm.regExps[0].checked.Add(-time.Hour)
			in.Code, vm.Live = 0, steptest.OnlyCode{HasEnded: true}
			if vm.noteRegExp(w, &in); len(w.Codes().Lines(in.Code)) != 1 {
				t.Errorf("%s, %s: forgotten at the end of the process", a.Name, name)
			}
			vm.Live = nil
			m.Words(handle, 1|0x80<<32, testMade+0x1000)
			in.Code = 0
			if vm.noteRegExp(w, &in); in.Code != 0 || len(vm.regExps) != 0 {
				t.Errorf("%s, %s: still there", a.Name, name)
			}
			m.Words(handle, 1|0x80<<32, testMade+0x100)
		}
	}
}

func TestJSCState(t *testing.T) {
	const sp, fp = testStack + 0x40, testStack + 0x100
	const save, set, leave, restore, ret, nop = "\xfd\x7b\xbf\xa9", "\xfd\x03\x00\x91", "\xbf\x03\x00\x91", "\xfd\x7b\xc1\xa8", "\xc0\x03\x5f\xd6", "\x1f\x20\x03\xd5"
	type want struct {
		frame  uint64
		enters bool
	}
	for a, tests := range map[*procstate.Arch]map[[2]string]want{
		procstate.AMD64: {
			{"\x00", "\x55\x48\x89\xe5\x90"}: {sp - 8, true},
			{"\x00", "\x90\x55\x48\x89\xe5"}: {sp - 8, true},
			{"\x55", "\x48\x89\xe5\x90\x90"}: {sp, true},
			{"\xe5", "\x48\x8d\x75\x90\x49"}: {fp, false},
			{"\xec", "\x5d\xc3\x00\x00\x00"}: {sp, false},
			{"\x5d", "\xc3"}:                 {sp - 8, false},
			{"\x00", "\x55\x41\x54\x00\x00"}: {fp, false},
			{"\x00", ""}:                     {fp, false},
			{"", ""}:                         {fp, false},
		},
		procstate.ARM64: {
			{nop, save + set + nop}:      {sp - 16, true},
			{ret, nop + save + set}:      {sp - 16, true},
			{save, set + nop + nop}:      {sp, true},
			{set, nop + nop + nop}:       {fp, false},
			{nop, leave + restore + ret}: {fp, false},
			{leave, restore + ret}:       {sp, false},
			{restore, ret}:               {sp - 16, false},
			{nop, save + nop + nop}:      {fp, false}, // what runs in the frame of another
			{nop, save}:                  {fp, false},
			{nop, ""}:                    {fp, false},
			{"", ""}:                     {fp, false},
		},
	} {
		for code, want := range tests {
			at := framePoint{frame: fp}
			at.find(archOf(a), []byte(code[0]), []byte(code[1]), sp)
			if at.frame != want.frame || at.enters != want.enters {
				t.Errorf("%s: % x: frame %#x, %v", a.Name, code, at.frame, at.enters)
			}
		}
	}
}

// Where a call goes to by a register is told by what was put into that before.
func TestJSCFarCall(t *testing.T) {
	for a, tests := range map[*procstate.Arch]map[string]uint64{
		procstate.AMD64: {
			"\x90\x48\xb8\x01\x02\x00\x00\x00\x00\x00\x00\xff\xd0": 0x201,
			"\x48\xb9\x01\x02\x00\x00\x00\x00\x00\x00\xff\xd1":     0x201,
			"\x49\xbb\x01\x02\x00\x00\x00\x00\x00\x00\x41\xff\xd3": 0x201,
			"\x49\xbb\x01\x02\x00\x00\x00\x00\x00\x00\x41\xff\xd2": 0, // another register
			"\x49\xbb\x01\x02\x00\x00\x00\x00\x00\x00\x90\xff\xd3": 0,
			"\x48\xb8\x01\x02\x00\x00\x00\x00\x00\x00\xff\xe0":     0, // a jump
			"\xff\xd0": 0,
			"":         0,
		},
		procstate.ARM64: {
			code4(0xd503201f, 0xd2824690, 0xf2b579b0, 0xf2dfff30, 0xd63f0200): 0xfff9abcd1234, // movz, movk and movk of x16, blr x16
			code4(0xd2824690, 0xd63f0200):                                     0x1234,
			code4(0xd2824690, 0xf2b579b0, 0xf2dfff31, 0xd63f0200):             0, // another register
			code4(0xd2824690, 0xf2b579b0, 0xf2b579b0, 0xd63f0200):             0, // the same half twice
			code4(0xd2824690, 0xf2b579b0, 0xf2dfff30, 0xd61f0200):             0, // a jump
			code4(0xf2b579b0, 0xf2dfff30, 0xd63f0200):                         0, // of what was there
			code4(0xd63f0200): 0,
			"":                0,
		},
	} {
		for code, want := range tests {
			if got, ok := archOf(a).farTarget([]byte(code)); got != want || ok != (want != 0) {
				t.Errorf("%s: % x: %#x, %v", a.Name, code, got, ok)
			}
		}
	}
}

// code4 is instructions of AArch64.
func code4(insts ...uint32) (s string) {
	for _, inst := range insts {
		s += string(word(inst))
	}
	return s
}

// Code that has arguments added which lack calls what moves its frame, in which its own return address is in a register.
func TestJSCArity(t *testing.T) {
	const entry, arity, mover, returns = testMade + 0x5000, testMade + 0x5040, testMade + 0x5100, testMade + 0x9000
	for a, made := range map[*procstate.Arch]string{
		// cmp, jae entry, pop, call mover, push, jmp entry
		procstate.AMD64: "\x83\xfa\x02\x73\xbb\x5e\xe8\xb5\x00\x00\x00\x56\xe9\xae\xff\xff\xff",
		// cmp, b.hs entry, mov, bl mover, mov, b entry
		procstate.ARM64: code4(0x7100085f, 0x54fffde2, 0xaa1e03e1, 0x9400002d, 0xaa0103fe, 0x17ffffeb),
	} {
		arch, m := archOf(a), newTestOf(archOf(a))
		take := uint64(5) // where that is, from arity
		if a == procstate.ARM64 {
			take = 8
		}
		called := arity + take + uint64(len(arch.take)) + arch.call
		e, unlinked := m.executable(unlinkeds[0], m.atom("lacks"), 0)
		b, callee := m.block("FunctionCodeBlock", e, unlinked, baseline, entry, 0x80), m.function(e)
		code, _ := m.ReadWord(b + blockCodes[0])
		m.Words(code+codeArity, arity)
		m.Words(e+forCall, code)
		space := &procstate.AddressSpace{}
		space.Insert(&procstate.Mapping{Start: testMade, End: testMade + 1<<20})
		stack, text := make([]byte, 0x400), make([]byte, 0x100)
		copy(text[arity-entry:], made)
		put := func(addr, v uint64) { binary.LittleEndian.PutUint64(stack[addr-testStack:], v) }
		snap := procstate.NewSnapshot(a, 1, "", space)
		snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: entry, Data: text}, {Addr: testStack, Data: stack}})
		w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
		vm := m.vm()
		vm.functionAt(e, unlinked) // which tells how functions of this version look
		for name, test := range map[string]struct {
			pc, sp uint64
			state  frameState
			known  bool
		}{
			"at the first instruction": {arity, testFrame, jumps, true},
			"return address taken":     {arity + take + uint64(len(arch.take)), testFrame + arch.pushed, popped, true},
			"given back":               {called + uint64(len(arch.give)), testFrame, jumps, true},
			"not where it is":          {arity + take + uint64(len(arch.take)), testFrame, jumps, false},
			"in the function":          {entry + 0x20, testFrame, jumps, false},
		} {
			frame := arch.frameOf(test.sp)
			if test.state == popped {
				frame = test.sp - jscCodeBlock
			}
			clear(stack)
			put(frame+jscCallee, callee)
			put(frame+jscReturn, returns)
			in, out := unwind.NewFrame(a, test.pc, test.sp, testFrame+0x100), unwind.Frame{}
			in.Regs.Set(arch.arity, returns)
			if a.LR != procstate.NoReg {
				in.Regs.Set(a.LR, returns)
			}
			at := framePoint{pc: test.pc, interrupted: true, state: test.state, frame: frame, enters: true}
			known := vm.knows(w, &in, &at)
			if known != test.known {
				t.Errorf("%s, %s: known %v", a.Name, name, known)
			} else if known {
				at.callerFrame(w, &in, &out)
				if out.PC() != returns || out.SP() != frame+jscCodeBlock || out.FP() != in.FP() {
					t.Errorf("%s, %s: pc %#x, sp %#x, fp %#x", a.Name, name, out.PC(), out.SP(), out.FP())
				}
			}
		}
		if !vm.movesFrame(w, called, mover) || !vm.movesFrame(w, called, 0) {
			t.Errorf("%s: what moves the frame is not known", a.Name)
		}
		if vm.movesFrame(w, called, mover-4) || vm.movesFrame(w, called, mover+maxMover) || vm.movesFrame(w, called-arch.call, mover) {
			t.Errorf("%s: what does not move the frame is taken for that", a.Name)
		}
	}
}

// What the machine has set up is found by members that follow each other, in both layouts.
func TestJSCConfig(t *testing.T) {
	const base = 5 << 32
	for name, test := range map[string]struct {
		words []uint64
		want  bool
	}{
		"older":            {[]uint64{1, testMade, testMade + 1<<30, 0, base, 1 << 32, 7}, true},
		"newer":            {[]uint64{1, testMade, testMade + 1<<30, 0, base, base, 1 << 32, 7}, true},
		"no compilers":     {[]uint64{1, 0, 0, 0, base, base, 1 << 32, 7}, true},
		"other size":       {[]uint64{1, testMade, testMade + 1<<30, 0, base, base, 1 << 31, 7}, false},
		"not aligned":      {[]uint64{1, testMade, testMade + 1<<30, 0, base + 4096, base + 4096, 1 << 32, 7}, false},
		"the other way":    {[]uint64{1, testMade + 1<<30, testMade, 0, base, base, 1 << 32, 7}, false},
		"nothing was set":  {make([]uint64, 8), false},
		"too short by one": {[]uint64{testMade, testMade + 1<<30, 0, base, base}, false},
	} {
		m := newTest()
		m.Words(testFile, test.words...)
		vm := m.vm()
		vm.structures, vm.made = 0, mcode.Range{}
		vm.image = &image{config: mcode.Range{Start: testFile, End: testFile + 8*uint64(len(test.words))}}
		vm.of = &procstate.Mapping{}
		if ok := vm.readConfig(); ok != test.want || ok && vm.structures != base {
			t.Errorf("%s: %v, structures at %#x", name, ok, vm.structures)
		}
	}
}

// Whatever a process tells, reading it has an end, and an early one.
func TestJSCLies(t *testing.T) {
	for _, a := range architectures {
		testLies(t, a)
	}
}

func testLies(t *testing.T, a *arch) {
	liar := steptest.NewLiar(a.Arch, new(procstate.AddressSpace), "")
	for seed := range uint64(200) {
		pc := testMade + seed<<12
		liar.Begin(seed, pc, testStack)
		vm := newTestOf(a).vm()
		vm.Mem, vm.file = liar, mcode.Range{Start: 0, End: maxAddress}
		for n := range unlinkedBlock + 1 {
			vm.classes[uint32(seed)*16+uint32(n)] = n
		}
		w := unwind.NewWalker(liar, unwind.NewGroup(), nil)
		for _, at := range []framePoint{{pc: pc}, {pc: pc, interrupted: true}, {pc: pc, calls: true}, {pc: testLLInt, interprets: true}} {
			at.frame = testStack + 8*seed
			in, out := unwind.NewFrame(a.Arch, pc, testStack, at.frame), unwind.Frame{}
			if !vm.knows(w, &in, &at) && !vm.stubCaller(w, &in, &out, &at) {
				vm.noteRegExp(w, &in)
			}
			vm.inlined(seed << 3)
			vm.functionAt(seed<<12, 0)
		}
		if liar.Reads > 1<<16 {
			t.Fatalf("seed %d: %d reads", seed, liar.Reads)
		}
	}
}

// FuzzJSC has the objects of a frame be anything.
func FuzzJSC(f *testing.F) {
	f.Add([]byte{0x78, 0x00, 0xff}, true)
	f.Add([]byte{0x40, 0x04, 0x00, 0x07, 0x08, 0x80}, false)
	f.Fuzz(func(_ *testing.T, changes []byte, calls bool) {
		m := newTest()
		e, unlinked := m.executable(unlinkeds[0], m.atom("sum"), 0)
		b, callee := m.block("FunctionCodeBlock", e, unlinked, dfg, testMade+0x5000, 0x100), m.function(e)
		inline, pool := m.alloc(), m.alloc()
		m.Words(inline+inlineBlock, b, inline|1<<48)
		code, _ := m.ReadWord(b + blockCodes[0])
		m.Words(code+poolDFG, pool)
		m.Words(pool, 1, pool+0x100, 8|8<<32)
		m.Words(pool+0x100, 0, 0, inline)
		for ; len(changes) >= 3 && len(changes) < 1<<10; changes = changes[3:] {
			at := testHeap + 0x400 + uint64(binary.LittleEndian.Uint16(changes))%(m.next-testHeap)
			m.Put(at, changes[2])
		}
		vm := m.vm()
		m.names(vm, b, callee, framePoint{pc: testMade + 0x5010, calls: calls})
		m.names(vm, b, callee, framePoint{pc: testLLInt, interprets: true, interrupted: !calls})
	})
}
