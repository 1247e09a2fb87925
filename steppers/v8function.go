package steppers

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/url"
	"path"
	"slices"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// v8Runtime is the CodeFunction.Runtime of JavaScript.
const v8Runtime = "javascript"

// v8Function is a SharedFunctionInfo: a function as it is in the source.
type v8Function struct {
	unwind.CodeFunction
	script  *v8Script // nil: not known
	is      [2]uint64 // name, and script, as they were
	checked time.Time // when it was seen to be that
}

// v8Bytecode is the bytecode of a function.
type v8Bytecode struct {
	function uint64 // SharedFunctionInfo
	serial   uint32
	checked  time.Time // when it was seen to be that
}

// v8Script is a file.
type v8Script struct {
	name  string
	is    [2]uint64 // name and source, as they were
	first int       // the line before the first
	ends  []int32   // of lines

	listed   []v8Listed // its functions, as they were
	listFrom time.Time  // the next time
}

// Words of a frame, in bytes below the saved frame pointer.
const (
	v8Context   = 8 // or an even number: the frame has another kind
	v8Callee    = 16
	v8Bytecodes = 32
	v8Offset    = 40 // in the bytecode, where that is interpreted
	v8Feedback  = 48 // FeedbackVector, or 40 where the code is compiled; before V8 12.4 only there
)

// v8FeedbackShared is where a FeedbackVector has its SharedFunctionInfo. It is hardly ever moved.
const v8FeedbackShared = 24

// v8Frame is what a frame of a function holds; nothing of a frame that is of another kind.
type v8Frame struct{ callee, bytecode, offset, feedback uint64 }

// frameOf reads the words of a frame.
func (vm *v8VM) frameOf(f *unwind.Frame) (words v8Frame) {
	fp, known := f.Regs.Value(procstate.AMD64.FP)
	if !known || fp%8 != 0 {
		return words
	}
	if context, ok := vm.mem.ReadWord(fp - v8Context); !ok || context&1 == 0 {
		return words
	}
	words.callee, _ = vm.mem.ReadWord(fp - v8Callee)
	words.bytecode, _ = vm.mem.ReadWord(fp - v8Bytecodes)
	words.offset, _ = vm.mem.ReadWord(fp - v8Offset)
	words.feedback, _ = vm.mem.ReadWord(fp - v8Feedback)
	return words
}

// interpretedCode returns the number of what f runs, which is in the code that runs bytecode.
func (vm *v8VM) interpretedCode(codes *unwind.Codes, f *unwind.Frame) uint32 {
	words := vm.frameOf(f)
	b := vm.bytecodeAt(words.bytecode, &words)
	if b == nil {
		return 0
	}
	off, ok := smallInteger(words.offset)
	if f.Flags&unwind.Interrupted != 0 || !ok || off < vm.fields.bytecodeData-1 || off > maxV8Table {
		off = 0
	}
	at := int32(off) - int32(vm.fields.bytecodeData-1) // less than 0: not known
	return vm.number(codes, v8Place{b.serial, at}, 0, func() []unwind.CodeLine { return vm.bytecodeLines(b, words.bytecode, at) })
}

// baselineCode returns the number of what f runs, which is code that the baseline compiler has
// made of bytecode.
func (vm *v8VM) baselineCode(codes *unwind.Codes, c *v8Code, f *unwind.Frame) uint32 {
	words := vm.frameOf(f)
	b := vm.bytecodeAt(c.bytecode, &words)
	if b == nil {
		return 0
	}
	off := f.LookupPC() - c.start
	return vm.number(codes, v8Place{c.serial, int32(off)}, c.start, func() []unwind.CodeLine {
		at := int32(-1)
		if n, ok := vm.lengthOf(c.bytecode); ok && n <= maxV8Table {
			code := make([]byte, n)
			if vm.read(c.bytecode-1+vm.fields.bytecodeData, code) {
				at = vm.fields.bytecodeOffset(c.offsets, code, uint32(off))
			}
		}
		return vm.bytecodeLines(b, c.bytecode, at)
	})
}

