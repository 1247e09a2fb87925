package v8

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Tables as V8 makes them of `return s.size`: by 11.3 and, with more flags, by 14.1 and 14.9.
func TestV8Positions(t *testing.T) {
	// Steps of 0, 14 and 6 from the function's entry, -1, on; only the last begins no statement.
	for flags, table := range map[uint][]byte{
		1: {0 << 1, 0xc8, 0x01, 14 << 1, 54, 6<<1 | 1, 66, 4 << 1, 7},
		2: {0<<2 | 3, 0xc8, 0x01, 14<<2 | 3, 54, 6<<2 | 2, 66, 4<<2 | 2, 7},
		3: {0<<3 | 3, 0xc8, 0x01, 14<<3 | 3, 54, 6<<3 | 2, 66, 4<<3 | 2, 7},
	} {
		got := readPositions(table, flags)
		source := func(position int32) sourcePlace { return sourcePlace{position, -1} }
		want := []positionEntry{{-1, source(49)}, {13, source(62)}, {19, source(79)}, {23, source(77)}}
		for i := range got {
			if i < len(want) && got[i] != want[i] {
				t.Errorf("flags %d: entry %d is %v, want %v", flags, i, got[i], want[i])
			}
		}
		if len(got) != len(want) {
			t.Fatalf("flags %d: %d entries", flags, len(got))
		}
		for off, want := range map[int32]int32{-2: -1, -1: 49, 0: 49, 12: 49, 13: 62, 18: 62, 19: 79, 22: 79, 23: 77, 1000: 77} {
			if at := positionAt(got, off); at.position != want {
				t.Errorf("flags %d: offset %d is at %d, want %d", flags, off, at.position, want)
			}
		}
		for n := range table { // one that is cut short
			if cut := readPositions(table[:n], flags); !slices.Equal(cut, got[:len(cut)]) {
				t.Errorf("flags %d: %d bytes: %v", flags, n, cut)
			}
		}
	}
	if got := sourceOf(3<<31 | 8<<1); got != (sourcePlace{7, 2}) {
		t.Errorf("a place in what was inlined: %v", got)
	}
}

// Code of the baseline compiler: how long that of each bytecode is.
func TestV8BytecodeOffset(t *testing.T) {
	f := &fields{sizes: [3][]byte{{1, 1, 1, 1, 2, 4}, {1, 1, 1, 1, 3, 7}, {1, 1, 1, 1, 5, 13}}}
	code := []byte{4, 0, 0, 4, 0, 0, 1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2} // short, wide, widest, one byte
	offsets := []byte{10, 6, 0x80, 0x01, 3, 2}                                    // of the entry, then of each
	for off, want := range map[uint32]int32{0: -1, 9: -1, 10: 0, 15: 0, 16: 2, 143: 2, 144: 6, 146: 6, 147: 20, 148: 20, 149: -1} {
		if got := f.bytecodeOffset(offsets, code, off); got != want {
			t.Errorf("code at %d is of the bytecode at %d, want %d", off, got, want)
		}
	}
	for n := range code {
		for off := range uint32(150) {
			if got, whole := f.bytecodeOffset(offsets, code[:n], off), f.bytecodeOffset(offsets, code, off); got != whole && got != -1 {
				t.Errorf("cut to %d: code at %d is of %d, not %d", n, off, got, whole)
			}
		}
	}
}

