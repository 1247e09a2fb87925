package ruby

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// memory is a process in which a thread runs two calls of the interpreter's function, as a
// version of it has them.
type memory struct {
	procstate.Memory
	b    []byte
	vm   *machine
	base uint64
}

const (
	data     = 0x1000 // offsets in the memory of the VM stack,
	dataEnd  = 0x1800 // its end,
	heap     = 0x2000 // objects
	each     = 0x400  // of that many bytes,
	threadAt = 0x100  // the variable, a thread
	contexts = 0x300  // and its rb_execution_context_t
	pointer  = 0x5000 // the thread pointer
)

// Control frames: a block and C's method that has called it, in which it was called anew, what has
// called that and what has called this.
var names = []string{"block", "each", "middle", "outer"}

func newMemory(version string) *memory { return newMemoryOf(procstate.AMD64, version) }

func newMemoryOf(of *procstate.Arch, version string) *memory {
	const base = 0x7f0000000000
	m := &memory{b: make([]byte, 0x4000), base: base}
	snap := procstate.NewSnapshot(of, 1, "", nil)
	snap.Reset(1, &procstate.Regs{ThreadPointer: pointer}, []procstate.Region{{Addr: base, Data: m.b}})
	m.Memory = snap
	f := versions[version]
	m.vm = &machine{
		image: &image{fields: f, arch: archOf(of), symbols: []uint64{base + 0x10}}, file: new(procstate.Image), fields: f, Memory: vmread.Memory{Mem: snap},
		threads: map[uint64]uint64{pointer: base + threadAt}, owners: map[uint64]owner{}, asked: vmread.FramesAsked{},
		known: map[uint64]*iSeq{}, escaped: map[uint64]escaped{}, entries: map[uint64]*methodEntry{},
	}
	m.put(threadAt, base+contexts)
	m.put(threadAt+0x40+int(f.threadID), pointer-m.vm.image.arch.handle)
	m.put(contexts+int(f.thread), base+threadAt+0x40)
	m.put(contexts+rubyStack, base+data)
	m.put(contexts+rubyStackWords, (dataEnd-data)/8)
	m.put(contexts+rubyCurrent, m.frame(0))
	text := func(at int, s string) uint64 {
		m.put(at, isString|notEmbedded)
		m.put(at+16, uint64(len(s)))
		m.put(at+24, base+uint64(at)+32)
		copy(m.b[at+32:], s)
		return base + uint64(at)
	}
	flags := []uint64{blockFrame | isFinish, cFunction | isCFrame | isLocal, methodFrame | isLocal, methodFrame | isLocal | isFinish}
	types := []uint64{typeBlock, 0, typeMethod, typeMethod}
	for i, name := range names {
		frame, object, env := int(m.frame(i)-base), heap+i*each, data+0x40*(len(names)-i)
		m.put(frame+rubyEnv, base+uint64(env))
		m.put(env, flags[i])
		m.put(env-8, base+uint64(data+0x40*2)) // of the block: middle's
		if i == 1 {
			m.put(env-16, base+uint64(object))
			m.put(object, rubyIsInternal|entryType<<internalShift)
			m.put(object+rubyDefinition, base+uint64(object)+0x80)
			m.put(object+0x80, methodOfC)
			m.put(object+0x80+rubyOriginal, 300<<numberShift|1)
			ids, array, elements := object+0x100, object+0x140, object+0x180
			m.put(0x10, base+uint64(ids))
			m.put(ids, isArray|embedded|1<<15)
			m.put(ids+16, base+uint64(array))
			m.put(array, isArray)
			m.put(array+16, 2*symbolsEach)
			m.put(array+32, base+uint64(elements)-300*16)
			m.put(elements, text(object+0x200, name))
			m.put(elements+8, (300<<numberShift|1)<<symbolShift|symbolMark)
			continue
		}
		body := object + 0x40
		m.put(frame+rubyCodeOf, base+uint64(object))
		m.put(frame+rubyPC, base+uint64(object)+0x200+8*3)
		m.put(object, rubyIsInternal|iSeqType<<internalShift)
		m.put(object+rubyBody, base+uint64(body))
		m.put(body+rubyType, types[i]|8<<32) // and words
		m.put(body+rubyEncoded, base+uint64(object)+0x200)
		m.put(body+rubyLabel, text(object+0x280, name))
		first := uint64(10 * (i + 1))
		m.put(body+rubyFirstLine, first)
		if f.isLineValue {
			m.put(body+rubyFirstLine, first<<1|1)
		}
		m.put(body+int(f.lines), base+uint64(object)+0x300)
		m.put(body+int(f.lines)+rubyLineCount, 2)
		m.put(body+int(f.lines)+rubyLineIndex, base+uint64(object)+0x340)
		binary.LittleEndian.PutUint32(m.b[object+0x300:], uint32(first))
		binary.LittleEndian.PutUint32(m.b[object+0x300+int(f.lineBytes):], uint32(first+1))
		for word := range 9 { // from the third on in the second line
			m.or(object+0x340, uint64(1+min(word/2, 1))<<(7*word))
		}
	}
	return m
}

