package gnur

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// function is what a function of R is called, and where it is defined, if R has kept that.
type function struct{ unwind.CodeFunction }

// others is what stands for functions whose contexts were not copied, and notRead for one that was gone before its name was
// asked for.
var (
	others  = function{unwind.CodeFunction{Name: "[not copied]", SystemName: "[not copied]", Runtime: runtime}}
	notRead = function{unwind.CodeFunction{Name: "[not read]", SystemName: "[not read]", Runtime: runtime}}
)

// object is what is known of a call, or of what it calls.
type object struct {
	name  string // of what is called; "" where it is no such object
	valid vmread.Valid
}

// closure is what is known of one.
type closure struct {
	file  string // where it is defined; "" where R has not kept that
	line  int
	valid vmread.Valid
}

// maxUnread is how many calls may be unreadable before one was read: from then on R is taken for a version that has contexts
// of another kind.
const maxUnread = 64

// functionOf returns the function of a context, nil when it is not known any more.
func (vm *machine) functionOf(c *context) *function {
	name := vm.nameOf(c)
	if name == "" {
		return nil
	}
	fn := unwind.CodeFunction{Name: name, SystemName: name, Runtime: runtime}
	fn.File, fn.StartLine = vm.sourceOf(c.function)
	known := vm.functions[fn]
	if known == nil {
		if len(vm.functions) >= maxFunctions {
			clear(vm.functions)
		}
		known = &function{fn}
		vm.functions[fn] = known
	}
	return known
}

// nameOf returns what a function is called in a call, as R's own profiler names it; "" when it is not known any more. Many
// calls are made when a function is called and let go of at once, so that what they call is copied with the stack: mostly a
// symbol, which stays.
func (vm *machine) nameOf(c *context) string {
	at := c.call
	value, isCopied := vm.Word(c.call + listValue)
	if isCopied {
		if value == c.function {
			return anonymous
		}
		if name, ok := vm.symbols[value]; ok {
			return name
		}
		at = value
	}
	known := vm.objects[at]
	if known == nil {
		if len(vm.objects) >= maxObjects {
			clear(vm.objects)
		}
		known = new(object)
		vm.objects[at] = known
	}
	if known.valid.IsDue(vm.times) {
		name, ok := "", isCopied
		if !isCopied {
			value, _, ok = vm.list(c.call, typeCall)
		}
		if ok {
			name = vm.called(value, maxDepth)
		}
		known.valid.Read(vm.times, name == known.name)
		known.name = name
		if vm.isKnown = vm.isKnown || name != ""; !vm.isKnown {
			vm.unread++
		}
	}
	if !known.valid.Holds(vm.times) {
		return ""
	}
	return known.name
}

// sourceOf returns where a closure is defined.
func (vm *machine) sourceOf(at uint64) (file string, line int) {
	known := vm.closures[at]
	if known == nil {
		if len(vm.closures) >= maxObjects {
			clear(vm.closures)
		}
		known = new(closure)
		vm.closures[at] = known
	}
	if known.valid.IsDue(vm.times) {
		file, line := vm.source(at)
		known.valid.Read(vm.times, file == known.file && line == known.line)
		known.file, known.line = file, line
	}
	if !known.valid.Holds(vm.times) {
		return "", 0
	}
	return known.file, known.line
}

const (
	anonymous = "<Anonymous>" // what R's own profiler calls a function that is called by no name
	maxDepth  = 4             // of calls that tell what is called
)

// called returns what a function is called that is the value of an object: a symbol, or a call as in stats::median and
// account$add. It is "" where memory has something else.
func (vm *machine) called(object uint64, depth int) string {
	switch vm.typeOf(object) {
	case typeSymbol:
		return vm.symbol(object)
	case typeCall:
		operator, arguments, ok := vm.list(object, typeCall)
		if !ok || depth == 0 || vm.typeOf(operator) != typeSymbol {
			return anonymous
		}
		op := vm.symbol(operator)
		switch op {
		case "::", ":::", "$", "@":
		default:
			return anonymous
		}
		left, next, ok1 := vm.list(arguments, typeList)
		right, _, ok2 := vm.list(next, typeList)
		if !ok1 || !ok2 {
			return ""
		}
		of, member := vm.called(left, depth-1), vm.called(right, 0)
		if of == "" || member == "" {
			return ""
		}
		return of + op + member
	case typeClosure, typeSpecial, typeBuiltin:
		return anonymous
	}
	return ""
}