// The last instructions of functions, and others that are like them.
func TestV8Leaves(t *testing.T) {
	r10, rcx := procstate.Reg(10), procstate.Reg(2)
	const none, lea = "\x90\x90\x90\x90", "\x48\x8d\x24\xcc"
	const add, lea15 = "\x48\x03\xe3", "\x49\x8d\x67\x08" // %rbx, 8(%r15)
	for code, want := range map[string]unframed{
		none + "\x41\x5a" + lea + "\x41\x52\xc3":      {ok: true},
		none + lea + "\x41\x52\xc3":                   {ok: true, inRegister: true, reg: r10},
		lea + "\x41\x52\xc3":                          {ok: true, inRegister: true, reg: r10},
		lea + "\x51\xc3":                              {ok: true, inRegister: true, reg: rcx},
		none + "\x59" + lea + "\x51\xc3":              {ok: true},
		none + "\x59" + add + "\x51\xc3":              {ok: true},
		none + "\x59" + lea15 + "\x51\xc3":            {ok: true},
		none + add + "\x51\xc3":                       {ok: true, inRegister: true, reg: rcx},
		none[:1] + add + "\x51\xc3":                   {ok: true, inRegister: true, reg: rcx},
		none + "\xc2\x20\x00":                         {ok: true},
		none + "\x7f\x03\xc2\x20\x00":                 {ok: true},
		none + "\x0f\x8f\x03\x00\x00\x00\xc2\x20\x00": {ok: true},
		none + "\x48\x83\xf9\x06\x7f\x03\xc2\x30\x00": {ok: true},
		none + "\x48\x83\xc1\x06\x7f\x03\xc2\x30\x00": {}, // no comparison
		none + "\x0f\x1f\x03\x00\x00\x00\xc2\x20\x00": {}, // no jump
		none + "\x7f\x03\xc3":                         {}, // no arguments
		none + "\x59" + lea + "\x41\x52\xc3":          {}, // another register is pushed
		none + "\x41\x5a\x41\x52\xc3":                 {}, // nothing between
		none + "\x51\xc3":                             {}, // a jump
		lea + "\x41\x52\x90":                          {},
		lea + "\xc3":                                  {},
	} {
		got := leaves([]byte(code))
		if !got.ok {
			got = unframed{}
		}
		if got != want {
			t.Errorf("% x: %+v, want %+v", code, got, want)
		}
		for n := range code {
			if got := leaves([]byte(code[:n])); got.ok {
				t.Errorf("% x, cut to %d: %+v", code, n, got)
			}
		}
	}
}

// The function that sets up a frame for who has called it, of V8 14 and, with a way to leave for other code, 10.
func TestV8Prologue(t *testing.T) {
	r11, r15 := procstate.Reg(11), procstate.Reg(15)
	type step struct {
		code string
		want unframed // before it
	}
	atSP, saved, framed := unframed{ok: true}, unframed{ok: true, above: 8}, unframed{ok: true, framed: true}
	in := func(reg procstate.Reg, above uint64) unframed {
		return unframed{ok: true, inRegister: true, reg: reg, above: above}
	}
	for name, steps := range map[string][]step{
		"14": {
			{"\x4c\x8b\x47\x2f", atSP},             // mov 0x2f(%rdi),%r8
			{"\x41\xff\x41\x0b", atSP},             // incl 0xb(%r9)
			{"\x41\x5b", atSP},                     // pop %r11
			{"\x55", in(r11, 0)},                   // push %rbp
			{"\x48\x89\xe5", in(r11, 8)},           // mov %rsp,%rbp
			{"\x56", in(r11, 0)},                   // push %rsi
			{"\x41\x54", in(r11, 0)},               // push %r12
			{"\x4d\x3b\x55\xa0", in(r11, 0)},       // cmp -0x60(%r13),%r10
			{"\x72\x0a", in(r11, 0)},               // jb
			{"\x41\x53", in(r11, 0)},               // push %r11
			{"\x49\x8b\x85\x20\x02\x00\x00", atSP}, // mov 0x220(%r13),%rax
			{"\xc3", atSP},
			{"\x41\x53", in(r11, 0)},         // push %r11
			{"\x55", atSP},                   // push %rbp
			{"\x48\x89\xe5", saved},          // mov %rsp,%rbp
			{"\x6a\x2e", framed},             // push $0x2e
			{"\xe8\x93\x86\x0a\x00", framed}, // call
			{"\x5a", framed},                 // pop %rdx
			{"\x48\x89\xec", framed},         // mov %rbp,%rsp
			{"\x5d", framed},                 // pop %rbp
			{"\xc3", atSP},
		},
		"10": {
			{"\xf6\xc1\x0e", atSP},       // test $0xe,%cl
			{"\x75\x09", atSP},           // jne
			{"\x41\x5f", atSP},           // pop %r15
			{"\x55", in(r15, 0)},         // push %rbp
			{"\x48\x89\xe5", in(r15, 8)}, // mov %rsp,%rbp
			{"\x41\x57", in(r15, 0)},     // push %r15
			{"\xc3", atSP},
			{"\x48\x83\xc4\x08", atSP},       // add $0x8,%rsp
			{"\x55", atSP},                   // push %rbp
			{"\x48\x89\xe5", saved},          // mov %rsp,%rbp
			{"\x57", saved},                  // push %rdi
			{"\xe8\x93\x86\x0a\x00", framed}, // call
			{"\x48\x89\xec", framed},         // mov %rbp,%rsp
			{"\x5d", saved},                  // pop %rbp
			{"\xff\xe1", atSP},               // jmp *%rcx
			{"\x90", unframed{}},             // nothing gets here
		},
	} {
		var code []byte
		for _, s := range steps {
			code = append(code, s.code...)
		}
		got, off := findPrologue(procstate.AMD64, code, 0x1000), 0
		for _, s := range steps {
			if got[off] != s.want {
				t.Errorf("%s: before % x: %+v, want %+v", name, s.code, got[off], s.want)
			}
			off += len(s.code)
		}
		for n := range code {
			findPrologue(procstate.AMD64, code[:n], 0x1000) // does not panic
		}
	}
}

