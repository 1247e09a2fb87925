package loader

import "github.com/swbpf/swbpf/procstate"

// decodeRegs takes the registers from struct pt_regs (asm/ptrace.h) into the
// DWARF numbering of the program's architecture.
func (s *Sample) decodeRegs(h *sampleHeader) {
	r := &h.Regs
	s.Regs.ThreadPointer = h.ThreadPointer
	if s.User == UserCompat32 {
		s.Arch = procstate.I386
		for reg, v := range [...]uint64{r.Rax, r.Rcx, r.Rdx, r.Rbx, r.Rsp, r.Rbp, r.Rsi, r.Rdi, r.Rip} {
			s.Regs.Set(procstate.Reg(reg), v&0xffffffff)
		}
		return
	}
	s.Arch = procstate.AMD64
	for reg, v := range [...]uint64{
		r.Rax, r.Rdx, r.Rcx, r.Rbx, r.Rsi, r.Rdi, r.Rbp, r.Rsp,
		r.R8, r.R9, r.R10, r.R11, r.R12, r.R13, r.R14, r.R15, r.Rip,
	} {
		s.Regs.Set(procstate.Reg(reg), v)
	}
}

func stackPointer(h *sampleHeader) uint64 { return h.Regs.Rsp }
