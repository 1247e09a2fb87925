package steptest

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// Registers implements procstate.ProcessState.
func (p *Process) Registers(tid procstate.ThreadID, regs *procstate.Regs) error {
	if tid == procstate.DefaultThread {
		tid = procstate.ThreadID(p.pid)
	}
	if p.arch == procstate.I386 {
		return registersI386(int(tid), regs)
	}
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(int(tid), &r); err != nil {
		return err
	}
	*regs = procstate.Regs{ThreadPointer: r.Fs_base}
	for i, v := range [...]uint64{r.Rax, r.Rdx, r.Rcx, r.Rbx, r.Rsi, r.Rdi, r.Rbp, r.Rsp,
		r.R8, r.R9, r.R10, r.R11, r.R12, r.R13, r.R14, r.R15, r.Rip} {
		regs.Set(procstate.Reg(i), v)
	}
	return nil
}

// registersI386 is Registers of a 32-bit process, whose register set is that of i386 also
// for a tracer of 64 bits.
func registersI386(tid int, regs *procstate.Regs) error {
	const prstatus = 1 // NT_PRSTATUS
	var r unix.PtraceRegs386
	v := unix.Iovec{Base: (*byte)(unsafe.Pointer(&r)), Len: uint64(unsafe.Sizeof(r))}
	if _, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(tid), prstatus, uintptr(unsafe.Pointer(&v)), 0, 0); e != 0 {
		return e
	}
	*regs = procstate.Regs{}
	for i, v := range [...]int32{r.Eax, r.Ecx, r.Edx, r.Ebx, r.Esp, r.Ebp, r.Esi, r.Edi, r.Eip} {
		regs.Set(procstate.Reg(i), uint64(uint32(v)))
	}
	return nil
}