// memory is a process whose memory is that of V8, with some objects.
type memory struct {
	procstate.Memory
	b    []byte
	next uint64
	maps map[uint16]uint64
	vm   *machine
}

const base = 0x10000

// fields136 are those of V8 13.6, but for types.
func fields136() *fields {
	return &fields{
		shared: 32, name: 24, script: 40, scriptFunctions: 88,
		sharedType: 282, bytecodeType: 186, codeType: 187, streamType: 192, scopeType: 280, scriptType: 167,
		listType: 256, arrayType: 205, interpreterDataType: 188,
		split: true, header: 32, codeStart: 40, codeSize: 56, codeFlags: 52, codeData: 8, positions: 16, baseline: 10, regExp: lateRegExp, wasm: wasmFieldsOf(13),
		inlinedCount: 1, literals: 3, optimized: 7, inlining: 8, positionFlags: 1,
		feedback: feedbackShared, bytecodeLength: v8Length, bytecodePositions: 24, bytecodeData: 64, locals: 2, firstLocal: v8LateLocals, moduleScope: 5,
		sizes: [3][]byte{{1, 1, 1, 1, 2, 4}, {1, 1, 1, 1, 3, 7}, {1, 1, 1, 1, 5, 13}},
	}
}

func newMemory(b []byte) *memory {
	m := &memory{b: b, maps: map[uint16]uint64{}}
	snap := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: base, Data: m.b}})
	m.Memory = snap
	m.vm = &machine{arch: procstate.AMD64, beyond: beyond[procstate.AMD64], fields: fields136(), image: &procstate.Image{}, bias: base, Memory: vmread.Memory{Mem: snap}, lines: &lines{}}
	m.vm.forget()
	return m
}

func (m *memory) put(addr, v uint64) { binary.LittleEndian.PutUint64(m.b[addr-base:], v) }

// room returns where an object of so many bytes is put.
func (m *memory) room(n uint64) uint64 {
	at := base + m.next
	m.next += (n + 31) &^ 31
	return at
}

// object makes an object of a type, with words behind its map.
func (m *memory) object(typ uint16, words ...uint64) uint64 {
	if m.maps[typ] == 0 {
		is := m.room(32)
		binary.LittleEndian.PutUint16(m.b[is-base+v8MapType:], typ)
		m.maps[typ] = is
	}
	at := m.room(8 + 8*uint64(len(words)))
	m.put(at, m.maps[typ]+1)
	for i, w := range words {
		m.put(at+8+8*uint64(i), w)
	}
	return at + 1
}

func small(v int32) uint64 { return uint64(uint32(v)) << 32 }

func (m *memory) array(typ uint16, words ...uint64) uint64 {
	return m.object(typ, append([]uint64{small(int32(len(words)))}, words...)...)
}

func (m *memory) bytes(b []byte) uint64 {
	at := m.object(190, append([]uint64{small(int32(len(b)))}, make([]uint64, len(b)/8+1)...)...)
	copy(m.b[at-1+v8Data-base:], b)
	return at
}

func (m *memory) text(s string) uint64 {
	at := m.object(v8Sequential|v8OneByteString, append([]uint64{uint64(len(s)) << 32}, make([]uint64, len(s)/8+1)...)...)
	copy(m.b[at-1+v8StringData-base:], s)
	return at
}

