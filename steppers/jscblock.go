package steppers

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// jscBlock is a CodeBlock: a function as one of the compilers has it, or the interpreter.
type jscBlock struct {
	is       jscBlockIs
	function *jscFunction
	code     jscCode
	serial   uint32
	isProven bool      // a frame has had it together with its function
	checked  time.Time // when it was seen to be that
}

// jscBlockIs is by what a CodeBlock is known.
type jscBlockIs struct {
	structure             uint32
	unlinked, owner, code uint64
}

// jscCode is a JITCode.
type jscCode struct {
	tier         jscTier
	made         vaddrRange // what a compiler has made; the interpreter: a jump to it, which all functions have
	entry, arity uint64     // run-time addresses
	pool         uint64     // a CodeOriginPool; 0: it is code that nothing is inlined into
}

// runs reports whether the code may be at pc.
func (c *jscCode) runs(at *jscAt) bool {
	if at.interprets { // code of the baseline compiler takes the place of the interpreter's
		return c.tier <= jscBaseline
	}
	return c.tier >= jscBaseline && c.made.holds(at.pc)
}

// inArity reports whether pc is where the code has no frame yet that is entered with too few arguments.
func (c *jscCode) inArity(w *unwind.Walker, at *jscAt) bool {
	if at.interprets {
		return false
	}
	_, _, ok := c.checksArity(w, at.pc)
	return ok
}

// isForLoop reports whether the code is entered in a loop only, from that of another compiler, whose frame it takes
// over: it leaves that, and jumps to where it begins itself (JITCompilationMode::FTLForOSREntry in
// ftl/FTLCompile.cpp). The frame has its CodeBlock before that.
//
//	mov %rbp,%rsp
//	pop %rbp
//	jmp start
func (c *jscCode) isForLoop() bool { return c.tier == jscFTL && c.entry != c.made.start }

// hasFrame reports whether the frame is the code's at pc, which is in it, and has its CodeBlock.
func (c *jscCode) hasFrame(w *unwind.Walker, at *jscAt) bool {
	forLoop := !at.interprets && c.isForLoop()
	switch {
	case forLoop && at.pc == c.entry+jscLeaveBytes:
		return at.state == jscJumps
	case at.state == jscJumps || at.state == jscPopped:
		return false
	case at.enters:
		return forLoop
	}
	return !c.inArity(w, at)
}

const jscLeaveBytes = 3 + 1 // mov and pop

// start is where the code begins, 0 in the interpreter.
func (at *jscAt) start(c *jscCode) uint64 {
	if at.interprets {
		return 0
	}
	return c.made.start
}

// isCell reports whether something may be at an address in the heap.
func isJSCCell(addr uint64) bool {
	return addr%8 == 0 && addr >= 1<<16 && addr < maxJSCAddress
}

// classOf returns what a cell is.
func (vm *jscVM) classOf(cell uint64) jscClass {
	if !isJSCCell(cell) {
		return jscOther
	}
	v, ok := vm.wordNow(cell)
	if !ok {
		return jscOther
	}
	return vm.classOfStructure(uint32(v))
}

// classOfStructure returns what cells with a structure are. Its lowest bit is set while it changes.
func (vm *jscVM) classOfStructure(number uint32) jscClass {
	if number == 0 {
		return jscOther
	}
	if c, known := vm.classes[number]; known {
		return c
	}
	info, ok := vm.wordNow(vm.structures + uint64(number&^1) + jscStructureClass)
	if !ok || !vm.file.holds(info) {
		return jscOther
	}
	at, ok := vm.wordNow(info)
	if !ok || !vm.file.holds(at) {
		return jscOther
	}
	var name [maxJSCClassName]byte
	if !vm.readNow(at, name[:]) {
		return jscOther
	}
	end := bytes.IndexByte(name[:], 0)
	if end < 0 {
		return jscOther
	}
	c := jscClasses[string(name[:end])]
	if c.stays() {
		vm.classes[number] = c
	}
	return c
}

