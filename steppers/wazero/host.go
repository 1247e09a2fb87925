package wazero

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// interpreted returns the number of the function that a frame of callNativeFunc interprets, 0 where that is not known. It is
// the last of the arguments, which the frame's function has put down above its return address.
func (vm *machine) interpreted(w *unwind.Walker, m *procstate.Mapping, in *unwind.Frame, buf []byte) uint32 {
	const argument = 8 + 4*8 // after the receiver, a context of two words and the instance of the module
	returns := in.SP() + vm.interprets.bytes
	if in.Flags&unwind.Interrupted != 0 {
		fp, ok := in.Regs.Value(w.Arch().FP)
		if !ok {
			return 0
		}
		if code := mcode.Read(w, m, in.PC(), buf[:1]); len(code) == 0 || code[0] == 0xc3 || code[0] == 0x5d {
			return 0 // it returns
		}
		if returns != fp+8 {
			return 0
		}
	}
	at, ok := vm.Word(returns + argument)
	if !ok {
		return 0
	}
	fn, known := vm.functions[at]
	if !known || time.Now().After(fn.until) {
		is := vm.readFunction(at)
		if is.module == nil {
			return 0
		}
		fn = is
		if len(vm.functions) >= maxCodes {
			clear(vm.functions)
		}
		vm.functions[at] = fn
	}
	return vm.number(w.Codes(), fn.module, fn.index, false, 0, 0)
}

// readFunction reads a function of the interpreter.
func (vm *machine) readFunction(at uint64) (fn interpretedFunction) {
	le := binary.LittleEndian
	var b [functionParent + 8]byte
	var of [compiledIndex]byte
	if at == 0 || at%8 != 0 || !vm.ReadNow(at, b[:]) || !vm.ReadNow(le.Uint64(b[functionParent:]), of[:]) {
		return fn
	}
	m := vm.moduleAt(le.Uint64(of[:]))
	if m == nil {
		return fn
	}
	return interpretedFunction{module: m, index: le.Uint32(of[m.layout.index:]), until: time.Now().Add(interval)}
}

// calling returns the number of the functions that have called Go, which runs in what a frame of callWithStack has called:
// the innermost of them, with those that it was called by. It is 0 where none has, or that is not known. top is the SP of the
// innermost frame of the walk.
func (vm *machine) calling(w *unwind.Walker, in *unwind.Frame, top uint64) (number uint32) {
	if in.Flags&unwind.Interrupted != 0 {
		return 0
	}
	pcs := vm.callers(vm.Read, in.SP())
	if _, isSample := vm.Mem.(*procstate.Snapshot); len(pcs) == 0 && vm.Captured != nil && !isSample {
		// It was not copied: of a goroutine that waits. What is there now is what was there as long as that does. A sample is too
		// old for that: the next call can look the same.
		if pcs = vm.callers(vm.ReadNow, in.SP()); !vm.isUnchanged(top, in.SP()+vm.calls.bytes) {
			return 0
		}
	}
	for i := len(pcs) - 1; i >= 0; i-- {
		if n := vm.compiled(w.Codes(), pcs[i], true, number); n != 0 {
			number = n
		}
	}
	return number
}

// isUnchanged reports whether the stack is as it was captured, from the innermost frame of the walk up to an address.
func (vm *machine) isUnchanged(from, end uint64) bool {
	n := end - from
	if n == 0 || n > maxGoStack {
		return false
	}
	vm.stack = append(vm.stack[:0], make([]byte, 2*n)...)
	was, is := vm.stack[:n], vm.stack[n:]
	return vm.Read(from, was) && vm.ReadNow(from, is) && bytes.Equal(was, is)
}

// callEngine is what is read of one.
type callEngine [engineContext + contextFP + 8]byte

func (c *callEngine) word(at uint64) uint64 { return binary.LittleEndian.Uint64(c[at:]) }

// stack is that of compiled code.
func (c *callEngine) stack() (s mcode.Range, ok bool) {
	s.Start = c.word(engineStack)
	n := c.word(engineStack + 8)
	s.End = s.Start + n
	return s, n > 0 && n <= maxStack && s.Start%8 == 0 && c.word(engineContext+contextBottom)-s.Start < n
}

// engineOf reads the call engine of a frame of callWithStack, whose SP is given. It is the receiver, which is put down
// above the return address, and it has gone over to compiled code from there.
func (vm *machine) engineOf(read vmread.Reader, sp uint64, c *callEngine) (at uint64, ok bool) {
	at, ok = read.Word(sp + vm.calls.bytes + 8)
	if !ok || at == 0 || at%8 != 0 || !read(at, c[:]) {
		return 0, false
	}
	from := c.word(engineContext + contextGoSP)
	return at, from == vm.ways[0].from(sp) || from == vm.ways[1].from(sp)
}

// from returns where the return address to the wrapper is that a frame with an SP calls.
func (y *way) from(sp uint64) uint64 { return sp - 16 - y.bytes }

// callers returns where the functions are that have called Go, which a frame of callWithStack with an SP has called for them,
// innermost first; nil where there are none. It is valid until the next call.
func (vm *machine) callers(read vmread.Reader, sp uint64) (pcs []uint64) {
	var c callEngine
	_, ok := vm.engineOf(read, sp, &c)
	stack, isStack := c.stack()
	fp := c.word(engineContext + contextFP)
	if !ok || !isStack || uint32(c.word(engineContext+contextExitCode)) == 0 || !stack.Holds(fp) || fp%8 != 0 {
		return nil
	}
	vm.addEngine(c.word(engineParent))
	vm.stack = append(vm.stack[:0], make([]byte, min(stack.End-fp, maxCopied))...)
	if !read(fp, vm.stack) {
		return nil
	}
	le := binary.LittleEndian
	pcs = append(vm.pcs[:0], c.word(engineContext+contextReturn))
	for off := uint64(0); off+16 <= uint64(len(vm.stack)) && len(pcs) < maxDepth; {
		outer := le.Uint64(vm.stack[off:])
		if outer == 0 {
			break // it was called from Go
		}
		pcs = append(pcs, le.Uint64(vm.stack[off+8:])-1)
		if outer-fp <= off {
			return nil
		}
		off = outer - fp
	}
	vm.pcs = pcs
	return pcs
}
