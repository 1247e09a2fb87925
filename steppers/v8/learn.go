package v8

import (
	"slices"

	"github.com/swbpf/swbpf/unwind"
)

// Where V8 tells debuggers nothing, its version tells where objects have what, but types have other numbers in
// each version and build. They are learned from the first function of JavaScript on a stack: what it has must
// lead from one object to the next, and back to it. Types that are not known yet are noType.
const noType = 1<<16 - 1

// The versions of V8 without symbols of which is known where objects have what: those of Deno 2.0 to 2.9.
var (
	firstEmbedded = [2]int{12, 9}
	lastEmbedded  = [2]int{15, 0}
)

// embeddedFields returns the fields of a version of V8, nil where it is not known. No types are known.
func embeddedFields(version [2]int, sizes [3][]byte) *fields {
	since := func(major, minor int) bool { return version[0] > major || version[0] == major && version[1] >= minor }
	if !since(firstEmbedded[0], firstEmbedded[1]) || since(lastEmbedded[0], lastEmbedded[1]+1) || sizes[0] == nil {
		return nil
	}
	f := &fields{
		shared: 32, name: 24, script: 40,
		sharedType: noType, bytecodeType: noType, codeType: noType, streamType: noType, scopeType: noType,
		scriptType: noType, listType: noType, arrayType: noType, interpreterDataType: noType,
		split: true, header: 32, codeStart: 40, codeSize: 56, codeFlags: 52, codeData: 8, positions: 16, baseline: 11, regExp: lateRegExp,
		inlinedCount: 1, literals: 3, optimized: 7, inlining: 8,
		positionFlags: 1, bytecodePositions: 24, bytecodeData: 64, sizes: sizes,
		locals: 2, firstLocal: v8LateLocals, moduleScope: 5,
		feedback: feedbackShared, bytecodeLength: v8Length,
	}
	if !since(13, 1) {
		f.codeFlags, f.codeSize = 48, 52
		f.literals, f.optimized, f.inlining = 2, 6, 7
	}
	if !since(14, 1) {
		f.baseline = 10
	}
	if since(13, 7) {
		f.positionFlags = 2
	}
	if since(14, 9) {
		f.positionFlags = 3
		f.moduleScope = 3
	}
	return f
}

// learned reports whether the types of objects are known, which may be by the stack that f is on. It looks at that once a walk.
func (vm *machine) learned(f *unwind.Frame) bool {
	const frames = 1 << 8
	known := func() bool { return vm.fields.sharedType != noType && (!vm.fields.compressed || vm.cage != 0) }
	switch {
	case known():
		if vm.fields.compressed {
			vm.findIsolate(f)
		}
		return true
	case vm.tried == vm.Walk:
		return false
	}
	vm.tried = vm.Walk
	fp, fpKnown := f.Regs.Value(vm.arch.FP)
	for range frames {
		if known() || !fpKnown || fp%8 != 0 {
			break
		}
		if function, ok := vm.Mem.ReadWord(fp - v8Callee); ok && (!vm.fields.compressed || vm.enter(f, function, fp)) {
			vm.learn(function)
		}
		var caller uint64
		if caller, fpKnown = vm.Mem.ReadWord(fp); caller <= fp {
			break
		}
		fp = caller
	}
	if vm.onFrame = 0; !known() {
		vm.handleTable = handleTable{root: vm.root, rootOf: vm.rootOf}
	}
	return known()
}

// notLearned says, once, that functions have no names, where that has been so for long.
func (vm *machine) notLearned(codes *unwind.Codes) {
	if vm.tries++; vm.tries == maxV8Tries && vm.fields.sharedType == noType {
		codes.Lack(unknown(vm.image))
	}
}

// learn learns types from what may be a function (JSFunction) that has been compiled: its SharedFunctionInfo has bytecode, all of
// which can be told apart, and a ScopeInfo, and is in the list of functions of its script.
func (vm *machine) learn(function uint64) {
	f := vm.fields
	of := func(object, at uint64) uint64 {
		v, _ := vm.field(object, at)
		return v
	}
	if _, ok := vm.mappedType(function); !ok {
		return
	}
	shared := of(function, f.shared)
	is, ok1 := vm.mappedType(shared)
	scope, ok2 := vm.mappedType(of(shared, f.name))
	script, ok3 := vm.mappedType(of(shared, f.script))
	if !ok1 || !ok2 || !ok3 {
		return
	}
	listed, ok := vm.learnList(shared, of(shared, f.script))
	length, isText := vm.textLength(of(of(shared, f.script), f.at(v8ScriptSource)))
	if !ok || !isText || !vm.isScope(of(shared, f.name), length) {
		return
	}
	bytecode, _ := vm.dataOf(shared)
	if vm.learnCode(bytecode) {
		bytecode = of(bytecode, f.codeData)
	}
	compiled, ok := vm.mappedType(bytecode)
	if !ok || !vm.isBytecode(bytecode) {
		return
	}
	f.sharedType, f.scopeType, f.scriptType, f.listType, f.bytecodeType = is, scope, script, listed, compiled
}

