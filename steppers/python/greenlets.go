package python

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Greenlets, those of gevent and eventlet too, take turns on the stack of a thread. The module greenlet keeps no list of
// them, but the collector of garbage has all objects that may refer to others in its own: circular ones, whose heads
// are in a structure of the interpreter, by generation, with what is new at the end.
//
// A greenlet, as the module has it from 2.0 on (TGreenlet.hpp), refers to an object of C++, see below.
const (
	greenletClass = "greenlet.greenlet"
	greenletBytes = 40 // of an object of that class: those of modules before 2.0 have more
	greenletImpl  = 32 // where it refers to the object of C++

	trackedHead   = 16       // bytes of a node of the list before an object, with the next and the one before
	trackedFlags  = 3        // bits of these that are none of the address
	trackedStruct = 64 << 10 // bytes at the beginning of an interpreter or _PyRuntime that heads may be in
	trackedBeside = 128      // bytes that the heads of all generations are within
	maxLists      = 16
	maxPages      = 1 << 14
	maxTracked    = 1 << 23 // objects that are looked at as the process runs,
	maxNew        = 1 << 13 // and of each list as it stands, if all of it was,
	maxUnknown    = 1 << 16 // and else
)

// errFrames is of the stack of a greenlet of which a frame could not be read.
var errFrames = errors.New("a frame could not be read")

// greenlets are where those of a process may be.
type greenlets struct {
	lists []trackedList
	known map[uint64]bool // greenlets that were there as the process ran
}

// trackedList is a list of objects, by its head, and whether all of it was read as the process ran.
type trackedList struct {
	head  uint64
	known bool
}

// pagedMemory keeps what was read, by page.
type pagedMemory struct {
	mem   procstate.Memory
	pages map[uint64][]byte // nil: cannot be read
	last  []byte
	at    uint64
}

func newPagedMemory(mem procstate.Memory) *pagedMemory {
	return &pagedMemory{mem: mem, pages: map[uint64][]byte{}, at: 1}
}

// forget has all read anew.
func (p *pagedMemory) forget() {
	clear(p.pages)
	p.last, p.at = nil, 1
}

// read reads memory. What it returns is to be used before the next call.
func (p *pagedMemory) read(addr, n uint64, buf []byte) bool {
	for got := uint64(0); got < n; {
		at := (addr + got) &^ (pageSize - 1)
		if at != p.at {
			page, known := p.pages[at]
			if !known {
				if len(p.pages) >= maxPages {
					p.forget()
				}
				page = make([]byte, pageSize)
				if n, err := p.mem.ReadMemory(at, page); err != nil || n < len(page) {
					page = nil
				}
				p.pages[at] = page
			}
			p.last, p.at = page, at
		}
		if p.last == nil {
			return false
		}
		got += uint64(copy(buf[got:n], p.last[addr+got-at:]))
	}
	return true
}

// findGreenlets finds the lists of the collector of garbage, and what is in them as the process runs.
func (ts *Tasks) findGreenlets(mem procstate.Memory) {
	ts.greenlets = &greenlets{known: map[uint64]bool{}}
	pages := newPagedMemory(mem)
	ts.findLists(pages, ts.runtime, trackedStruct)
	eachInterpreter(ts.vm.fields, ts.runtime, ts.vm.WordNow, func(interpreter uint64) { ts.findLists(pages, interpreter, trackedStruct) })
	for i := range ts.greenlets.lists {
		list := &ts.greenlets.lists[i]
		for try := 0; try < findTries && !list.known; try++ { // it may be changed just then
			list.known = ts.eachTracked(pages, list.head, false, maxTracked, func(object uint64) { ts.greenlets.known[object] = true })
			pages.forget()
		}
	}
}