// blockAt returns the CodeBlock at an address, nil where there is none or nothing else is known. What
// does not run what it was to is looked at again.
func (vm *jscVM) blockAt(cell uint64, at *jscAt) *jscBlock {
	if !isJSCCell(cell) {
		return nil
	}
	b, now := vm.blocks[cell], time.Now()
	if b != nil {
		passed := now.Sub(b.checked)
		if passed < jscInterval && (passed < jscSoon || b.code.runs(at)) {
			return b
		}
	}
	var raw [jscBlockBytes]byte
	if !vm.readNow(cell, raw[:]) {
		return nil
	}
	le := binary.LittleEndian
	is := jscBlockIs{le.Uint32(raw[:]), le.Uint64(raw[jscBlockUnlinked:]), le.Uint64(raw[jscBlockOwner:]), le.Uint64(raw[jscBlockCode:])}
	if b != nil && b.is == is {
		b.checked = now
		return b
	}
	class := vm.classOfStructure(is.structure)
	if class != jscFunctionBlock && class != jscFileBlock {
		return nil
	}
	code, ok := vm.codeAt(is.code)
	if !ok {
		return nil
	}
	f := vm.functionAt(is.owner, is.unlinked)
	if f == nil {
		return nil
	}
	isProven := b != nil && b.isProven && b.function == f && b.is.owner == is.owner && b.is.unlinked == is.unlinked
	if len(vm.blocks) >= maxJSCBlocks {
		clear(vm.blocks)
	}
	vm.serial++
	b = &jscBlock{is: is, function: f, code: code, serial: vm.serial, isProven: isProven, checked: now}
	vm.blocks[cell] = b
	return b
}

// codeAt reads a JITCode.
func (vm *jscVM) codeAt(addr uint64) (c jscCode, ok bool) {
	var raw [jscCodeBytes]byte
	if !isJSCCell(addr) || !vm.readNow(addr, raw[:]) {
		return c, false
	}
	le := binary.LittleEndian
	c = jscCode{tier: jscTier(raw[jscCodeTier]), entry: le.Uint64(raw[jscCodeEntry:])}
	switch c.tier {
	case jscInterpreter:
		c.arity = le.Uint64(raw[jscCodeArity:])
		return c, true
	case jscBaseline, jscDFG:
		c.arity = le.Uint64(raw[jscCodeArity:])
		c.made = vm.memoryAt(le.Uint64(raw[jscCodeMemory:]), c.entry)
	case jscFTL:
		var own [jscLastFTL - jscFirstFTL]byte
		if !vm.readNow(addr+jscFirstFTL, own[:]) {
			return c, false
		}
		for b := own[:]; len(b) >= jscFTLArity+8 && c.made.end == 0; b = b[8:] {
			start, arity := le.Uint64(b), le.Uint64(b[jscFTLArity:])
			if start != c.entry && arity != c.entry {
				continue
			}
			if made := vm.memoryAt(le.Uint64(b[8:]), start); made.holds(c.entry) {
				c.made, c.arity = made, arity
			}
		}
	}
	switch c.tier {
	case jscDFG:
		c.pool, _ = vm.wordNow(addr + jscPoolDFG)
	case jscFTL:
		c.pool, _ = vm.wordNow(addr + jscPoolFTL)
	}
	return c, c.made.end != 0
}

// memoryAt reads what memory code has that begins at start: in Bun 1.4 from a MetaAllocatorHandle, else from
// an ExecutableMemoryHandle. It is empty where that is not so.
func (vm *jscVM) memoryAt(handle, start uint64) vaddrRange {
	const (
		bytes, begins       = 0x04, 0x08 // (32 bits, 64 bits)
		metaBegins, metaEnd = 0x30, 0x38
	)
	var raw [metaEnd + 8]byte
	if !isJSCCell(handle) || !vm.readNow(handle, raw[:begins+8]) {
		return vaddrRange{}
	}
	le := binary.LittleEndian
	is := vaddrRange{start, start}
	switch {
	case le.Uint64(raw[begins:]) == start:
		is.end += uint64(le.Uint32(raw[bytes:]))
	case vm.readNow(handle, raw[:]) && le.Uint64(raw[metaBegins:]) == start:
		is.end = le.Uint64(raw[metaEnd:])
	}
	if is.end <= is.start || is.start < vm.made.start || is.end > vm.made.end {
		return vaddrRange{}
	}
	return is
}

