package hotspot

import (
	"encoding/binary"
	"slices"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// javaClassInfo is a class.
type javaClassInfo struct {
	addr   uint64
	name   string // as "java/lang/Object"
	layout uint32 // Klass::_layout_helper
	fields map[string]javaField
	super  *javaClassInfo

	injected []injectedField // by the virtual machine, in its order
}

// injectedField is a field of a class that Java does not know of. It has no name here.
type injectedField struct{ offset, signature uint32 }

// javaField is a field of a class. A static one is in the object that stands for the class.
type javaField struct {
	offset    uint32
	static    bool
	signature string
	constant  int32 // the value, where hasValue
	hasValue  bool
}

// classAt returns a class by the address of its Klass; nil where there is none.
func (o *javaObjects) classAt(addr uint64) *javaClassInfo {
	c, known := o.classes[addr]
	if !known && len(o.classes) < maxClasses {
		c = o.readClass(addr)
		o.classes[addr] = c
	}
	return c
}

// readClass reads a class, with those that it extends.
func (o *javaObjects) readClass(addr uint64) *javaClassInfo {
	var first *javaClassInfo
	to := &first
	for n := 0; addr != 0 && n < maxSupers; n++ {
		c := o.readOneClass(addr)
		if c == nil {
			return nil
		}
		*to, to = c, &c.super
		addr, _ = o.vm.word(addr + o.vm.fields.object.super)
	}
	return first
}

func (o *javaObjects) readOneClass(addr uint64) *javaClassInfo {
	vm, f := o.vm, o.vm.fields.object
	le := binary.LittleEndian
	head := make([]byte, max(f.super, f.layout, vm.fields.method.className)+8)
	if addr%8 != 0 || !vm.read(addr, head) {
		return nil
	}
	c := &javaClassInfo{addr: addr, name: vm.symbol(le.Uint64(head[vm.fields.method.className:])), layout: le.Uint32(head[f.layout:])}
	if !vmread.IsPrintable(c.name) {
		return nil
	}
	const arrays = 1 << 31
	if c.layout&arrays != 0 {
		return c
	}
	pool, ok := vm.word(addr + f.pool)
	c.fields = map[string]javaField{}
	read := o.readFields
	if f.fieldShorts {
		read = o.readFieldShorts
	}
	if !ok || !read(c, pool) {
		return nil
	}
	return c
}

const staticField = 8 // of the access flags of Java

// readFieldShorts reads what fields a class has as it is before JDK 21 (fieldInfo.hpp there): six numbers of 16 bits each.
func (o *javaObjects) readFieldShorts(c *javaClassInfo, pool uint64) bool {
	const (
		flags, name, signature, low, high = 0, 2, 4, 8, 10
		entry                             = 12
		offsetShift                       = 2 // beside bits that say what that is
	)
	le, vm, f := binary.LittleEndian, o.vm, o.vm.fields.object
	array, ok1 := vm.word(c.addr + f.fieldArray)
	count, ok2 := vm.word(c.addr + f.numField)
	b := make([]byte, entry*(count&0xffff))
	entries, ok3 := vm.poolEntries(pool)
	if !ok1 || !ok2 || !ok3 || !vm.read(array+f.shorts, b) {
		return false
	}
	for ; len(b) > 0; b = b[entry:] {
		if !o.may() {
			return false
		}
		c.fields[vm.symbol(entries(uint32(le.Uint16(b[name:]))))] = javaField{
			offset:    (uint32(le.Uint16(b[high:]))<<16 | uint32(le.Uint16(b[low:]))) >> offsetShift,
			static:    le.Uint16(b[flags:])&staticField != 0,
			signature: vm.symbol(entries(uint32(le.Uint16(b[signature:])))),
		}
	}
	return true
}

// poolEntries returns what reads the entries of a ConstantPool.
func (vm *machine) poolEntries(pool uint64) (entry func(i uint32) uint64, ok bool) {
	m := vm.fields.method
	n, ok := vm.word(pool + m.poolLen)
	n &= 1<<32 - 1
	return func(i uint32) uint64 {
		if uint64(i) >= n {
			return 0
		}
		v, _ := vm.word(pool + m.poolBytes + 8*uint64(i))
		return v
	}, ok
}

// readFields reads what fields a class has (FieldInfoReader): a stream of integers.
func (o *javaObjects) readFields(c *javaClassInfo, pool uint64) bool {
	const hasValue, isInjected, hasGeneric, isInPart = 1 << 0, 1 << 1, 1 << 2, 1 << 4
	vm := o.vm
	stream, ok := vm.word(c.addr + vm.fields.object.fieldInfo)
	if !ok {
		return false
	}
	var size [4]byte
	if !vm.read(stream, size[:]) {
		return false
	}
	n := binary.LittleEndian.Uint32(size[:])
	b := make([]byte, min(n, maxFieldInfo))
	if !vm.read(stream+vm.fields.object.bytes, b) {
		return false
	}
	entry, ok := vm.poolEntries(pool)
	if !ok {
		return false
	}
	encoded := vm.compressed()
	next := func() (v uint32) {
		v, n := encoded.read(b)
		ok = ok && n > 0
		b = b[n:]
		return v
	}
	own, injected := next(), next()
	for range own + injected {
		name, signature, field := next(), next(), javaField{offset: next()}
		access, flags := next(), next()
		field.static = access&staticField != 0
		if flags&hasValue != 0 {
			field.constant, field.hasValue = int32(entry(next())), true
		}
		if flags&hasGeneric != 0 {
			next()
		}
		if flags&isInPart != 0 {
			next()
		}
		if !ok || !o.may() {
			return false
		}
		if flags&isInjected != 0 {
			c.injected = append(c.injected, injectedField{field.offset, signature})
		} else {
			field.signature = vm.symbol(entry(signature))
			c.fields[vm.symbol(entry(name))] = field
		}
	}
	return true
}

// field returns a field of a class or of one that it extends.
func (c *javaClassInfo) field(name string) (f javaField, ok bool) {
	for ; c != nil; c = c.super {
		if f, ok = c.fields[name]; ok {
			return f, ok
		}
	}
	return f, false
}

// extends reports whether a class is, or extends, that of a name.
func (c *javaClassInfo) extends(name string) bool {
	for ; c != nil; c = c.super {
		if c.name == name {
			return true
		}
	}
	return false
}

// size returns how many bytes an object of a class has that is not an array.
func (c *javaClassInfo) size() uint64 { return uint64(c.layout &^ 7) }

// isArray reports whether it is an array's.
func (c *javaClassInfo) isArray() bool { return c.layout>>31 != 0 }

// systemClasses looks for classes of the first class loader, by their names.
func (o *javaObjects) systemClasses(names ...string) map[string]*javaClassInfo {
	vm, f, found := o.vm, o.vm.fields.object.virtual, map[string]*javaClassInfo{}
	looked := 0
	loader, _ := vm.word(f.loaders + vm.bias)
	for ; loader != 0 && looked < maxClasses && o.may(); looked++ {
		handle, ok := vm.word(loader + f.loader)
		if !ok {
			break
		}
		class := uint64(0)
		if handle == 0 {
			class, _ = vm.word(loader + f.firstClass)
		}
		for ; class != 0 && looked < maxClasses && len(found) < len(names) && o.may(); looked++ {
			symbol, ok := vm.word(class + vm.fields.method.className)
			if !ok {
				break
			}
			if name := vm.symbol(symbol); slices.Contains(names, name) {
				if c := o.classAt(class); c != nil {
					found[name] = c
				}
			}
			class, _ = vm.word(class + f.nextClass)
		}
		loader, _ = vm.word(loader + f.nextLoader)
	}
	return found
}