// mappedType returns the type of an object whose map is one: that of a map is one of maps, which is its own. Strings have none here.
func (vm *machine) mappedType(object uint64) (typ uint16, ok bool) {
	is, ok := vm.mapOf(object)
	if !ok {
		return 0, false
	}
	of, ok1 := vm.mapOf(is)
	self, ok2 := vm.mapOf(of)
	if !ok1 || !ok2 || self != of {
		return 0, false
	}
	typ, ok = vm.readType(is)
	return typ, ok && !isString(typ)
}

func (vm *machine) mapOf(object uint64) (addr uint64, ok bool) {
	if object&3 != 1 {
		return 0, false
	}
	addr, ok = vm.globalField(object, 0)
	return addr, ok && addr&3 == 1
}

// learnList learns where a script has the list of its functions, and what lengths of arrays are, and returns the type of that list:
// shared is in it, as a weak reference.
func (vm *machine) learnList(shared, script uint64) (typ uint16, ok bool) {
	const weak = 2
	for _, at := range [...]uint64{vm.fields.at(88), vm.fields.at(96)} { // which another field has come before
		list, _ := vm.field(script, at)
		typ, ok := vm.mappedType(list)
		if !ok {
			continue
		}
		if vm.fields.compressed {
			if vm.fields.plainLengths, ok = vm.arePlain(list); !ok {
				continue
			}
			if vm.fields.plainLengths { // since V8 14.9, as these
				vm.fields.positionFlags, vm.fields.moduleScope = 3, 3
			}
		} else {
			length, _ := vm.word(list - 1 + v8Length)
			vm.fields.plainLengths = uint32(length) != 0
		}
		n, ok := vm.lengthOf(list)
		if !ok || n > maxListed {
			continue
		}
		if slices.Contains(vm.elements(list, 0, n, list), shared|weak) {
			vm.fields.scriptFunctions = at
			return typ, true
		}
	}
	return 0, false
}

// isScope reports whether an object may be the ScopeInfo of a function in a source of n characters.
func (vm *machine) isScope(object, n uint64) bool {
	begin, _ := vm.field(object, vm.fields.at(v8ScopeFlags+8*v8ScopeStart))
	end, _ := vm.field(object, vm.fields.at(v8ScopeFlags+8*(v8ScopeStart+1)))
	start, ok1 := smallInteger(begin)
	stop, ok2 := smallInteger(end)
	return ok1 && ok2 && start <= stop && stop <= n
}

// isBytecode reports whether an object has nothing but whole bytecodes.
func (vm *machine) isBytecode(object uint64) bool {
	code := vm.codeOf(object)
	if len(code) == 0 {
		return false
	}
	for len(code) > 0 {
		size := vm.fields.bytecodeSize(code)
		if size == 0 {
			return false
		}
		code = code[size:]
	}
	return true
}

// learnCode reports whether an object is Code, the type of which it learns: it has the address of its instructions,
// which are in the object that it points to before, and which points to it.
func (vm *machine) learnCode(object uint64) bool {
	f := vm.fields
	typ, ok := vm.mappedType(object)
	if !ok || f.codeType != noType {
		return ok && typ == f.codeType
	}
	if f.compressed {
		return vm.learnCompressed(object, typ)
	}
	start, ok1 := vm.word(object - 1 + f.codeStart)
	stream, ok2 := vm.word(object - 1 + f.codeStart - 8)
	back, ok3 := vm.word(stream - 1 + v8StreamCode)
	if !ok1 || !ok2 || !ok3 || stream-1+f.header != start || back != object {
		return false
	}
	of, ok := vm.mappedType(stream)
	if ok {
		f.codeType, f.streamType = typ, of
	}
	return ok
}
