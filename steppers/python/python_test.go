package python

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Tables of locations as Objects/locations.md of CPython has them.
func TestPythonLine(t *testing.T) {
	table := []byte{
		0x80 | 0<<3 | 1, 0x00, // 2 units of the first line, short
		0x80 | 11<<3, 4, 8, // 1 unit, a line further, with columns
		0x80 | 13<<3 | 2, 2 * 5, // 3 units, 5 lines further
		0x80 | 15<<3,             // 1 unit in no line
		0x80 | 14<<3, 7, 1, 2, 3, // 1 unit, 3 lines back, with all
		0x80 | 13<<3 | 7, 64, 2, // 8 units, 64 lines further: in two bytes
	}
	lines := []int{100, 100, 101, 106, 106, 106, 0, 103, 167, 167, 167, 167, 167, 167, 167, 167, 0}
	for unit, want := range lines {
		for off := 2 * unit; off < 2*unit+2; off++ {
			if got := line(table, 100, off); got != want {
				t.Errorf("instruction at %d: line %d, want %d", off, got, want)
			}
		}
	}
	if got := line(table, 100, -1); got != 0 {
		t.Errorf("before the first instruction: line %d", got)
	}
	for n := range table {
		for off := range 40 {
			if got := line(table[:n], 100, off); got != 0 && got != lines[off/2] && n > 0 {
				// A number that is cut short ends the table.
				t.Errorf("cut to %d, at %d: line %d", n, off, got)
			}
		}
	}
	if _, ok := varint([]byte{64, 64, 64, 64, 64, 64, 1}); ok {
		t.Error("a number without an end")
	}
}

// memory is a process in which a thread runs two calls of the interpreter's function, as
// a version of it has them, with sp below both.
type memory struct {
	procstate.Memory
	b    []byte
	vm   *machine
	base uint64
}

const (
	stack = 0x1000 // offsets in the memory of the C stack,
	data  = 0x2000 // frames,
	heap  = 0x3000 // and objects
)

// layouts are the fields of all versions, and of those that there are without a global lock.
func layouts() map[string]*layout {
	all := map[string]*layout{}
	for version, f := range versions {
		all[fmt.Sprintf("%x", version)] = f
		if f.debugOffsets {
			all[fmt.Sprintf("%xt", version)] = freeThreaded(*f)
		}
	}
	return all
}

func newMemory(version uint32) *memory { return newMemoryOf(versions[version]) }

func newMemoryOf(f *layout) *memory {
	const base = 0x7f0000000000
	m := &memory{b: make([]byte, 0x4000), base: base}
	snap := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: base, Data: m.b}})
	m.Memory = snap
	m.vm = &machine{fields: f, Memory: vmread.Memory{Mem: snap}, codeType: 77, known: map[uint64]*function{}, asked: vmread.FramesAsked{}}
	const thread, frame = 0x100, 0x80
	m.vm.threads = []threadState{{addr: base + thread}}
	code := func(at int, name string, line int) {
		m.put(at+int(f.typeOf()), 77)
		m.put(at+int(f.qualName), base+uint64(at)+0xe0)
		m.put(at+int(f.firstLine), uint64(line))
		text := at + 0xe0
		more := int(f.more)
		m.put(text+more+16, uint64(len(name)))
		m.put(text+more+32, 1<<2|1<<5|1<<6)
		copy(m.b[text+int(f.asciiBytes):], name)
		m.put(at+int(f.lineTable), base+uint64(at)+0x160)
		m.put(at+more+16, 8) // units of code
		m.put(at+0x160+more+16, 3)
		copy(m.b[at+0x160+more+32:], []byte{0x80 | 11<<3 | 7, 4, 8}) // 8 units of the line after the first
	}
	names := []string{"inner", "middle", "outer"}
	for i, name := range names { // the first two in one call
		code(heap+i*0x200, name, 10*(i+1))
		at := data + i*frame
		tag := uint64(0)
		if f.asyncio.stackTop != 0 { // 3.14 and later
			tag = 1
		}
		m.put(at+int(f.code), base+uint64(heap+i*0x200)|tag)
		m.put(at+int(f.instruction), base+uint64(heap+i*0x200)+f.bytecode+4)
		if i < 2 {
			m.put(at+int(f.previous), base+uint64(at+frame))
		}
		if f.isEntry != 0 && i > 0 {
			m.b[at+int(f.isEntry)] = 1
		}
	}
	current := uint64(base + data)
	if f.isEntry == 0 { // what ends them is on the C stack
		for i, at := range []int{stack + 0x40, stack + 0x240} {
			m.b[at+int(f.owner)] = ownedByCStack
			m.put(data+(i+1)*frame+int(f.previous), base+uint64(at))
		}
		m.put(stack+0x40+int(f.previous), base+data+2*frame)
	}
	if f.hasCFrame {
		current = base + stack + 0x20
		m.put(stack+0x20+int(f.cFrame), base+data)
		m.put(stack+0x20+int(f.outerCFrame), base+stack+0x220)
		m.put(stack+0x220+int(f.cFrame), base+data+2*frame)
		m.put(stack+0x220+int(f.outerCFrame), base+thread+0x10)
	}
	m.put(thread+int(f.current), current)
	return m
}

