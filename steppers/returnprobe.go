package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// ReturnProbes is the DynamicHelper for uretprobes, and for uprobes that are calls. The kernel makes a
// function under one return to a trampoline, from which the probe is run, and
// keeps the original return address to itself: the ProcessState has to say it,
// as a procstate.ProbedState. Without, such a stack ends at the trampoline, for
// the reason unwind.ReturnReplaced; memory alone cannot tell more.
type ReturnProbes struct{}

// IsInstrumentation implements DynamicHelper.
func (p *ReturnProbes) IsInstrumentation(w *unwind.Walker, f *unwind.Frame) (ins Instrumentation, ok bool) {
	probes := mcode.UserProbes(w)
	if probes == nil {
		probes = &mcode.NoProbes
	}
	if probes.Breakpoint != 0 && f.IsTop() {
		if pc := probedPC(w, f, probes); pc != f.PC() {
			return Instrumentation{OriginalPC: pc}, true
		}
	}
	offset, ok := mcode.InUprobesPage(w, probes, f.PC())
	if !ok {
		return atOptimizedProbe(w, f)
	}
	if f.Flags&unwind.Interrupted != 0 {
		return inTrampoline(w, f, probes, offset), true
	}
	if probes == &mcode.NoProbes {
		return ins, false // another helper may know
	}
	if offset == 0 {
		ins.OriginalPC = returnFor(probes, entrySP(w.Arch(), f.SP()))
	}
	return ins, true
}

// probedPC returns the PC that fits the other registers of a thread that the
// kernel may have stopped at a uprobe. The kernel executes the probed
// instruction in the thread's place, or lets the thread do so in a slot of the
// page of uprobes. Until then the PC is behind the breakpoint, and at
// it when the probe has run. A push that is emulated changes the stack first
// and the PC after.
func probedPC(w *unwind.Walker, f *unwind.Frame, probes *procstate.UserProbes) uint64 {
	pc, addr := f.PC(), probes.Breakpoint
	if probes.Slot != 0 {
		if done := pc - probes.Slot; done <= maxInstruction {
			return addr + done
		}
		return pc
	}
	m := w.MappingAt(addr)
	if m == nil || w.Arch() == procstate.ARM64 {
		return pc
	}
	var buf [2]byte
	code := mcode.Read(w, m, addr, buf[:])
	if len(code) < len(buf) || code[0] == mcode.BreakpointAMD64 {
		return pc // the program's own breakpoint
	}
	n, done, decided := hasExecuted(w, f, code)
	switch {
	case pc == addr && decided && done:
		return addr + n
	case pc == addr+1 && !(decided && done):
		return addr
	}
	return pc
}

// maxInstruction is the length of the longest instruction.
const maxInstruction = 15

// hasExecuted reports whether a push or pop at the start of code has had its
// effect, and its length. Other instructions are not decided.
func hasExecuted(w *unwind.Walker, f *unwind.Frame, code []byte) (n uint64, done, decided bool) {
	arch, mem := w.Arch(), w.ProcessState()
	n, high := 1, procstate.Reg(0)
	op := code[0]
	if arch == procstate.AMD64 && op == 0x41 { // REX.B: r8 to r15
		n, high, op = 2, 8, code[1]
	}
	reg := high + procstate.Reg(op&7)
	if high == 0 {
		reg = mcode.RegisterX86(arch, op&7)
	}
	at := f.SP()
	switch op &^ 7 {
	case 0x50: // push
	case 0x58: // pop
		at -= uint64(arch.AddressWidth)
	default:
		return 0, false, false
	}
	word, ok := mem.ReadWord(at)
	return n, ok && word == f.Regs.Raw(reg), true
}

// entrySP returns SP at the entry of a function that has just returned: where
// calls push the return address it has been popped since.
func entrySP(arch *procstate.Arch, sp uint64) uint64 {
	if arch.LR == procstate.NoReg {
		return sp - uint64(arch.AddressWidth)
	}
	return sp
}

// returnFor finds the original return address of the function that was
// entered with a stack pointer, 0 where it is not known. Functions that tail-called
// one another have an entry each, with the same address.
func returnFor(r *procstate.UserProbes, entry uint64) uint64 {
	for i := range r.Returns {
		if r.Returns[i].Stack == entry {
			return r.Returns[i].RA
		}
	}
	return 0
}

// The trampoline was a breakpoint instruction alone, and is since Linux 6.11
// for 64-bit programs on x86 (arch/x86/kernel/uprobes.c)
//
//	 0  push %rax
//	 1  push %rcx
//	 2  push %r11
//	 4  mov $NR_uretprobe,%rax
//	11  syscall                    puts the return address in place of rax
//	13  pop %r11
//	15  pop %rcx
//	16  ret
//
// in which the stack pointer is this far above the slot of the return address
// that was popped.
var trampolineHeights = [...]struct{ offset, height int64 }{ // read only
	{0, 8}, {1, 0}, {1, 8}, {2, -8}, {4, -16}, {11, -16}, {13, -16},
}

// inTrampoline finds where a thread goes to that was interrupted in the
// trampoline.
func inTrampoline(w *unwind.Walker, f *unwind.Frame, r *procstate.UserProbes, offset uint64) (ins Instrumentation) {
	arch := w.Arch()
	width := uint64(arch.AddressWidth)
	ins.CallerFP = f.FP()
	if arch != procstate.AMD64 {
		entry := entrySP(arch, f.SP())
		ins.CallerPC = returnFor(r, entry)
		ins.CallerSP = f.SP()
		return ins
	}
	// The function that returns is the innermost one; more than one offset
	// is possible only behind the breakpoint of older kernels.
	for i := range r.Returns {
		for _, t := range trampolineHeights {
			if uint64(t.offset) == offset && r.Returns[i].Stack == f.SP()-uint64(t.height) {
				ins.CallerPC, ins.CallerSP = r.Returns[i].RA, r.Returns[i].Stack+width
				return ins
			}
		}
	}
	// Behind the system call the return address is on the stack again. A
	// system call leaves the PC in rcx: in between, it is not the PC.
	slot := f.SP()
	switch offset {
	case 13:
		if f.Regs.Raw(rcx) != f.PC() {
			return ins
		}
		slot += 16
	case 15:
		slot += 8
	case 16:
	default:
		return ins
	}
	ins.CallerPC, _ = w.ProcessState().ReadWord(slot)
	ins.CallerSP = slot + width
	return ins
}

const rcx = procstate.Reg(2) // in DWARF's numbers of x86-64
