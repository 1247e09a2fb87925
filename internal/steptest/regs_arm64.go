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
	*regs = procstate.Regs{}
	for i, v := range r.Regs {
		regs.Set(procstate.Reg(i), v)
	}
	regs.Set(procstate.ARM64.SP, r.Sp)
	regs.Set(procstate.ARM64.PC, r.Pc)
	return nil
}
