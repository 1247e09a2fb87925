package variables

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"path"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
)

// threadLocal returns the run-time address of a thread-local variable, given
// its offset in the thread's storage of the file (Drepper, ELF Handling For
// Thread-Local Storage).
func (f *frame) threadLocal(off uint64) (uint64, error) {
	unsupported := fmt.Errorf("thread-local variable: %w", symbols.ErrUnsupported)
	tp := f.regs().ThreadPointer
	m := f.r.w.ProcessState().Libraries().MappingAt(f.walk[0].LookupPC())
	tls, ok := f.image.Prog(elf.PT_TLS)
	if !ok || tp == 0 || m == nil || off >= tls.Memsz {
		return 0, unsupported
	}
	base, ok := f.storageOfProgram(tls, tp)
	if m.Path != f.r.w.ProcessState().ExecutablePath() {
		base, ok = f.storageOfLibrary(tp)
	}
	if !ok {
		return 0, unsupported
	}
	return base + off, nil
}

// storageOfProgram returns where a thread's storage of the program begins: it
// alone is at a fixed distance from the thread pointer, before it on x86,
// behind a control block of two words on arm64 (section 3).
func (f *frame) storageOfProgram(tls elf.ProgHeader, tp uint64) (base uint64, ok bool) {
	mask := max(tls.Align, 1) - 1
	if mask&(mask+1) != 0 {
		return 0, false
	}
	if f.arch() == procstate.ARM64 {
		return tp + (16+mask)&^mask + tls.Vaddr&mask, true
	}
	// The least distance that holds it all and keeps the alignment.
	return tp - tls.Memsz - (-tls.Memsz-tls.Vaddr)&mask, true
}

// maxRelocations bounds the bytes of relocations that are read of a library.
const maxRelocations = 16 << 20

// storageOfLibrary returns where a thread's storage of a library begins. Only
// the loader knows; but it has told the library's code, by relocations: either
// the distance from the thread pointer, or the number under which the thread's
// vector (section 3, "dynamic thread vector") has the address.
func (f *frame) storageOfLibrary(tp uint64) (base uint64, ok bool) {
	module, distance := uint32(elf.R_X86_64_DTPMOD64), uint32(elf.R_X86_64_TPOFF64)
	vector := tp + 8
	switch f.arch() {
	case procstate.AMD64:
	case procstate.ARM64:
		module, distance, vector = uint32(elf.R_AARCH64_TLS_DTPMOD64), uint32(elf.R_AARCH64_TLS_TPREL64), tp
	default:
		return 0, false
	}
	ps := f.r.w.ProcessState()
	for _, name := range []string{".rela.dyn", ".rela.plt"} {
		s, found := f.image.Section(name)
		if !found || s.Type != elf.SHT_RELA {
			continue
		}
		b, err := f.image.SectionBytes(s, maxRelocations)
		if err != nil {
			continue
		}
		for le := binary.LittleEndian; len(b) >= 24; b = b[24:] {
			typ, symbol := le.Uint32(b[8:]), le.Uint32(b[12:])
			if symbol != 0 || typ != module && typ != distance {
				continue // a symbol can be another file's
			}
			slot, ok := ps.ReadWord(f.bias + le.Uint64(b))
			if !ok {
				continue
			}
			if typ == distance {
				return tp + slot - le.Uint64(b[16:]), true
			}
			return f.storageInVector(vector, slot)
		}
	}
	return 0, false
}

// storageInVector returns what the vector whose address is at vector has for a
// module; ok is false when the thread has not got its memory yet.
func (f *frame) storageInVector(vector, module uint64) (base uint64, ok bool) {
	ps := f.r.w.ProcessState()
	entries, ok := ps.ReadWord(vector)
	if !ok {
		return 0, false
	}
	// glibc's entries have two words, and their number is in the one before
	// the first; musl's have one, and their number is in the first.
	size, count := uint64(16), entries-16
	if f.usesMusl() {
		size, count = 8, entries
	}
	n, ok := ps.ReadWord(count)
	if !ok || module == 0 || module > n || n > 1<<20 {
		return 0, false
	}
	base, ok = ps.ReadWord(entries + size*module)
	return base, ok && base != 0 && base != ^uint64(0)
}

// usesMusl reports whether the process has the C library musl, whose loader
// the program asks for.
func (f *frame) usesMusl() bool {
	for _, l := range f.r.w.ProcessState().Libraries().Libraries() {
		if l.Image == nil {
			continue
		}
		interp, ok := l.Image.Prog(elf.PT_INTERP)
		if !ok || interp.Filesz > 1<<12 {
			continue
		}
		b := make([]byte, interp.Filesz)
		if n, _ := l.Image.ReadAt(b, int64(interp.Off)); strings.HasPrefix(path.Base(string(b[:n])), "ld-musl") {
			return true
		}
	}
	return false
}
