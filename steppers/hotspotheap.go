package steppers

import (
	"cmp"

	"github.com/swbpf/swbpf/procstate"
)

// JavaHeap reads what walks need of the heap of Java: what its threads are called and wait for and, from JDK 21 on, the
// stacks of virtual threads.
type JavaHeap struct {
	vm      *hotspotVM
	layout  *javaLayout
	system  map[string]*javaClassInfo
	threads map[procstate.ThreadID]uint64 // JavaThreads, by the numbers that the process has for its threads
	list    uint64
	own     map[procstate.ThreadID]procstate.ThreadID // such numbers by those that they have here; nil: they are the same
	tids    map[uint64]procstate.ThreadID             // the numbers here, by the JavaThreads
	names   map[uint64]javaName                       // the same, as they were

	locks     map[uint64]int64 // objects whose monitors virtual threads on no thread have, and their IDs
	ownerless []*JavaThread    // that wait for such a one, as far as is known
}

// NewJavaHeap makes a JavaHeap of a process with some libraries, and reads what can be read while it runs; nil where
// there is no virtual machine of Java, or it is not known how it keeps objects. mem is the
// process's as it is now; pid is 0 for one that does not run.
func NewJavaHeap(pid int, mem procstate.Memory, libs procstate.LibraryState) *JavaHeap {
	if libs == nil {
		return nil
	}
	vm := NewHotSpot().machineIn(mem, libs)
	if vm.fields == nil || vm.fields.object == nil {
		return nil
	}
	h := &JavaHeap{vm: vm, layout: vm.newLayout(), names: map[uint64]javaName{}}
	if h.layout == nil {
		return nil
	}
	if pid != 0 {
		h.own = procstate.ThreadsInNamespace(pid)
	}
	h.readThreads()

	// A rehearsal reads the classes and names.
	o := h.objects(mem)
	for t := range h.tids {
		h.thread(o, t)
	}
	if v := vm.fields.object.virtual; v != nil {
		h.system = o.systemClasses(threadContainers, trackingContainer, countingContainer, virtualThreadClass, continuationClass, chunkClass)
		for t := range h.tids {
			o.object(o.handle(t + v.thread))
		}
		h.virtualThreads(mem, nil, rehearsedThreads)
	}
	return h
}

// readThreads reads which threads there are, unless they are the same.
func (h *JavaHeap) readThreads() {
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
func (h *JavaHeap) javaThread(tid procstate.ThreadID) uint64 {
	h.readThreads()
	if own := h.own[tid]; own != 0 {
		tid = own
	}
	return h.threads[tid]
}

// objects returns what reads objects from mem, and classes as they are now.
func (h *JavaHeap) objects(mem procstate.Memory) *javaObjects {
	return newJavaObjects(h.vm, h.layout, mem)
}

// Collect is a Collector: it adds what a virtual thread that is on a thread has of its stack in the heap.
func (h *JavaHeap) Collect(m procstate.Memory, tid procstate.ThreadID, _ *procstate.Regs, add func(addr uint64, n int)) {
	v := h.vm.fields.object.virtual
	if v == nil {
		return
	}
	thread := h.javaThread(tid)
	if thread == 0 {
		return
	}
	o := h.objects(m)
	if t, ok := o.object(o.handle(thread + v.thread)); ok && t.class.extends(virtualThreadClass) {
		o.chunks(nil, o.refTo(&t, "cont"), add, nil)
	}
}

// handle returns the object that an OopHandle refers to; 0: none.
func (o *javaObjects) handle(at uint64) uint64 {
	handle, _ := o.read.word(at)
	object, _ := o.read.word(handle)
	return object
}