// frame returns the address of a control frame.
func (m *memory) frame(i int) uint64 {
	return m.base + dataEnd - uint64(len(names)-i)*m.vm.fields.frameBytes
}

func (m *memory) put(at int, v uint64) { binary.LittleEndian.PutUint64(m.b[at:], v) }
func (m *memory) or(at int, v uint64)  { m.put(at, binary.LittleEndian.Uint64(m.b[at:])|v) }

// methods returns what runs in frames of the interpreter's function that have addresses in the
// register, innermost first.
func (m *memory) methods(at ...uint64) (all [][]string) {
	w := unwind.NewWalker(m.Memory.(*procstate.Snapshot), unwind.NewGroup(), nil)
	_, _ = w.WalkPCs(nil, &procstate.Regs{}) // another walk
	m.vm.walk, m.vm.codes, m.vm.Captured = 0, nil, m.Memory.(*procstate.Snapshot)
	for _, at := range at {
		in := unwind.NewFrame(m.vm.image.arch.Arch, 1, m.base, 0)
		in.Regs.Set(m.vm.image.arch.frame, at)
		names := []string{}
		for code := m.vm.interpretedCode(w, &in); code != 0; code = w.Codes().Outer(code) {
			for _, l := range w.Codes().Lines(code) {
				names = append(names, l.Name)
				if want := l.StartLine + 1; l.Line != want && l.StartLine > 0 {
					names = append(names, "in another line")
				}
			}
		}
		all = append(all, names)
	}
	return all
}

func same(a, b [][]string) bool { return slices.EqualFunc(a, b, slices.Equal) }

// The control frames of each version are found, and each frame of the interpreter's function has its
// own; what does not fit has none.
func TestRubyFrames(t *testing.T) {
	for _, of := range architectures {
		for version := range versions {
			testFrames(t, of, version)
		}
	}
}

