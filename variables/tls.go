package variables

import (
	"debug/elf"
	"fmt"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
)

// threadLocal returns the run-time address of a thread-local variable, given
// its offset in the thread's storage of the file. Only that of the program is
// at a fixed distance from the thread pointer: before it on x86, behind a
// control block of two words on arm64 (Drepper, ELF Handling For Thread-Local
// Storage, section 3). Where that of a library is only its loader knows.
func (f *frame) threadLocal(off uint64) (uint64, error) {
	tp := f.regs().ThreadPointer
	m := f.r.w.ProcessState().Libraries().MappingAt(f.walk[0].LookupPC())
	tls, ok := f.image.Prog(elf.PT_TLS)
	if !ok || tp == 0 || m == nil || m.Path != f.r.w.ProcessState().ExecutablePath() || off >= tls.Memsz {
		return 0, fmt.Errorf("thread-local variable: %w", symbols.ErrUnsupported)
	}
	mask := max(tls.Align, 1) - 1
	if mask&(mask+1) != 0 {
		return 0, fmt.Errorf("thread-local variable: %w", errBadExpression)
	}
	if f.arch() == procstate.ARM64 {
		return tp + (16+mask)&^mask + tls.Vaddr&mask + off, nil
	}
	// The least distance that holds it all and keeps the alignment.
	distance := tls.Memsz + (-tls.Memsz-tls.Vaddr)&mask
	return tp - distance + off, nil
}
