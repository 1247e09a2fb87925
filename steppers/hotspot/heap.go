package hotspot

import (
	"cmp"
	"time"

	"github.com/swbpf/swbpf/procstate"
)

// Heap reads what walks need of the heap of Java: what its threads are called and wait for and, from JDK 21 on, the
// stacks of virtual threads.
type Heap struct {
	vm      *machine
	layout  *javaLayout
	system  map[string]*javaClassInfo
	threads map[procstate.ThreadID]uint64 // JavaThreads, by the numbers that the process has for its threads
	list    uint64
	own     map[procstate.ThreadID]procstate.ThreadID // such numbers by those that they have here; nil: they are the same
	tids    map[uint64]procstate.ThreadID             // the numbers here, by the JavaThreads
	names   map[uint64]javaName                       // the same, as they were
	ids     map[int64]procstate.ThreadID              // the numbers here, by the IDs that Java has for its threads

	ownerless []*Thread // that wait for a monitor which no JavaThread has
}

// Moment reads the heap of Java at one moment: of a process that stands still, or of a copy of it.
type Moment struct {
	h *Heap
	o *javaObjects

	blockers   map[uint64]javaBlocker // by what they were read of: an object, or an ObjectMonitor
	lockStacks map[uint64]uint64      // JavaThreads, by the objects on their lock stacks; nil: not read
	stacks     []threadStack          // the same
	inUse      map[uint64]bool        // the ObjectMonitors; nil: not read
	locks      map[uint64]int64       // IDs of virtual threads on no thread, by the objects whose monitors they have
	left       time.Duration          // that may be read
}

// NewHeap makes a Heap of a process with some libraries, and reads what can be read while it runs; nil where
// there is no virtual machine of Java, or it is not known how it keeps objects. mem is the
// process's as it is now; pid is 0 for one that does not run.
func NewHeap(pid int, mem procstate.Memory, libs procstate.LibraryState) *Heap {
	if libs == nil {
		return nil
	}
	vm := New(nil).machineIn(mem, libs)
	if vm.fields == nil || vm.fields.object == nil {
		return nil
	}
	h := &Heap{vm: vm, layout: vm.newLayout(), names: map[uint64]javaName{}, ids: map[int64]procstate.ThreadID{}}
	if h.layout == nil {
		return nil
	}
	if pid != 0 {
		h.own = procstate.ThreadsInNamespace(pid)
	}
	h.readThreads()

	// A rehearsal reads the classes and names.
	m := h.At(mem)
	o := m.o
	for t := range h.tids {
		m.thread(t)
	}
	if v := vm.fields.object.virtual; v != nil {
		h.system = o.systemClasses(threadContainers, trackingContainer, countingContainer, virtualThreadClass, continuationClass, chunkClass)
		for t := range h.tids {
			o.object(o.handle(t + v.thread))
		}
		m.virtualThreads(nil, rehearsedThreads)
	}
	return h
}

// At returns what reads a process that stands still, for as long as it does, or a copy of it. All that it reads takes a
// second at most.
func (h *Heap) At(mem procstate.Memory) *Moment {
	h.readThreads()
	if h.layout.z != nil {
		h.layout.z.refresh(h.vm)
	}
	return &Moment{h: h, o: newJavaObjects(h.vm, h.layout, mem), left: maxObjectTime, blockers: map[uint64]javaBlocker{}, locks: map[uint64]int64{}}
}

// begin begins to read, and returns what ends that.
func (m *Moment) begin() (end func()) {
	begin := time.Now()
	m.o.end = begin.Add(m.left)
	return func() { m.left -= time.Since(begin) }
}

// readThreads reads which threads there are, unless they are the same.
func (h *Heap) readThreads() {
	if list, _ := h.vm.word(h.vm.fields.object.threadList + h.vm.bias); h.threads != nil && list == h.list {
		return
	}
	h.threads, h.list = h.vm.javaThreads()
	here := map[procstate.ThreadID]procstate.ThreadID{}
	for tid, own := range h.own {
		here[own] = tid
	}
	h.tids = map[uint64]procstate.ThreadID{}
	for tid, t := range h.threads {
		h.tids[t] = cmp.Or(here[tid], tid)
	}
}

// javaThread returns the JavaThread that is a thread; 0: none.
func (h *Heap) javaThread(tid procstate.ThreadID) uint64 {
	if own := h.own[tid]; own != 0 {
		tid = own
	}
	return h.threads[tid]
}

// Collect adds what a virtual thread that is on a thread has of its stack in the heap.
func (m *Moment) Collect(tid procstate.ThreadID, add func(addr uint64, n int)) {
	defer m.begin()()
	v := m.h.vm.fields.object.virtual
	if v == nil {
		return
	}
	if z := m.h.layout.z; z != nil {
		add(z.badAt, 8) // as the kernel side does
		z.asStored = true
		defer func() { z.asStored = false }()
	}
	thread, o := m.h.javaThread(tid), m.o
	if thread == 0 {
		return
	}
	if t, ok := o.object(o.handle(thread + v.thread)); ok && t.class.extends(virtualThreadClass) {
		o.chunks(nil, o.refTo(&t, "cont"), add, nil)
	}
}

// handle returns the object that an OopHandle refers to; 0: none.
func (o *javaObjects) handle(at uint64) uint64 {
	handle, _ := o.read.Word(at)
	object, _ := o.read.Word(handle)
	return o.wideRef(object)
}
