package hotspot

import (
	"encoding/binary"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// Objects of Java are read by what the virtual machine tells debuggers of itself (see fields.go): an object
// has the address of its class in its header, and a class a list of its fields with where they are (fieldInfo.hpp).
// Addresses are mostly stored in 32 bits.

// objectFields are the offsets of fields that lead from objects to their classes and fields, and the link-time
// addresses of what addresses are stored by.
type objectFields struct {
	oopBase, oopShift     uint64
	classBase, classShift uint64

	super, layout        uint64 // of a Klass
	pool                 uint64 // of an InstanceKlass
	fieldInfo, bytes     uint64 // the same, and of an array of bytes: its elements, behind the length
	fieldArray, numField uint64 // before JDK 21, in place of fieldInfo
	shorts               uint64 // as bytes
	fieldShorts          bool   // it is so

	threadList, threadCount, threadData uint64
	nextThread                          uint64
	threadChain                         bool   // threadList is the first JavaThread, before JDK 17
	osThread, threadID                  uint64 // of a JavaThread, and what it refers to
	threadObject                        uint64
	threadDirect                        bool // that is the object itself, and not what refers to it

	monitors *monitorFields // nil when one is missing
	virtual  *virtualFields // the same, before JDK 21
}

// virtualFields are those that virtual threads take.
type virtualFields struct {
	nextClass, mirror              uint64 // of a Klass
	loaders                        uint64 // link-time address of the list of class loaders,
	loader, firstClass, nextLoader uint64 // and fields of one
	thread                         uint64 // of a JavaThread
	continuationEntry              uint64 // the same; 0: it is not told, before JDK 25
}

// objectFields finds them; nil where one is missing.
func (t *vmTables) objectFields(structs []byte) *objectFields {
	f, m, v := &objectFields{}, &monitorFields{}, &virtualFields{}
	narrow := map[string]*uint64{"_narrow_oop._base": &f.oopBase, "_narrow_oop._shift": &f.oopShift, "_base": &f.oopBase, "_shift": &f.oopShift,
		"_narrow_klass._base": &f.classBase, "_narrow_klass._shift": &f.classShift}
	var firstThread uint64
	thread := map[string]*uint64{"_osthread": &f.osThread, "_threadObj": &f.threadObject, "_next": &f.nextThread, "_vthread": &v.thread,
		"_cont_entry": &v.continuationEntry, "_current_pending_monitor": &m.pending, "_current_waiting_monitor": &m.waiting,
		"_stack_base": &m.stackBase, "_stack_size": &m.stackSize, "_lock_stack": &m.lockStack}
	has := t.fields(structs, map[string]map[string]*uint64{
		"Universe":                narrow, // before JDK 12
		"CompressedOops":          narrow,
		"CompressedKlassPointers": {"_narrow_klass._base": &f.classBase, "_narrow_klass._shift": &f.classShift, "_base": &f.classBase, "_shift": &f.classShift},
		"Klass":                   {"_super": &f.super, "_layout_helper": &f.layout, "_next_link": &v.nextClass, "_java_mirror": &v.mirror},
		"InstanceKlass": {"_constants": &f.pool, "_fieldinfo_stream": &f.fieldInfo, "_fields": &f.fieldArray,
			"_java_fields_count": &f.numField},
		"Array<u1>":            {"_data": &f.bytes},
		"Array<u2>":            {"_data": &f.shorts},
		"ClassLoaderDataGraph": {"_head": &v.loaders},
		"ClassLoaderData":      {"_class_loader": &v.loader, "_klasses": &v.firstClass, "_next": &v.nextLoader},
		"ThreadsSMRSupport":    {"_java_thread_list": &f.threadList},
		"ThreadsList":          {"_length": &f.threadCount, "_threads": &f.threadData},
		"Threads":              {"_thread_list": &firstThread},
		"Thread":               thread,
		"JavaThread":           thread,
		"OSThread":             {"_thread_id": &f.threadID},
		"ObjectMonitor":        {"_object": &m.object, "_owner": &m.owner, "_next_om": &m.next},
		"ObjectSynchronizer":   {"_in_use_list": &m.inUse},
		"MonitorList":          {"_head": &m.first},
		"java_lang_Class":      {"_klass_offset": &m.classOf},
		"LockStack":            {"_top": &m.lockTop, "_base[0]": &m.lockBase},
	})
	f.fieldShorts = !has.all(&f.fieldInfo, &f.bytes)
	if f.threadChain = !has.all(&f.threadList, &f.threadCount, &f.threadData); f.threadChain {
		f.threadList = firstThread
	}
	if !has.all(&f.oopBase, &f.oopShift, &f.classBase, &f.classShift, &f.super, &f.layout, &f.pool, &f.osThread, &f.threadID, &f.threadObject) ||
		f.fieldShorts && !has.all(&f.fieldArray, &f.numField, &f.shorts) || f.threadChain && !has.all(&firstThread, &f.nextThread) ||
		max(f.super, f.layout, f.numField) > maxClassHead-8 {
		return nil
	}
	f.threadDirect = t.typeOf(structs, "JavaThread", "_threadObj") == "oop"
	if has.all(&m.pending, &m.waiting, &m.object, &m.owner) && max(m.object, m.owner) <= maxMonitor-8 {
		f.monitors = m
		m.ownerID = t.typeOf(structs, "ObjectMonitor", "_owner") == "int64_t"
		m.hasList = has.all(&m.inUse, &m.first, &m.next)
		m.hasStacks = has.all(&m.stackBase, &m.stackSize)
		m.hasLockStacks = has.all(&m.lockStack, &m.lockTop, &m.lockBase)
	}
	if !f.fieldShorts && !f.threadChain && has.all(&v.nextClass, &v.mirror, &v.loaders, &v.loader, &v.firstClass, &v.nextLoader, &v.thread) &&
		max(v.nextClass, v.mirror) <= maxClassHead-8 {
		f.virtual = v
	}
	return f
}

const (
	maxClassHead   = 1 << 10 // bytes of an InstanceKlass
	maxFieldInfo   = 1 << 18 // bytes
	maxClasses     = 1 << 17 // that are looked through
	maxSupers      = 64
	maxObject      = 4 << 10 // bytes of one
	maxJavaThreads = 1 << 16
	objectHead     = 24 // bytes that are read of any
	markForwarded  = 3  // the two lowest bits of the header of an object that is being moved
)

// javaObjects reads objects of a virtual machine, for as long as it may.
type javaObjects struct {
	vm   *machine      // reads classes
	read vmread.Reader // reads objects
	now  vmread.Reader // reads what else there is of them
	*javaLayout
	buf   [objectHead]byte
	room  []byte // for objects, as far as it goes
	end   time.Time
	reads int
	late  bool // the end has come: there are no objects any more
}

// maxObjectTime is how long objects are read; a process may stand still meanwhile.
const maxObjectTime = time.Second

func newJavaObjects(vm *machine, l *javaLayout, mem procstate.Memory) *javaObjects {
	read := readerOf(mem)
	return &javaObjects{vm: vm, javaLayout: l, read: read, now: read, end: time.Now().Add(maxObjectTime)}
}

// may reports whether there is time to read on.
func (o *javaObjects) may() bool {
	const step = 64
	if o.reads++; o.reads%step == 0 && !o.late {
		o.late = time.Now().After(o.end)
	}
	return !o.late
}

// javaLayout is how the objects of a process are laid out, and what is known of their classes.
type javaLayout struct {
	narrowOops, narrowClasses, compact bool
	marked                             bool // addresses of objects have marks that are not known: nothing is read by them
	z                                  *zgc // nil: they have none
	oopBase, oopShift                  uint64
	classBase, classShift              uint64

	classes map[uint64]*javaClassInfo // by the address of the Klass; nil: not one
}

// javaObject is an object that was read.
type javaObject struct {
	addr  uint64
	class *javaClassInfo
	data  []byte
}

// newLayout returns how objects are laid out; nil where that is not known, or another than is known here.
func (vm *machine) newLayout() *javaLayout {
	if vm.fields == nil || vm.fields.object == nil || vm.fields.method == nil {
		return nil
	}
	f, l := vm.fields.object, &javaLayout{classes: map[uint64]*javaClassInfo{}}
	flags := vm.flagsSet("UseCompressedOops", "UseCompressedClassPointers", "UseCompactObjectHeaders", "UseZGC", "ZGenerational")
	if flags == nil {
		return nil
	}
	if flags["UseZGC"] {
		l.z = vm.findZGC(flags["ZGenerational"] || vm.release() >= 23)
		l.marked = l.z == nil
	}
	l.narrowOops, l.compact = flags["UseCompressedOops"], flags["UseCompactObjectHeaders"]
	l.narrowClasses = flags["UseCompressedClassPointers"] || l.compact
	ok := true
	for at, to := range map[uint64]*uint64{f.oopBase: &l.oopBase, f.oopShift: &l.oopShift, f.classBase: &l.classBase, f.classShift: &l.classShift} {
		v, read := vm.word(at + vm.bias)
		*to, ok = v, ok && read
	}
	l.oopShift &= 63
	l.classShift &= 63
	if !ok {
		return nil
	}
	return l
}

// ref returns the address of an object that is stored in a field; 0: null.
func (o *javaObjects) ref(b []byte) uint64 {
	if !o.narrowOops {
		return o.wideRef(binary.LittleEndian.Uint64(b))
	}
	if v := binary.LittleEndian.Uint32(b); v != 0 {
		return o.oopBase + uint64(v)<<o.oopShift
	}
	return 0
}

// wideRef returns the address of an object that is stored in 64 bits; 0: null.
func (o *javaObjects) wideRef(stored uint64) uint64 {
	if o.z != nil {
		return o.z.address(o.now, stored)
	}
	return stored
}

// refBytes returns how many bytes a stored address has.
func (l *javaLayout) refBytes() int {
	if l.narrowOops {
		return 4
	}
	return 8
}

// classOf returns the class of the object of which head has the beginning; nil where it has none that is known.
func (o *javaObjects) classOf(head []byte) *javaClassInfo {
	mark := binary.LittleEndian.Uint64(head)
	if mark&3 == markForwarded {
		return nil
	}
	const compactShift = 42 // markWord::klass_shift
	switch {
	case o.compact:
		return o.classAt(o.classBase + mark>>compactShift<<o.classShift)
	case o.narrowClasses:
		return o.classAt(o.classBase + uint64(binary.LittleEndian.Uint32(head[8:]))<<o.classShift)
	}
	return o.classAt(binary.LittleEndian.Uint64(head[8:]))
}

// object reads an object that is no array; ok is false where there is none.
func (o *javaObjects) object(addr uint64) (obj javaObject, ok bool) {
	if addr == 0 || addr%8 != 0 || o.marked || !o.may() || !o.read(addr, o.buf[:16]) {
		return obj, false
	}
	c := o.classOf(o.buf[:])
	if c == nil || c.isArray() {
		return obj, false
	}
	n := c.size()
	if n < 8 || n > maxObject {
		return obj, false
	}
	obj = javaObject{addr, c, nil}
	if used := len(o.room); used+int(n) <= cap(o.room) {
		o.room = o.room[:used+int(n)]
		obj.data = o.room[used:]
	} else {
		obj.data = make([]byte, n)
	}
	return obj, o.read(addr, obj.data)
}

// value returns the bytes of a field from its beginning on; nil where there are not so many.
func (obj *javaObject) value(name string, n int) []byte {
	f, ok := obj.class.field(name)
	if !ok || f.static || uint64(f.offset)+uint64(n) > uint64(len(obj.data)) {
		return nil
	}
	return obj.data[f.offset:]
}

// int returns a field of 32 bits.
func (obj *javaObject) int(name string) (v int32, ok bool) {
	b := obj.value(name, 4)
	if b == nil {
		return 0, false
	}
	return int32(binary.LittleEndian.Uint32(b)), true
}

// long returns a field of 64 bits.
func (obj *javaObject) long(name string) (v int64, ok bool) {
	b := obj.value(name, 8)
	if b == nil {
		return 0, false
	}
	return int64(binary.LittleEndian.Uint64(b)), true
}

// refTo returns the address of the object that a field of one refers to; 0: of none.
func (o *javaObjects) refTo(obj *javaObject, name string) uint64 {
	b := obj.value(name, o.refBytes())
	if b == nil {
		return 0
	}
	return o.ref(b)
}

// follow reads the object that a field of one refers to.
func (o *javaObjects) follow(obj *javaObject, name string) (javaObject, bool) {
	return o.object(o.refTo(obj, name))
}

// array returns the elements of an array: where they begin, and how many bytes there are, at most most.
func (o *javaObjects) array(addr uint64, most int) (at uint64, n int, ok bool) {
	if addr == 0 || addr%8 != 0 || !o.read(addr, o.buf[:]) {
		return 0, 0, false
	}
	c := o.classOf(o.buf[:])
	if c == nil || !c.isArray() {
		return 0, 0, false
	}
	length := o.buf[16:]
	switch {
	case o.compact:
		length = o.buf[8:]
	case o.narrowClasses:
		length = o.buf[12:]
	}
	count := uint64(binary.LittleEndian.Uint32(length))
	size := count << (c.layout & 63)
	return addr + uint64(c.layout>>16&255), int(size), size <= uint64(most)
}

// text returns a String.
func (o *javaObjects) text(addr uint64) string {
	const most = 1 << 10 // bytes
	s, ok := o.object(addr)
	if !ok || s.class.name != "java/lang/String" {
		return ""
	}
	at, n, ok := o.array(o.refTo(&s, "value"), most)
	if !ok {
		return ""
	}
	b := make([]byte, n)
	if !o.read(at, b) {
		return ""
	}
	if coder := s.value("coder", 1); coder != nil && coder[0] == 0 {
		return vmread.Latin1(b)
	}
	return vmread.UTF16LE(b) // before JDK 9 they all are
}

// static returns the object that a static field of a class refers to; 0: none.
func (o *javaObjects) static(c *javaClassInfo, name string) uint64 {
	f, ok := c.fields[name]
	if !ok || !f.static {
		return 0
	}
	handle, ok1 := o.vm.word(c.addr + o.vm.fields.object.virtual.mirror)
	mirror, ok2 := o.vm.word(handle)
	var b [8]byte
	if !ok1 || !ok2 || !o.read(o.wideRef(mirror)+uint64(f.offset), b[:o.refBytes()]) {
		return 0
	}
	return o.ref(b[:])
}

// javaThreads returns the JavaThreads of a process, by the thread that each is.
func (vm *machine) javaThreads() (threads map[procstate.ThreadID]uint64, list uint64) {
	f := vm.fields.object
	list, _ = vm.word(f.threadList + vm.bias)
	threads = make(map[procstate.ThreadID]uint64)
	take := func(t uint64) {
		os, _ := vm.word(t + f.osThread)
		if tid, ok := vm.word(os + f.threadID); ok {
			threads[procstate.ThreadID(uint32(tid))] = t
		}
	}
	if f.threadChain {
		for t, n := list, 0; t != 0 && n < maxJavaThreads; n++ {
			take(t)
			t, _ = vm.word(t + f.nextThread)
		}
		return threads, list
	}
	n, ok1 := vm.word(list + f.threadCount)
	data, ok2 := vm.word(list + f.threadData)
	if n &= 1<<32 - 1; !ok1 || !ok2 || n > maxJavaThreads {
		return nil, list
	}
	for i := range n {
		t, ok := vm.word(data + 8*i)
		if !ok {
			break
		}
		take(t)
	}
	return threads, list
}
