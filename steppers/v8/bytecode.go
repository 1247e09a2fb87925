package v8

import (
	"cmp"
	"slices"
	"time"
	"unsafe"

	"github.com/swbpf/swbpf/unwind"
)

// bytecode is the bytecode of a function.
type bytecode struct {
	function uint64 // SharedFunctionInfo
	serial   uint32
	checked  time.Time // when it was seen to be that
}

// Words of a frame, in bytes below the saved frame pointer.
const (
	v8Context   = 8 // or an even number: the frame has another kind
	v8Callee    = 16
	v8Bytecodes = 32
	v8Offset    = 40 // in the bytecode, where that is interpreted
	v8Feedback  = 48 // FeedbackVector, or 40 where the code is compiled; before V8 12.4 only there
)

// feedbackShared is where a FeedbackVector has its SharedFunctionInfo. It is hardly ever moved.
const feedbackShared = 24

// frame is what a frame of a function holds; nothing of a frame that is of another kind.
type frame struct{ callee, bytecode, offset, feedback uint64 }

// frameOf reads the words of a frame.
func (vm *machine) frameOf(f *unwind.Frame) (words frame) {
	fp, known := f.Regs.Value(vm.arch.FP)
	if !known || fp%8 != 0 {
		return words
	}
	if context, ok := vm.Mem.ReadWord(fp - v8Context); !ok || context&1 == 0 {
		return words
	}
	words.callee, _ = vm.Mem.ReadWord(fp - v8Callee)
	words.bytecode, _ = vm.Mem.ReadWord(fp - v8Bytecodes)
	words.offset, _ = vm.Mem.ReadWord(fp - v8Offset)
	words.feedback, _ = vm.Mem.ReadWord(fp - v8Feedback)
	if vm.fields.compressed {
		words.offset = wholeSmall(words.offset)
	}
	return words
}

// interpretedCode returns the number of what f runs, which is in the code that runs bytecode.
func (vm *machine) interpretedCode(codes *unwind.Codes, f *unwind.Frame) uint32 {
	words := vm.frameOf(f)
	b := vm.bytecodeAt(words.bytecode, &words)
	if b == nil {
		vm.noteLate(words.callee)
		return 0
	}
	off, ok := smallInteger(words.offset)
	if f.Flags&unwind.Interrupted != 0 || !ok || off < vm.fields.bytecodeData-1 || off > maxTable {
		off = 0
	}
	at := int32(off) - int32(vm.fields.bytecodeData-1) // less than 0: not known
	return vm.number(codes, place{b.serial, at}, 0, func() []unwind.CodeLine { return vm.bytecodeLines(b, words.bytecode, at) })
}

// baselineCode returns the number of what f runs, which is code that the baseline compiler has
// made of bytecode.
func (vm *machine) baselineCode(codes *unwind.Codes, c *code, f *unwind.Frame) uint32 {
	words := vm.frameOf(f)
	b := vm.bytecodeAt(c.bytecode, &words)
	if b == nil {
		vm.noteLate(words.callee)
		return 0
	}
	off := f.LookupPC() - c.start
	return vm.number(codes, place{c.serial, int32(off)}, c.start, func() []unwind.CodeLine {
		at := int32(-1)
		if code := vm.codeOf(c.bytecode); code != nil {
			at = vm.fields.bytecodeOffset(c.offsets, code, uint32(off))
		}
		return vm.bytecodeLines(b, c.bytecode, at)
	})
}

// noteLate notes whether a function that a frame has is gone with the memory that it was in.
func (vm *machine) noteLate(callee uint64) {
	if _, ok := vm.globalField(callee, 0); !ok && callee&3 == 1 {
		vm.late = vm.Walk
	}
}

// codeOf returns the bytecodes of a BytecodeArray, nil where they cannot be read.
func (vm *machine) codeOf(bytecode uint64) []byte {
	length, _ := vm.field(bytecode, vm.fields.bytecodeLength)
	n, ok := smallInteger(length)
	if !ok || n > maxTable {
		return nil
	}
	code := make([]byte, n)
	if !vm.read(bytecode-1+vm.fields.bytecodeData, code) {
		return nil
	}
	return code
}

// bytecodeLines tells what is at an offset of bytecode.
func (vm *machine) bytecodeLines(b *bytecode, addr uint64, off int32) []unwind.CodeLine {
	fn := vm.functionAt(b.function)
	if fn == nil {
		return nil
	}
	position := int32(-1)
	if off >= 0 {
		table, _ := vm.field(addr, vm.fields.bytecodePositions)
		if positions := readPositions(vm.byteArray(table), vm.fields.positionFlags); !vm.fields.compressed || vm.fit(positions, addr) {
			position = positionAt(positions, off).position
		}
	}
	return []unwind.CodeLine{fn.at(position)}
}