func (m *memory) snapshot() *procstate.Snapshot { return m.Memory.(*procstate.Snapshot) }

func (m *memory) put(at int, v uint64) { binary.LittleEndian.PutUint64(m.b[at:], v) }

// functions returns what runs in the C frames [0, 0x100), [0x100, 0x200) and [0x200, 0x300).
func (m *memory) functions(w *unwind.Walker) (all [3][]string) {
	for i := range all {
		in := unwind.NewFrame(procstate.AMD64, 1, m.base+stack+uint64(i)*0x100, 0)
		for code := m.vm.codeOf(w, &in, in.SP()+0x100); code != 0; code = w.Codes().Outer(code) {
			for _, l := range w.Codes().Lines(code) {
				all[i] = append(all[i], l.Name)
				if l.Line != l.StartLine+1 && l.Name != notRead.Name {
					all[i] = append(all[i], "in another line")
				}
			}
		}
	}
	return all
}

func (m *memory) walker() *unwind.Walker {
	w := unwind.NewWalker(m.Memory.(*procstate.Snapshot), unwind.NewGroup(), nil)
	_, _ = w.WalkPCs(nil, &procstate.Regs{}) // another walk
	m.vm.Mem, m.vm.Captured = m.Memory, m.snapshot()
	m.vm.listed = time.Now()
	return w
}

// The frames of each version are found, and each C frame has its own; what does not fit has
// none.
func TestPythonFrames(t *testing.T) {
	want := [3][]string{{"inner", "middle"}, nil, {"outer"}}
	for version, fields := range layouts() {
		if fields.isObject {
			continue
		}
		m := newMemoryOf(fields)
		if got := m.functions(m.walker()); !slices.EqualFunc(got[:], want[:], slices.Equal) {
			t.Errorf("%s: %q, want %q", version, got, want)
		}
		m = newMemoryOf(fields)
		m.put(heap+int(fields.typeOf()), 78) // the innermost is no code object, as while a frame is made
		if got := m.functions(m.walker()); !slices.Equal(got[0], []string{"middle"}) || !slices.Equal(got[2], want[2]) {
			t.Errorf("%s: without the innermost %q", version, got)
		}
		m = newMemoryOf(fields)
		w := m.walker()
		m.functions(w)
		copy(m.b[heap+0xe0+int(m.vm.fields.asciiBytes):], "other") // another in its place
		time.Sleep(5 * time.Millisecond)
		between := procstate.Monotonic()
		for _, step := range []struct {
			taken uint64
			want  string
		}{
			{between, "[not read]"}, // one or the other
			{0, "other"},            // now
			{between, "[not read]"},
			{between - uint64(time.Hour), "[not read]"},
		} {
			m.snapshot().SetTime(step.taken)
			if got := m.functions(w); !slices.Equal(got[0], []string{step.want, "middle"}) {
				t.Errorf("%s: after another came %q, want %s", version, got, step.want)
			}
		}
		m.put(heap+int(fields.typeOf()), 78) // none any more
		m.snapshot().SetTime(procstate.Monotonic())
		time.Sleep(time.Millisecond)
		if got := m.functions(w); !slices.Equal(got[0], []string{"[not read]", "middle"}) {
			t.Errorf("%s: after it went %q", version, got)
		}
		m.snapshot().SetTime(0)
		if got := m.functions(w); !slices.Equal(got[0], []string{"middle"}) {
			t.Errorf("%s: where there is none %q", version, got)
		}
		m = newMemoryOf(fields)
		w = m.walker()
		m.functions(w)
		name := m.vm.fields.qualName
		was := binary.LittleEndian.Uint64(m.b[heap+int(name):])
		time.Sleep(5 * time.Millisecond)
		m.put(heap+int(name), 0) // as where the process ends while it is read
		if got := m.functions(w); !slices.Equal(got[0], []string{"inner", "middle"}) {
			t.Errorf("%s: without its name %q", version, got)
		}
		m.put(heap+int(name), was)
		if got := m.functions(w); !slices.Equal(got[0], []string{"inner", "middle"}) {
			t.Errorf("%s: with its name again %q", version, got)
		}
		m = newMemoryOf(fields)
		f := m.vm.fields
		m.put(data+0x80+int(f.previous), m.base+data) // in a circle
		m.b[data+0x80+int(f.isEntry)] = 0
		if got := m.functions(m.walker()); got[0] != nil && f.isEntry == 0 || got[1] != nil {
			t.Errorf("%s: in a circle %q", version, got)
		}
	}
}

