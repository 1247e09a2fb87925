package procstate

import (
	"encoding/binary"
	"fmt"
)

// regset describes the register block NT_PRSTATUS of an architecture, as
// PTRACE_GETREGSET returns it and core files hold it (struct user_regs_struct
// of the kernel's asm/user.h, struct user_pt_regs of arm64's asm/ptrace.h).
type regset struct {
	arch  *Arch
	words int   // length of the block in words of arch.AddressWidth
	regs  []Reg // the register of each word; NoReg for those not tracked
	tp    int   // word that holds the thread pointer, or -1
}

const noReg = NoReg

var regsets = []regset{
	{arch: AMD64, words: 27, tp: 21, regs: []Reg{
		15, 14, 13, 12, 6, 3, 11, 10, 9, 8, 0, 2, 1, 4, 5, // r15 .. rdi
		noReg, 16, noReg, noReg, 7}}, // orig_rax, rip, cs, eflags, rsp
	{arch: I386, words: 17, tp: -1, regs: []Reg{
		3, 1, 2, 6, 7, 5, 0, // ebx, ecx, edx, esi, edi, ebp, eax
		noReg, noReg, noReg, noReg, noReg, // ds, es, fs, gs, orig_eax
		8, noReg, noReg, 4}}, // eip, cs, eflags, esp
	{arch: ARM64, words: 34, tp: -1, regs: []Reg{
		0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,
		21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32}}, // x0 .. x30, sp, pc
}

// size is the length of the block in bytes.
func (r *regset) size() int { return r.words * r.arch.AddressWidth }

// regsetFor finds the block of an architecture.
func regsetFor(a *Arch) *regset {
	for i := range regsets {
		if regsets[i].arch == a {
			return &regsets[i]
		}
	}
	return nil
}

// regsetOfTask finds the block by its length: the kernel of a 64-bit host
// returns a shorter one for a 32-bit task.
func regsetOfTask(n int) *regset {
	for i := range regsets {
		if regsets[i].size() == n {
			return &regsets[i]
		}
	}
	return nil
}

// decode stores the block b, which has r.size() bytes, in regs.
func (r *regset) decode(b []byte, regs *Regs) {
	*regs = Regs{}
	width := r.arch.AddressWidth
	word := func(i int) uint64 {
		if width == 4 {
			return uint64(binary.LittleEndian.Uint32(b[i*4:]))
		}
		return binary.LittleEndian.Uint64(b[i*8:])
	}
	for i, reg := range r.regs {
		if reg != NoReg {
			regs.Set(reg, word(i))
		}
	}
	if r.tp >= 0 {
		regs.ThreadPointer = word(r.tp)
	}
}

// DecodeRegset stores in regs the general registers of b, a register block
// NT_PRSTATUS as PTRACE_GETREGSET returns it for a task of architecture a.
func DecodeRegset(a *Arch, b []byte, regs *Regs) error {
	r := regsetFor(a)
	if r == nil || len(b) < r.size() {
		return fmt.Errorf("register block of %d bytes for %s: %w", len(b), a.Name, ErrNotSupported)
	}
	r.decode(b, regs)
	return nil
}
