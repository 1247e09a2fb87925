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
	lib, _, known := f.r.w.Library(&f.walk[0])
	tls, ok := f.image.Prog(elf.PT_TLS)
	if !ok || tp == 0 || !known || off >= tls.Memsz {
		return 0, unsupported
	}
	base, ok := f.storageOfProgram(tls, tp)
	if lib.Path != f.r.w.ProcessState().ExecutablePath() {
		base, ok = f.storageOfLibrary(tp)
	}
	if !ok {
		return 0, unsupported
	}
	return f.wrap(base + off), nil
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
	return f.wrap(tp - tls.Memsz - (-tls.Memsz-tls.Vaddr)&mask), true
}

// maxRelocations bounds the bytes of relocations that are read of a library.
const maxRelocations = 16 << 20

// maxTLSRelocations bounds those that are tried.
const maxTLSRelocations = 64

// tlsRelocations are the types of relocation that tell where thread-local
// storage is, and how it is found, on an architecture.
type tlsRelocations struct {
	module, distance, descriptor uint32
	vector                       uint64 // of the vector's address, bytes from the thread pointer
}

var tlsRelocationsOf = map[*procstate.Arch]tlsRelocations{
	procstate.AMD64: {uint32(elf.R_X86_64_DTPMOD64), uint32(elf.R_X86_64_TPOFF64), uint32(elf.R_X86_64_TLSDESC), 8},
	procstate.I386:  {uint32(elf.R_386_TLS_DTPMOD32), uint32(elf.R_386_TLS_TPOFF), uint32(elf.R_386_TLS_DESC), 4},
	procstate.ARM64: {uint32(elf.R_AARCH64_TLS_DTPMOD64), uint32(elf.R_AARCH64_TLS_TPREL64), uint32(elf.R_AARCH64_TLSDESC), 0},
}

// storageOfLibrary returns where a thread's storage of a library begins. Only
// the loader knows; but it has told the library's code, by relocations: either
// the distance from the thread pointer, or the number under which the thread's
// vector (section 3, "dynamic thread vector") has the address, or a descriptor
// with one of the two.
func (f *frame) storageOfLibrary(tp uint64) (base uint64, ok bool) {
	types, tries := tlsRelocationsOf[f.arch()], maxTLSRelocations
	err := f.eachRelocation(func(r *relocation) bool {
		value, known := uint64(0), false
		switch r.typ {
		case types.module, types.distance:
			value, known = f.word(f.bias + r.at)
		case types.descriptor: // the address of code, and what it needs to know
			value, known = f.word(f.bias + r.at + uint64(f.arch().AddressWidth))
		default:
			return true
		}
		off, own := f.ownSymbol(r.symbol)
		if !known || !own {
			tries--
			return tries > 0 // it can be about another file's storage
		}
		off += uint64(r.addend)
		switch r.typ {
		case types.module:
			base, ok = f.storageInVector(tp+types.vector, value)
		case types.distance:
			base, ok = f.wrap(tp+value-off), true
		case types.descriptor:
			base, ok = f.storageDescribed(tp, types.vector, value, off)
		}
		tries--
		return !ok && tries > 0
	})
	return base, ok && err == nil
}

// storageDescribed returns what a descriptor of the variable at an offset of
// the storage says. Its argument is the variable's distance from the thread
// pointer, or the address of a module's number and the offset (Oliva and
// Araújo, Speeding Up Thread-Local Storage Access in Dynamic Libraries).
func (f *frame) storageDescribed(tp, vector, argument, off uint64) (base uint64, ok bool) {
	const lowest = 1 << 16 // that an address can be
	width := uint64(f.arch().AddressWidth)
	if argument >= lowest && argument < f.wrap(^uint64(lowest-1)) {
		module, ok1 := f.word(argument)
		at, ok2 := f.word(argument + width)
		if base, ok = f.storageInVector(tp+vector, module); ok && ok1 && ok2 && at == off {
			return base, true
		}
	}
	base = f.wrap(tp + argument - off)
	_, ok = f.word(base + off)
	return base, ok
}

// word reads a word of the process's memory.
func (f *frame) word(addr uint64) (uint64, bool) {
	return f.r.w.ProcessState().ReadWord(f.wrap(addr))
}

