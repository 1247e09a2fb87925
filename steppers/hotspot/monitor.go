package hotspot

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/swbpf/swbpf/procstate"
)

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

	inUse, first, next uint64 // link-time address of the list of ObjectMonitors, and what leads to the first one and on
	hasList            bool   // they are known
}

const (
	maxMonitor    = 1 << 10 // bytes
	maxLockStack  = 64      // bytes: LockStack::CAPACITY
	anonymousLock = 1       // the owner of a monitor, where only its lock stack tells which it is
	deflatedLock  = 2       // the same, where it is no monitor any more, and owners have IDs
)

// readMonitor returns the object and the owner of an ObjectMonitor.
func (m *Moment) readMonitor(at uint64) (object, owner uint64, ok bool) {
	const weakFrom = 16 // the first JDK in which it refers to what refers to the object
	f := m.h.vm.fields.object.monitors
	var b [maxMonitor]byte
	if at == 0 || at%8 != 0 || !m.o.may() || !m.o.read(at, b[:max(f.object, f.owner)+8]) {
		return 0, 0, false
	}
	object, owner = binary.LittleEndian.Uint64(b[f.object:]), binary.LittleEndian.Uint64(b[f.owner:])
	if m.h.vm.release() < weakFrom {
		return m.o.wideRef(object), owner, true
	}
	object, ok = m.o.read.Word(object)
	return m.o.wideRef(object), owner, ok
}

// monitor returns what is told by an ObjectMonitor that a thread wants.
func (m *Moment) monitor(at uint64) javaBlocker {
	b, known := m.blockers[at]
	if known {
		return b
	}
	if object, owner, ok := m.readMonitor(at); ok {
		b.class = m.className(object)
		f := m.h.vm.fields.object.monitors
		switch {
		case owner == anonymousLock:
			if owner = m.lockedBy(object); owner == 0 {
				b.ownerless = object
			}
			m.ownedBy(&b, owner)
		case !f.ownerID && m.h.tids[owner] == 0:
			m.ownedBy(&b, m.threadAt(owner))
		case !f.ownerID:
			m.ownedBy(&b, owner)
		case owner > deflatedLock:
			b.owner, b.thread = int64(owner), m.threadByID(int64(owner))
		}
	}
	m.blockers[at] = b
	return b
}

// waitedIn returns what is told by an ObjectMonitor in which a thread waits: it has no owner then.
func (m *Moment) waitedIn(at uint64) (b javaBlocker) {
	object, _, ok := m.readMonitor(at)
	if !ok {
		return b
	}
	b.class = m.className(object)
	if thread, ok := m.o.object(object); ok && thread.class.extends(threadClass) {
		m.owned(&b, &thread)
		b.joins = b.owner != 0
	}
	return b
}

// ownedBy fills in that a JavaThread has something, or the virtual thread on it.
func (m *Moment) ownedBy(b *javaBlocker, thread uint64) {
	if m.h.tids[thread] == 0 {
		return
	}
	if v := m.h.vm.fields.object.virtual; v != nil {
		if obj, ok := m.o.object(m.o.handle(thread + v.thread)); ok && obj.class.extends(virtualThreadClass) {
			m.owned(b, &obj)
			return
		}
	}
	if obj, ok := m.threadObject(thread); ok {
		m.owned(b, &obj)
	}
}

// threadByID returns which thread of the system has an ID of Java's; 0: none, as of a virtual one.
func (m *Moment) threadByID(id int64) procstate.ThreadID {
	if tid := m.h.ids[id]; tid != 0 {
		return tid
	}
	for thread, tid := range m.h.tids { // that have just begun
		if _, known := m.h.names[thread]; !known {
			if obj, ok := m.threadObject(thread); ok {
				own, _ := obj.long("tid")
				m.h.ids[own] = tid
			}
		}
	}
	return m.h.ids[id]
}

// lockedBy returns the JavaThread that has the monitor of an object on its lock stack; 0: none.
func (m *Moment) lockedBy(object uint64) uint64 {
	f := m.h.vm.fields.object.monitors
	if m.lockStacks != nil || !f.hasLockStacks {
		return m.lockStacks[object]
	}
	m.lockStacks = map[uint64]uint64{}
	for thread := range m.h.tids {
		stack := thread + f.lockStack
		var b [maxLockStack]byte
		top, ok := m.o.read.Word(stack + f.lockTop) // bytes from the beginning of the JavaThread
		n := top&(1<<32-1) - (f.lockStack + f.lockBase)
		if !ok || n > maxLockStack || !m.o.read(stack+f.lockBase, b[:n]) {
			continue
		}
		for locks := b[:n]; len(locks) >= 8; locks = locks[8:] {
			m.lockStacks[binary.LittleEndian.Uint64(locks)] = thread
		}
	}
	return m.lockStacks[object]
}

// threadStack is the stack of a JavaThread.
type threadStack struct{ low, high, thread uint64 }