// bytecodeLines tells what is at an offset of bytecode.
func (vm *v8VM) bytecodeLines(b *v8Bytecode, addr uint64, off int32) []unwind.CodeLine {
	fn := vm.functionAt(b.function)
	if fn == nil {
		return nil
	}
	position := int32(-1)
	if off >= 0 {
		table, _ := vm.word(addr - 1 + vm.fields.bytecodePositions)
		position = v8PositionAt(v8Positions(vm.byteArray(table), vm.fields.flagged), off).position
	}
	return []unwind.CodeLine{fn.at(position)}
}

// bytecodeAt returns what is known of the bytecode of a frame, nil when not whose it is.
func (vm *v8VM) bytecodeAt(addr uint64, f *v8Frame) *v8Bytecode {
	if addr&3 != 1 {
		return nil
	}
	b, now := vm.bytecodes[addr], time.Now()
	if b != nil {
		if now.Sub(b.checked) < v8Interval {
			return b
		}
		if vm.hasBytecode(b.function, addr) {
			b.checked = now
			return b
		}
		delete(vm.bytecodes, addr)
	}
	if f.bytecode == addr {
		for _, has := range [...]struct{ object, at uint64 }{{f.feedback, v8FeedbackShared}, {f.offset, v8FeedbackShared}, {f.callee, vm.fields.shared}} {
			if has.object&3 != 1 {
				continue
			}
			if function, _ := vm.word(has.object - 1 + has.at); vm.hasBytecode(function, addr) {
				return vm.keepBytecode(addr, function, now)
			}
		}
	}
	return vm.searchBytecode(addr, now)
}

func (vm *v8VM) keepBytecode(addr, function uint64, now time.Time) *v8Bytecode {
	if len(vm.bytecodes) >= maxV8Functions {
		clear(vm.bytecodes)
	}
	vm.serial++
	b := &v8Bytecode{function: function, serial: vm.serial, checked: now}
	vm.bytecodes[addr] = b
	return b
}

