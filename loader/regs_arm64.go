package loader

import "github.com/swbpf/swbpf/procstate"

// decodeRegs takes the registers from struct user_pt_regs (asm/ptrace.h) into
// the DWARF numbering. 32-bit Arm is not known: such samples have none.
func (s *Sample) decodeRegs(h *sampleHeader) {
	if s.User != UserNative {
		return
	}
	r := &h.Regs
	s.Arch = procstate.ARM64
	s.Regs.ThreadPointer = h.ThreadPointer
	for reg, v := range r.X {
		s.Regs.Set(procstate.Reg(reg), v)
	}
	s.Regs.Set(s.Arch.SP, r.Sp)
	s.Regs.Set(s.Arch.PC, r.Pc)
}

func stackPointer(h *sampleHeader) uint64 { return h.Regs.Sp }
