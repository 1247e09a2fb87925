package ruby

import (
	"encoding/binary"
	"strings"
	"time"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// methodEntry is an rb_method_entry_t: whose method a definition is.
type methodEntry struct {
	isMethod bool   // else it is something else
	iseq     uint64 // its definition's rb_iseq_t; 0: it has none
	object   [rubyEntryBytes]byte
	owner    string // its class, and how that has it: "Array#", "File."; "" where there is none
	isOfC    bool
	function *calledMethod // of C; nil: it is not, or has a name that cannot be read
	valid    vmread.Valid
	looked   time.Time // the walk in which it was read last
}

// entry returns what is known of an rb_method_entry_t, nil when it cannot be read, or was another at the time of the walk.
func (vm *machine) entry(addr uint64) *methodEntry {
	if addr == 0 || addr%8 != 0 {
		return nil
	}
	is, known := vm.entries[addr]
	now := vm.now
	if known && (is.isMethod && !is.valid.IsDue(vm.Times()) || !is.isMethod && is.looked.Equal(now)) {
		return is // what is none can come and go with each call
	}
	var object [rubyEntryBytes]byte
	if !vm.ReadNow(addr, object[:]) {
		if known && is.isMethod && is.valid.Holds(vm.Times()) && vm.hasEnded() {
			return is
		}
		return nil
	}
	if known && is.object == object {
		is.looked = now
		if is.isMethod && !is.valid.Read(vm.Times(), true) {
			return nil
		}
		return is
	}
	if len(vm.entries) >= maxFunctions {
		clear(vm.entries)
	}
	le := binary.LittleEndian
	before := is
	is = &methodEntry{object: object, looked: now, isMethod: isInternal(le.Uint64(object[:]), entryType)}
	vm.entries[addr] = is
	if !is.isMethod {
		return is
	}
	vm.readMethod(is)
	switch {
	case known && before.isMethod:
		is.valid = before.valid
	case known:
		is.valid.Differs(vm.Times())
	}
	if !is.valid.Read(vm.Times(), false) {
		return nil
	}
	return is
}

// isInternal reports whether an object with some flags is an internal one of a type.
func isInternal(flags, typ uint64) bool {
	return flags&typeBits == rubyIsInternal && flags>>internalShift&internalBits == typ
}

// readMethod reads whose method one is, and its name where it is of C.
func (vm *machine) readMethod(is *methodEntry) {
	le := binary.LittleEndian
	if vm.fields.hasOwner {
		is.owner = vm.ownerName(le.Uint64(is.object[rubyOwnedBy:]))
	}
	var definition [rubyDefinitionBytes]byte
	if !vm.ReadNow(le.Uint64(is.object[rubyDefinition:]), definition[:]) {
		return
	}
	switch definition[0] & methodBits {
	default:
		return
	case methodOfRuby:
		is.iseq = le.Uint64(definition[rubyDefinedBy:])
		return
	case methodOfC:
		is.isOfC = true
	}
	name, ok := vm.symbol(le.Uint64(definition[rubyOriginal:]))
	if !ok {
		return
	}
	vm.serial++
	is.function = &calledMethod{serial: firstSerial + vm.serial}
	is.function.CodeFunction = &unwind.CodeFunction{Name: is.owner + name, SystemName: is.owner + name, Runtime: rubyRuntime}
}

// ownerName returns what Ruby puts before the names of a class's methods.
func (vm *machine) ownerName(class uint64) string {
	sign := "#"
	var b [rubyClassBytes]byte
	le := binary.LittleEndian
	read := func() (flags uint64, ok bool) {
		ok = class != 0 && class%8 == 0 && vm.ReadNow(class, b[:])
		flags = le.Uint64(b[:])
		return flags, ok && (flags&typeBits == isClass || flags&typeBits == isModule)
	}
	flags, ok := read()
	if ok && flags&typeBits == isClass && flags&isSingleton != 0 {
		class, sign = le.Uint64(b[rubyAttached:]), "."
		_, ok = read()
	}
	if !ok || le.Uint64(b[rubyPermanent:])&isPermanent == 0 {
		return ""
	}
	name, ok := vm.text(le.Uint64(b[rubyClassPath:]))
	if !ok {
		return ""
	}
	return name + sign
}

// maxScopes bounds the environments that are around each other.
const maxScopes = 1 << 6

// entryOf returns whose method a frame's is, nil where it is of none.
func (vm *machine) entryOf(env scopeEnvironment) *methodEntry {
	const outerBits = 3
	for range maxScopes {
		is := vm.entry(env.entry)
		switch {
		case is != nil && is.isMethod:
			return is
		case env.flags&isLocal == 0:
			var ok bool
			if env, ok = vm.environment(env.outer&^outerBits, 0); !ok {
				return nil
			}
			continue
		case is != nil && isInternal(binary.LittleEndian.Uint64(is.object[:]), special):
			if is = vm.entry(binary.LittleEndian.Uint64(is.object[8:])); is != nil && is.isMethod {
				return is
			}
		}
		return nil
	}
	return nil
}

// owned returns an rb_iseq_t as a method of others.
func (vm *machine) owned(is *iSeq, entry *methodEntry) *calledMethod {
	if fn := is.owned[entry]; fn != nil {
		return fn
	}
	fn := &is.calledMethod
	if name := vm.label(is, entry.owner); name != is.CodeFunction.Name {
		const about = 256 // bytes, with its place in the map
		function := *is.CodeFunction
		function.Name, function.SystemName = name, name
		vm.serial++
		fn = &calledMethod{CodeFunction: &function, serial: firstSerial + vm.serial, iseq: is}
		vm.Kept += about + len(name)
	}
	if is.owned == nil || len(is.owned) >= maxOwners {
		is.owned = map[*methodEntry]*calledMethod{}
	}
	is.owned[entry] = fn
	return fn
}

// defines reports whether a definition is of the method that an rb_iseq_t is in: an environment
// that is read by now can be another's.
func (vm *machine) defines(entry *methodEntry, is *iSeq) bool {
	return entry.iseq != 0 && entry.iseq == binary.LittleEndian.Uint64(is.head[vm.fields.lines+rubyLocal:])
}

// maxOwners bounds those of an rb_iseq_t.
const maxOwners = 1 << 8

// label returns how Ruby 3.4 calls an rb_iseq_t: a method after its owner, and what is in it
// after that.
func (vm *machine) label(is *iSeq, owner string) string {
	le := binary.LittleEndian
	around := func(is *iSeq, at uint64) *iSeq { return vm.iseq(le.Uint64(is.head[vm.fields.lines+at:])) }
	plain := is.CodeFunction.Name
	for range maxScopes {
		switch le.Uint32(is.head[rubyType:]) {
		case typeRescue, typeEnsure, typeEval:
			if is = around(is, rubyParent); is == nil {
				return plain
			}
			continue
		}
		break
	}
	name := is.CodeFunction.Name
	if method := around(is, rubyLocal); method != nil && le.Uint32(method.head[rubyType:]) == typeMethod {
		if in, ok := strings.CutSuffix(name, method.CodeFunction.Name); ok {
			return in + owner + method.CodeFunction.Name
		}
	}
	return name
}

// standsFor reports whether Ruby 3.4 tells of a frame in place of the one before it: it is of the
// same method, where that rescues or ensures.
func (vm *machine) standsFor(f *controlFrame) bool {
	return vm.fields.hasOwner && f.env.flags&magic == rescueFrame && (f.pc != 0 || f.isCompiled)
}
