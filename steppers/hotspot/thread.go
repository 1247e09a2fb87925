package hotspot

import "github.com/swbpf/swbpf/procstate"

// Thread is what a virtual machine of Java knows of a thread.
type Thread struct {
	ID   int64  // Thread.threadId
	Name string // "": none

	// State is "runnable", also in a system call, "blocked" by a monitor, "waiting" in Object.wait, "parked" by
	// LockSupport, "timed waiting" and "timed parked" where that ends by itself, or "sleeping"; of a virtual thread also
	// what else its class calls so. "" is not known.
	State string

	// Blocker is the class of what it waits for, "java.util.concurrent.locks.ReentrantLock$NonfairSync", or a class itself,
	// "Shop.class"; "" where it does not say. Owner is the ID of the thread of Java that has it, 0 where that is not
	// known, and OwnerThread which thread of the system that is, 0 for a virtual one.
	Blocker     string
	Owner       int64
	OwnerThread procstate.ThreadID
	Joins       bool // the blocker is that thread itself, as in Thread.join

	ownerless uint64 // the object for whose monitor it waits, which no JavaThread has; 0: none
}

// javaBlocker is what threads wait for: see JavaThread.
type javaBlocker struct {
	class     string
	owner     int64
	thread    procstate.ThreadID
	joins     bool
	ownerless uint64
}

const (
	threadClass = "java/lang/Thread"
	futureClass = "java/util/concurrent/FutureTask"
)

// javaName is the name of a thread, and of which it is.
type javaName struct {
	id   int64
	ref  uint64 // the String
	name string
}

// Thread returns what Java knows of a thread; nil where it is none of its own, or nothing can be read of it. Where a
// virtual thread on no thread has what it waits for, the next call of VirtualThreads may fill that in.
func (m *Moment) Thread(tid procstate.ThreadID) *Thread {
	defer m.begin()()
	thread := m.h.javaThread(tid)
	if thread == 0 || m.o.marked {
		return nil
	}
	t := m.thread(thread)
	if t != nil && t.ownerless != 0 {
		m.h.ownerless = append(m.h.ownerless, t)
	}
	return t
}

// thread is Thread of a JavaThread.
func (m *Moment) thread(thread uint64) *Thread {
	o, names := m.o, m.h.names
	obj, ok := m.threadObject(thread)
	known, isKnown := names[thread]
	if !ok {
		if !isKnown {
			return nil
		}
		return &Thread{ID: known.id, Name: known.name} // it is being moved
	}
	id, _ := obj.long("tid")
	if ref := o.refTo(&obj, "name"); !isKnown || known.ref != ref || known.id != id || known.name == "" {
		known = javaName{id, ref, o.text(ref)}
		names[thread] = known
		m.h.ids[id] = m.h.tids[thread]
	}
	status, ok := obj.int("threadStatus")
	if !ok {
		holder, _ := o.follow(&obj, "holder") // from JDK 19 on
		status, _ = holder.int("threadStatus")
	}
	t := &Thread{ID: id, Name: known.name, State: javaState(status)}
	f := m.h.vm.fields.object.monitors
	switch {
	case t.State == "parked" || t.State == "timed parked":
		t.waitsFor(m.parkedFor(&obj))
	case f == nil:
	case t.State == "blocked":
		monitor, _ := o.read.Word(thread + f.pending)
		t.waitsFor(m.monitor(monitor))
	case t.State == "waiting" || t.State == "timed waiting":
		monitor, _ := o.read.Word(thread + f.waiting)
		t.waitsFor(m.waitedIn(monitor))
	}
	return t
}

// threadObject returns the Thread that is a JavaThread.
func (m *Moment) threadObject(thread uint64) (obj javaObject, ok bool) {
	f := m.h.vm.fields.object
	addr := uint64(0)
	if f.threadDirect {
		addr, _ = m.o.read.Word(thread + f.threadObject)
		addr = m.o.wideRef(addr)
	} else {
		addr = m.o.handle(thread + f.threadObject)
	}
	if obj, ok = m.o.object(addr); !ok {
		return obj, false
	}
	native, _ := obj.long("eetop")
	return obj, obj.class.extends(threadClass) && uint64(native) == thread
}

// javaState names the state of a thread (JavaThreadStatus).
func javaState(status int32) string {
	const runnable, timed, sleeping, waiting, parked, blocked = 1 << 2, 1 << 5, 1 << 6, 1 << 8, 1 << 9, 1 << 10
	state := ""
	switch {
	case status&blocked != 0:
		return "blocked"
	case status&sleeping != 0:
		return "sleeping"
	case status&runnable != 0:
		return "runnable"
	case status&parked != 0:
		state = "parked"
	case status&waiting != 0:
		state = "waiting"
	default:
		return ""
	}
	if status&timed != 0 {
		return "timed " + state
	}
	return state
}

// waitsFor fills in what a thread waits for. What it has itself it is just being given.
func (t *Thread) waitsFor(b javaBlocker) {
	t.Blocker = b.class
	if b.owner != t.ID {
		t.Owner, t.OwnerThread, t.Joins, t.ownerless = b.owner, b.thread, b.joins, b.ownerless
	}
}

// parkedFor returns what the thread that an object stands for has said that it parks for.
func (m *Moment) parkedFor(thread *javaObject) (b javaBlocker) {
	addr := m.o.refTo(thread, "parkBlocker")
	if addr == 0 {
		return b
	}
	b, known := m.blockers[addr]
	if known {
		return b
	}
	if blocker, ok := m.o.object(addr); ok {
		b.class = javaClass(blocker.class.name)
		by := "exclusiveOwnerThread"
		if blocker.class.extends(futureClass) {
			by = "runner"
		}
		if owner, ok := m.o.follow(&blocker, by); ok {
			m.owned(&b, &owner)
		}
	}
	m.blockers[addr] = b
	return b
}

// owned fills in the Thread that has something.
func (m *Moment) owned(b *javaBlocker, owner *javaObject) {
	thread := m.threadOf(owner)
	if thread != 0 || owner.class.extends(virtualThreadClass) {
		b.owner, _ = owner.long("tid")
		b.thread = thread
	}
}

// threadOf returns which thread of the system a Thread is; 0: none, as a virtual one.
func (m *Moment) threadOf(thread *javaObject) procstate.ThreadID {
	native, _ := thread.long("eetop")
	return m.h.tids[uint64(native)]
}
