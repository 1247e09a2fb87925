package loader

import (
	"slices"

	"golang.org/x/arch/x86/x86asm"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/procstate"
)

// placeBytes is how much code of a function is looked at for a place.
const placeBytes = 64

// argumentRegisters are those of x86-64 that have the arguments of allocators, of any size.
var argumentRegisters = []x86asm.Reg{
	x86asm.RDI, x86asm.EDI, x86asm.DI, x86asm.DIB, x86asm.RSI, x86asm.ESI, x86asm.SI, x86asm.SIB, x86asm.RDX, x86asm.EDX, x86asm.DX, x86asm.DL, x86asm.DH,
}

// cheapPlace returns where a probe of an allocator's entry is put: at the first push, if all that comes before it is run
// each time and leaves the arguments as they are. x86's kernel does itself what a push does; most
// other instructions it has to run elsewhere, which takes two more interrupts. Of free the test whether there is a block
// may come before, as nothing is looked for where there is none.
func cheapPlace(im *procstate.Image, offset uint64, program string) uint64 {
	if im.Arch() != procstate.AMD64 {
		return offset
	}
	code := make([]byte, placeBytes)
	n, _ := im.ReadAt(code, int64(offset))
	tested := false // the last instruction has compared the first argument with 0
	for at := 0; at < n; {
		inst, err := x86asm.Decode(code[at:n], 64)
		if err != nil {
			return offset
		}
		switch inst.Op {
		case x86asm.PUSH:
			if _, ok := inst.Args[0].(x86asm.Reg); ok {
				return offset + uint64(at)
			}
		case x86asm.MOV, x86asm.LEA, x86asm.SUB, x86asm.XOR:
			if reg, ok := inst.Args[0].(x86asm.Reg); !ok || slices.Contains(argumentRegisters, reg) {
				return offset
			}
		case x86asm.TEST, x86asm.CMP:
		case x86asm.JE:
			if !tested || program != gen.SamplerProgOnFree {
				return offset
			}
		default:
			return offset
		}
		tested = inst.Op == x86asm.TEST && inst.Args[0] == x86asm.RDI && inst.Args[1] == x86asm.RDI
		at += inst.Len
	}
	return offset
}
