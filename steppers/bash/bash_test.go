package bash

import (
	"encoding/binary"
	"reflect"
	goruntime "runtime"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Where a bash has what is learned from its code: nearly all calls of execute_command_internal are known with the place
// of the command, and execute_function has two ways to begin.
func TestLearnedFromCode(t *testing.T) {
	if goruntime.GOARCH != "amd64" {
		t.Skip("it is known of amd64 alone")
	}
	for _, bash := range testenv.Programs("bash", "usr/bin/bash") {
		im := steptest.OpenImage(t, bash.Root+bash.Path)
		tables := unwind.NewTables()
		p := find(im, tables)
		if p.arch == nil || p.code[runsFile].End == 0 {
			t.Errorf("%s: %+v", bash.Name(), p.code)
			continue
		}
		known, phases := 0, map[phase]int{}
		all := p.callsOf(tables, im, runsCommand)
		for _, c := range all {
			if c.Regs&p.arch.CalleeSaved != 0 || c.Words != 0 {
				known++
			}
		}
		for _, c := range p.callsOf(tables, im, runsFunction) {
			phases[c.phase]++
		}
		const percent, least = 85, 5
		if 100*known < percent*len(all) {
			t.Errorf("%s: %d of %d calls with a command", bash.Name(), known, len(all))
		}
		if phases[before|within] != 2 || phases[before] < least || phases[within] < least || phases[leaving] == 0 {
			t.Errorf("%s: phases of calls: %v", bash.Name(), phases)
		}
	}
}

const testBase = 0x7f0000000000

// testMemory is a process in which outer has called inner, and that a command.
type testMemory struct {
	b    []byte
	next uint64
	p    image
	loop uint64 // a COMMAND
}

func (m *testMemory) put(at, v uint64) { binary.LittleEndian.PutUint64(m.b[at-testBase:], v) }

func (m *testMemory) make(words ...uint64) (at uint64) {
	at = testBase + m.next
	for i, w := range words {
		m.put(at+8*uint64(i), w)
	}
	m.next += uint64(len(words)*8+15) &^ 15
	return at
}

func (m *testMemory) text(s string) (at uint64) {
	at = m.make(make([]uint64, len(s)/8+1)...)
	copy(m.b[at-testBase:], s)
	return at
}

// table makes a HASH_TABLE.
func (m *testMemory) table(entries map[string]uint64) uint64 {
	const size = 4
	buckets := m.make(make([]uint64, size)...)
	for key, data := range entries {
		h := hash(key)
		at := buckets + 8*uint64(h&(size-1))
		next := binary.LittleEndian.Uint64(m.b[at-testBase:])
		m.put(at, m.make(next, m.text(key), data, uint64(h)))
	}
	return m.make(buckets, size)
}

// list makes a SHELL_VAR with an ARRAY.
func (m *testMemory) list(values ...string) uint64 {
	head := m.make(0, 0, 0, 0)
	last := head
	for i, v := range values {
		at := m.make(uint64(i), m.text(v), 0, last)
		m.put(last+elementNext, at)
		last = at
	}
	m.put(last+elementNext, head)
	m.put(head+elementPrev, last)
	return m.make(0, m.make(uint64(len(values)-1), uint64(len(values)), head))
}

func newTestMemory() *testMemory {
	m := &testMemory{b: make([]byte, 4<<10)}
	m.make(make([]uint64, 6)...)
	m.p = image{arch: procstate.AMD64, version: 0, variables: 8, globals: 16, defs: 24, arguments: 32}
	line := func(n uint64) uint64 { return n << 32 }
	simple := m.make(4, 0, 0, m.make(line(7), 0, 0))
	m.loop = m.make(2, 0, 0, m.make(0, m.make(6, 0, 0, m.make(0, simple, 0)), 0)) // while a && b
	globals := m.make(0, 0, 0, 0, m.table(map[string]uint64{
		"FUNCNAME": m.list("inner", "outer", "main"), "BASH_SOURCE": m.list("./lib.sh", "app.sh", "app.sh"), "HOME": 0,
	}))
	outer := m.make(m.text("outer"), line(ofFunction), 0, globals, 0)
	scope := m.make(0, line(16), 0, outer, 0)
	inner := m.make(m.text("inner"), line(ofFunction), 0, scope, 0)
	for i, v := range []uint64{m.text("5.2"), inner, globals, m.table(map[string]uint64{
		"inner": m.make(line(3), 0, 0, m.text("./lib.sh")),
	})} {
		m.put(testBase+8*uint64(i), v)
	}
	return m
}

func (m *testMemory) books(reads *int) *books {
	return &books{image: &m.p, bias: testBase, read: func(addr uint64, buf []byte) bool {
		*reads++
		if o := addr - testBase; o < uint64(len(m.b)) && uint64(len(m.b))-o >= uint64(len(buf)) {
			copy(buf, m.b[o:])
			return true
		}
		return false
	}}
}

// told is all that can be read of a process.
type told struct {
	known   bool
	names   []string
	entries []entry
	script  string
	file    string
	defined int
	line    int
	all     []string // that are defined
}

func (m *testMemory) told() (is told, reads int) {
	b := m.books(&reads)
	_, is.known = b.begin()
	at, ok := b.wordAt(b.variables + b.bias)
	for n := 0; ok && at != 0 && n < maxCalls; n++ {
		var c context
		if c, ok = b.context(at); ok && c.isFunction {
			name, _ := b.text(nil, c.name, maxName)
			is.names = append(is.names, string(name))
		}
		at = c.down
	}
	is.entries, is.script = b.entries(nil), b.script()
	is.file, is.defined = b.definition("inner")
	is.line, is.all = b.line(m.loop), b.defined(nil)
	return is, reads
}

// What a made process keeps is read as it is.
func TestBooks(t *testing.T) {
	want := told{
		known: true, names: []string{"inner", "outer"}, entries: []entry{{"inner", "./lib.sh"}, {"outer", "app.sh"}, {"main", "app.sh"}},
		script: "app.sh", file: "./lib.sh", defined: 3, line: 7, all: []string{"inner"},
	}
	if got, _ := newTestMemory().told(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Of a version that is not known nothing is read, and of a list that does not fit the other nothing of both.
func TestBooksRefuse(t *testing.T) {
	m := newTestMemory()
	version := slices.Index(m.b, '5')
	m.b[version+2] = '9'
	if is, _ := m.told(); is.known {
		t.Error("5.9 is known")
	}
	m = newTestMemory()
	reads := 0
	b := m.books(&reads)
	b.begin()
	files := b.list("BASH_SOURCE")
	_, first, _, _ := b.element(files)
	m.put(first+elementNext, files) // one alone
	if is, _ := m.told(); len(is.entries) != 0 {
		t.Errorf("of lists of which one is shorter: %v", is.entries)
	}
}

// What runs in the frames of a sample is told without an allocation, once it is known.
func TestSampleAllocates(t *testing.T) {
	m := newTestMemory()
	snap := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testBase, Data: m.b}})
	w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
	vm := newMachine(w, &procstate.Mapping{Bias: testBase}, &m.p, nil)
	vm.Memory = vmread.Memory{Mem: snap, Captured: snap}
	frame := unwind.Frame{Flags: unwind.Interrupted}
	var names []string
	walk := func() {
		vm.walk = w.Walks() + 1 // another one
		for _, at := range [...]place{runsCommand, runsFunction, runsCommand, runsFunction, runsText, runsAll} {
			code := vm.codeOf(w, &frame, at)
			if len(names) < cap(names) {
				for _, l := range w.Codes().Lines(code) {
					names = append(names, l.Name)
				}
			}
		}
	}
	names = make([]string, 0, 3)
	walk()
	if want := []string{"inner", "outer", "<file app.sh>"}; !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
	if n := testing.AllocsPerRun(1000, walk); n >= 1 {
		t.Errorf("%.1f allocations in a walk", n)
	}
}

// Memory that lies, in circles too, makes for few reads and no panic.
func FuzzBooks(f *testing.F) {
	f.Add(uint16(0), uint64(0), uint16(0), uint64(0))
	f.Add(uint16(8), uint64(testBase+8), uint16(16), uint64(testBase))
	for at := uint16(0); at < 4<<10; at += 40 {
		f.Add(at, uint64(testBase)+uint64(at)&^7, at+8, ^uint64(0))
	}
	f.Fuzz(func(t *testing.T, at1 uint16, v1 uint64, at2 uint16, v2 uint64) {
		m := newTestMemory()
		m.put(testBase+uint64(at1)%(4<<10-8), v1)
		m.put(testBase+uint64(at2)%(4<<10-8), v2)
		const most = 4 * maxCalls * maxName
		if is, reads := m.told(); reads > most || len(is.entries) > maxCalls || len(is.names) > maxCalls || len(is.all) > maxDefined {
			t.Errorf("%d reads", reads)
		}
	})
}
