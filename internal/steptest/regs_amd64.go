package steptest

import (
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// Registers implements procstate.ProcessState.
func (p *Process) Registers(tid procstate.ThreadID, regs *procstate.Regs) error {
	if tid == procstate.DefaultThread {
		tid = procstate.ThreadID(p.pid)
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
