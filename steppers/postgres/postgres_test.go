package postgres

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Where the memory that FuzzPostgres begins with has what.
const (
	testBase    = 0x7f0000000000
	testGlobal  = 0x100 // error_context_stack
	testServer  = 0x200 // code of the server: where functions in SQL run
	testModule  = 0x300 // code of the module
	testStack   = 0x800 // of C
	testFrame   = 0x400 // bytes of a frame on it
	testFrames  = 4
	testObjects = testStack + testFrames*testFrame
	testSize    = 0x2800
	testOID     = 16384
)

// memory is that of a process of one release.
type memory struct {
	release
	b    []byte
	next uint64 // of the objects
}

func (m *memory) put(at, v uint64) { binary.LittleEndian.PutUint64(m.b[at:], v) }

// object makes one of words.
func (m *memory) object(words ...uint64) uint64 {
	at := m.next
	for i, w := range words {
		m.put(at+8*uint64(i), w)
	}
	m.next += 128
	return testBase + at
}

// named makes an object that has a name.
func (m *memory) named(name string) uint64 {
	text := m.object() + textPiece - 3 // in two pieces
	copy(m.b[text-testBase:], name)
	words := make([]uint64, m.name/8+1)
	words[m.name/8] = text
	return m.object(words...)
}

// newMemory makes a process in which a function in PL/pgSQL has called one in SQL, which has called another one in
// PL/pgSQL, which has a context that is about something else as well, and waits in line 7.
func newMemory(r release) *memory {
	m := &memory{release: r, b: make([]byte, testSize), next: testObjects}
	at := uint64(0)
	context := func(place, calls, of uint64) {
		m.put(place+contextNext, at)
		m.put(place+contextCalls, testBase+calls)
		m.put(place+contextOf, of)
		at = testBase + place
	}
	call := func(frame, function, statement uint64) {
		m.put(frame+0x20, function)
		m.put(frame+0x20+r.statement, statement)
		context(frame+0x200, testModule+8, testBase+frame+0x20)
	}
	call(testStack+2*testFrame, m.named(`"on (insert"()`), m.object(3|4<<32))
	var of uint64
	if r.hasHash {
		of = m.object(m.named("in (SQL)"), 1)
	} else {
		of = m.object(testBase+testServer, testOID, 0, m.named("in (SQL)"))
	}
	context(testStack+testFrame+0x40, testServer+8, of)
	call(testStack, m.named("waits(integer)"), m.object(5|7<<32))
	context(testStack+0x280, testModule+16, m.named("a text"))
	m.put(testGlobal, at)
	return m
}

// walk returns what runs in the frames of the stack of C, innermost first, of a process that has other memory by now than was
// captured: the stack, and the word that the kernel side copies of what the context of a function in SQL has.
func walk(r release, b, now []byte) (calls []string) {
	snap, live := procstate.NewSnapshot(procstate.AMD64, 1, "", nil), procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	regions := []procstate.Region{{Addr: testBase, Data: b[:min(len(b), testObjects)]}}
	if place := testStack + testFrame + 0x40 + contextOf; len(b) >= testObjects {
		if at := binary.LittleEndian.Uint64(b[place:]) + r.functionWord() - testBase; at >= testObjects && at < uint64(len(b)-8) {
			regions = append(regions, procstate.Region{Addr: testBase + at, Data: b[at:][:8]})
		}
	}
	snap.Reset(1, &procstate.Regs{}, regions)
	live.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testBase, Data: now}})
	w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
	server := &image{contexts: testGlobal, sql: mcode.Range{Start: testServer, End: testServer + 0x80}, release: r}
	module := &image{language: true}
	vm := newMachine(w, server, nil, testBase)
	vm.Memory = vmread.Memory{Mem: live, Captured: snap}
	vm.walk = 1 // not the one of w
	vm.readAll(w, server, module, func(code uint32) {
		call := ""
		for _, l := range w.Codes().Lines(code) {
			call += fmt.Sprintf("%s|%s:%d", l.Name, l.Parameters, l.Line)
		}
		calls = append(calls, call)
	})
	return calls
}

// readAll has each frame looked at.
func (vm *machine) readAll(w *unwind.Walker, server, module *image, got func(code uint32)) {
	for n := range uint64(testFrames) {
		sp := uint64(testBase + testStack + n*testFrame)
		frame := mcode.Range{Start: sp, End: sp + testFrame}
		if n == 1 {
			got(vm.codeOf(w, &procstate.Mapping{Start: testBase + testServer, End: testBase + testServer + 0x80}, server, frame))
		} else {
			got(vm.codeOf(w, &procstate.Mapping{Start: testBase + testModule, End: testBase + testModule + 0x80}, module, frame))
		}
	}
}