// wrap cuts an address to the width that addresses have.
func (f *frame) wrap(addr uint64) uint64 {
	if f.arch().AddressWidth == 4 {
		return uint64(uint32(addr))
	}
	return addr
}

// relocation is an entry of a table of relocations.
type relocation struct {
	at          uint64 // link-time address
	typ, symbol uint32 // of .dynsym; 0: none
	addend      int64
}

// eachRelocation calls fn for the relocations that the loader does for the
// file, until it returns false.
func (f *frame) eachRelocation(fn func(*relocation) bool) error {
	le := binary.LittleEndian
	for _, name := range []string{".rela.dyn", ".rela.plt", ".rel.dyn", ".rel.plt"} {
		s, found := f.image.Section(name)
		if !found || s.Type != elf.SHT_RELA && s.Type != elf.SHT_REL {
			continue
		}
		b, err := f.image.SectionBytes(s, maxRelocations)
		if err != nil {
			return err
		}
		for more := true; more; {
			var r relocation
			switch {
			case f.arch().AddressWidth == 8 && s.Type == elf.SHT_RELA && len(b) >= 24:
				r = relocation{le.Uint64(b), le.Uint32(b[8:]), le.Uint32(b[12:]), int64(le.Uint64(b[16:]))}
				b = b[24:]
			case f.arch() == procstate.I386 && s.Type == elf.SHT_REL && len(b) >= 8:
				info := le.Uint32(b[4:])
				r = relocation{at: uint64(le.Uint32(b)), typ: info & 0xff, symbol: info >> 8}
				r.addend = f.storedAddend(&r)
				b = b[8:]
			default:
				more = false
				continue
			}
			if !fn(&r) {
				return nil
			}
		}
	}
	return nil
}

// storedAddend returns the addend that the file has in the place of a
// relocation that a thread's storage is found by.
func (f *frame) storedAddend(r *relocation) int64 {
	at := r.at
	switch r.typ {
	case uint32(elf.R_386_TLS_TPOFF):
	case uint32(elf.R_386_TLS_DESC):
		at += 4
	default:
		return 0
	}
	var b [4]byte
	if f.image.ReadVaddr(b[:], at) != nil {
		return 0
	}
	return int64(int32(binary.LittleEndian.Uint32(b[:])))
}

// ownSymbol returns the offset in the file's storage of the variable that a
// symbol of a relocation is; ok is false when it may be another file's. Symbol
// 0 is the storage itself.
func (f *frame) ownSymbol(index uint32) (off uint64, ok bool) {
	if index == 0 {
		return 0, true
	}
	s, defined := f.image.DynamicSymbol(index)
	if !defined || s.Type != elf.STT_TLS || len(s.Name) == 0 {
		return 0, false
	}
	for _, l := range procstate.LibrariesOf(f.r.w.ProcessState().Libraries()) {
		if l.Image == nil || l.Image == f.image {
			continue
		}
		if _, has := l.Image.Prog(elf.PT_TLS); !has {
			continue
		}
		l.Image.EachSymbol(func(o *procstate.ELFSymbol) bool {
			ok = ok || o.Type == elf.STT_TLS && string(o.Name) == string(s.Name)
			return !ok
		})
		if ok {
			return 0, false // which of them the loader has taken is not known
		}
	}
	return s.Value, true
}

// storageInVector returns what the vector whose address is at vector has for a
// module; ok is false when the thread has not got its memory yet.
func (f *frame) storageInVector(vector, module uint64) (base uint64, ok bool) {
	width := uint64(f.arch().AddressWidth)
	entries, ok := f.word(vector)
	if !ok {
		return 0, false
	}
	// glibc's entries have two words, and their number is in the one before
	// the first; musl's have one, and their number is in the first.
	size, count := 2*width, entries-2*width
	if f.usesMusl() {
		size, count = width, entries
	}
	n, ok := f.word(count)
	if !ok || module == 0 || module > n || n > 1<<20 {
		return 0, false
	}
	base, ok = f.word(entries + size*module)
	return base, ok && base != 0 && base != f.wrap(^uint64(0))
}

// usesMusl reports whether the process has the C library musl, whose loader
// the program asks for.
func (f *frame) usesMusl() bool {
	for _, l := range procstate.LibrariesOf(f.r.w.ProcessState().Libraries()) {
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
