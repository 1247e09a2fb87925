package v8

import (
	"fmt"
	"path"
	"time"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// function is a SharedFunctionInfo: a function as it is in the source.
type function struct {
	*unwind.CodeFunction
	script  *scriptFile // nil: not known
	is      [2]uint64   // name, and script, as they were
	checked time.Time   // when it was seen to be that
}

// functionAt returns what is known of a SharedFunctionInfo, nil where it is none.
func (vm *machine) functionAt(addr uint64) *function {
	fn, now := vm.functions[addr], time.Now()
	if fn != nil && vm.stands(fn.checked, now) {
		return fn
	}
	if typ, ok := vm.typeOf(addr); !ok || typ != vm.fields.sharedType {
		return nil
	}
	name, ok1 := vm.field(addr, vm.fields.name)
	script, ok2 := vm.field(addr, vm.fields.script)
	if !ok1 || !ok2 {
		return nil
	}
	if is := [2]uint64{name, script}; fn == nil || fn.is != is {
		if len(vm.functions) >= maxFunctions {
			clear(vm.functions)
		}
		if fn = vm.readFunction(name, script); fn == nil {
			return nil
		}
		fn.is = is
		if vm.fields.compressed && fn.script != nil && vm.scripts[script] != fn.script {
			return fn // more may be known of it the next time
		}
		vm.functions[addr] = fn
	}
	fn.checked = now
	return fn
}

// readFunction reads what a function is called and where it is, nil where its name cannot be read.
func (vm *machine) readFunction(nameOrScope, script uint64) *function {
	scope := scopeInfo{start: -1}
	if typ, ok := vm.typeOf(nameOrScope); ok && typ == vm.fields.scopeType {
		scope = vm.readScope(nameOrScope)
	} else if ok && isString(typ) {
		scope.named(vm, nameOrScope)
	}
	if vm.findTexts(&scope, script); vm.fields.compressed && scope.unread != 0 {
		return nil
	}
	fn := &function{script: vm.scriptAt(script)}
	fn.CodeFunction = &unwind.CodeFunction{Runtime: vmread.JavaScript}
	base := ""
	if fn.script != nil {
		fn.File, base = fn.script.name, path.Base(fn.script.name)
		fn.StartLine = fn.script.line(scope.start)
	}
	switch {
	case vmread.IsPrintable(scope.name):
		fn.Name, fn.SystemName = scope.name, scope.name
	case fn.File == "":
		fn.Name, fn.SystemName = vmread.JavaScriptWithoutName, vmread.JavaScriptWithoutName
	case scope.start == 0 && scope.mayBeFile: // there is one in each
		fn.Name, fn.SystemName = "<module "+base+">", "<module>"
	default:
		fn.Name, fn.SystemName = fmt.Sprintf("%s %s:%d", vmread.JavaScriptWithoutName, base, fn.StartLine), vmread.JavaScriptWithoutName
	}
	return fn
}

// at is a place in the function, less than 0 where that is not known.
func (fn *function) at(position int32) unwind.CodeLine {
	l := unwind.CodeLine{CodeFunction: fn.CodeFunction}
	if fn.script != nil {
		l.Line = fn.script.line(position)
	}
	return l
}

// Bits of ScopeInfo::Flags.
const (
	scopeTypeMask    = 15
	hasSavedClass    = 1 << 10
	hasFunctionName  = 3 << 12
	hasInferredName  = 1 << 14
	functionKind     = 17
	functionKindMask = 31
	lastFileKind     = 2  // of usual functions, modules, and modules that wait
	maxInlinedLocals = 75 // where there are as many they are in a table of their own
)

// scopeInfo is what a ScopeInfo tells of a function.
type scopeInfo struct {
	name      string // or what was inferred to be one
	start     int32  // where it begins in the script; -1: not known
	end       int32  // and ends
	mayBeFile bool   // it is none that is within others only
	unread    uint64 // the string that the name is, where it cannot be read; else 0
}

// named makes a string the name.
func (is *scopeInfo) named(vm *machine, object uint64) {
	if is.name, is.unread = vm.text(object), 0; is.name == "" && vm.isUnread(object) {
		is.unread = object
	}
}

// readScope reads a ScopeInfo.
func (vm *machine) readScope(scope uint64) scopeInfo {
	is := scopeInfo{start: -1}
	f := vm.fields
	slot := func(index uint64) uint64 {
		v, _ := vm.field(scope, f.at(v8ScopeFlags+8*index))
		return v
	}
	flags := slot(0)
	if f.compressed {
		flags = uint64(vm.half(scope - 1 + f.at(v8ScopeFlags)))
	} else if small, ok := smallInteger(flags); ok {
		flags = small
	}
	locals, ok := smallInteger(slot(f.locals))
	if !ok || locals > maxListed {
		return is
	}
	is.mayBeFile = flags>>functionKind&functionKindMask <= lastFileKind
	at := f.firstLocal
	if flags&scopeTypeMask == f.moduleScope {
		at++ // variables of the module
	}
	if locals < maxInlinedLocals {
		at += locals
	} else {
		at++
	}
	at += locals // what is known of each
	if flags&hasSavedClass != 0 {
		at++
	}
	if flags&hasFunctionName != 0 {
		is.named(vm, slot(at))
		at += 2
	}
	if flags&hasInferredName != 0 {
		if is.name == "" && is.unread == 0 {
			is.named(vm, slot(at))
		}
		at++
	}
	if f.firstLocal == v8LateLocals {
		at = v8ScopeStart
	}
	if start, ok := smallInteger(slot(at)); ok {
		is.start = int32(start)
	}
	if end, ok := smallInteger(slot(at + 1)); ok {
		is.end = int32(end)
	}
	return is
}