func testFrames(t *testing.T, of *arch, version string) {
	inner, outer := []string{"block"}, []string{"each", "middle", "outer"}
	f := versions[version]
	newMemory := func(version string) *memory { return newMemoryOf(of.Arch, version) }
	m := newMemory(version)
	check := func(what string, want [][]string, at ...uint64) {
		t.Helper()
		if got := m.methods(at...); !same(got, want) {
			t.Errorf("%s %s: %s: %q, want %q", of.Name, version, what, got, want)
		}
	}
	none := []string{}
	check("all", [][]string{inner, outer}, m.frame(0), m.frame(2))
	check("the outer frame runs C", [][]string{inner, outer}, m.frame(0), m.frame(3))
	check("the inner call begins", [][]string{outer}, m.frame(2))
	check("again", [][]string{inner, none, outer}, m.frame(0), m.frame(0), m.frame(2))
	check("turned around", [][]string{outer, none}, m.frame(2), m.frame(0))
	check("not a frame", [][]string{none, none, none, inner}, m.frame(0)+8, m.frame(0)-f.frameBytes, m.frame(len(names)), m.frame(0))
	m.put(heap, 0)
	m.vm.known = map[uint64]*iSeq{}
	check("the block is none", [][]string{none, outer}, m.frame(0), m.frame(2))
	m = newMemory(version)
	m.put(heap+0x280+16, maxName+1)
	check("its name is too long", [][]string{none, outer}, m.frame(0), m.frame(2))
	m = newMemory(version)
	m.put(int(m.frame(0)-m.base)+rubyPC, m.base+heap+0x200+8*9)
	check("its instruction is behind its code", [][]string{none, outer}, m.frame(0), m.frame(2))
	const evalFrame, typeMain = 0x77770001, 7
	for frame, types := range map[uint64][]uint64{
		methodFrame: {typeMethod}, blockFrame: {typeBlock, typePlain}, rescueFrame: {typeRescue, typeEnsure}, evalFrame: {0, 3, typeEval, typeMain},
	} {
		for typ := range uint64(typePlain + 1) {
			m = newMemory(version)
			m.put(heap+2*each+0x40+rubyType, typ|8<<32)
			m.put(data+0x40*2, frame|isLocal)
			want := []string{"each", "[not read]", "outer"}
			if slices.Contains(types, typ) {
				want[1] = "middle"
			}
			if frame == rescueFrame && f.hasOwner {
				want = want[:2] // it stands for that
			}
			check(fmt.Sprintf("a frame of kind %#x runs what is of type %d", frame, typ), [][]string{inner, want}, m.frame(0), m.frame(2))
		}
	}
	for _, flags := range []uint64{0, rubyIsInternal | special<<internalShift} {
		m = newMemory(version)
		m.put(heap+each, flags)
		m.methods(m.frame(2))
		m.put(heap+each, rubyIsInternal|entryType<<internalShift) // comes where there was none
		time.Sleep(5 * time.Millisecond)
		m.Memory.(*procstate.Snapshot).SetTime(procstate.Monotonic())
		check("a method of C came", [][]string{inner, {"[not read]", "middle", "outer"}}, m.frame(0), m.frame(2))
		m.Memory.(*procstate.Snapshot).SetTime(procstate.Monotonic())
		time.Sleep(5 * time.Millisecond)
		check("and has been there since", [][]string{inner, outer}, m.frame(0), m.frame(2))
	}
	m = newMemory(version)
	m.put(heap+2*each, 0)
	m.methods(m.frame(2))
	m.put(heap+2*each, rubyIsInternal|iSeqType<<internalShift) // comes where there was none
	time.Sleep(5 * time.Millisecond)
	m.Memory.(*procstate.Snapshot).SetTime(procstate.Monotonic())
	unread := []string{"each", "[not read]", "outer"}
	check("a method came", [][]string{inner, unread}, m.frame(0), m.frame(2)) // before, or after
	m.Memory.(*procstate.Snapshot).SetTime(procstate.Monotonic())
	time.Sleep(5 * time.Millisecond)
	check("and has been there since", [][]string{inner, outer}, m.frame(0), m.frame(2))
	m.put(int(m.frame(2)-m.base)+rubyPC, m.base+heap) // of another one
	m.Memory.(*procstate.Snapshot).SetTime(procstate.Monotonic())
	time.Sleep(5 * time.Millisecond)
	check("a frame was another's", [][]string{inner, unread}, m.frame(0), m.frame(2))
	m.put(int(m.frame(2)-m.base)+rubyPC, m.base+heap+2*each+0x200+8*3)
	check("which does not tell of that time", [][]string{inner, unread}, m.frame(0), m.frame(2))
	m = newMemory(version)
	m.put(heap+each+0x188, 0)
	check("the Symbol is another", [][]string{inner, {"[not read]", "middle", "outer"}}, m.frame(0), m.frame(2))
	m = newMemory(version)
	m.methods(m.frame(0))
	copy(m.b[heap+0x280+32:], "other") // another in its place
	m.or(heap+0x40+16, 8)
	time.Sleep(5 * time.Millisecond)
	between := procstate.Monotonic()
	for what, taken := range map[string]uint64{"another came": between, "another came, before": between - uint64(time.Hour)} {
		m.Memory.(*procstate.Snapshot).SetTime(taken)
		check(what, [][]string{none, outer}, m.frame(0), m.frame(2)) // one or the other
	}
	m.Memory.(*procstate.Snapshot).SetTime(0)
	check("another is there now", [][]string{{"other"}, outer}, m.frame(0), m.frame(2))
	time.Sleep(5 * time.Millisecond)
	label := binary.LittleEndian.Uint64(m.b[heap+0x40+rubyLabel:])
	m.put(heap+0x40+rubyLabel, 0) // as where the process ends while it is read
	check("its name is unreadable", [][]string{none, outer}, m.frame(0), m.frame(2))
	m.put(heap+0x40+rubyLabel, label)
	m.Memory.(*procstate.Snapshot).SetTime(procstate.Monotonic())
	time.Sleep(5 * time.Millisecond)
	check("and is readable again", [][]string{{"other"}, outer}, m.frame(0), m.frame(2))
	m.Memory.(*procstate.Snapshot).SetTime(0)
	m.put(contexts+rubyCurrent, m.frame(0)+8)
	check("out of step", [][]string{none, none}, m.frame(0), m.frame(2))
	m = newMemory(version)
	m.put(threadAt+0x40+int(f.threadID), pointer+1)
	want := [][]string{inner, outer}
	if f.threadID != 0 {
		want = [][]string{none, none}
	}
	check("another thread", want, m.frame(0), m.frame(2))
}