// findLists finds the heads of lists in a structure: nodes that refer to others which refer to them.
func (ts *Tasks) findLists(pages *pagedMemory, structure, size uint64) {
	buf := make([]byte, size)
	for size > 0 && !pages.read(structure, size, buf) {
		size -= min(size, pageSize)
	}
	buf = buf[:size]
	var node [trackedHead]byte
	le := binary.LittleEndian
	for at := uint64(0); at+trackedHead <= size && len(ts.greenlets.lists) < maxLists; at += 4 { // they are at odd ones with 3.13
		head := structure + at
		next, last := le.Uint64(buf[at:])&^trackedFlags, le.Uint64(buf[at+8:])&^trackedFlags
		isKnown := slices.ContainsFunc(ts.greenlets.lists, func(l trackedList) bool { return l.head == head })
		if next < pageSize || last < pageSize || next == head || isKnown {
			continue
		}
		if pages.read(next, trackedHead, node[:]) && le.Uint64(node[8:])&^trackedFlags == head &&
			pages.read(last, trackedHead, node[:]) && le.Uint64(node[:])&^trackedFlags == head {
			ts.greenlets.lists = append(ts.greenlets.lists, trackedList{head: head})
		}
	}
}

// eachTracked calls what with each greenlet in a list, of so many objects at most, from the newest on if backward. It
// returns whether that was all of the list.
func (ts *Tasks) eachTracked(pages *pagedMemory, head uint64, backward bool, most int, what func(object uint64)) bool {
	link := uint64(0)
	if backward {
		link = 8
	}
	var b [trackedHead + headBytes]byte
	le := binary.LittleEndian
	if !pages.read(head, trackedHead, b[:]) {
		return false
	}
	for at := le.Uint64(b[link:]) &^ trackedFlags; at != head; most-- {
		if most == 0 || at < pageSize || !pages.read(at, uint64(len(b)), b[:]) {
			return false
		}
		if ts.isGreenlet(le.Uint64(b[trackedHead+ts.vm.fields.typeOf():])) {
			what(at + trackedHead)
		}
		at = le.Uint64(b[link:]) &^ trackedFlags
	}
	return true
}

// isGreenlet reports whether a class is that of greenlets, or derived from it.
func (ts *Tasks) isGreenlet(class uint64) bool {
	for c := ts.class(class); c != nil; c = c.base {
		if c.name == greenletClass {
			return c.basic == greenletBytes
		}
	}
	return false
}

// takeGreenlets takes those that are on no thread, of a process that stands still.
func (t *taskReader) takeGreenlets() {
	if t.greenlets == nil || len(t.greenlets.lists) == 0 {
		t.findGreenlets(t.mem)
	}
	pages := newPagedMemory(t.mem)
	for _, list := range t.greenlets.lists { // those beside it may just have been changed when they were looked for
		t.findLists(pages, list.head-trackedBeside, 2*trackedBeside)
	}
	objects := make([]uint64, 0, len(t.greenlets.known))
	for object := range t.greenlets.known {
		objects = append(objects, object)
	}
	for _, list := range t.greenlets.lists {
		most := maxNew
		if !list.known {
			most = maxUnknown
		}
		whole := t.eachTracked(pages, list.head, true, most, func(object uint64) {
			if !t.greenlets.known[object] {
				objects = append(objects, object)
			}
		})
		t.out.Cut = t.out.Cut || !list.known && !whole
	}
	slices.Sort(objects)
	objects = slices.Compact(objects)
	running := map[uint64]bool{}
	for _, object := range objects {
		if g := t.greenlet(object); g.isMain() {
			running[t.currentOf(object, g)] = true
		}
	}
	for _, object := range objects {
		if !t.takeGreenlet(object, running) {
			return
		}
	}
}

// greenlet is what the object of C++ has: where its part of the stack begins, which is 0 before that and when it is done,
// and ends, which is 0 before it begins, and the frame object of what it runs, which is 0 while it does, and where that is
// in no function of Python.
type greenlet struct{ impl, begin, end, frame uint64 }

