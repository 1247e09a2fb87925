package steppers

import (
	"cmp"
	"encoding/binary"
	"strings"

	"github.com/swbpf/swbpf/procstate"
)

// JavaThread is what a virtual machine of Java knows of a thread.
type JavaThread struct {
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

// monitorFields are the offsets of fields that lead from threads to the monitors that they wait for.
type monitorFields struct {
	pending, waiting uint64 // of a JavaThread: the ObjectMonitor that it wants, and in which it waits
	object, owner    uint64 // of an ObjectMonitor

	// ownerID says that the owner is the ID of a thread of Java, as from JDK 24 on; else it is a JavaThread, or where its
	// stack has the lock.
	ownerID              bool
	stackBase, stackSize uint64 // of a JavaThread
	hasStacks            bool   // they are known

	// Where a JavaThread has the objects of monitors that have no owner's name, from JDK 21 on.
	lockStack, lockTop, lockBase uint64
	hasLockStacks                bool

	classOf uint64 // link-time address of where objects that stand for classes have these; 0: not told
}

// waiterWords are how many words of an ObjectWaiter are looked at, one of which refers to its ObjectMonitor.
const waiterWords = 8

// awaited returns the ObjectMonitor for which a virtual thread waits that is on no thread, as from JDK 24 on; 0: not
// known. Its object refers to what is in the monitor's queue, and to that refers the monitor's object in turn.
func (h *JavaHeap) awaited(o *javaObjects, obj *javaObject) uint64 {
	const markMonitor = 2 // the two lowest bits of the header of an object that has one
	class := h.system[virtualThreadClass]
	if class == nil || len(class.injected) != 1 || h.vm.fields.object.monitors == nil {
		return 0
	}
	at := class.injected[0].offset
	if uint64(at)+8 > uint64(len(obj.data)) {
		return 0
	}
	var words [8 * waiterWords]byte
	waiter := binary.LittleEndian.Uint64(obj.data[at:])
	if waiter == 0 || !o.read(waiter, words[:]) {
		return 0
	}
	for b := words[:]; len(b) >= 8; b = b[8:] {
		monitor := binary.LittleEndian.Uint64(b)
		if object, _, ok := h.monitor(o, monitor); ok {
			if mark, ok := o.read.word(object); ok && mark == monitor|markMonitor {
				return monitor
			}
		}
	}
	return 0
}

// takeLocks takes the monitors that a virtual thread has which is on no thread, as a StackChunk has them.
func (h *JavaHeap) takeLocks(o *javaObjects, c *javaObject, id int64) {
	const hasBitmap = 1 << 4 // of its flags
	f := c.class.injected    // cont, flags, pc, maxThawingSize, lockStackSize from JDK 24 on
	if len(f) != 5 || f[1].signature != f[4].signature || int(max(f[1].offset, f[4].offset)) >= len(c.data) {
		return
	}
	n, flags := c.data[f[4].offset], c.data[f[1].offset]
	var b [maxLockStack]byte
	if n == 0 || 8*int(n) > len(b) || !o.read(c.addr+c.class.size(), b[:8*n]) {
		return
	}
	for locks := b[:8*n]; len(locks) > 0; locks = locks[8:] {
		object := binary.LittleEndian.Uint64(locks)
		if flags&hasBitmap != 0 {
			object = o.ref(locks)
		}
		h.locks[object] = id
	}
}

// findOwners fills in which virtual threads on no thread have what others wait for, some of them and those that were met
// since the last time.
func (h *JavaHeap) findOwners(some []VirtualThread) {
	for i := range some {
		some[i].Owner = cmp.Or(some[i].Owner, h.locks[some[i].ownerless])
	}
	for _, t := range h.ownerless {
		t.Owner = h.locks[t.ownerless]
	}
	h.ownerless = nil
}

const (
	threadClass   = "java/lang/Thread"
	futureClass   = "java/util/concurrent/FutureTask"
	maxMonitor    = 1 << 10 // bytes
	maxLockStack  = 64      // bytes: LockStack::CAPACITY
	anonymousLock = 1       // the owner of a monitor, where only its lock stack tells which it is
	deflatedLock  = 2       // the same, where it is no monitor any more, and owners have IDs
)

// javaName is the name of a thread, and of which it is.
type javaName struct {
	id   int64
	ref  uint64 // the String
	name string
}

// Thread returns what Java knows of a thread that stands still, or did when mem was copied; nil where it is none of
// its own, or nothing can be read of it. Where a virtual thread on no thread has what it waits for, the next call of
// VirtualThreads may fill that in.
func (h *JavaHeap) Thread(mem procstate.Memory, tid procstate.ThreadID) *JavaThread {
	thread := h.javaThread(tid)
	if thread == 0 || h.layout.marked {
		return nil
	}
	t, ok := h.thread(h.objects(mem), thread)
	if !ok {
		return nil
	}
	if t.ownerless != 0 {
		h.ownerless = append(h.ownerless, t)
	}
	return t
}

// thread is Thread of a JavaThread.
func (h *JavaHeap) thread(o *javaObjects, thread uint64) (t *JavaThread, ok bool) {
	obj, ok := h.threadObject(o, thread)
	if !ok {
		known, ok := h.names[thread] // it is being moved
		return &JavaThread{ID: known.id, Name: known.name}, ok
	}
	t = &JavaThread{}
	t.ID, _ = obj.long("tid")
	ref := o.refTo(&obj, "name")
	known, isKnown := h.names[thread]
	if !isKnown || known.ref != ref || known.id != t.ID {
		known = javaName{t.ID, ref, o.text(ref)}
		h.names[thread] = known
	}
	t.Name = known.name
	status, ok := obj.int("threadStatus")
	if holder, held := o.follow(&obj, "holder"); !ok && held { // from JDK 19 on
		status, _ = holder.int("threadStatus")
	}
	m := h.vm.fields.object.monitors
	refersTo := func(at uint64) uint64 {
		monitor, _ := o.read.word(thread + at)
		return monitor
	}
	switch t.State = javaState(status); {
	case t.State == "parked" || t.State == "timed parked":
		h.parked(o, t, &obj)
	case m == nil:
	case t.State == "blocked":
		h.blocked(o, t, refersTo(m.pending), true)
	case t.State == "waiting" || t.State == "timed waiting":
		h.blocked(o, t, refersTo(m.waiting), false)
	}
	return t, true
}

// threadObject returns the Thread that is a JavaThread.
func (h *JavaHeap) threadObject(o *javaObjects, thread uint64) (obj javaObject, ok bool) {
	addr, _ := o.read.word(thread + h.vm.fields.object.threadObject)
	if !h.vm.fields.object.threadDirect {
		addr, _ = o.read.word(addr)
	}
	if obj, ok = o.object(addr); !ok {
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

// threadOf returns which thread of the system a Thread is; 0: none, as a virtual one.
func (h *JavaHeap) threadOf(obj *javaObject) procstate.ThreadID {
	native, _ := obj.long("eetop")
	return h.tids[uint64(native)]
}

// parked fills in what the thread that an object stands for has said that it parks for.
func (h *JavaHeap) parked(o *javaObjects, t *JavaThread, obj *javaObject) {
	blocker, ok := o.follow(obj, "parkBlocker")
	if !ok {
		return
	}
	t.Blocker = javaClass(blocker.class.name)
	by := "exclusiveOwnerThread"
	if blocker.class.extends(futureClass) {
		by = "runner"
	}
	if owner, ok := o.follow(&blocker, by); ok {
		h.owned(t, &owner)
	}
}

// owned fills in which thread has what another one waits for.
func (h *JavaHeap) owned(t *JavaThread, owner *javaObject) {
	id, _ := owner.long("tid")
	thread := h.threadOf(owner)
	if id != t.ID && (thread != 0 || owner.class.extends(virtualThreadClass)) {
		t.Owner, t.OwnerThread = id, thread
	}
}

// monitor returns the object and the owner of an ObjectMonitor.
func (h *JavaHeap) monitor(o *javaObjects, at uint64) (object, owner uint64, ok bool) {
	const weakFrom = 16 // the first JDK in which it refers to what refers to the object
	f := h.vm.fields.object.monitors
	var b [maxMonitor]byte
	if at == 0 || at%8 != 0 || !o.read(at, b[:max(f.object, f.owner)+8]) {
		return 0, 0, false
	}
	object = binary.LittleEndian.Uint64(b[f.object:])
	if h.vm.release() >= weakFrom {
		object, ok = o.read.word(object)
		return object, binary.LittleEndian.Uint64(b[f.owner:]), ok
	}
	return object, binary.LittleEndian.Uint64(b[f.owner:]), true
}

// blocked fills in what is told by the monitor that a thread wants or, where it is not to have an owner, waits in.
func (h *JavaHeap) blocked(o *javaObjects, t *JavaThread, monitor uint64, isOwned bool) {
	f := h.vm.fields.object.monitors
	object, owner, ok := h.monitor(o, monitor)
	if !ok {
		return
	}
	t.Blocker = h.className(o, object)
	if !isOwned {
		if thread, ok := o.object(object); ok && thread.class.extends(threadClass) {
			h.owned(t, &thread)
			t.Joins = t.Owner != 0
		}
		return
	}
	switch {
	case owner == anonymousLock:
		if owner = h.lockedBy(o, object); owner == 0 {
			t.ownerless = object
		}
	case f.ownerID && owner > deflatedLock:
		h.ownedByID(o, t, int64(owner))
		return
	case !f.ownerID && h.tids[owner] == 0:
		owner = h.threadAt(o, owner)
	}
	h.ownedBy(o, t, owner)
}

// ownedBy fills in that a JavaThread has what another one waits for, or the virtual thread on it.
func (h *JavaHeap) ownedBy(o *javaObjects, t *JavaThread, owner uint64) {
	if h.tids[owner] == 0 {
		return
	}
	if v := h.vm.fields.object.virtual; v != nil {
		if obj, ok := o.object(o.handle(owner + v.thread)); ok && obj.class.extends(virtualThreadClass) {
			h.owned(t, &obj)
			return
		}
	}
	if obj, ok := h.threadObject(o, owner); ok {
		h.owned(t, &obj)
	}
}

// ownedByID fills in that a thread of Java has what another one waits for.
func (h *JavaHeap) ownedByID(o *javaObjects, t *JavaThread, id int64) {
	if id == t.ID {
		return
	}
	t.Owner = id
	for thread, tid := range h.tids {
		known, ok := h.names[thread]
		if !ok {
			obj, _ := h.threadObject(o, thread)
			known.id, _ = obj.long("tid")
		}
		if known.id == id {
			t.OwnerThread = tid
			return
		}
	}
}

// lockedBy returns the JavaThread that has the monitor of an object on its lock stack; 0: none.
func (h *JavaHeap) lockedBy(o *javaObjects, object uint64) uint64 {
	f := h.vm.fields.object.monitors
	if !f.hasLockStacks || object == 0 {
		return 0
	}
	for thread := range h.tids {
		stack := thread + f.lockStack
		var b [maxLockStack]byte
		top, ok := o.read.word(stack + f.lockTop) // bytes from the beginning of the JavaThread
		n := top&(1<<32-1) - (f.lockStack + f.lockBase)
		if !ok || n > maxLockStack || !o.read(stack+f.lockBase, b[:n]) {
			continue
		}
		for locks := b[:n]; len(locks) >= 8; locks = locks[8:] {
			if binary.LittleEndian.Uint64(locks) == object {
				return thread
			}
		}
	}
	return 0
}

// threadAt returns the JavaThread on whose stack an address is; 0: none.
func (h *JavaHeap) threadAt(o *javaObjects, addr uint64) uint64 {
	f := h.vm.fields.object.monitors
	if !f.hasStacks || addr == 0 {
		return 0
	}
	for thread := range h.tids {
		base, ok1 := o.read.word(thread + f.stackBase) // its upper end
		size, ok2 := o.read.word(thread + f.stackSize)
		if ok1 && ok2 && addr < base && base-addr <= size {
			return thread
		}
	}
	return 0
}

// className returns what the class of an object is called, and "Shop.class" for a class itself.
func (h *JavaHeap) className(o *javaObjects, addr uint64) string {
	if addr == 0 || addr%8 != 0 || !o.may() || !o.read(addr, o.buf[:16]) {
		return ""
	}
	c := o.classOf(o.buf[:])
	if c == nil {
		return ""
	}
	if f := h.vm.fields.object.monitors; c.name == "java/lang/Class" && f.classOf != 0 {
		at, _ := h.vm.word(f.classOf + h.vm.bias) // an offset of 32 bits
		klass, _ := o.read.word(addr + at&(1<<32-1))
		if named := o.classAt(klass); named != nil {
			return javaClass(named.name) + ".class"
		}
	}
	if c.isArray() {
		return strings.Trim(javaParameters(c.name), "()")
	}
	return javaClass(c.name)
}
