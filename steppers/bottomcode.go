package steppers

import (
	"bytes"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// sysExit is the number of the exit system call, which ends one thread.
const (
	sysExitAMD64 = 60
	sysExitARM64 = 93
)

// maxStartInsts bounds the instructions between a thread's first and the
// system call that ends it.
const maxStartInsts = 16

// isThreadStart reports whether code is where a new thread starts: it calls
// the thread's function through a register and, when that returns, ends the
// thread by a system call. at is the code from the PC on, before what
// precedes it. A frame that is in a call has just been returned to; one that
// was interrupted may be anywhere from the first instruction of the thread.
func isThreadStart(a *procstate.Arch, before, at []byte, interrupted bool) bool {
	called := endsWithIndirectCall(a, before)
	if !interrupted && !called {
		return false
	}
	number := procstate.Reg(rax)
	exit := int64(sysExitAMD64)
	if a == procstate.ARM64 {
		number, exit = 8, sysExitARM64
	}
	var in isa.Inst
	var nr int64 = -1
	for range maxStartInsts {
		if !decode(a, at, 0, &in) {
			return false
		}
		switch in.Flow {
		case isa.Next:
		case isa.IndirectCall:
			if !interrupted || called {
				return false
			}
			called = true
			nr = -1
		case isa.Syscall:
			return called && nr == exit
		default:
			return false
		}
		if n, ok := loadsNumber(a, at[:in.Len], &in, number, nr); ok {
			nr = n
		}
		at = at[in.Len:]
	}
	return false
}

// loadsNumber returns the value of a register that is to hold the number of a
// system call, after an instruction that sets it. before is the value
// that it had.
func loadsNumber(a *procstate.Arch, code []byte, in *isa.Inst, number procstate.Reg, before int64) (int64, bool) {
	if a == procstate.AMD64 && len(code) == 2 && code[0] == 0xb0 && before == 0 { // mov $n,%al
		return int64(code[1]), true
	}
	for _, op := range in.Ops[:in.NumOps] {
		if op.Dst != number {
			continue
		}
		switch op.Kind {
		case isa.Const:
			return op.Imm, true
		case isa.Store, isa.Scratch, isa.Compare:
		default:
			return -1, true
		}
	}
	return 0, false
}

// endsWithIndirectCall reports whether code ends with a call through a
// register.
func endsWithIndirectCall(a *procstate.Arch, code []byte) bool {
	n := len(code)
	switch a {
	case procstate.AMD64: // call *%reg
		return n >= 2 && code[n-2] == 0xff && code[n-1]&0xf8 == 0xd0
	case procstate.ARM64: // blr reg
		return n >= 4 && code[n-4]&0x1f == 0 && code[n-3]&0xfc == 0 && code[n-2] == 0x3f && code[n-1] == 0xd6
	}
	return false
}

// The first instructions of glibc's __start_context, which the function of a
// makecontext coroutine returns to: it takes uc_link from its stack, or from
// a register, and goes on there if there is one.
var (
	startContextAMD64 = []byte{
		0x48, 0x89, 0xdc, // mov %rbx,%rsp
		0x48, 0x8b, 0x3c, 0x24, // mov (%rsp),%rdi
		0x48, 0x85, 0xff, // test %rdi,%rdi
	}
	startContextARM64 = []byte{
		0xe0, 0x03, 0x13, 0xaa, // mov x0,x19
		// cbnz x0 follows, or cbz
	}
)

// isContextStart reports whether code is that of __start_context. With
// shadow stacks enabled it begins with another test, but glibc for x86-64 is
// not built so for a kernel without them.
func isContextStart(a *procstate.Arch, at []byte) bool {
	at = bytes.TrimPrefix(at, []byte{0xf3, 0x0f, 0x1e, 0xfa}) // endbr64
	switch a {
	case procstate.AMD64:
		return bytes.HasPrefix(at, startContextAMD64)
	case procstate.ARM64:
		rest, ok := bytes.CutPrefix(at, startContextARM64)
		return ok && len(rest) >= 4 && rest[3]&0xfe == 0xb4 && rest[0]&0x1f == 0
	}
	return false
}