// searchBytecode looks for the function that has bytecode in all scripts that are known.
func (vm *v8VM) searchBytecode(addr uint64, now time.Time) *v8Bytecode {
	const rest = 8 // times as long as it takes to list the functions of a script
	for at, script := range vm.scripts {
		if now.Before(script.listFrom) {
			continue
		}
		began := time.Now()
		vm.listFunctions(at, script)
		script.listFrom = now.Add(max(v8Interval, rest*time.Since(began)))
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
	if len(vm.absent) >= maxV8Functions {
		clear(vm.absent)
	}
	vm.absent[addr] = true
	return nil
}

// v8Listed is a function of a script, what it has, and the bytecode that this is or leads to; 0: none.
type v8Listed struct{ function, data, bytecode uint64 }

// listFunctions lists the functions of a script with their bytecode.
func (vm *v8VM) listFunctions(at uint64, script *v8Script) {
	list, _ := vm.word(at - 1 + v8ScriptFunctions)
	n, ok := vm.lengthOf(list)
	if typ, known := vm.typeOf(list); !known || typ != vm.fields.listType || !ok || n > maxV8Listed {
		return
	}
	words := make([]byte, 8*n)
	if !vm.read(list-1+v8Data, words) {
		return
	}
	if len(script.listed) != int(n) {
		script.listed = make([]v8Listed, n)
	}
	var new []*v8Listed
	block := &v8Block{vm: vm}
	for i := range script.listed {
		const weak = 2 // set in the address
		l := &script.listed[i]
		function := binary.LittleEndian.Uint64(words[8*i:]) &^ weak
		if typ, ok := block.typeOf(function); !ok || typ != vm.fields.sharedType {
			*l = v8Listed{}
			continue
		}
		if data, _ := block.word(function - 1 + v8FunctionData); function != l.function || data != l.data {
			*l = v8Listed{function: function, data: data}
			new = append(new, l)
		}
	}
	slices.SortFunc(new, func(a, b *v8Listed) int { return cmp.Compare(a.data, b.data) })
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
func (vm *v8VM) hasBytecode(function, addr uint64) bool {
	typ, ok := vm.typeOf(function)
	if !ok || typ != vm.fields.sharedType {
		return false
	}
	is, ok := vm.bytecodeOf(function)
	return ok && is == addr
}

// bytecodeOf returns the bytecode of a function, if it has been compiled to that.
func (vm *v8VM) bytecodeOf(function uint64) (addr uint64, ok bool) {
	data, _ := vm.word(function - 1 + v8FunctionData)
	return vm.bytecodeIn(data)
}

// bytecodeIn returns the bytecode that an object is, or leads to.
func (vm *v8VM) bytecodeIn(object uint64) (addr uint64, ok bool) {
	for range 3 {
		typ, known := vm.typeOf(object)
		switch {
		case !known:
			return 0, false
		case typ == vm.fields.bytecodeType:
			return object, true
		case typ == vm.fields.interpreterDataType:
			object, _ = vm.word(object - 1 + v8InterpreterData)
		case typ == vm.fields.codeType:
			object, _ = vm.word(object - 1 + vm.fields.codeData)
		default:
			return 0, false
		}
	}
	return 0, false
}

// functionAt returns what is known of a SharedFunctionInfo, nil where it is none.
func (vm *v8VM) functionAt(addr uint64) *v8Function {
	fn, now := vm.functions[addr], time.Now()
	if fn != nil && now.Sub(fn.checked) < v8Interval {
		return fn
	}
	if typ, ok := vm.typeOf(addr); !ok || typ != vm.fields.sharedType {
		return nil
	}
	name, ok1 := vm.word(addr - 1 + vm.fields.name)
	script, ok2 := vm.word(addr - 1 + vm.fields.script)
	if !ok1 || !ok2 {
		return nil
	}
	if is := [2]uint64{name, script}; fn == nil || fn.is != is {
		if len(vm.functions) >= maxV8Functions {
			clear(vm.functions)
		}
		fn = vm.readFunction(name, script)
		fn.is = is
		vm.functions[addr] = fn
	}
	fn.checked = now
	return fn
}

// readFunction reads what a function is called and where it is.
func (vm *v8VM) readFunction(nameOrScope, script uint64) *v8Function {
	scope := v8Scope{start: -1}
	if typ, ok := vm.typeOf(nameOrScope); ok && typ == vm.fields.scopeType {
		scope = vm.readScope(nameOrScope)
	} else if ok && isV8String(typ) {
		scope.name, _ = vm.text(nameOrScope, maxV8Name)
	}
	fn := &v8Function{script: vm.scriptAt(script)}
	fn.CodeFunction = unwind.CodeFunction{Runtime: v8Runtime}
	base := ""
	if fn.script != nil {
		fn.File, base = fn.script.name, path.Base(fn.script.name)
		fn.StartLine = fn.script.line(scope.start)
	}
	switch {
	case isPrintable(scope.name):
		fn.Name, fn.SystemName = scope.name, scope.name
	case fn.File == "":
		fn.Name, fn.SystemName = v8Anonymous, v8Anonymous
	case scope.start == 0 && scope.mayBeFile: // there is one in each
		fn.Name, fn.SystemName = "<module "+base+">", "<module>"
	default:
		fn.Name, fn.SystemName = fmt.Sprintf("%s %s:%d", v8Anonymous, base, fn.StartLine), v8Anonymous
	}
	return fn
}

// v8Anonymous stands for the name of a function that has none.
const v8Anonymous = "(anonymous)"

// at is a place in the function, less than 0 where that is not known.
func (fn *v8Function) at(position int32) unwind.CodeLine {
	l := unwind.CodeLine{CodeFunction: &fn.CodeFunction}
	if fn.script != nil {
		l.Line = fn.script.line(position)
	}
	return l
}

// Bits of ScopeInfo::Flags.
const (
	v8ScopeTypeMask    = 15
	v8HasSavedClass    = 1 << 10
	v8HasFunctionName  = 3 << 12
	v8HasInferredName  = 1 << 14
	v8FunctionKind     = 17
	v8FunctionKindMask = 31
	v8LastFileKind     = 2  // of usual functions, modules, and modules that wait
	maxV8InlinedLocals = 75 // where there are as many they are in a table of their own
)

// v8Scope is what a ScopeInfo tells of a function.
type v8Scope struct {
	name      string // or what was inferred to be one
	start     int32  // where it begins in the script; -1: not known
	mayBeFile bool   // it is none that is within others only
}

// readScope reads a ScopeInfo.
func (vm *v8VM) readScope(scope uint64) v8Scope {
	is := v8Scope{start: -1}
	f := vm.fields
	slot := func(index uint64) uint64 {
		v, _ := vm.word(scope - 1 + v8ScopeFlags + 8*index)
		return v
	}
	flags := slot(0)
	if small, ok := smallInteger(flags); ok {
		flags = small
	}
	locals, ok := smallInteger(slot(f.locals))
	if !ok || locals > maxV8Listed {
		return is
	}
	is.mayBeFile = flags>>v8FunctionKind&v8FunctionKindMask <= v8LastFileKind
	at := f.firstLocal
	if flags&v8ScopeTypeMask == f.moduleScope {
		at++ // variables of the module
	}
	if locals < maxV8InlinedLocals {
		at += locals
	} else {
		at++
	}
	at += locals // what is known of each
	if flags&v8HasSavedClass != 0 {
		at++
	}
	if flags&v8HasFunctionName != 0 {
		is.name, _ = vm.text(slot(at), maxV8Name)
		at += 2
	}
	if flags&v8HasInferredName != 0 {
		if is.name == "" {
			is.name, _ = vm.text(slot(at), maxV8Name)
		}
		at++
	}
	if f.firstLocal == v8LateLocals {
		at = v8ScopeStart
	}
	if start, ok := smallInteger(slot(at)); ok {
		is.start = int32(start)
	}
	return is
}

// scriptAt returns what is known of a Script, nil where it is none.
func (vm *v8VM) scriptAt(addr uint64) *v8Script {
	if typ, ok := vm.typeOf(addr); !ok || typ != vm.fields.scriptType {
		return nil
	}
	name, _ := vm.word(addr - 1 + v8ScriptName)
	source, _ := vm.word(addr - 1 + v8ScriptSource)
	is := [2]uint64{name, source}
	s := vm.scripts[addr]
	if s != nil && s.is == is {
		return s
	}
	s = &v8Script{is: is}
	s.name, _ = vm.text(name, maxV8Name)
	if u, err := url.Parse(s.name); err == nil && u.Scheme == "file" {
		s.name = u.Path
	}
	if !isPrintable(s.name) {
		s.name = ""
	}
	first, _ := vm.word(addr - 1 + v8ScriptLineOffset)
	if n, ok := smallInteger(first); ok {
		s.first = int(int32(n))
	}
	s.ends = vm.lines.share(vm.scriptLines(addr, source))
	if len(vm.scripts) >= maxV8Scripts {
		clear(vm.scripts)
	}
	vm.scripts[addr] = s
	return s
}

// scriptLines returns where the lines of a script end, as V8 has counted them or as they are in its source.
func (vm *v8VM) scriptLines(script, source uint64) []int32 {
	array, _ := vm.word(script - 1 + v8ScriptLineEnds)
	if typ, ok := vm.typeOf(array); ok && typ == vm.fields.arrayType {
		n, _ := vm.lengthOf(array) // 0: they are not counted yet
		words := make([]byte, 8*min(n, maxV8Source/8))
		if n > 0 && vm.read(array-1+v8Data, words) {
			ends := make([]int32, len(words)/8)
			for i := range ends {
				ends[i] = int32(binary.LittleEndian.Uint64(words[8*i:]) >> 32)
			}
			return ends
		}
	}
	text, ok := vm.textAt(source)
	if !ok || text.n > maxV8Source {
		return nil
	}
	return vm.lineEnds(text)
}

// v8Lines are ends of lines that scripts of several processes have in common.
type v8Lines map[uint64][]int32

const maxV8Lines = 1 << 14 // scripts

// share returns ends that are the same, if there are such already.
func (l v8Lines) share(ends []int32) []int32 {
	key := uint64(len(ends))
	for _, end := range ends {
		key = (key ^ uint64(uint32(end))) * 0x9e3779b97f4a7c15
		key ^= key >> 32
	}
	if known := l[key]; slices.Equal(known, ends) {
		return known
	}
	if len(l) >= maxV8Lines {
		clear(l)
	}
	ends = slices.Clip(ends)
	l[key] = ends
	return ends
}

// line returns the line of a position, 0 where that is not known.
func (s *v8Script) line(position int32) int {
	if position < 0 || len(s.ends) == 0 {
		return 0
	}
	i, _ := slices.BinarySearch(s.ends, position)
	return s.first + i + 1
}
