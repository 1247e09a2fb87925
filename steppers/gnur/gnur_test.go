package gnur

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Where the memory that FuzzR begins with has what.
const (
	testBase    = 0x7f0000000000
	testGlobal  = 0x100 // R_GlobalContext, where the stack of nodes begins, ends, and has its top
	testNodes   = 0x200
	testContext = 0x1c0 // from one to the next there
	testStack   = 0x800 // of C
	testFrame   = 0x400 // bytes of a frame on it
	testObjects = 0x1800
	testSize    = 0x2800
)

// newMemory makes a process in which outer is on the stack of C and has called inner in bytecode and, in the same frame, what
// has no name; these are on the stack of nodes, as a loop is. It returns where the calls are as well.
func newMemory(a *arch) (b []byte, calls []uint64) {
	b = make([]byte, testSize)
	le := binary.LittleEndian
	put := func(at, v uint64) { le.PutUint64(b[at:], v) }
	next := uint64(testObjects)
	object := func(typ byte, words ...uint64) uint64 {
		at := next
		b[at] = typ
		for i, w := range words {
			put(at+32+8*uint64(i), w)
		}
		next += 96
		return testBase + at
	}
	symbol := func(name string) uint64 {
		text := object(typeCharacters, uint64(len(name)))
		copy(b[text-testBase+vectorData:], name)
		return object(typeSymbol, text)
	}
	file := object(typeCharacters, 5)
	copy(b[file-testBase+vectorData:], "app.R")
	source := object(typeIntegers, 8, 0, 7)
	environment := object(typeEnvironment, object(typeList, object(typeStrings, 1, 0, file), 0, symbol("filename")))
	put(source-testBase+objectAttributes, object(typeList, environment, 0, symbol("srcfile")))
	closure := object(typeClosure)
	put(closure-testBase+objectAttributes, object(typeList, source, 0, symbol("srcref")))
	other := object(typeClosure)
	qualified := object(typeCall, symbol("::"), object(typeList, symbol("pkg"), object(typeList, symbol("inner"))))
	calls = []uint64{object(typeCall, symbol("outer")), object(typeCall, qualified), object(typeCall, other), 0}

	at := uint64(0)
	context := func(place, flags, call, function uint64) {
		put(place, at)
		put(place+contextFlags, flags)
		put(place+a.function+behindCall, call)
		put(place+a.function, function)
		put(place+a.function+behindPlace, testBase+testStack+8)
		at = testBase + place
	}
	context(testStack+testFrame+8, 12, calls[0], closure)
	context(testNodes, 3, 0, 0)
	context(testNodes+testContext, 12, calls[1], other)
	context(testNodes+2*testContext, 12, calls[2], other)
	put(testGlobal, at)
	put(testGlobal+8, testBase+testNodes)
	put(testGlobal+16, testBase+testStack)
	put(testGlobal+24, testBase+testNodes+3*testContext)
	return b, calls
}

// walk returns what runs in the frames of the stack of C, innermost first, of a process that has other memory by now than was
// captured.
func walk(a *arch, b, now []byte) (names [][]string) {
	snap, live := procstate.NewSnapshot(a.Arch, 1, "", nil), procstate.NewSnapshot(a.Arch, 1, "", nil)
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testBase, Data: b}})
	live.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testBase, Data: now}})
	w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
	p := image{arch: a, context: testGlobal, nodesEnd: testGlobal + 16, nodesTop: testGlobal + 24}
	vm := newMachine(w, &procstate.Mapping{Bias: testBase}, &p)
	vm.Memory = vmread.Memory{Mem: live, Captured: snap}
	vm.walk = 1 // not the one of w
	for sp := uint64(testBase + testStack); sp < testBase+testObjects; sp += testFrame {
		frame := []string{}
		for code := vm.codeOf(w, sp, sp+testFrame); code != 0; code = w.Codes().Outer(code) {
			frame = append(frame, w.Codes().Lines(code)[0].Name)
		}
		names = append(names, frame)
	}
	return names
}

func same(a, b [][]string) bool { return slices.EqualFunc(a, b, slices.Equal[[]string]) }

// each runs a test with each architecture.
func each(t *testing.T, test func(*testing.T, *arch)) {
	for i := range architectures {
		a := &architectures[i]
		t.Run(a.Name, func(t *testing.T) { test(t, a) })
	}
}

// Contexts belong to the frames of C in which they are, or their interpreter is.
func TestRContexts(t *testing.T) { each(t, testContexts) }

func testContexts(t *testing.T, a *arch) {
	b, _ := newMemory(a)
	want := [][]string{{anonymous, "pkg::inner"}, {"outer"}, {}, {}}
	if got := walk(a, b, b); !same(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	// Without the stack of nodes what is on it is in no frame.
	without := slices.Clone(b)
	clear(without[testGlobal+8:][:8])
	if got, want := walk(a, without, without), [][]string{{}, {"outer"}, {}, {}}; !same(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	circle := slices.Clone(b)
	binary.LittleEndian.PutUint64(circle[testNodes+testContext:], testBase+testNodes+2*testContext)
	if got, want := walk(a, circle, circle), [][]string{{}, {}, {}, {}}; !same(got, want) {
		t.Errorf("%q of contexts in a circle, want %q", got, want)
	}
	// What was not captured is said once, in the frame behind.
	cut := slices.Clone(b)
	binary.LittleEndian.PutUint64(cut[testNodes+testContext:], 8)
	if got, want := walk(a, cut, b), [][]string{{anonymous, "pkg::inner"}, {"[not copied]"}, {}, {}}; !same(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A call that is gone when its name is asked for has none, but where a symbol is called, which stays, or the closure itself.
func TestRCallsGone(t *testing.T) { each(t, testCallsGone) }

func testCallsGone(t *testing.T, a *arch) {
	b, calls := newMemory(a)
	now := slices.Clone(b)
	for _, call := range calls[:3] {
		clear(now[call-testBase:][:objectHead])
	}
	want := [][]string{{anonymous, "pkg::inner"}, {"outer"}, {}, {}}
	if got := walk(a, b, now); !same(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	called := binary.LittleEndian.Uint64(b[calls[1]-testBase+listValue:])
	clear(now[called-testBase:][:objectHead])
	want[0][1] = "[not read]"
	if got := walk(a, b, now); !same(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A closure of which R has kept the source is known by that, too.
func TestRSource(t *testing.T) { each(t, testSource) }

func testSource(t *testing.T, a *arch) {
	b, _ := newMemory(a)
	snap := procstate.NewSnapshot(a.Arch, 1, "", nil)
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testBase, Data: b}})
	vm := &machine{Memory: vmread.Memory{Mem: snap}, symbols: map[uint64]string{}}
	function := func(place uint64) uint64 { return binary.LittleEndian.Uint64(b[place+a.function:]) }
	if file, line := vm.source(function(testStack + testFrame + 8)); file != "app.R" || line != 7 {
		t.Errorf("%q:%d", file, line)
	}
	if file, line := vm.source(function(testNodes + testContext)); file != "" || line != 0 {
		t.Errorf("%q:%d", file, line)
	}
}

// FuzzR has all that is read of R be anything.
func FuzzR(f *testing.F) {
	for i := range architectures {
		b, _ := newMemory(&architectures[i])
		f.Add(b, i > 0)
	}
	f.Fuzz(func(t *testing.T, memory []byte, other bool) {
		a, n := &architectures[0], 0
		if other {
			a = &architectures[1]
		}
		for _, names := range walk(a, memory, memory) {
			n += len(names)
		}
		if n > maxContexts {
			t.Errorf("%d functions", n)
		}
	})
}