// Without a global lock threads run copies of a function's code from 3.14 on: the instruction is in one of these.
func TestPythonCopies(t *testing.T) {
	f := freeThreaded(*versions[0x030e])
	m := newMemoryOf(f)
	w := m.walker()
	const array, other = 0x3800, 0x3900
	line := func(instruction uint64) int {
		m.put(data+int(f.instruction), instruction)
		in := unwind.NewFrame(procstate.AMD64, 1, m.base+stack, 0)
		m.vm.readThread(in.SP())
		code := m.vm.codeOf(w, &in, in.SP()+0x100)
		if name := w.Codes().Lines(code)[0].Name; name != "inner" {
			t.Errorf("%s at %#x", name, instruction)
		}
		return w.Codes().Lines(code)[0].Line
	}
	own := m.base + heap + f.bytecode + 4
	want := line(own)
	if want == 0 {
		t.Error("no line in the code itself")
	}
	if got := line(m.base + other + 4); got != 0 {
		t.Errorf("line %d outside of all copies", got)
	}
	m.put(heap+int(f.copies), m.base+array)
	m.put(array, 3) // the second is of a thread that has not run it
	m.put(array+8, m.base+heap+f.bytecode)
	m.put(array+24, m.base+other)
	for _, at := range []uint64{own, m.base + other + 4} {
		if got := line(at); got != want {
			t.Errorf("line %d at %#x, want %d", got, at, want)
		}
	}
	if got := line(m.base + other + 0x100); got != 0 {
		t.Errorf("line %d behind the copy", got)
	}
	m.put(array, 1<<40)
	m.put(data+int(f.instruction), m.base+other+0x100)
	if got := line(m.base + other + 0x100); got != 0 {
		t.Errorf("line %d with copies without end", got)
	}
}

// The fields of a version are those that an interpreter tells, or it is not known: some of 3.15.0 beside those of other versions.
func TestPythonTold(t *testing.T) {
	var table []byte
	for _, word := range []uint64{
		7736, 0, 7752, 7744, 7944, 0, 888, 0, 8, 16, 72, 80, 88, 96, 176, 184, 256, 256, 32, 36, 40, 136, 288, 0,
		88, 8, 0, 56, 80, 74, 64, 0, 216, 112, 120, 128, 136, 68, 52, 96, 104, 208, 0, 16, 8,
	} {
		table = binary.LittleEndian.AppendUint64(table, word)
	}
	for version, f := range layouts() {
		if !f.debugOffsets {
			continue
		}
		is := !slices.ContainsFunc(f.told(), func(fields []uint64) bool { return !hasFields(table, fields) })
		if want := version == "30f"; is != want {
			t.Errorf("%s: told %v, want %v", version, is, want)
		}
	}
}

