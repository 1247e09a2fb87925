package wazero

import (
	"encoding/binary"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
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
func (vm *machine) readFunction(at uint64) (fn function32) {
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
	return function32{module: m, index: le.Uint32(of[m.layout.index:]), until: time.Now().Add(interval)}
}

// calling returns the number of the functions that have called Go, which runs in what a frame of callWithStack has called:
// the innermost of them, with those that it was called by. It is 0 where none has, or that is not known. The receiver,
// which is put down above the return address, has all that tells. A sample has not: what it has is where that is.
func (vm *machine) calling(w *unwind.Walker, in *unwind.Frame) (number uint32) {
	if in.Flags&unwind.Interrupted != 0 || vm.Captured != nil {
		return 0
	}
	le := binary.LittleEndian
	at, ok := vm.Word(in.SP() + vm.calls.bytes + 8)
	var b [engineContext + contextBytes]byte
	if !ok || at == 0 || at%8 != 0 || !vm.Read(at, b[:]) || le.Uint32(b[engineContext+contextExitCode:]) == 0 {
		return 0
	}
	vm.addEngine(le.Uint64(b[engineParent:]))
	low, bytes := le.Uint64(b[engineStack:]), le.Uint64(b[engineStack+8:])
	fp, _ := vm.Word(at + engineContext + contextFP)
	if bytes > maxStack || fp-low >= bytes || fp%8 != 0 {
		return 0
	}
	stack := make([]byte, min(low+bytes-fp, maxCopied))
	if !vm.Read(fp, stack) {
		return 0
	}
	pcs := append(vm.pcs[:0], le.Uint64(b[engineContext+contextReturn:]))
	for off := uint64(0); off+16 <= uint64(len(stack)) && len(pcs) < maxDepth; {
		outer := le.Uint64(stack[off:])
		if outer == 0 {
			break // it was called from Go
		}
		pcs = append(pcs, le.Uint64(stack[off+8:])-1)
		if outer-fp <= off {
			return 0
		}
		off = outer - fp
	}
	vm.pcs = pcs
	for i := len(pcs) - 1; i >= 0; i-- {
		if n := vm.compiled(w.Codes(), pcs[i], number); n != 0 {
			number = n
		}
	}
	return number
}