// isOf reports whether a CodeBlock is that of the function that a frame has.
func (vm *jscVM) isOf(b *jscBlock, callee uint64) bool {
	if !b.isProven {
		if b.function.isFunction {
			b.isProven = vm.executableOf(callee) == b.is.owner
		} else {
			b.isProven = vm.classOf(callee) == jscCalleeCell
		}
	}
	return b.isProven
}

// executableOf returns the executable of a function, 0 where there is none.
func (vm *jscVM) executableOf(function uint64) uint64 {
	if vm.classOf(function) != jscFunctionCell {
		return 0
	}
	e, ok := vm.wordNow(function + jscFunctionIs)
	if ok && e&jscRareBit != 0 {
		rare := e &^ jscRareBit
		if vm.classOf(rare) != jscRareCell {
			return 0
		}
		e, ok = vm.wordNow(rare + jscRareIs)
	}
	if !ok {
		return 0
	}
	return e
}

// Bytes of code: where functions begin that have not set up their frames, jumps to the interpreter, and what
// calls native functions.
const (
	jscPrologue    = 1 + 3 // push and mov
	jscEntryBytes  = 128
	jscJumpBytes   = 16
	jscNativeBytes = 512
)

// entered returns the function with this executable, if its code at pc is what sets up the frame, and the
// code's address.
func (vm *jscVM) entered(w *unwind.Walker, e uint64, at *jscAt) (f *jscFunction, start uint64) {
	if vm.classOf(e) != jscFunctionExecutable {
		return nil, 0
	}
	if at.interprets {
		if !at.enters {
			return nil, 0
		}
		return vm.functionAt(e, 0), 0
	}
	for _, which := range [...]uint64{jscForCall, jscForNew} {
		addr, _ := vm.wordNow(e + which)
		c, ok := vm.codeAt(addr)
		if ok && c.enters(w, at) {
			return vm.functionAt(e, 0), c.made.start
		}
	}
	return nil, 0
}

// enters reports whether the code at pc is what sets up the frame, and that is where it is then.
func (c *jscCode) enters(w *unwind.Walker, at *jscAt) bool {
	if c.tier == jscInterpreter {
		return at.state == jscJumps && (at.pc-c.entry < jscJumpBytes || at.pc-c.arity < jscJumpBytes)
	}
	if !c.made.holds(at.pc) {
		return false
	}
	switch at.state {
	case jscJumps, jscPopped:
		state, reg, ok := c.checksArity(w, at.pc)
		at.reg = reg
		return ok && state == at.state
	case jscFrameSet:
		n := at.pc - c.entry
		return n >= jscPrologue && n < jscEntryBytes
	}
	return at.pc-c.entry <= jscPrologue
}

// checksArity tells whether pc is in the code that adds arguments when there are too few, before it goes on where
// the function's own code begins, and whether the return address is on the stack, which is jscJumps, or jscPopped:
//
//	mov  24(%rsp),%edx
//	cmp  $parameters,%edx
//	jae  entry
//	...
//	pop  %rsi
//	call that moves the frame
//	push %rsi
//	jmp  entry
func (c *jscCode) checksArity(w *unwind.Walker, pc uint64) (state jscState, reg procstate.Reg, ok bool) {
	if pc-c.arity >= jscArityBytes || c.arity == c.entry || !c.made.holds(c.arity) {
		return 0, 0, false
	}
	var buf [jscArityBytes]byte
	m := w.MappingAt(c.arity)
	if m == nil {
		return 0, 0, false
	}
	code := readCode(w, m, c.arity, buf[:])
	state = jscJumps
	var in isa.Inst
	for at := c.arity; decode(w.Arch(), code, at, &in); at += uint64(in.Len) {
		if at == pc {
			return state, reg, true
		}
		if op, r := oneRegister(code[:in.Len]); op == popAMD64 {
			state, reg = jscPopped, r
		} else if op == pushAMD64 {
			state = jscJumps
		}
		if in.Flow != isa.Next && in.Flow != isa.CondJump && in.Flow != isa.Call {
			break
		}
		code = code[in.Len:]
	}
	return 0, 0, false
}

const jscArityBytes = 96