// bytecodeAt returns what is known of the bytecode of a frame, nil when not whose it is.
func (vm *machine) bytecodeAt(addr uint64, f *frame) *bytecode {
	if addr&3 != 1 {
		return nil
	}
	b, now := vm.bytecodes[addr], time.Now()
	if b != nil {
		if vm.stands(b.checked, now) {
			return b
		}
		if vm.hasBytecode(b.function, addr) {
			b.checked = now
			return b
		}
		delete(vm.bytecodes, addr)
	}
	if f.bytecode == addr {
		for _, has := range [...]struct{ object, at uint64 }{{f.feedback, vm.fields.feedback}, {f.offset, vm.fields.feedback}, {f.callee, vm.fields.shared}} {
			if has.object&3 != 1 {
				continue
			}
			if function, _ := vm.field(has.object, has.at); vm.hasBytecode(function, addr) {
				return vm.keepBytecode(addr, function, now)
			}
		}
	}
	return vm.searchBytecode(addr, now)
}

func (vm *machine) keepBytecode(addr, function uint64, now time.Time) *bytecode {
	if len(vm.bytecodes) >= maxFunctions {
		clear(vm.bytecodes)
	}
	vm.serial++
	b := &bytecode{function: function, serial: vm.serial, checked: now}
	vm.bytecodes[addr] = b
	return b
}

// searchBytecode looks for the function that has bytecode in all scripts that are known.
func (vm *machine) searchBytecode(addr uint64, now time.Time) *bytecode {
	if vm.fields.compressed {
		return nil // it is not known whose scripts are of the same isolate
	}
	const rest = 8 // times as long as it takes to list the functions of a script
	for at, script := range vm.scripts {
		if now.Before(script.listFrom) {
			continue
		}
		began := time.Now()
		vm.listFunctions(at, script)
		script.listFrom = now.Add(max(interval, rest*time.Since(began)))
		clear(vm.absent)
	}
	if vm.absent[addr] {
		return nil
	}
	for _, script := range vm.scripts {
		for i := range script.listed {
			if l := &script.listed[i]; l.bytecode == addr && vm.hasBytecode(l.function, addr) {
				return vm.keepBytecode(addr, l.function, now)
			}
		}
	}
	if len(vm.absent) >= maxFunctions {
		clear(vm.absent)
	}
	vm.absent[addr] = true
	return nil
}

// listed is a function of a script, what it has, and the bytecode that this is or leads to; 0: none.
type listed struct{ function, data, bytecode uint64 }

// listFunctions lists the functions of a script with their bytecode.
func (vm *machine) listFunctions(at uint64, script *scriptFile) {
	list, _ := vm.field(at, vm.fields.scriptFunctions)
	n, ok := vm.lengthOf(list)
	if typ, known := vm.typeOf(list); !known || typ != vm.fields.listType || !ok || n > maxListed {
		return
	}
	words := vm.elements(list, 0, n, list)
	if uint64(len(words)) != n {
		return
	}
	if len(script.listed) != int(n) {
		script.listed = make([]listed, n)
		vm.keep(len(script.listed) * int(unsafe.Sizeof(listed{})))
	}
	var new []*listed
	block := &blockReader{vm: vm}
	for i := range script.listed {
		const weak = 2 // set in the address
		l := &script.listed[i]
		function := words[i] &^ weak
		if typ, ok := block.typeOf(function); !ok || typ != vm.fields.sharedType {
			*l = listed{}
			continue
		}
		if data, _ := block.field(function, v8FunctionData); function != l.function || data != l.data {
			*l = listed{function: function, data: data}
			new = append(new, l)
		}
	}
	slices.SortFunc(new, func(a, b *listed) int { return cmp.Compare(a.data, b.data) })
	for _, l := range new {
		switch typ, _ := block.typeOf(l.data); typ {
		case vm.fields.bytecodeType:
			l.bytecode = l.data
		case vm.fields.interpreterDataType, vm.fields.codeType:
			l.bytecode, _ = vm.bytecodeIn(l.data)
		}
	}
}

// hasBytecode reports whether a function's bytecode is at an address.
func (vm *machine) hasBytecode(function, addr uint64) bool {
	typ, ok := vm.typeOf(function)
	if !ok || typ != vm.fields.sharedType {
		return false
	}
	if vm.fields.compressed && vm.isHandleOf(function, addr) {
		return true
	}
	is, ok := vm.bytecodeOf(function)
	return ok && is == addr
}

// bytecodeOf returns the bytecode of a function, if it has been compiled to that.
func (vm *machine) bytecodeOf(function uint64) (addr uint64, ok bool) {
	data, _ := vm.dataOf(function)
	return vm.bytecodeIn(data)
}

// bytecodeIn returns the bytecode that an object is, or leads to.
func (vm *machine) bytecodeIn(object uint64) (addr uint64, ok bool) {
	for range 3 {
		if vm.fields.codeType == noType {
			vm.learnCode(object)
		}
		typ, known := vm.typeOf(object)
		switch {
		case !known:
			return 0, false
		case typ == vm.fields.bytecodeType:
			return object, true
		case typ == vm.fields.interpreterDataType:
			object, _ = vm.field(object, vm.fields.at(v8InterpreterData))
		case typ == vm.fields.codeType:
			object, _ = vm.field(object, vm.fields.codeData)
		default:
			return 0, false
		}
	}
	return 0, false
}