// Functions belong to the frames of C in which their contexts are.
func TestPostgresContexts(t *testing.T) {
	want := []string{"waits|(integer):7", "in (SQL)|:0", `"on (insert"|():4`, ""}
	for number, r := range releases {
		t.Run(fmt.Sprint(number/100), func(t *testing.T) {
			m := newMemory(r)
			if got := walk(r, m.b, m.b); !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
			// Without the word that leads there nothing is known.
			without := slices.Clone(m.b)
			binary.LittleEndian.PutUint64(without[testGlobal:], 0)
			if got, want := walk(r, without, m.b), []string{"", "", "", ""}; !slices.Equal(got, want) {
				t.Errorf("%q without contexts, want %q", got, want)
			}
			circle := slices.Clone(m.b)
			binary.LittleEndian.PutUint64(circle[testStack+testFrame+0x40:], testBase+testStack+0x200)
			if got, want := walk(r, circle, m.b), []string{"", "", "", ""}; !slices.Equal(got, want) {
				t.Errorf("%q of contexts in a circle, want %q", got, want)
			}
			// What was not captured is said once, in the frame behind.
			cut := slices.Clone(m.b)
			binary.LittleEndian.PutUint64(cut[testStack+testFrame+0x40:], 8)
			if got, want := walk(r, cut, m.b), []string{want[0], want[1], "[not copied]|:0", ""}; !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
			// What is gone has no name, and no line.
			if got, want := walk(r, m.b, make([]byte, testSize)), []string{"[not read]|:0", "[not read]|:0", "[not read]|:0", ""}; !slices.Equal(got, want) {
				t.Errorf("%q when all is gone, want %q", got, want)
			}
		})
	}
}

// A function in SQL is known by its number once its name was read, though what its context has is gone or another
// one's by then; one name that was read in its place is not believed.
func TestPostgresCalledAgain(t *testing.T) {
	function := func(name string) *unwind.CodeFunction { return &unwind.CodeFunction{Name: name} }
	a, b := function("a"), function("b")
	var c called
	for i, step := range []struct{ read, want *unwind.CodeFunction }{{a, a}, {b, a}, {a, a}, {b, a}, {b, b}, {a, b}, {b, b}, {a, b}, {a, a}} {
		if c.take(step.read, uint64(i)); c.is != step.want {
			t.Errorf("step %d: %s, want %s", i, c.is.Name, step.want.Name)
		}
	}
	m := newMemory(releases[1500])
	snap := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testBase, Data: m.b}})
	w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
	vm := newMachine(w, &image{contexts: testGlobal, sql: mcode.Range{Start: testServer, End: testServer + 1}, release: m.release}, nil, testBase)
	vm.Memory = vmread.Memory{Mem: snap, Captured: snap}
	vm.times = vm.Times()
	of := binary.LittleEndian.Uint64(m.b[testStack+testFrame+0x40+contextOf:])
	for _, gone := range []bool{false, true} {
		if gone {
			m.put(of-testBase+calledCode, 0)
		}
		if fn := vm.functionInSQL(of); fn.Name != "in (SQL)" {
			t.Errorf("gone is %v: %q", gone, fn.Name)
		}
	}
}

// What a Collector has copied of a function in SQL is enough, though it is gone by the time of the walk.
func TestPostgresCollected(t *testing.T) {
	m := newMemory(releases[1500])
	live := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	live.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testBase, Data: m.b}})
	server := &image{contexts: testGlobal, sql: mcode.Range{Start: testServer, End: testServer + 1}, release: m.release}
	var regions []procstate.Region
	server.collect(live, testBase+testGlobal, testBase, func(addr uint64, n int) {
		regions = append(regions, procstate.Region{Addr: addr, Data: slices.Clone(m.b[addr-testBase:][:n])})
	})
	snap := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	snap.Reset(1, &procstate.Regs{}, regions)
	clear(m.b)
	vm := newMachine(unwind.NewWalker(snap, unwind.NewGroup(), nil), server, nil, testBase)
	vm.Memory = vmread.Memory{Mem: live, Captured: snap}
	vm.times = vm.Times()
	of := newMemory(releases[1500]).b[testStack+testFrame+0x40+contextOf:]
	if fn := vm.functionInSQL(binary.LittleEndian.Uint64(of)); fn.Name != "in (SQL)" {
		t.Errorf("%q", fn.Name)
	}
}

func TestSplitSignature(t *testing.T) {
	for text, want := range map[string][2]string{
		"shop.price(integer)":       {"shop.price", "(integer)"},
		`"a (b"."c""(d"(integer)`:   {`"a (b"."c""(d"`, "(integer)"},
		"inline_code_block":         {"inline_code_block", ""},
		"(":                         {"(", ""},
		"f(character varying,json)": {"f", "(character varying,json)"},
	} {
		if name, parameters := splitSignature(text); name != want[0] || parameters != want[1] {
			t.Errorf("%s: %q, %q", text, name, parameters)
		}
	}
}

// FuzzPostgres has all that is read of a server be anything.
func FuzzPostgres(f *testing.F) {
	for _, number := range []uint32{1500, 1800} {
		f.Add(newMemory(releases[number]).b, number >= 1800)
	}
	f.Fuzz(func(t *testing.T, memory []byte, isNew bool) {
		r := releases[1500]
		if isNew {
			r = releases[1800]
		}
		if n := len(walk(r, memory, memory)); n != testFrames {
			t.Errorf("%d frames", n)
		}
	})
}