// threadAt returns the JavaThread on whose stack an address is; 0: none.
func (m *Moment) threadAt(addr uint64) uint64 {
	f := m.h.vm.fields.object.monitors
	if m.stacks == nil && f.hasStacks {
		m.stacks = []threadStack{}
		for thread := range m.h.tids {
			high, ok1 := m.o.read.Word(thread + f.stackBase)
			size, ok2 := m.o.read.Word(thread + f.stackSize)
			if ok1 && ok2 && size < high {
				m.stacks = append(m.stacks, threadStack{high - size, high, thread})
			}
		}
	}
	if i := slices.IndexFunc(m.stacks, func(s threadStack) bool { return s.low <= addr && addr < s.high }); i >= 0 {
		return m.stacks[i].thread
	}
	return 0
}

// className returns what the class of an object is called, and "Shop.class" for a class itself.
func (m *Moment) className(addr uint64) string {
	o := m.o
	if addr == 0 || addr%8 != 0 || !o.may() || !o.read(addr, o.buf[:16]) {
		return ""
	}
	c := o.classOf(o.buf[:])
	if c == nil {
		return ""
	}
	if f := m.h.vm.fields.object.monitors; c.name == "java/lang/Class" && f.classOf != 0 {
		at, _ := m.h.vm.word(f.classOf + m.h.vm.bias) // an offset of 32 bits
		klass, _ := o.read.Word(addr + at&(1<<32-1))
		if named := o.classAt(klass); named != nil {
			return javaClass(named.name) + ".class"
		}
	}
	if c.isArray() {
		return strings.Trim(javaParameters(c.name), "()")
	}
	return javaClass(c.name)
}

// awaited returns the ObjectMonitor for which a virtual thread waits that is on no thread, as from JDK 24 on; 0: not
// known. Its object refers to what is in the monitor's queue, which refers to the monitor, and to that refers the
// monitor's object in turn, unless the virtual machine has a table of these.
func (m *Moment) awaited(thread *javaObject) uint64 {
	const (
		markMonitor = 2 // the two lowest bits of the header of an object that has one
		waiterWords = 8 // of an ObjectWaiter that are looked at
	)
	class := m.h.system[virtualThreadClass]
	if class == nil || len(class.injected) != 1 || m.h.vm.fields.object.monitors == nil {
		return 0
	}
	at := class.injected[0].offset
	if uint64(at)+8 > uint64(len(thread.data)) {
		return 0
	}
	var words [8 * waiterWords]byte
	waiter := binary.LittleEndian.Uint64(thread.data[at:])
	if waiter == 0 || !m.o.read(waiter, words[:]) {
		return 0
	}
	for b := words[:]; len(b) >= 8; b = b[8:] {
		monitor := binary.LittleEndian.Uint64(b)
		if object, _, ok := m.readMonitor(monitor); ok {
			if mark, ok := m.o.read.Word(object); ok && (mark == monitor|markMonitor || mark&3 == markMonitor && m.isInUse(monitor)) {
				return monitor
			}
		}
	}
	return 0
}

// isInUse reports whether an ObjectMonitor is in the list of these, which is where objects do not refer to theirs.
func (m *Moment) isInUse(monitor uint64) bool {
	const most = 1 << 16
	if f := m.h.vm.fields.object.monitors; m.inUse == nil && f.hasList {
		m.inUse = map[uint64]bool{}
		at, _ := m.o.now.Word(f.inUse + m.h.vm.bias + f.first)
		for ; at != 0 && !m.inUse[at] && len(m.inUse) < most && m.o.may(); at, _ = m.o.now.Word(at + f.next) {
			m.inUse[at] = true
		}
	}
	return m.inUse[monitor]
}

// takeLocks takes the monitors that a virtual thread has which is on no thread, as a StackChunk has them.
func (m *Moment) takeLocks(c *javaObject, id int64) {
	const hasBitmap = 1 << 4 // of its flags
	f := c.class.injected    // cont, flags, pc, maxThawingSize, lockStackSize from JDK 24 on, and two more from JDK 26 on
	if len(f) != 5 && len(f) != 7 || f[1].signature != f[4].signature || int(max(f[1].offset, f[4].offset)) >= len(c.data) {
		return
	}
	n, flags := int(c.data[f[4].offset]), c.data[f[1].offset]
	var b [maxLockStack]byte
	if n == 0 || 8*n > len(b) || !m.o.read(c.addr+c.class.size(), b[:8*n]) {
		return
	}
	for locks := b[:8*n]; len(locks) > 0; locks = locks[8:] {
		object := binary.LittleEndian.Uint64(locks)
		if flags&hasBitmap != 0 {
			object = m.o.ref(locks)
		}
		m.locks[object] = id
	}
}

// findOwners fills in which virtual threads on no thread have what others wait for, some of them and those that were met
// since the last time.
func (m *Moment) findOwners(some []VirtualThread) {
	for i := range some {
		some[i].Owner = cmp.Or(some[i].Owner, m.locks[some[i].ownerless])
	}
	for _, t := range m.h.ownerless {
		t.Owner = m.locks[t.ownerless]
	}
	m.h.ownerless = nil
}