// isMain reports whether it is the one that its thread has begun with.
func (g *greenlet) isMain() bool { return g != nil && g.end == ^uint64(0) }

// greenlet reads a greenlet, nil where there is none.
func (t *taskReader) greenlet(object uint64) *greenlet {
	var head [headBytes]byte
	if t.object(object, head[:]) == nil || !t.isGreenlet(binary.LittleEndian.Uint64(head[t.vm.fields.typeOf():])) {
		return nil // there was one
	}
	// Before that there are the table of functions, since 3.0 the greenlet, what is done about exceptions, and arguments;
	// and a context before the frame.
	const table, exceptions, arguments, end, frame = 8, 24, 16, 8, 48
	impl := t.word(object + greenletImpl)
	if impl == 0 {
		return nil
	}
	at := impl + table + exceptions + arguments
	if t.word(impl+table) == object {
		at += 8
	}
	if t.vm.fields.isObject { // with the class of an exception and where it comes from
		at += 16
	}
	return &greenlet{impl, t.word(at), t.word(at + end), t.word(at + frame)}
}

// currentOf returns the greenlet that runs on a thread, 0 where that is not known. What the module keeps of the thread
// has first the main greenlet, which refers to it, and then that.
func (t *taskReader) currentOf(main uint64, g *greenlet) uint64 {
	const most = 256 // bytes of an object of C++
	for at := uint64(0); at < most; at += 8 {
		if thread := t.word(g.impl + at); thread >= pageSize && thread%8 == 0 && t.word(thread) == main {
			if current := t.word(thread + 8); t.greenlet(current) != nil {
				return current
			}
		}
	}
	return 0
}

// takeGreenlet takes an object, if it is a greenlet that neither runs nor is done.
func (t *taskReader) takeGreenlet(object uint64, running map[uint64]bool) (more bool) {
	if len(t.out.List) >= t.most || t.frames > maxTaskFrames || t.mem.late {
		t.out.Cut = true
		return false
	}
	g := t.greenlet(object)
	if g == nil || g.begin == 0 && g.end != 0 || running[object] {
		return true
	}
	task := Task{Addr: object, IsGreenlet: true, Socket: -1, State: TaskSuspended}
	switch class := t.class(t.word(object + t.vm.fields.typeOf())); {
	case g.isMain():
		task.Name = "main"
	case class != nil:
		task.Name = class.name[1+strings.LastIndexByte(class.name, '.'):]
	}
	if g.begin == 0 {
		task.State = TaskCreated
	}
	task.Stack, task.Err = t.framesOf(g.frame)
	t.frames += len(task.Stack)
	if t.mem.late {
		t.out.Cut = true
		return false
	}
	t.out.List = append(t.out.List, task)
	return true
}

// framesOf returns the functions that run in a frame object and those before it, the innermost first.
func (t *taskReader) framesOf(frameObject uint64) (stack []unwind.CodeLine, err error) {
	const inner = 24 // of a frame object: its frame, from 3.11 on
	f, le := t.vm.fields, binary.LittleEndian
	frame := frameObject
	if !f.isObject && frame != 0 {
		frame = t.word(frame + inner)
	}
	var buf [objectBytes]byte
	b := buf[:f.frameBytes()]
	for n := 0; frame != 0; n++ {
		if n == maxFrames || !t.vm.ReadNow(frame, b) {
			return stack, errFrames
		}
		ref := frameRef{le.Uint64(b[f.code:]) &^ tagBits, le.Uint64(b[f.instruction:])}
		if f.isObject {
			ref.instruction = ref.code + uint64(int64(int32(ref.instruction)))
		}
		if f.isObject || b[f.owner] != ownedByCStack {
			line, ok := t.line(&ref)
			if !ok {
				return stack, errFrames
			}
			stack = append(stack, line)
		}
		frame = le.Uint64(b[f.previous:])
	}
	return stack, nil
}