func TestPythonText(t *testing.T) {
	m := newMemory(0x030b)
	const at = 0x3a00
	text := func(kind, n, flags uint64, b string) (string, bool) {
		m.put(at+16, n)
		m.put(at+32, kind<<2|flags)
		clear(m.b[at+48 : at+256])
		head := 72
		if flags&(1<<6) != 0 {
			head = 48
		}
		copy(m.b[at+head:], b)
		return m.vm.text(m.base + at)
	}
	const compact, ascii = 1 << 5, 1 << 6
	for _, test := range []struct {
		kind, n, flags uint64
		b, want        string
	}{
		{1, 3, compact | ascii, "abc", "abc"},
		{1, 2, compact, "\xe4b", "äb"},
		{2, 2, compact, "\x42\x04b\x00", "тb"},
		{4, 1, compact, "\x00\xf6\x01\x00", "😀"},
	} {
		if got, ok := text(test.kind, test.n, test.flags, test.b); !ok || got != test.want {
			t.Errorf("kind %d: %q, %v, want %q", test.kind, got, ok, test.want)
		}
	}
	for name, test := range map[string][3]uint64{"kind": {3, 1, compact}, "not compact": {1, 1, 0}, "long": {1, maxName + 1, compact}} {
		if got, ok := text(test[0], test[1], test[2], ""); ok {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// To 3.10 each C frame has the function whose object's address is in it, or in what it calls; one
// that begins may have none yet.
func TestPythonObjects(t *testing.T) {
	for version, fields := range versions {
		if !fields.isObject {
			continue
		}
		m := newMemory(version)
		m.vm.threads[0].id = 0x5000
		clear(m.b[stack:data])
		const object = data // three of them
		m.put(0x100+int(fields.current), m.base+object)
		for i := range 3 {
			m.put(object+i*0x80+int(fields.previous), 0)
			if i < 2 {
				m.put(object+i*0x80+int(fields.previous), m.base+uint64(object+(i+1)*0x80))
			}
			m.put(object+i*0x80+int(fields.code), m.base+uint64(heap+i*0x200))
			m.put(object+i*0x80+int(fields.instruction), 4)
			table := []byte{2, 1, 100, 0} // the line after the first, from 2 on
			if version == 0x030a {
				table = []byte{16, 1}
			}
			m.put(heap+i*0x200+0x160+16, uint64(len(table)))
			copy(m.b[heap+i*0x200+0x160+32:], table)
		}
		m.put(stack-0x20, m.base+object)         // saved by what the first C frame calls
		m.put(stack+0x180, m.base+object+0x80)   // in the second
		m.put(stack+0x280, m.base+object+2*0x80) // in the third
		m.put(stack+0x188, m.base+object+2*0x80) // and in the second, which has the one before
		m.snapshot().Reset(1, &procstate.Regs{ThreadPointer: 0x5000}, m.snapshot().Regions())
		want := [3][]string{{"inner"}, {"middle"}, {"outer"}}
		if got := m.functions(m.walker()); !slices.EqualFunc(got[:], want[:], slices.Equal) {
			t.Errorf("%x: %q, want %q", version, got, want)
		}
		m.put(stack-0x20, 0) // the first begins: it is not the thread's yet
		m.put(0x100+int(fields.current), m.base+object+0x80)
		want[0], m.vm.walk, m.vm.codes = nil, 0, nil
		if got := m.functions(m.walker()); !slices.EqualFunc(got[:], want[:], slices.Equal) {
			t.Errorf("%x: where one begins %q, want %q", version, got, want)
		}
	}
}

// Tables of lines before 3.11.
func TestPythonOldLines(t *testing.T) {
	old, of310 := []byte{6, 1, 4, 0xff, 255, 0, 1, 2}, []byte{6, 0, 4, 1, 2, 0x80, 4, 0xfe}
	for i, want := range map[int][2]int{-1: {10, 0}, 0: {10, 10}, 5: {10, 10}, 6: {11, 11}, 9: {11, 11}, 10: {10, 0}, 11: {10, 0}, 12: {10, 9}, 15: {10, 9}, 16: {10, 0}, 264: {10, 0}, 266: {12, 0}} {
		if got := lineOld(old, 10, i); got != want[0] {
			t.Errorf("at %d: line %d, want %d", i, got, want[0])
		}
		if got := line310(of310, 10, i>>1); got != want[1] && i >= 0 {
			t.Errorf("3.10, at %d: line %d, want %d", i, got, want[1])
		}
	}
}

// countedCapture counts what is read of a capture.
type countedCapture struct {
	procstate.CapturedMemory
	reads int
}

func (c *countedCapture) ReadCaptured(addr uint64, buf []byte) bool {
	c.reads++
	return c.CapturedMemory.ReadCaptured(addr, buf)
}

// Threads whose frames lead in a circle, as many as there may be, do not take each walk for ever: which of
// them is the one in question nobody can tell.
func TestPythonCircles(t *testing.T) {
	for version, fields := range versions {
		if fields.isObject {
			continue
		}
		m := newMemory(version)
		m.put(data+int(fields.previous), m.base+data)
		m.vm.threads = slices.Repeat(m.vm.threads, maxThreads)
		w := m.walker()
		counted := &countedCapture{CapturedMemory: m.snapshot()}
		m.vm.Captured = counted
		if got := m.functions(w); got[0] != nil {
			t.Errorf("%x: %q", version, got)
		}
		if counted.reads > 2*maxSearched {
			t.Errorf("%x: %d reads", version, counted.reads)
		}
	}
}

// FuzzPython has the interpreter's memory say anything.
func FuzzPython(f *testing.F) {
	versions := []uint32{0x030b, 0x030c, 0x030d, 0x0308, 0x030a, 0x030e, 0x030f}
	for i, v := range versions {
		f.Add(newMemory(v).b, uint8(i))
	}
	f.Fuzz(func(t *testing.T, memory []byte, version uint8) {
		m := newMemory(versions[int(version)%len(versions)])
		clear(m.b[copy(m.b, memory):])
		w := m.walker()
		m.functions(w)
		listThreads(m.vm.fields, m.base, m.vm.Word)
		c := collector{fields: m.vm.fields, runtime: m.base}
		total := 0
		c.collect(m.Memory, 1, nil, func(_ uint64, n int) { total += n })
		if total > maxStacks+maxStack+(maxOthers+maxThreads)*1024 {
			t.Errorf("%d bytes are collected", total)
		}
	})
}

// TestPythonMinor: the minor version of the interpreter stands in the names of its files.
func TestPythonMinor(t *testing.T) {
	for name, want := range map[string]int{
		"python3.9": 9, "libpython3.10.so.1.0": 10, "libpython3.8.so.1.0": 8, "python3.7m": 7,
		"python3.x-python3.11": 11, "python3": -1, "python3.": -1, "python": -1, "": -1, "libpython3.so": -1,
	} {
		if minor, ok := minorOf(name); ok != (want >= 0) || ok && minor != want {
			t.Errorf("%q: %d, %v", name, minor, ok)
		}
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

// To 3.10 threads have the number that pthread_self returns: on x86-64 it is the thread pointer, on AArch64 a little less.
func TestThreadID(t *testing.T) {
	const pointer = 0xffff87057700
	for _, c := range []struct {
		id   ThreadID
		arch *procstate.Arch
		want bool
	}{
		{ThreadID{Pthread: pointer}, procstate.AMD64, true},
		{ThreadID{Pthread: pointer - 0x6f0}, procstate.AMD64, false},
		{ThreadID{Pthread: pointer - 0x6f0}, procstate.ARM64, true},
		{ThreadID{Pthread: pointer}, procstate.ARM64, false},
		{ThreadID{Pthread: pointer - 0x810000}, procstate.ARM64, false}, // of the thread whose stack is below
		{ThreadID{Number: 4711}, procstate.ARM64, true},
		{ThreadID{Number: 4712}, procstate.ARM64, false},
		{ThreadID{}, procstate.ARM64, false},
	} {
		if got := c.id.Is(c.arch, 4711, pointer); got != c.want {
			t.Errorf("%+v on %s: %v", c.id, c.arch.Name, got)
		}
	}
}

// Once a thread has frames that are in no stack, those of all threads are asked for that have such.
func TestLackedOfAll(t *testing.T) {
	m := newMemory(0x030d)
	s := New(nil)
	w := unwind.NewWalker(m.snapshot(), unwind.NewGroup(), nil)
	w.Keep(s, m.vm)
	m.vm.walk = w.Walks()
	m.vm.threads = []threadState{{m.base, 1}, {m.base + 0x100, 2}, {m.base + 0x200, 3}}
	for tid, lacksFrame := range []bool{false, true, false} {
		m.vm.lacks, m.vm.lacksFrame = true, lacksFrame
		frames, lacks := s.Lacked(w, tid+1)
		if wants := frames.Bytes != 0; !lacks || wants != (tid > 0) {
			t.Errorf("thread %d: lacks %v, %+v", tid+1, lacks, frames)
		}
	}
}

// A thread that runs two interpreters, of which one has called the other, has the functions of both, and another thread
// has no part in it. Where the one was copied that runs nothing the other is asked for.
func TestTwoInterpreters(t *testing.T) {
	const second, frame = 0x800, 0x80
	for version, f := range versions {
		if f.isObject {
			continue
		}
		start := func(id uint64) *memory {
			m := newMemory(version)
			m.put(stack+0x40+int(f.previous), 0)
			outermost := m.base + data + 2*frame
			if f.hasCFrame {
				m.put(stack+0x20+int(f.outerCFrame), m.base+0x110)
				outermost = m.base + stack + 0x220
			}
			m.put(second+int(f.current), outermost)
			m.vm.threads = []threadState{{m.base + second, id}, {m.base + 0x100, 1}}
			return m
		}
		for id, want := range map[uint64][]string{1: {"outer"}, 2: nil} {
			m := start(id)
			if got := m.functions(m.walker()); !slices.Equal(got[0], []string{"inner", "middle"}) || !slices.Equal(got[2], want) {
				t.Errorf("%x: thread %d: %q", version, id, got)
			}
		}
		if f.hasCFrame { // what runs nothing has no place far from the stack here
			continue
		}
		m := start(1)
		w, s := m.walker(), New(nil)
		w.Keep(s, m.vm)
		m.put(second+int(f.current), 0)
		threads := m.vm.threads
		m.vm.threads = threads[:1]
		m.functions(w)
		m.vm.threads = threads
		if frames, _ := s.Lacked(w, 1); frames.Current != m.base+0x100+f.current {
			t.Errorf("%x: asks for what is at %#x", version, frames.Current)
		}
	}
}

// Where the address of a PyThreadState is near the thread pointer, other threads are found by it: what was copied of one
// that is not known yet is of that.
func TestNewThread(t *testing.T) {
	const version, pointer, thread, from = 0x030d, 0x1800, 0x100, -0x28
	m := newMemory(version)
	f := m.vm.fields
	m.put(pointer+from, m.base+thread)
	s := New(nil)
	start := func(regions ...procstate.Region) *unwind.Walker {
		m.snapshot().Reset(1, &procstate.Regs{ThreadPointer: m.base + pointer}, regions)
		w := m.walker()
		w.Keep(s, m.vm)
		return w
	}
	all := procstate.Region{Addr: m.base, Data: m.b}
	w := start(all)
	m.vm.walk, m.vm.lacks, m.vm.threads = w.Walks(), true, []threadState{{m.base + thread, 1}}
	if frames, _ := s.Lacked(w, 1); frames.Own != m.base+thread || frames.FromThreadPointer != from {
		t.Errorf("%+v", frames)
	}
	at := thread + int(f.current)
	word := procstate.Region{Addr: m.base + uint64(at), Data: m.b[at : at+8]}
	ofGo := []procstate.Region{ // what runs, and where the word for that is
		{Addr: m.base + pointer - 8, Data: m.b[pointer-8 : pointer]}, {Addr: m.base + pointer + 8, Data: m.b[pointer+8 : pointer+16]},
	}
	w = start(ofGo[0], ofGo[1], word, procstate.Region{Addr: m.base + stack, Data: m.b[stack:]})
	m.vm.threads, m.vm.walk, m.vm.codes = nil, 0, nil
	if got := m.functions(w); !slices.Equal(got[0], []string{"inner", "middle"}) || !slices.Equal(got[2], []string{"outer"}) {
		t.Errorf("it runs %q", got)
	}
	m.vm.lacksFrame = true
	if frames, _ := s.Lacked(w, 2); frames.Current != word.Addr || frames.Own != m.base+thread || frames.Bytes == 0 {
		t.Errorf("of a thread that is not known it asks %+v", frames)
	}
	// With those of Go alone it lacks what it runs.
	w = start(append(ofGo, procstate.Region{Addr: m.base + stack, Data: m.b[stack:]})...)
	m.vm.threads, m.vm.walk, m.vm.lacksFrame = nil, 0, false
	m.functions(w)
	m.vm.threads = []threadState{{m.base + thread, 3}}
	if frames, _ := s.Lacked(w, 3); frames.Current != word.Addr {
		t.Errorf("beside a runtime of Go it asks %+v", frames)
	}
}
