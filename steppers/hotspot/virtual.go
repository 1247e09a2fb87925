package hotspot

import (
	"errors"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// VirtualThread is a virtual thread of Java, as its virtual machine has it in the heap.
type VirtualThread struct {
	Thread
	Carrier procstate.ThreadID // that it is on; 0 is none

	vm     *machine
	chunks []javaChunk
	unread bool // its stack could not be read
}

// VirtualThreads are those of a process at one moment.
type VirtualThreads struct {
	List   []VirtualThread // in no order; without those that have ended or have not begun
	Unread int             // that could not be read
	Cut    bool            // there are more: they were too many, or took too long

	// Err is why none are known.
	Err error

	// Untracked says that the virtual machine keeps no list of those that were not started by an executor
	// (-Djdk.trackAllThreads=false).
	Untracked bool
}

// ErrStackInHeap is of a virtual thread whose stack could not be read, and ErrCollector of all those of a process.
var (
	ErrStackInHeap = errors.New("its stack in the heap cannot be read")
	ErrCollector   = errors.New("how this ZGC marks the addresses of objects is not known")
)

const (
	virtualThreadClass = "java/lang/VirtualThread"
	threadContainers   = "jdk/internal/vm/ThreadContainers"
	trackingContainer  = "jdk/internal/vm/ThreadContainers$RootContainer$TrackingRootContainer"
	countingContainer  = "jdk/internal/vm/ThreadContainers$RootContainer$CountingRootContainer"
	maxVirtualThreads  = 1 << 20
	rehearsedThreads   = 64
)

// VirtualThreads reads the virtual threads. add, which may be nil, gets the memory that a walk of one on no thread
// reads.
func (m *Moment) VirtualThreads(add func(addr uint64, n int)) *VirtualThreads {
	defer m.begin()()
	return m.virtualThreads(add, maxVirtualThreads)
}

// virtualThreads is VirtualThreads of so many at most.
func (m *Moment) virtualThreads(add func(addr uint64, n int), most int) *VirtualThreads {
	h, o := m.h, m.o
	out := &VirtualThreads{Untracked: h.system[countingContainer] != nil}
	if h.vm.fields.object.virtual == nil {
		return out
	}
	if h.layout.marked {
		if h.system[threadContainers] != nil { // there may be some
			out.Err = ErrCollector
		}
		return out
	}
	states := virtualStates(h.system[virtualThreadClass])
	seen := map[uint64]bool{}
	take := func(addr uint64) (more bool) {
		if seen[addr] || out.Cut {
			return !out.Cut
		}
		if out.Cut = len(seen) == most; out.Cut {
			return false
		}
		seen[addr] = true
		obj, ok := o.object(addr)
		switch {
		case !ok:
			out.Unread++
		case obj.class.extends(virtualThreadClass):
			if t, ok := m.virtualThread(&obj, states, add); ok {
				out.List = append(out.List, t)
			}
		}
		return true
	}
	if c := h.system[trackingContainer]; c != nil {
		for name, f := range c.fields {
			if f.static && f.signature == "Ljava/util/Set;" {
				o.eachKey(o.static(c, name), take)
			}
		}
	}
	if c := h.system[threadContainers]; c != nil {
		o.eachKey(o.static(c, "CONTAINER_REGISTRY"), func(addr uint64) bool {
			weak, _ := o.object(addr)
			container, _ := o.follow(&weak, "referent")
			for c := container.class; c != nil; c = c.super {
				for name, f := range c.fields {
					if !f.static && f.signature == "Ljava/util/Set;" {
						o.eachKey(o.refTo(&container, name), take)
					}
				}
			}
			return !out.Cut
		})
	}
	m.findOwners(out.List)
	out.Cut = out.Cut || o.late
	return out
}

// virtualStates returns what the class of virtual threads calls their states.
func virtualStates(class *javaClassInfo) map[int32]string {
	states := map[int32]string{}
	if class != nil {
		for name, f := range class.fields {
			if f.static && f.hasValue && f.signature == "I" {
				states[f.constant] = strings.ReplaceAll(strings.ToLower(name), "_", " ")
			}
		}
	}
	return states
}

// virtualThread returns what an object tells of a virtual thread; ok is false where it has ended or not begun.
func (m *Moment) virtualThread(obj *javaObject, states map[int32]string, add func(addr uint64, n int)) (t VirtualThread, ok bool) {
	const suspended = 1 << 8 // of a state
	o := m.o
	state, _ := obj.int("state")
	t.State = strings.Replace(states[state&^suspended], "wait", "waiting", 1)
	if t.State == "new" || t.State == "started" || t.State == "terminated" {
		return t, false
	}
	t.ID, _ = obj.long("tid")
	t.Name = o.text(o.refTo(obj, "name"))
	if carrier, ok := o.follow(obj, "carrierThread"); ok {
		t.Carrier = m.threadOf(&carrier)
	}
	switch t.State {
	case "blocked", "blocking":
		t.waitsFor(m.monitor(m.awaited(obj)))
	case "waiting", "timed waiting":
		t.waitsFor(m.waitedIn(m.awaited(obj)))
	default:
		t.waitsFor(m.parkedFor(obj))
	}
	// Also of one on a thread, which may not say so for a moment, while a timer is set.
	t.chunks, ok = o.chunks(nil, o.refTo(obj, "cont"), add, func(c *javaObject) { m.takeLocks(c, t.ID) })
	t.vm, t.unread = o.vm, !ok
	return t, true
}

// eachKey calls what with each key of a set that ConcurrentHashMap.newKeySet has made, until it returns false.
func (o *javaObjects) eachKey(set uint64, what func(addr uint64) bool) {
	view, ok := o.object(set)
	if !ok {
		return
	}
	hashMap, ok := o.follow(&view, "map")
	if !ok {
		return
	}
	o.eachInTable(o.refTo(&hashMap, "table"), what, 0)
}

const (
	maxJavaTable  = 64 << 20 // bytes
	maxJavaChain  = 1 << 16
	maxMovedTable = 8 // tables that take the place of one another
)

// eachInTable calls what with each key of a table of a ConcurrentHashMap, which may be on its way to a larger one, until
// it returns false.
func (o *javaObjects) eachInTable(table uint64, what func(addr uint64) bool, depth int) (more bool) {
	at, size, ok := o.array(table, maxJavaTable)
	if !ok || depth == maxMovedTable {
		return true
	}
	const step = 4 << 10
	buf, width := make([]byte, step), o.refBytes()
	moved := false
	for size > 0 {
		b := buf[:min(size, step)]
		if !o.read(at, b) {
			return true
		}
		at, size = at+uint64(len(b)), size-len(b)
		for ; len(b) >= width; b = b[width:] {
			if !o.may() {
				return false
			}
			addr := o.ref(b)
			for n := 0; addr != 0 && n < maxJavaChain; n++ {
				node, ok := o.object(addr)
				if !ok {
					if !what(addr) { // which cannot be read either
						return false
					}
					break
				}
				switch node.class.name {
				case "java/util/concurrent/ConcurrentHashMap$ForwardingNode":
					if !moved {
						moved = true
						if !o.eachInTable(o.refTo(&node, "nextTable"), what, depth+1) {
							return false
						}
					}
					addr = 0
					continue
				case "java/util/concurrent/ConcurrentHashMap$TreeBin":
					addr = o.refTo(&node, "first")
					continue
				}
				if key := o.refTo(&node, "key"); key != 0 && !what(key) {
					return false
				}
				addr = o.refTo(&node, "next")
			}
		}
	}
	return true
}

// WalkVirtualThread walks the stack of a virtual thread that Heap.VirtualThreads has read of the Walker's process,
// and appends its frames to dst, as WalkStack does for a thread. One that is on a thread has that thread's stack. The
// process must stand still since it was read, or what was told of be in a copy of it.
func (s *Stepper) WalkVirtualThread(w *unwind.Walker, dst []unwind.Frame, t *VirtualThread) ([]unwind.Frame, error) {
	if t.Carrier != 0 {
		return w.WalkStack(dst, t.Carrier)
	}
	if t.unread || len(t.chunks) == 0 {
		return dst, ErrStackInHeap
	}
	regs, ok := t.vm.top(w.ProcessState(), t.chunks[0])
	if !ok {
		return dst, ErrStackInHeap
	}
	var top unwind.Frame
	regs.load(w, &top)
	s.virtual = virtualWalk{w, t.chunks}
	defer func() { s.virtual = virtualWalk{} }()
	return w.WalkFrom(dst, &top)
}

// virtualWalk is a walk of a virtual thread that is on no thread.
type virtualWalk struct {
	w      *unwind.Walker
	chunks []javaChunk
}