// noType is the type of what is no object.
const noType = 1 << 8

// typeOf returns the type of an object.
func (vm *machine) typeOf(object uint64) int {
	if object == 0 || object%8 != 0 {
		return noType
	}
	word, ok := vm.WordNow(object + objectType)
	if !ok {
		return noType
	}
	return int(word & typeBits)
}

func (vm *machine) is(object uint64, is int) bool { return vm.typeOf(object) == is }

// list returns the value of a list of a type, and its rest.
func (vm *machine) list(object uint64, is int) (value, next uint64, ok bool) {
	if object == 0 || object%8 != 0 || !vm.ReadNow(object, vm.head[:]) || int(vm.head[objectType])&typeBits != is {
		return 0, 0, false
	}
	le := binary.LittleEndian
	return le.Uint64(vm.head[listValue:]), le.Uint64(vm.head[listNext:]), true
}

// symbol returns the name of a symbol, "" when it has none.
func (vm *machine) symbol(object uint64) string {
	name, ok := vm.symbols[object]
	if ok {
		return name
	}
	at, ok := vm.WordNow(object + symbolName)
	if !ok {
		return ""
	}
	if name = vm.text(at); name == "" {
		return ""
	}
	if len(vm.symbols) >= maxSymbols {
		clear(vm.symbols)
	}
	vm.symbols[object] = name
	return name
}

// text reads characters, "" where there are none.
func (vm *machine) text(object uint64) string {
	if !vm.is(object, typeCharacters) {
		return ""
	}
	n, ok := vm.WordNow(object + vectorLength)
	if !ok || n == 0 || n > maxName {
		return ""
	}
	b := make([]byte, n)
	if !vm.ReadNow(object+vectorData, b) {
		return ""
	}
	text := vmread.ValidText(b)
	if !vmread.IsPrintable(text) {
		return ""
	}
	return text
}

// source returns where a closure is defined; a file of "" where R has not kept that.
func (vm *machine) source(closure uint64) (file string, line int) {
	if !vm.is(closure, typeClosure) {
		return "", 0 // eval has a context of its own
	}
	ref := vm.attribute(closure, "srcref")
	if ref == 0 || !vm.is(ref, typeIntegers) {
		return "", 0
	}
	first, ok := vm.WordNow(ref + vectorData)
	of := vm.attribute(ref, "srcfile")
	if !ok || of == 0 || !vm.is(of, typeEnvironment) {
		return "", 0
	}
	names := vm.variable(of, "filename")
	if names == 0 || !vm.is(names, typeStrings) {
		return "", 0
	}
	at, ok := vm.WordNow(names + vectorData)
	if !ok {
		return "", 0
	}
	return vm.text(at), int(int32(first))
}

// attribute returns an attribute of an object, 0 where it has none of the name.
func (vm *machine) attribute(object uint64, name string) uint64 {
	list, ok := vm.WordNow(object + objectAttributes)
	if !ok {
		return 0
	}
	return vm.tagged(list, name)
}

// maxListed bounds how much of a list, or of a table of them, is looked through.
const maxListed = 64

// tagged returns what a list has with a tag, 0 where it has none.
func (vm *machine) tagged(list uint64, name string) uint64 {
	for range maxListed {
		value, next, ok := vm.list(list, typeList)
		if !ok {
			return 0
		}
		if tag := binary.LittleEndian.Uint64(vm.head[listTag:]); vm.is(tag, typeSymbol) && vm.symbol(tag) == name {
			return value
		}
		list = next
	}
	return 0
}

// variable returns the value of a variable of an environment, 0 where it has none of the name.
func (vm *machine) variable(env uint64, name string) uint64 {
	list, ok := vm.WordNow(env + environmentList)
	if ok {
		if value := vm.tagged(list, name); value != 0 {
			return value
		}
	}
	table, ok := vm.WordNow(env + environmentHash)
	if !ok || !vm.is(table, typeVector) {
		return 0
	}
	n, ok := vm.WordNow(table + vectorLength)
	if !ok {
		return 0
	}
	for i := range min(n, maxListed) {
		if list, ok = vm.WordNow(table + vectorData + 8*i); ok {
			if value := vm.tagged(list, name); value != 0 {
				return value
			}
		}
	}
	return 0
}
