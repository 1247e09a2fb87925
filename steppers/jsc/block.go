package jsc

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// block is a CodeBlock: a function as one of the compilers has it, or the interpreter.
type block struct {
	is       blockIs
	function *function
	code     code
	serial   uint32
	isProven bool      // a frame has had it together with its function
	checked  time.Time // when it was seen to be that
}

// blockIs is by what a CodeBlock is known.
type blockIs struct {
	structure                     uint32
	global, unlinked, owner, code uint64
}

// code is a JITCode.
type code struct {
	tier         compilerTier
	made         mcode.Range // what a compiler has made; the interpreter: a jump to it, which all functions have
	entry, arity uint64      // run-time addresses
	pool         uint64      // a CodeOriginPool; 0: it is code that nothing is inlined into
}

// runs reports whether the code may be at pc.
func (c *code) runs(at *framePoint) bool {
	if at.interprets { // code of the baseline compiler takes the place of the interpreter's
		return c.tier <= baseline
	}
	return c.tier >= baseline && c.made.Holds(at.pc)
}

// inArity reports whether pc is where the code has no frame yet that is entered with too few arguments.
func (c *code) inArity(w *unwind.Walker, a *arch, at *framePoint) bool {
	if at.interprets {
		return false
	}
	_, _, ok := c.checksArity(w, a, at.pc)
	return ok
}

// isForLoop reports whether the code is entered in a loop only, from that of another compiler, whose frame it takes
// over: it leaves that, and jumps to where it begins itself (JITCompilationMode::FTLForOSREntry in
// ftl/FTLCompile.cpp). The frame has its CodeBlock before that.
//
//	mov %rbp,%rsp
//	pop %rbp
//	jmp start
//
//	mov sp, x29
//	ldp x29, x30, [sp], #16
//	b   start
func (c *code) isForLoop() bool { return c.tier == ftl && c.entry != c.made.Start }

// hasFrame reports whether the frame is the code's at pc, which is in it, and has its CodeBlock.
func (c *code) hasFrame(w *unwind.Walker, a *arch, at *framePoint) bool {
	forLoop := !at.interprets && c.isForLoop()
	switch {
	case forLoop && at.pc == c.entry+a.leave():
		return at.state == jumps
	case at.state == jumps || at.state == popped:
		return false
	case at.enters:
		return forLoop
	}
	return !c.inArity(w, a, at)
}

// start is where the code begins, 0 in the interpreter.
func (at *framePoint) start(c *code) uint64 {
	if at.interprets {
		return 0
	}
	return c.made.Start
}

// isCell reports whether something may be at an address in the heap.
func isCell(addr uint64) bool {
	return addr%8 == 0 && addr >= 1<<16 && addr < maxAddress
}

// classOf returns what a cell is.
func (vm *machine) classOf(cell uint64) class {
	if !isCell(cell) {
		return other
	}
	v, ok := vm.WordNow(cell)
	if !ok {
		return other
	}
	return vm.classOfStructure(uint32(v))
}

// classOfStructure returns what cells with a structure are. Its lowest bit is set while it changes.
func (vm *machine) classOfStructure(number uint32) class {
	if number == 0 {
		return other
	}
	if c, known := vm.classes[number]; known {
		return c
	}
	info, ok := vm.WordNow(vm.structures + uint64(number&^1) + structureClass)
	if !ok || !vm.file.Holds(info) {
		return other
	}
	at, ok := vm.WordNow(info)
	if !ok || !vm.file.Holds(at) {
		return other
	}
	var name [maxClassName]byte
	if !vm.ReadNow(at, name[:]) {
		return other
	}
	end := bytes.IndexByte(name[:], 0)
	if end < 0 {
		return other
	}
	c := classes[string(name[:end])]
	if c.stays() {
		vm.classes[number] = c
	}
	return c
}

