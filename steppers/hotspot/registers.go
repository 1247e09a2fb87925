package hotspot

import "github.com/swbpf/swbpf/procstate"

// codeRegs are what the code of HotSpot keeps in registers (register_x86.hpp, register_aarch64.hpp): the interpreter the
// address of the bytecode that it runs and that of the Method which it enters, and all code that of the JavaThread.
type codeRegs struct {
	bytecode, method, thread procstate.Reg
	// popped has where the method that the interpreter enters returns to, while its arguments are made variables.
	popped procstate.Reg
	// sender has the caller's SP until the frame of a method is there, from JDK 21 on sender21; operands has it when the
	// frame is gone, and else where the operands of the bytecode are.
	sender, sender21, operands procstate.Reg
}

var (
	codeRegsAMD64 = codeRegs{bytecode: 13, method: 3, thread: 15, popped: 0, sender: 13, sender21: 13, operands: procstate.NoReg}
	codeRegsARM64 = codeRegs{bytecode: 22, method: 12, thread: 28, popped: procstate.NoReg, sender: 13, sender21: 19, operands: 20}
)

// senderOf returns the register that has the caller's SP.
func (r *codeRegs) senderOf(vm *machine) procstate.Reg {
	if vm.release() >= 21 {
		return r.sender21
	}
	return r.sender
}

// codeRegsOf returns the registers of an architecture, nil where they are not known.
func codeRegsOf(a *procstate.Arch) *codeRegs {
	switch a {
	case procstate.AMD64:
		return &codeRegsAMD64
	case procstate.ARM64:
		return &codeRegsARM64
	}
	return nil
}
