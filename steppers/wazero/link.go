package wazero

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
)

// isCalled reports whether the frames around an entry may all have called each other: what an earlier call has left on the
// stack, data, which begins at an address, mostly ends in frames of later ones, that have called something else.
func (vm *machine) isCalled(data []byte, at uint64, e *entry) bool {
	table, err := procstate.Pclntab(vm.image)
	if err != nil {
		return true
	}
	inner, ok := table.Func(vm.calls.Start)
	frame := e.sp - at + 8 + e.way.bytes + vm.calls.bytes // where callWithStack has pushed the frame pointer
	for ok && frame+16 <= uint64(len(data)) {
		outer, ra := binary.LittleEndian.Uint64(data[frame:]), binary.LittleEndian.Uint64(data[frame+8:])-vm.bias
		f, ok := table.Func(ra - 1)
		if !ok {
			return true // of another file
		}
		if f.Flag&procstate.GoFuncAsm == 0 && !vm.calledFrom(table, ra, &inner) {
			return false
		}
		if outer == 0 {
			return true
		}
		frame, inner = outer-at, f
	}
	return true
}

// calledFrom reports whether the call before a link-time address, which compiled code returns to, may be of a function: a
// direct one is of that or of what jumps to it, as assembly may.
func (vm *machine) calledFrom(table *procstate.GoTable, ra uint64, inner *procstate.GoFunc) bool {
	var code [mcode.MaxCallLen]byte
	if vm.image.ReadVaddr(code[:], ra-uint64(len(code))) != nil {
		return true
	}
	target, direct, ok := mcode.CallBefore(procstate.AMD64, code[:], ra)
	if !ok || !direct || target == inner.Entry || inner.Flag&procstate.GoFuncAsm != 0 {
		return ok
	}
	f, ok := table.Func(target)
	if !ok || f.Flag&procstate.GoFuncAsm != 0 {
		return true
	}
	jumps := false
	eachInst(vm.image, &f, func(_ uint64, in *isa.Inst) bool {
		jumps = jumps || in.Flow == isa.Jump && in.Target == inner.Entry || in.Flow == isa.IndirectJump
		return !jumps
	})
	return jumps
}