// blockAt returns the CodeBlock at an address, nil where there is none or nothing else is known. What
// does not run what it was to is looked at again.
func (vm *machine) blockAt(cell uint64, at *framePoint) *block {
	if !isCell(cell) {
		return nil
	}
	b, now := vm.blocks[cell], time.Now()
	if b != nil {
		passed := now.Sub(b.checked)
		if passed < interval && (passed < soon || b.code.runs(at)) || vm.hasEnded() {
			return b
		}
	}
	var raw [blockBytes]byte
	if !vm.ReadNow(cell, raw[:]) {
		return nil
	}
	le := binary.LittleEndian
	is := blockIs{le.Uint32(raw[:]), le.Uint64(raw[blockGlobal:]), le.Uint64(raw[blockUnlinked:]), le.Uint64(raw[blockOwner:]), 0}
	if vm.blockCode != 0 {
		is.code = le.Uint64(raw[vm.blockCode:])
	}
	if b != nil && b.is == is {
		b.checked = now
		return b
	}
	class := vm.classOfStructure(is.structure)
	if class != functionBlock && class != fileBlock {
		return nil
	}
	code, ok := vm.codeAt(is.code)
	for i := 0; vm.blockCode == 0 && i < len(blockCodes); i++ {
		is.code = le.Uint64(raw[blockCodes[i]:])
		if code, ok = vm.codeAt(is.code); ok {
			if ok = vm.made.Holds(code.entry) || vm.file.Holds(code.entry) || vm.interpreter.Holds(code.entry); ok {
				vm.blockCode = blockCodes[i]
			}
		}
	}
	if !ok {
		return nil
	}
	f := vm.functionAt(is.owner, is.unlinked)
	if f == nil {
		return nil
	}
	isProven := b != nil && b.isProven && b.function == f && b.is.owner == is.owner && b.is.unlinked == is.unlinked
	if len(vm.blocks) >= maxBlocks {
		clear(vm.blocks)
	}
	vm.serial++
	b = &block{is: is, function: f, code: code, serial: vm.serial, isProven: isProven, checked: now}
	vm.blocks[cell] = b
	return b
}

// codeAt reads a JITCode.
func (vm *machine) codeAt(addr uint64) (c code, ok bool) {
	var raw [codeBytes]byte
	if !isCell(addr) || !vm.ReadNow(addr, raw[:]) {
		return c, false
	}
	le := binary.LittleEndian
	c = code{tier: compilerTier(raw[codeTier]), entry: le.Uint64(raw[codeEntry:])}
	switch c.tier {
	case interpreter:
		c.arity = le.Uint64(raw[codeArity:])
		return c, true
	case baseline, dfg:
		c.arity = le.Uint64(raw[codeArity:])
		c.made = vm.memoryAt(le.Uint64(raw[codeMemory:]), c.entry)
	case ftl:
		var own [lastFTL - firstFTL]byte
		if !vm.ReadNow(addr+firstFTL, own[:]) {
			return c, false
		}
		for b := own[:]; len(b) >= ftlArity+8 && c.made.End == 0; b = b[8:] {
			start, arity := le.Uint64(b), le.Uint64(b[ftlArity:])
			if start != c.entry && arity != c.entry {
				continue
			}
			if made := vm.memoryAt(le.Uint64(b[8:]), start); made.Holds(c.entry) {
				c.made, c.arity = made, arity
			}
		}
	}
	switch c.tier {
	case dfg:
		c.pool, _ = vm.WordNow(addr + poolDFG)
	case ftl:
		c.pool, _ = vm.WordNow(addr + poolFTL)
	}
	return c, c.made.End != 0
}

// memoryAt reads what memory code has that begins at start: in Bun 1.4 from a MetaAllocatorHandle, else from
// an ExecutableMemoryHandle. It is empty where that is not so.
func (vm *machine) memoryAt(handle, start uint64) mcode.Range {
	const (
		bytes, begins       = 0x04, 0x08 // (32 bits, 64 bits)
		metaBegins, metaEnd = 0x30, 0x38
	)
	var raw [metaEnd + 8]byte
	if !isCell(handle) || !vm.ReadNow(handle, raw[:begins+8]) {
		return mcode.Range{}
	}
	le := binary.LittleEndian
	is := mcode.Range{Start: start, End: start}
	switch {
	case le.Uint64(raw[begins:]) == start:
		is.End += uint64(le.Uint32(raw[bytes:]))
	case vm.ReadNow(handle, raw[:]) && le.Uint64(raw[metaBegins:]) == start:
		is.End = le.Uint64(raw[metaEnd:])
	}
	if is.End <= is.Start || is.Start < vm.made.Start || is.End > vm.made.End {
		return mcode.Range{}
	}
	return is
}