func TestV8Text(t *testing.T) {
	m := newMemory(make([]byte, 1<<14))
	two := m.object(v8Sequential, 3<<32, 0xd83d00e4|0xde00<<32) // ä and a pair
	one := m.text("one\xe9")
	external := m.object(v8External|v8OneByteString, 2<<32, 0, one-1+v8StringData+1)
	cons := m.object(v8Cons, 6<<32, one, external)
	flat := m.object(v8Cons, 4<<32, one, m.text(""))
	sliced := m.object(v8Sliced|v8OneByteString, 2<<32, m.object(v8Thin|v8OneByteString, 4<<32, one), small(1))
	for _, test := range []struct {
		object uint64
		want   string
	}{{one, "oneé"}, {two, "ä😀"}, {external, "ne"}, {cons, "oneéne"}, {sliced, "ne"}} {
		if got := m.vm.text(test.object); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
	if in, ok := m.vm.textAt(flat); !ok || in.n != 4 {
		t.Errorf("a text that has been put together: %v, %v", in, ok)
	}
	long := m.object(v8OneByteString, 1<<62)
	loop := m.object(v8Cons, 6<<32, 0, 0)
	m.put(loop-1+v8StringData, loop)
	m.put(loop-1+v8StringSecond, loop)
	for name, object := range map[string]uint64{
		"in itself": loop, "no string": m.object(282), "a number": small(7), "too long": long,
		"begins well": m.object(v8Cons, (4+1<<30)<<32, one, long), "ends nowhere": m.object(v8Cons, 6<<32, one, 0x7777777771),
		"beyond its end": m.object(v8Sliced|v8OneByteString, 3<<32, one, small(2)), "nowhere": 0x7777777771,
	} {
		if got := m.vm.text(object); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
	ends := m.vm.lineEnds
	for range 2 {
		if got := m.vm.lines.share([]int32{3, 4}); !slices.Equal(got, []int32{3, 4}) || len(m.vm.lines.known) != 1 {
			t.Errorf("ends of lines: %v, %d kept", got, len(m.vm.lines.known))
		}
	}
	for source, want := range map[string][]int32{"": {0}, "a\nb\r\nc\rd": {1, 4, 6, 8}, "\n\n": {0, 1, 2}} {
		in, ok := m.vm.textAt(m.text(source))
		if got := ends(in); !ok || !slices.Equal(got, want) {
			t.Errorf("lines of %q end at %v, want %v", source, got, want)
		}
	}
}

// fill makes a function that has been compiled to bytecode and to optimised code, into which it
// was inlined itself, and returns the function, the bytecode and the place of that code.
func (m *memory) fill() (function, callee, bytecode, code uint64) {
	f := m.vm.fields
	script := m.object(f.scriptType, m.text("ab\nfunction f() {}\n"), m.text("file:///a%20b/c.js"), 0, 0, 0, 0, 0, 0, 0, 0, 0)
	scope := m.object(f.scopeType, 4|1<<12, 0, small(0), small(10), small(12), m.text("f"), small(-1))
	bytecode = m.object(f.bytecodeType, small(3), 0, m.bytes([]byte{0, 22, 4, 4}), 0, 0, 0, 0, 0x020004)
	function = m.object(f.sharedType, bytecode, 0, scope, 0, script)
	m.put(script-1+f.scriptFunctions, m.array(f.listType, 3, function|2))
	callee = m.object(2065, 0, 0, 0, function)
	inlining := m.bytes(slices.Concat(binary.LittleEndian.AppendUint64(nil, 5<<1), make([]byte, 8)))
	data := m.array(193, 0, small(1), 0, m.array(199, function|2), 0, 0, 0, m.object(195, function), inlining, small(400), small(1), small(1), 0, 0, small(50), 0, 0, small(101))
	positions := table(0, 5<<1, 0, 11<<1|1<<31)
	start := m.room(1024) + 256
	object := m.object(f.codeType, data, m.bytes(positions), 0, start-f.header+1, start, 12<<32, 512)
	if m.maps[f.streamType] == 0 {
		m.object(f.streamType)
	}
	m.put(start-f.header, m.maps[f.streamType]+1)
	m.put(start-f.header+v8StreamCode, object)
	return function, callee, bytecode, start
}

// table makes a table of positions that has the places from offset 0 and from 100 on.
func table(_, first, _, second int64) (b []byte) {
	for i, v := range []int64{1, first, 100, second - first} {
		u := uint64(v) << 1
		if i%2 == 1 {
			u = uint64(v<<1) ^ uint64(v>>63)
		}
		b = binary.AppendUvarint(b, u)
	}
	return b
}

func TestV8Function(t *testing.T) {
	m := newMemory(make([]byte, 1<<14))
	function, callee, bytecode, start := m.fill()
	vm := m.vm
	code := vm.readCode(start)
	if code == nil || code.function != function || code.size != 512 {
		t.Fatalf("code %+v", code)
	}
	calls := func(off int32) (calls []string) {
		for _, l := range vm.compiledLines(code, off) {
			calls = append(calls, fmt.Sprintf("%s %s:%d from %d", l.Name, l.File, l.Line, l.StartLine))
		}
		return calls
	}
	const in = "f /a b/c.js"
	if got, want := calls(50), []string{in + ":2 from 2"}; !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
	if got, want := calls(100), []string{in + ":2 from 2", in + ":2 from 2"}; !slices.Equal(got, want) {
		t.Errorf("inlined: calls %q, want %q", got, want)
	}
	// Return addresses, and those that V8 puts in their places when the code is given up.
	for at, want := range map[uint64]int32{101: 100, 399: 398, 400: 49, 404: 100, 402: -1, 408: -1} {
		off, ok := code.called(start+at, start+at-1)
		if !ok {
			off = -1
		}
		if off != want {
			t.Errorf("a return address at %d is that of the call at %d, want %d", at, off, want)
		}
	}
	if off, ok := code.called(start+404, start+404); !ok || off != 404 {
		t.Errorf("a thread that was interrupted at 404 is at %d, %v", off, ok)
	}
	b := vm.bytecodeAt(bytecode, &frame{callee: callee, bytecode: bytecode})
	if b == nil || b.function != function {
		t.Fatalf("bytecode %+v", b)
	}
	vm.functionAt(function)
	// The function is looked for among those of the script where the frame's is none any more.
	delete(vm.bytecodes, bytecode)
	if b := vm.bytecodeAt(bytecode, &frame{callee: 0x7777771, bytecode: bytecode}); b == nil || b.function != function {
		t.Errorf("bytecode whose function has moved: %+v", b)
	}
	// What is known when the process ends stays so.
	vm.Live = steptest.OnlyCode{HasEnded: true}
	vm.bytecodes[bytecode].checked, vm.functions[function].checked = time.Time{}, time.Time{}
	if b := vm.bytecodeAt(bytecode, &frame{}); b == nil || b.function != function || vm.functionAt(function) == nil {
		t.Errorf("bytecode of a process that has ended: %+v", b)
	}
	vm.Live = nil
	// What was there is another's now.
	m.put(function-1+v8FunctionData, 0)
	vm.bytecodes[bytecode].checked = time.Time{}
	if b := vm.bytecodeAt(bytecode, &frame{callee: callee, bytecode: bytecode}); b != nil {
		t.Errorf("bytecode of no function any more: %+v", b)
	}
	m.put(start-vm.fields.header+v8StreamCode, 0)
	if vm.isStill(code) {
		t.Error("code whose place was given to another is what it was")
	}
}

// FuzzV8 reads a process whose memory says anything.
func FuzzV8(f *testing.F) {
	m := newMemory(make([]byte, 1<<13))
	_, callee, bytecode, start := m.fill()
	f.Add(m.b, uint16(callee-base), uint16(bytecode-base), uint16(start-base))
	f.Fuzz(func(t *testing.T, b []byte, callee, bytecode, pc uint16) {
		m := newMemory(b)
		space := &procstate.Mapping{Start: base, End: base + uint64(len(b))&^15}
		var codes unwind.Codes
		fr := &unwind.Frame{}
		fr.SetPC(procstate.AMD64, base+uint64(pc))
		fr.SetSP(procstate.AMD64, base+uint64(callee)&^7)
		fr.SetFP(procstate.AMD64, base+uint64(bytecode)&^7)
		for range 2 {
			if c := m.vm.codeAt(space, fr.PC()); c != nil {
				m.vm.compiledCode(&codes, c, fr)
			}
			m.vm.interpretedCode(&codes, fr)
			words := frame{callee: base + uint64(callee), bytecode: base + uint64(bytecode), feedback: base + uint64(pc)}
			if is := m.vm.bytecodeAt(words.bytecode, &words); is != nil {
				m.vm.bytecodeLines(is, words.bytecode, 3)
			}
			if c := m.vm.readCode(base + uint64(pc)); c != nil {
				for off := int32(0); off < 200; off += 10 {
					m.vm.compiledLines(c, off)
				}
			}
		}
	})
}

// What is kept of scripts and of code comes to an end, not only how many of them there are.
func TestV8Kept(t *testing.T) {
	vm := newMemory(make([]byte, 1<<10)).vm
	script := func(at uint64, lines int32) {
		ends := make([]int32, lines)
		ends[0] = int32(at)
		s := &scriptFile{ends: vm.lines.share(ends)}
		vm.keep(4 * len(ends))
		vm.scripts[at], vm.functions[at] = s, &function{script: s}
	}
	const large, most = 1 << 20, vmread.MaxKept >> 22
	for at := range uint64(3 * most / 2) {
		script(at, large)
	}
	if n := len(vm.scripts); n != most/2+1 || len(vm.functions) != n || len(vm.lines.known) > most {
		t.Errorf("%d scripts are kept, %d functions, %d tables of lines", n, len(vm.functions), len(vm.lines.known))
	}
	for at := range uint64(3 * most / 2) {
		vm.keepCode(&code{start: at * 32, size: 32, offsets: make([]byte, 4*large)})
	}
	if n := len(vm.compiled); n > most {
		t.Errorf("%d pieces of code are kept", n)
	}
}

// A walk is too late when the function of a frame is gone with its memory.
func TestV8Late(t *testing.T) {
	m := newMemory(make([]byte, 1<<14))
	_, callee, _, _ := m.fill()
	s := New()
	w := unwind.NewWalker(m.vm.Mem.(*procstate.Snapshot), nil, nil)
	w.Keep(s, m.vm)
	walk := func(callee uint64) bool {
		t.Helper()
		if _, err := w.WalkPCs(nil, &procstate.Regs{}); err == nil {
			t.Fatal("there is a stack")
		}
		m.vm.Walk = w.Walks()
		m.vm.noteLate(callee)
		return s.IsLate(w)
	}
	if walk(callee) || walk(callee-1) || walk(base+1<<30) {
		t.Error("it is too late for a function that is there, or for what is none")
	}
	if !walk(base + 1<<30 | 1) {
		t.Error("it is not too late for one that is gone")
	}
	if walk(callee) {
		t.Error("it is too late in the next walk as well")
	}
}

// What is known of a file that is not kept goes, and nothing else does.
func TestForgetImages(t *testing.T) {
	var s Stepper
	gone, stays := &procstate.Image{Index: 3}, &procstate.Image{Index: 5}
	s.images.Put(gone, &image{})
	s.images.Put(stays, &image{})
	s.ForgetImages(func(index uint32) bool { return index == stays.Index })
	if s.images.Get(gone) != nil || s.images.Get(stays) == nil {
		t.Error("the wrong file was forgotten")
	}
	(&Stepper{}).ForgetImages(func(uint32) bool { return false }) // and nothing is known
}

// Code of V8 10 begins with a jump, which is jumped over, to what gives the code up.
func TestV8BeforeFrame(t *testing.T) {
	const start = 0x1000
	code := []byte("\x48\x8b\x59\xa0\xf6\x43\x0f\x01\x74\x05\xe9\x10\x20\x00\x00\x55\x48\x89\xe5\x56")
	for off, want := range map[uint64]unframed{
		0: {ok: true}, 4: {ok: true}, 8: {ok: true}, 10: {ok: true}, 15: {ok: true}, 16: {ok: true, above: 8},
		19: {}, // it has its frame
		12: {}, // in an instruction
	} {
		if got := beforeFrame(procstate.AMD64, code, start, start+off); got != want {
			t.Errorf("at %d: %+v, want %+v", off, got, want)
		}
	}
	other := append([]byte{}, code...)
	other[9]++ // not behind that jump
	if got := beforeFrame(procstate.AMD64, other, start, start+15); got.ok {
		t.Errorf("behind any jump: %+v", got)
	}
}

func TestV8WasmJump(t *testing.T) {
	const near, fill = "\xe9\x01\x02\x03\x04", "\xcc\xcc\xcc\xcc"
	for _, c := range []struct {
		before, at string
		want       bool
	}{
		{"", near + near, true},
		{near, near + fill, true},
		{"\x90" + fill, near + near, true},
		{"\x90\x90\x90\x90\x90", near + near, false},
		{"\x90\x90", near + near, false},
		{"", "\x55" + near + near, false},
		{"", wasmFarJump, true},
		{"", near, false}, // cut
	} {
		if got := isWasmJump([]byte(c.before+c.at), len(c.before)); got != c.want {
			t.Errorf("% x | % x: %v", c.before, c.at, got)
		}
	}
}
