package steppers

import (
	"bytes"
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
)

// Numbers of the exit system call, which ends one thread.
const (
	sysExitAMD64 = 60
	sysExitARM64 = 93
	sysExitI386  = 1
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
	switch a {
	case procstate.ARM64:
		number, exit = 8, sysExitARM64
	case procstate.I386:
		exit = sysExitI386
	}
	var in isa.Inst
	var nr int64 = -1
	for range maxStartInsts {
		if !mcode.Decode(a, at, 0, &in) {
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

// maxThreadEnd bounds the code between the call of a thread's function and the
// end of the thread, in bytes.
const maxThreadEnd = 20

// isThreadEnd reports whether a PC, with the code before it, is behind the
// system call that ends a thread whose function has returned. What is there is
// another way through the function.
func isThreadEnd(a *procstate.Arch, before []byte) bool {
	if a != procstate.AMD64 || !bytes.HasSuffix(before, syscall64) {
		return false
	}
	for n := len(syscall64); n <= min(maxThreadEnd, len(before)); n++ {
		if i := len(before) - n; isThreadStart(a, before[:i], before[i:], false) {
			return true
		}
	}
	return false
}

// maxAfterSyscall bounds the instructions between the system call that makes a
// thread and the place where the new thread goes a way of its own.
const maxAfterSyscall = 8

// isCloneChild reports whether code is where a thread goes that has just been
// made: from the system call, which returned 0 to it, to the start of a
// thread. at is the code from the PC on, before what precedes it.
func isCloneChild(a *procstate.Arch, before, at []byte) bool {
	call := syscall64
	switch a {
	case procstate.ARM64:
		call = svcARM64
	case procstate.I386:
		call = int80
	}
	code, pc := slices.Concat(before, at), uint64(len(before))
	for from := max(0, len(before)-24); from+len(call) <= len(before); from++ {
		if !bytes.HasPrefix(code[from:], call) {
			continue
		}
		off, passed := uint64(from+len(call)), false
		var in isa.Inst
		for range maxAfterSyscall {
			passed = passed || off == pc
			if passed && isThreadStart(a, nil, code[off:], true) {
				return true
			}
			if !mcode.Decode(a, code[off:], off, &in) || in.Flow != isa.Next && in.Flow != isa.CondJump {
				break
			}
			if off += uint64(in.Len); in.Flow == isa.CondJump && takenOnZero(a, code[off-uint64(in.Len):]) {
				off = in.Target
			}
			if off >= uint64(len(code)) {
				break
			}
		}
	}
	return false
}

// takenOnZero reports whether the conditional branch at the start of code is
// taken after the result of a system call, 0, was compared with 0.
func takenOnZero(a *procstate.Arch, code []byte) bool {
	if a == procstate.ARM64 {
		switch op := code[3]; {
		case op&0x7f == 0x34: // cbz
			return true
		case op == 0x54: // b.cond: eq, cs, pl, vc, ls, ge, le
			return 1<<(code[0]&15)&(1<<0|1<<2|1<<5|1<<7|1<<9|1<<10|1<<13) != 0
		}
		return false
	}
	cond := code[0]
	if cond == 0x0f && len(code) > 1 {
		cond = code[1]
	}
	return 1<<(cond&15)&(1<<1|1<<3|1<<4|1<<6|1<<9|1<<10|1<<13|1<<14) != 0 // no, ae, e, be, ns, p, ge, le
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
		case isa.Store, isa.Scratch, isa.Compare, isa.StoreIndexed:
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
	case procstate.AMD64, procstate.I386: // call *%reg
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

// inContextStart reports whether code is that of __start_context, anywhere
// from its first instruction on, where the PC is at an offset of it.
func inContextStart(a *procstate.Arch, code []byte, pc int) bool {
	if isContextStart(a, code[pc:]) {
		return true
	}
	first := startContextAMD64
	if a == procstate.ARM64 {
		first = startContextARM64
	}
	var in isa.Inst
	for from := 0; ; from++ {
		i := bytes.Index(code[from:], first)
		if i < 0 || from+i >= pc {
			return false
		}
		from += i
		if !isContextStart(a, code[from:]) {
			continue
		}
		at := from
		for at < pc && mcode.Decode(a, code[at:], 0, &in) && !in.Ends() {
			at += int(in.Len)
		}
		if at == pc {
			return true
		}
	}
}

// startCoroutine is how a coroutine of Boost.Context begins, and one of PHP, which
// has its code: with the address of what follows as the return address, it jumps to
// the coroutine's function.
//
//	push %rbp
//	jmp  *%rbx
//	xor  %rdi,%rdi
//	call _exit
//	hlt
var startCoroutine = []byte{0x55, 0xff, 0xe3}

// makeCoroutineARM64 is how on AArch64 the function ends that makes one, in front of where the coroutine's
// function returns to.
var makeCoroutineARM64 = []byte{
	0x61, 0x00, 0x00, 0x10, // adr x1,.+12
	0x01, 0x4c, 0x00, 0xf9, // str x1,[x0,#152]
	0xc0, 0x03, 0x5f, 0xd6, // ret
}

// inCoroutineStart reports whether a PC, with the code before it and that from
// it on, is where a coroutine begins: at one of the two instructions when it was
// interrupted, behind them when it has called.
func inCoroutineStart(a *procstate.Arch, before, at []byte, interrupted bool) bool {
	if a == procstate.ARM64 {
		return !interrupted && bytes.HasSuffix(before, makeCoroutineARM64)
	}
	if a != procstate.AMD64 {
		return false
	}
	if !interrupted {
		return bytes.HasSuffix(before, startCoroutine) && neverGoesOn(at)
	}
	for n := range 2 { // the second instruction is behind the first byte
		if bytes.HasSuffix(before, startCoroutine[:n]) && bytes.HasPrefix(at, startCoroutine[n:]) {
			return neverGoesOn(at[len(startCoroutine)-n:])
		}
	}
	return false
}

// neverGoesOn reports whether code makes one call, which does not come back:
// behind it is an instruction that faults.
func neverGoesOn(code []byte) bool {
	var in isa.Inst
	called := false
	for range 4 {
		if !isa.DecodeAMD64(code, 0, &in) {
			return false
		}
		switch {
		case in.Flow == isa.Trap:
			return called
		case !called && (in.Flow == isa.Call || in.Flow == isa.IndirectCall):
			called = true
		case called || in.Flow != isa.Next:
			return false
		}
		code = code[in.Len:]
	}
	return false
}

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