// isOf reports whether a CodeBlock is that of the function that a frame has.
func (vm *machine) isOf(b *block, callee uint64) bool {
	if !b.isProven {
		if b.function.isFunction {
			b.isProven = vm.executableOf(callee) == b.is.owner
		} else {
			b.isProven = vm.classOf(callee) == calleeCell
		}
	}
	return b.isProven
}

// executableOf returns the executable of a function, 0 where there is none.
func (vm *machine) executableOf(function uint64) uint64 {
	if vm.classOf(function) != functionCell {
		return 0
	}
	e, ok := vm.WordNow(function + functionIs)
	if ok && e&rareBit != 0 {
		rare := e &^ rareBit
		if vm.classOf(rare) != rareCell {
			return 0
		}
		e, ok = vm.WordNow(rare + rareIs)
	}
	if !ok {
		return 0
	}
	return e
}

// Bytes of code: where functions begin that have not set up their frames, jumps to the interpreter, and what
// calls native functions.
const (
	entryBytes  = 128
	jumpBytes   = 16
	nativeBytes = 512
)

// entered returns the function with this executable, if its code at pc is what sets up the frame, and the
// code's address.
func (vm *machine) entered(w *unwind.Walker, e uint64, at *framePoint) (f *function, start uint64) {
	if vm.classOf(e) != functionExecutable {
		return nil, 0
	}
	if at.interprets {
		if !at.enters {
			return nil, 0
		}
		return vm.functionAt(e, 0), 0
	}
	for _, which := range [...]uint64{forCall, forNew} {
		addr, _ := vm.WordNow(e + which)
		c, ok := vm.codeAt(addr)
		if ok && c.enters(w, vm.arch, at) {
			return vm.functionAt(e, 0), c.made.Start
		}
	}
	return nil, 0
}

// enters reports whether the code at pc is what sets up the frame, and that is where it is then.
func (c *code) enters(w *unwind.Walker, a *arch, at *framePoint) bool {
	if c.tier == interpreter {
		return at.state == jumps && (at.pc-c.entry < jumpBytes || at.pc-c.arity < jumpBytes)
	}
	if !c.made.Holds(at.pc) {
		return false
	}
	switch at.state {
	case jumps, popped:
		state, reg, ok := c.checksArity(w, a, at.pc)
		at.reg = reg
		return ok && state == at.state
	case frameSet:
		n := at.pc - c.entry
		return n >= a.prologue() && n < entryBytes
	}
	return at.pc-c.entry <= a.prologue()
}

// checksArity tells whether pc is in the code that adds arguments when there are too few, before it goes on where
// the function's own code begins, and whether the return address is on the stack, which is jumps, or popped:
//
//	mov  24(%rsp),%edx
//	cmp  $parameters,%edx
//	jae  entry
//	...
//	pop  %rsi		mov x1, x30
//	call that moves the frame
//	push %rsi		mov x30, x1
//	jmp  entry
func (c *code) checksArity(w *unwind.Walker, a *arch, pc uint64) (state frameState, reg procstate.Reg, ok bool) {
	if pc-c.arity >= arityBytes || c.arity == c.entry || !c.made.Holds(c.arity) {
		return 0, 0, false
	}
	var buf [arityBytes]byte
	m := w.MappingAt(c.arity)
	if m == nil {
		return 0, 0, false
	}
	code := mcode.Read(w, m, c.arity, buf[:])
	state = jumps
	var in isa.Inst
	for at := c.arity; mcode.Decode(w.Arch(), code, at, &in); at += uint64(in.Len) {
		if at == pc {
			return state, reg, true
		}
		switch inst := code[:in.Len]; {
		case bytes.Equal(inst, a.take):
			state, reg = popped, a.arity
		case bytes.Equal(inst, a.give):
			state, reg = jumps, 0
		}
		if in.Flow != isa.Next && in.Flow != isa.CondJump && in.Flow != isa.Call {
			break
		}
		code = code[in.Len:]
	}
	return 0, 0, false
}

const arityBytes = 96
