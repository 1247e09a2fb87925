package mcode

import "github.com/swbpf/swbpf/procstate"

// RegisterX86 is the DWARF number of a register as instructions encode it.
func RegisterX86(arch *procstate.Arch, n byte) procstate.Reg {
	if arch == procstate.I386 {
		return procstate.Reg(n)
	}
	return [8]procstate.Reg{0, 2, 1, 3, 7, 6, 4, 5}[n] // ax cx dx bx sp bp si di
}

// The instructions push and pop of a register, whose number is in their last bits.
const (
	PushAMD64 = 0x50
	PopAMD64  = 0x58
)

// OneRegister takes such an instruction apart.
func OneRegister(code []byte) (op byte, reg procstate.Reg) {
	const extended, last = 0x41, 7
	switch {
	case len(code) == 1:
		return code[0] &^ last, RegisterX86(procstate.AMD64, code[0]&last)
	case len(code) == 2 && code[0] == extended:
		return code[1] &^ last, procstate.Reg(8 + code[1]&last)
	}
	return 0, 0
}

// FirstArgument is the register in which functions of C take their first argument, by the ABIs for 64 bits.
func FirstArgument(a *procstate.Arch) procstate.Reg {
	const rdi, x0 = 5, 0
	if a == procstate.ARM64 {
		return x0
	}
	return rdi
}
