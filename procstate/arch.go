package procstate

import (
	"debug/elf"
	"runtime"
)

// Reg is a register in the DWARF numbering of an [Arch].
type Reg uint8

// NoReg stands for the absence of a register.
const NoReg Reg = 0xff

// MaxRegs is the largest NumRegs of any Arch: the size of a [Regs].
const MaxRegs = 33

// Arch describes a processor architecture and its ABI as far as a stack walk
// needs them. It is data: every architecture can be walked on every host.
type Arch struct {
	Name         string      // as GOARCH has it
	Machine      elf.Machine // e_machine of its ELF files
	AddressWidth int         // bytes in a pointer
	NumRegs      int         // DWARF registers 0 to NumRegs-1 are tracked
	PC, SP, FP   Reg         // program counter, stack and frame pointer
	LR           Reg         // link register; NoReg where calls push
	RA           Reg         // column of the return address in the ABI's CFI
	CalleeSaved  uint64      // bit r is set when a call preserves register r
	PCAlign      uint64      // code addresses are multiples of it
	RedZone      uint64      // bytes below SP that signal handlers leave alone
	BelowSP      uint64      // bytes below SP in which functions save registers, or have popped them from: samples have them
	AddrMask     uint64      // bits of a pointer that address memory
	CodeMask     uint64      // bits of a signed return address that are the address

	names [MaxRegs]string
}

// The architectures known. AMD64: System V ABI, AMD64 supplement, figure
// 3.36. ARM64: DWARF for the Arm 64-bit Architecture, table 1; number 32 is
// the PC by convention here, as in the kernel's perf interface. I386: System
// V ABI, Intel386 supplement, table 2.14.
var (
	AMD64 = &Arch{
		Name: "amd64", Machine: elf.EM_X86_64, AddressWidth: 8, NumRegs: 17,
		PC: 16, SP: 7, FP: 6, LR: NoReg, RA: 16,
		CalleeSaved: mask(3, 6, 7, 12, 13, 14, 15), PCAlign: 1, RedZone: 128, BelowSP: 6 * 8, AddrMask: ^uint64(0), CodeMask: ^uint64(0),
		names: [MaxRegs]string{"rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp",
			"r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip"},
	}
	ARM64 = &Arch{
		Name: "arm64", Machine: elf.EM_AARCH64, AddressWidth: 8, NumRegs: 33,
		PC: 32, SP: 31, FP: 29, LR: 30, RA: 30,
		CalleeSaved: mask(19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 31), PCAlign: 4,
		AddrMask: 1<<56 - 1, CodeMask: 1<<48 - 1,
		names: [MaxRegs]string{"x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9",
			"x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17", "x18", "x19", "x20",
			"x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29", "x30", "sp", "pc"},
	}
	I386 = &Arch{
		Name: "386", Machine: elf.EM_386, AddressWidth: 4, NumRegs: 9,
		PC: 8, SP: 4, FP: 5, LR: NoReg, RA: 8,
		CalleeSaved: mask(3, 4, 5, 6, 7), PCAlign: 1, AddrMask: 1<<32 - 1, CodeMask: 1<<32 - 1,
		names: [MaxRegs]string{"eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi", "eip"},
	}
)

func mask(regs ...Reg) (m uint64) {
	for _, r := range regs {
		m |= 1 << r
	}
	return m
}

// HostArch is the architecture of the running program, or nil when it is not
// one of those known.
func HostArch() *Arch {
	for _, a := range []*Arch{AMD64, ARM64, I386} {
		if a.Name == runtime.GOARCH {
			return a
		}
	}
	return nil
}

// ArchByMachine returns the architecture of an ELF e_machine, or nil.
func ArchByMachine(m elf.Machine) *Arch {
	for _, a := range []*Arch{AMD64, ARM64, I386} {
		if a.Machine == m {
			return a
		}
	}
	return nil
}

// RegName returns the assembler's name of r, or "" when the architecture has
// no such register.
func (a *Arch) RegName(r Reg) string {
	if int(r) >= a.NumRegs {
		return ""
	}
	return a.names[r]
}

// RegByName returns the register with the assembler's name, or NoReg.
func (a *Arch) RegByName(name string) Reg {
	for i, n := range a.names[:a.NumRegs] {
		if n == name {
			return Reg(i)
		}
	}
	return NoReg
}