// What compiled code runs is told by its own register, up to what it was called by.
func TestRubyCompiled(t *testing.T) {
	m := newMemory("3.1")
	for i := range 3 {
		m.put(int(m.frame(i)-m.base)+int(m.vm.fields.jitReturn), 1)
	}
	m.methods()
	w := unwind.NewWalker(m.Memory.(*procstate.Snapshot), unwind.NewGroup(), nil)
	_, _ = w.WalkPCs(nil, &procstate.Regs{})
	in := unwind.NewFrame(procstate.AMD64, 1, m.base, 0)
	var got [][]string
	for _, i := range []int{0, 2, 3} {
		in.Regs.Set(m.vm.image.arch.compiled, m.frame(i))
		in.Regs.Set(m.vm.image.arch.frame, m.frame(i))
		code := m.vm.compiledCode(w, &in)
		if i == 3 && code == 0 {
			code = m.vm.interpretedCode(w, &in)
		}
		names := []string{}
		for ; code != 0; code = w.Codes().Outer(code) {
			names = append(names, w.Codes().Lines(code)[0].Name)
		}
		got = append(got, names)
	}
	if want := [][]string{{"block"}, {"each", "middle"}, {"outer"}}; !same(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Where a thread was interrupted in such code itself, what is called there is being made, or was
// left.
func TestRubyInterrupted(t *testing.T) {
	m := newMemory("3.1")
	for i := range 3 {
		m.put(int(m.frame(i)-m.base)+int(m.vm.fields.jitReturn), 1)
	}
	const code = 0x3400
	snap := m.Memory.(*procstate.Snapshot)
	run := func(at int, isCompiled bool) (names []string) {
		regs := procstate.Regs{ThreadPointer: pointer}
		regs.Set(procstate.AMD64.PC, m.base+code)
		regs.Set(m.vm.image.arch.compiled, m.frame(at))
		snap.Reset(1, &regs, snap.Regions())
		m.methods()
		w := unwind.NewWalker(m.Memory.(*procstate.Snapshot), unwind.NewGroup(), nil)
		_, _ = w.WalkPCs(nil, &procstate.Regs{})
		in := unwind.NewFrame(procstate.AMD64, m.base+code, m.base, 0)
		in.Flags |= unwind.Interrupted
		in.Regs.Set(m.vm.image.arch.compiled, m.frame(at))
		in.Regs.Set(m.vm.image.arch.frame, m.frame(at))
		number := uint32(0)
		if isCompiled {
			number = m.vm.compiledCode(w, &in)
		} else {
			number = m.vm.interpretedCode(w, &in)
		}
		for ; number != 0; number = w.Codes().Outer(number) {
			names = append(names, w.Codes().Lines(number)[0].Name)
			if isCompiled && len(names) == 1 && w.Codes().Lines(number)[0].Line != 0 {
				names = append(names, "in a line")
			}
		}
		return names
	}
	check := func(what string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	for i := range 128 {
		m.b[code+i] = 0x90 // NOP
	}
	check("interpreted", run(2, false), "middle", "outer")
	check("compiled", run(2, true), "middle")
	m.put(int(m.frame(2)-m.base)+rubyPC, 0)
	check("its instruction was not told", run(2, true), "middle")
	copy(m.b[code+8:], []byte{0x4d, 0x89, 0x55, rubyCodeOf}) // MOVQ R10, rubyCodeOf(R13)
	m.put(contexts+rubyCurrent, m.frame(1))
	check("a frame is being made", run(1, true), "middle")
	m.put(contexts+rubyCurrent, m.frame(0))
	check("another's is", run(2, true), "middle")
	m.b[code+4] = 0xc3 // RET
	check("later", run(2, true), "middle")
	check("none is being made", run(0, true), "block")
}

// Instructions that put something in memory, as an assembler has them.
func TestStoreOf(t *testing.T) {
	for _, c := range []struct {
		code       string
		base       procstate.Reg
		off, bytes uint64
	}{
		{"\x4d\x89\x55\x10", 13, 0x10, 8},                               // MOVQ R10, 16(R13)
		{"\x48\x89\x5a\xc8", 1, -0x38 & (1<<64 - 1), 8},                 // MOVQ RBX, -56(RDX)
		{"\x49\x89\x5c\x24\x10", 12, 0x10, 8},                           // MOVQ RBX, 16(R12)
		{"\x48\xc7\x40\xd0\x00\x00\x00\x00", 0, -0x30 & (1<<64 - 1), 8}, // MOVQ $0, -48(RAX)
		{"\x0f\x11\x42\xf0", 1, -0x10 & (1<<64 - 1), 16},                // MOVUPS X0, -16(RDX)
		{"\x48\x89\x91\x00\x01\x00\x00", 2, 0x100, 8},                   // MOVQ RDX, 256(RCX)
		{"\x4d\x89\x37", 15, 0, 8},                                      // MOVQ R14, (R15)
		{"\x89\x55\x10", 0, 0, 0},                                       // MOVL EDX, 16(RBP)
		{"\x48\x8b\x55\x10", 0, 0, 0},                                   // MOVQ 16(RBP), RDX
		{"\x48\x89\xd0", 0, 0, 0},                                       // MOVQ RDX, RAX
		{"\x48\x89\x15\x00\x00\x00\x00", 0, 0, 0},                       // MOVQ RDX, (RIP)
		{"\x48\x89\x54\xc8\x10", 0, 0, 0},                               // MOVQ RDX, 16(RAX)(RCX*8)
	} {
		base, off, bytes, ok := storeOf(append([]byte(c.code), make([]byte, 16)...))
		if ok != (c.bytes > 0) || base != c.base || off != c.off || bytes != c.bytes {
			t.Errorf("% x: %d, %#x, %d, %v", c.code, base, off, bytes, ok)
		}
	}
}

// From 3.4 on methods are told with whose they are, and what is in them as well.
func TestRubyOwners(t *testing.T) {
	m := newMemory("3.4")
	const class, entry = 0x3100, 0x3200
	m.put(class, isClass)
	m.put(class+rubyPermanent, isPermanent)
	m.put(class+rubyClassPath, m.base+0x3080)
	m.put(0x3080, isString|notEmbedded)
	m.put(0x3080+16, 3)
	m.put(0x3080+24, m.base+0x3080+32)
	copy(m.b[0x3080+32:], "A::B"[:3])
	m.put(entry, rubyIsInternal|entryType<<internalShift)
	m.put(entry+rubyOwnedBy, m.base+class)
	m.put(entry+rubyDefinition, m.base+entry+0x40)
	m.put(entry+0x40+rubyDefinedBy, m.base+heap+2*each)
	m.put(data+0x40*2-16, m.base+entry) // middle's environment
	local := int(m.vm.fields.lines) + rubyLocal
	m.put(heap+2*each+0x40+local, m.base+heap+2*each)
	m.put(heap+0x40+local, m.base+heap+2*each)
	copy(m.b[heap+0x280+32:], "x in middle")
	m.put(heap+0x280+16, 11)
	m.put(heap+each+rubyOwnedBy, m.base+class)
	want := [][]string{{"x in A::#middle"}, {"A::#each", "A::#middle", "outer"}}
	if got := m.methods(m.frame(0), m.frame(2)); !same(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	m.put(entry+0x40+rubyDefinedBy, m.base+heap) // by now it is another's
	m.vm.entries = map[uint64]*methodEntry{}
	want = [][]string{{"x in middle"}, {"A::#each", "middle", "outer"}}
	if got := m.methods(m.frame(0), m.frame(2)); !same(got, want) {
		t.Errorf("of another method %q, want %q", got, want)
	}
	m.put(class+0x200, isClass|isSingleton)
	m.put(class+0x200+rubyAttached, m.base+class)
	if got := m.vm.ownerName(m.base + class + 0x200); got != "A::." {
		t.Errorf("a class's own method is after %q", got)
	}
	m.put(class+rubyPermanent, 0)
	if got := m.vm.ownerName(m.base + class); got != "" {
		t.Errorf("a class without a name is %q", got)
	}
	m.put(heap+2*each+0x40+rubyType, typeRescue|8<<32)
	m.put(data+0x40*2, rescueFrame|isLocal)
	m.vm.known = map[uint64]*iSeq{}
	if got := m.methods(m.frame(2)); len(got[0]) == 0 || slices.Contains(got[0], "outer") {
		t.Errorf("what rescues does not stand for its method: %q", got)
	}
}

// A table is looked up as one that counts.
func TestRubyIndex(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, words := range []int{1, 9, immediate - 1, immediate, immediate + 1, 200, 566, 567, 1300} {
		table := make([]byte, indexBytes(uint64(words)))
		le, or := binary.LittleEndian, func(at int, v uint64) {
			binary.LittleEndian.PutUint64(table[at:], binary.LittleEndian.Uint64(table[at:])|v)
		}
		want, n := make([]int, words), 0
		for i := range words {
			begins := i == 0 || rng.IntN(20) == 0
			if begins {
				n++
			}
			want[i] = n
			if i < immediate {
				or(i/9*8, uint64(n)<<(i%9*7))
				continue
			}
			at, in := immediateBytes+(i-immediate)/block*blockBytes, (i-immediate)%block
			before := n
			if begins {
				before--
				or(at+16+in/64*8, 1<<(in%64))
			}
			if in == 0 {
				le.PutUint32(table[at:], uint32(before))
			} else if in%64 == 0 {
				or(at+8, uint64(before-int(le.Uint32(table[at:])))<<((in/64-1)*9))
			}
		}
		for i, want := range want {
			if got := index(table, i); got != want {
				t.Fatalf("%d words: at %d is %d, want %d", words, i, got, want)
			}
		}
		if got := index(table, words+block+immediate); got != 0 {
			t.Errorf("%d words: behind them is %d", words, got)
		}
	}
	if bits.Len(maxLines) > 31 {
		t.Error("a word's number is no int32")
	}
}

// Versions are known by the fields that all have.
func TestRubyVersions(t *testing.T) {
	for version, f := range versions {
		if f.frameBytes > maxRubyFrameBytes || f.thread+8 > rubyContextBytes || f.lines+rubyLocal+8 > rubyBodyBytes || f.jitReturn+8 > f.frameBytes {
			t.Errorf("%s: fields are not within what is read: %+v", version, *f)
		}
		if (f.threadID == 0) != (f.threads == 0) {
			t.Errorf("%s: threads are not listed", version)
		}
	}
}

// FuzzRuby has the interpreter's memory say anything.
func FuzzRuby(f *testing.F) {
	versions := []string{"2.7", "3.0", "3.1", "3.2", "3.3", "3.4"}
	for i, v := range versions {
		f.Add(newMemory(v).b, uint8(i))
	}
	f.Fuzz(func(t *testing.T, memory []byte, version uint8) {
		m := newMemory(versions[int(version)%len(versions)])
		clear(m.b[copy(m.b, memory):])
		var at []uint64
		for i := range names {
			at = append(at, m.frame(i))
		}
		m.methods(at...)
		m.vm.threads, m.vm.image.words = map[uint64]uint64{}, maxWords
		m.vm.variable(m.base)
		m.vm.image.storage.word = m.base
		m.vm.variable(m.base + 8)
		total := 0
		c := collector{vm: machine{image: m.vm.image, fields: m.vm.fields, threads: map[uint64]uint64{pointer: m.base + threadAt}}, left: maxStacks}
		c.collect(m.Memory, 1, &procstate.Regs{ThreadPointer: pointer}, func(_ uint64, n int) { total += n })
		if total > 2*maxBytes+(maxEscaped+2)*rubyContextBytes {
			t.Errorf("%d bytes are collected", total)
		}
	})
}

// Steady walks allocate nothing.
func TestRubyAllocations(t *testing.T) {
	m := newMemory("3.4")
	w := unwind.NewWalker(m.Memory.(*procstate.Snapshot), unwind.NewGroup(), nil)
	in := unwind.NewFrame(procstate.AMD64, 1, m.base, 0)
	in.Regs.Set(m.vm.image.arch.frame, m.frame(0))
	m.vm.Captured = m.Memory.(*procstate.Snapshot)
	run := func() {
		m.vm.walk--
		if m.vm.interpretedCode(w, &in) == 0 {
			t.Fatal("no method")
		}
	}
	run()
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The variable of each thread is found in a program and in a library, with its name and without, of
// glibc and of musl.
func TestRubyVariable(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("of amd64")
	}
	testenv.Needs(t, "gcc", "musl-gcc")
	for _, c := range []struct {
		cc        string
		isLibrary bool
		named     string
	}{
		{"gcc", false, "-DNAMED"}, {"gcc", false, "-DUNNAMED"}, {"gcc", true, "-DNAMED"}, {"gcc", true, "-DUNNAMED"},
		{"musl-gcc", false, "-DNAMED"}, {"musl-gcc", false, "-DUNNAMED"}, {"musl-gcc", true, "-DNAMED"}, {"musl-gcc", true, "-DUNNAMED"},
	} {
		name := c.cc + " program"
		if c.isLibrary {
			name = c.cc + " library"
		}
		t.Run(name+c.named, func(t *testing.T) {
			dir := t.TempDir()
			program := filepath.Join(dir, "ruby")
			if c.isLibrary {
				library := filepath.Join(dir, "libruby.so")
				testenv.Run(t, exec.Command(c.cc, "-fPIC", "-DSHARED", "-shared", c.named, "-o", library, "testdata/rubyvariable.c"))
				testenv.Run(t, exec.Command(c.cc, "-DLIBRARY", "-o", program, "testdata/rubyvariable.c", library))
			} else {
				testenv.Run(t, exec.Command(c.cc, "-rdynamic", c.named, "-o", program, "testdata/rubyvariable.c"))
			}
			cmd := exec.Command(program)
			_, out := testenv.Start(t, cmd)
			told := make([][2]uint64, 2)
			for i := range told {
				if _, err := fmt.Fscan(out, &told[i][0], &told[i][1]); err != nil {
					t.Fatal(err)
				}
			}
			found := false
			for _, lib := range procstate.SpaceOfProcess(cmd.Process.Pid).Libraries() {
				p := New(nil).image(lib.Image)
				if p.fields == nil {
					continue
				}
				found = true
				vm := machine{image: p, bias: lib.Bias, fields: p.fields, Memory: vmread.Memory{Mem: steptest.Live(cmd.Process.Pid)}, threads: map[uint64]uint64{}}
				for _, is := range told {
					if got := vm.variable(is[0]); got != is[1] {
						t.Errorf("the variable is at %#x, want %#x; %+v", got, is[1], *p)
					}
				}
				if got := vm.variable(told[0][0] + 64); got != 0 {
					t.Errorf("of no thread, there is a variable at %#x", got)
				}
			}
			if !found {
				t.Error("no file is known")
			}
		})
	}
}

// What is known of a process that has ended stays so, for samples that are looked at later; what a
// process has no more that goes on is forgotten.
func TestRubyEnded(t *testing.T) {
	for version := range versions {
		m := newMemory(version)
		m.vm.file = &procstate.Image{}
		at := []uint64{m.frame(0), m.frame(2)}
		want := m.methods(at...)
		later := func(live steptest.OnlyCode) [][]string {
			time.Sleep(5 * time.Millisecond) // so that all is looked at anew
			for thread, is := range m.vm.owners {
				is.checked = is.checked.Add(-2 * interval)
				m.vm.owners[thread] = is
			}
			m.vm.Live = live
			return m.methods(at...)
		}
		if got := later(steptest.OnlyCode{HasEnded: true}); len(want[0])+len(want[1]) < 4 || !same(got, want) {
			t.Errorf("%s: %q when it has ended, %q before", version, got, want)
		}
		unread := make([]string, len(want[1]))
		if m.vm.fields.threadID != 0 { // whose thread it is cannot be read either
			unread = nil
		}
		for i := range unread {
			unread[i] = "[not read]"
		}
		if got := later(steptest.OnlyCode{}); !same(got, [][]string{{}, unread}) {
			t.Errorf("%s: %q when it goes on without", version, got)
		}
	}
}
