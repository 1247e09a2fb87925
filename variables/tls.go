package variables

import (
	"debug/elf"
	"fmt"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
)

// threadLocal returns the run-time address of a thread-local variable, given
// its offset in the thread's storage of the file.
func (f *frame) threadLocal(off uint64) (uint64, error) {
	unsupported := fmt.Errorf("thread-local variable: %w", symbols.ErrUnsupported)
	p, tp := f.r.w.ProcessState(), f.regs().ThreadPointer
	lib, _, known := f.r.w.Library(&f.walk[0])
	tls, ok := f.image.Prog(elf.PT_TLS)
	if !ok || tp == 0 || !known || off >= tls.Memsz {
		return 0, unsupported
	}
	storage, ok := procstate.ThreadStorageOf(p, f.image, f.bias, lib.Path == p.ExecutablePath())
	if !ok {
		return 0, unsupported
	}
	base, ok := storage.At(p, f.arch(), tp)
	if !ok {
		return 0, unsupported
	}
	return f.wrap(base + off), nil
}

// wrap cuts an address to the width that addresses have.
func (f *frame) wrap(addr uint64) uint64 {
	if f.arch().AddressWidth == 4 {
		return uint64(uint32(addr))
	}
	return addr
}

// word reads a word of the process's memory.
func (f *frame) word(addr uint64) (uint64, bool) {
	return f.r.w.ProcessState().ReadWord(f.wrap(addr))
}
