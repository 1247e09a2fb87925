package steppers

import (
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Since Linux 6.18 a uprobe on the instruction of 5 bytes that does nothing, in 64-bit
// programs on x86, becomes a call of a page that the kernel maps for it, the first time
// that it is met (arch/x86/kernel/uprobes.c):
//
//	 0  push %rcx
//	 1  push %r11
//	 3  push %rax
//	 4  mov $NR_uprobe,%rax
//	11  syscall                    runs the probe
//	13  pop %rax
//	14  pop %r11
//	16  pop %rcx
//	17  ret
//
// in which the return address is this far above the stack pointer.
var optimizedHeights = [...]int8{ // by offset; read only; -1: no instruction begins there
	0: 0, 1: 8, 2: -1, 3: 16, 4: 24, 5: -1, 6: -1, 7: -1, 8: -1, 9: -1, 10: -1, 11: 24, 12: -1, 13: 24, 14: 16, 15: -1, 16: 8, 17: 0,
}

// nop5 is that instruction.
const nop5 = "\x0f\x1f\x44\x00\x00"

// atOptimizedProbe returns the place of the probe, if a frame was interrupted in such a
// page, which no one may read. What is at the place in the file tells that it is a page as
// above, and not of a kernel that puts calls in place of longer instructions.
func atOptimizedProbe(w *unwind.Walker, f *unwind.Frame) (ins Instrumentation, ok bool) {
	const page = 4096
	offset := f.PC() % page
	if offset >= uint64(len(optimizedHeights)) || f.Flags&unwind.Interrupted == 0 || w.Arch() != procstate.AMD64 || optimizedHeights[offset] < 0 {
		return ins, false
	}
	if m := w.MappingAt(f.PC()); m == nil || !strings.HasPrefix(m.Path, procstate.UprobeCallsMapping) {
		return ins, false
	}
	slot := f.SP() + uint64(optimizedHeights[offset])
	ra, ok := w.ProcessState().ReadWord(slot)
	if !ok {
		return ins, false
	}
	at := ra - uint64(len(nop5))
	m := w.MappingAt(at)
	if m == nil || m.Image == nil {
		return ins, false
	}
	var code [len(nop5)]byte
	if m.Image.ReadVaddr(code[:], at-m.Bias) != nil || string(code[:]) != nop5 {
		return ins, false
	}
	return Instrumentation{CallerPC: at, CallerSP: slot + 8, CallerFP: f.FP(), Interrupted: true}, true
}
