package procstate

import (
	"debug/elf"
	"encoding/binary"
	"path"
	"strings"
)

// ThreadStorage tells where the threads of a process have their thread-local storage of a file
// (Drepper, ELF Handling For Thread-Local Storage): at a distance from the thread pointer, or in what the
// thread's vector has for the file ("dynamic thread vector", section 3). The zero value is of no file.
type ThreadStorage struct {
	FromThreadPointer uint64 // of the storage, or of the word with the vector's address; wraps around
	Entry             uint64 // bytes from there to the word with the storage's address; 0: there is no vector
	Module            uint64 // the file's number in the vector
	Count             int64  // bytes from there to the word that tells how many files it has
}

// At returns where a thread's storage begins, by its thread pointer; ok is false when the thread has not got it yet, or
// that could not be read.
func (s ThreadStorage) At(m Memory, a *Arch, threadPointer uint64) (base uint64, ok bool) {
	base = a.wrap(threadPointer + s.FromThreadPointer)
	if s.Entry == 0 {
		return base, true
	}
	vector, ok1 := m.ReadWord(base)
	n, ok2 := m.ReadWord(a.wrap(vector + uint64(s.Count)))
	if !ok1 || !ok2 || s.Module > n || n > maxModules {
		return 0, false
	}
	base, ok = m.ReadWord(a.wrap(vector + s.Entry))
	return base, ok && base != 0 && base != a.wrap(^uint64(0))
}

// maxModules is more than a vector has entries.
const maxModules = 1 << 20

// wrap cuts an address to the width that addresses have.
func (a *Arch) wrap(addr uint64) uint64 {
	if a.AddressWidth == 4 {
		return uint64(uint32(addr))
	}
	return addr
}

// ThreadStorageOf finds out where the threads of a process have their storage of a file that is mapped with a bias, once its
// loader is done with it. isProgram says that it is the program.
func ThreadStorageOf(p ProcessState, im *Image, bias uint64, isProgram bool) (s ThreadStorage, ok bool) {
	tls, has := im.Prog(elf.PT_TLS)
	if !has {
		return s, false
	}
	if isProgram {
		return storageOfProgram(p.Arch(), tls)
	}
	f := storageFinder{p: p, a: p.Arch(), im: im, bias: bias}
	return f.find()
}

// storageOfProgram returns where the storage of the program begins: it
// alone is at a fixed distance from the thread pointer, before it on x86,
// behind a control block of two words on arm64 (section 3).
func storageOfProgram(a *Arch, tls elf.ProgHeader) (s ThreadStorage, ok bool) {
	mask := max(tls.Align, 1) - 1
	if mask&(mask+1) != 0 {
		return s, false
	}
	if a == ARM64 {
		return ThreadStorage{FromThreadPointer: (16+mask)&^mask + tls.Vaddr&mask}, true
	}
	// The least distance that holds it all and keeps the alignment.
	return ThreadStorage{FromThreadPointer: -(tls.Memsz + (-tls.Memsz-tls.Vaddr)&mask)}, true
}

// maxRelocations bounds the bytes of relocations that are read of a library,
// maxTLSRelocations those that are tried.
const (
	maxRelocations    = 16 << 20
	maxTLSRelocations = 64
)

// tlsRelocations are the types of relocation that tell where thread-local
// storage is, and how it is found, on an architecture.
type tlsRelocations struct {
	module, distance, descriptor uint32
	vector                       uint64 // of the vector's address, bytes from the thread pointer
}

var tlsRelocationsOf = map[*Arch]tlsRelocations{
	AMD64: {uint32(elf.R_X86_64_DTPMOD64), uint32(elf.R_X86_64_TPOFF64), uint32(elf.R_X86_64_TLSDESC), 8},
	I386:  {uint32(elf.R_386_TLS_DTPMOD32), uint32(elf.R_386_TLS_TPOFF), uint32(elf.R_386_TLS_DESC), 4},
	ARM64: {uint32(elf.R_AARCH64_TLS_DTPMOD64), uint32(elf.R_AARCH64_TLS_TPREL64), uint32(elf.R_AARCH64_TLSDESC), 0},
}

// storageFinder finds the storage of a library.
type storageFinder struct {
	p    ProcessState
	a    *Arch
	im   *Image
	bias uint64
}

// find returns where the storage of a library begins. Only
// the loader knows; but it has told the library's code, by relocations: either
// the distance from the thread pointer, or the number under which the thread's
// vector has the address, or a descriptor with one of the two.
func (f *storageFinder) find() (s ThreadStorage, ok bool) {
	types, tries := tlsRelocationsOf[f.a], maxTLSRelocations
	err := f.eachRelocation(func(r *relocation) bool {
		value, known := uint64(0), false
		switch r.typ {
		case types.module, types.distance:
			value, known = f.word(f.bias + r.at)
		case types.descriptor: // the address of code, and what it needs to know
			value, known = f.word(f.bias + r.at + uint64(f.a.AddressWidth))
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
			s, ok = f.inVector(value)
		case types.distance:
			s, ok = ThreadStorage{FromThreadPointer: value - off}, true
		case types.descriptor:
			s, ok = f.described(value, off)
		}
		tries--
		return !ok && tries > 0
	})
	return s, ok && err == nil
}

// described returns what a descriptor of the variable at an offset of
// the storage says. Its argument is the variable's distance from the thread
// pointer, or the address of a module's number and the offset (Oliva and
// Araújo, Speeding Up Thread-Local Storage Access in Dynamic Libraries).
func (f *storageFinder) described(argument, off uint64) (s ThreadStorage, ok bool) {
	const lowest = 1 << 16 // that an address can be
	if argument >= lowest && argument < f.a.wrap(^uint64(lowest-1)) {
		module, ok1 := f.word(argument)
		at, ok2 := f.word(argument + uint64(f.a.AddressWidth))
		if s, ok = f.inVector(module); ok && ok1 && ok2 && at == off {
			return s, true
		}
	}
	return ThreadStorage{FromThreadPointer: argument - off}, true
}

// inVector returns the storage that the vector has for a module: what glibc or musl has there.
func (f *storageFinder) inVector(module uint64) (s ThreadStorage, ok bool) {
	if module == 0 || module > maxModules {
		return s, false
	}
	// glibc's entries have two words, and their number is in the one before
	// the first; musl's have one, and their number is in the first.
	width := int64(f.a.AddressWidth)
	size, count := 2*width, -2*width
	if f.usesMusl() {
		size, count = width, 0
	}
	return ThreadStorage{tlsRelocationsOf[f.a].vector, uint64(size) * module, module, count}, true
}

// word reads a word of the process's memory, as it is now.
func (f *storageFinder) word(addr uint64) (uint64, bool) { return readWordNow(f.p, f.a.wrap(addr)) }

// readWordNow reads a word of a process's memory as it is now, where that can be had.
func readWordNow(p ProcessState, addr uint64) (uint64, bool) {
	live, isLive := p.(LiveMemory)
	if !isLive {
		return p.ReadWord(addr)
	}
	var b [8]byte
	if width := p.Arch().AddressWidth; live.ReadLive(addr, b[:width]) != width {
		return p.ReadWord(addr)
	}
	return binary.LittleEndian.Uint64(b[:]), true
}

// relocation is an entry of a table of relocations.
type relocation struct {
	at          uint64 // link-time address
	typ, symbol uint32 // of .dynsym; 0: none
	addend      int64
}

// eachRelocation calls fn for the relocations that the loader does for the
// file, until it returns false.
func (f *storageFinder) eachRelocation(fn func(*relocation) bool) error {
	le := binary.LittleEndian
	for _, name := range []string{".rela.dyn", ".rela.plt", ".rel.dyn", ".rel.plt"} {
		s, found := f.im.Section(name)
		if !found || s.Type != elf.SHT_RELA && s.Type != elf.SHT_REL {
			continue
		}
		b, err := f.im.SectionBytes(s, maxRelocations)
		if err != nil {
			return err
		}
		for more := true; more; {
			var r relocation
			switch {
			case f.a.AddressWidth == 8 && s.Type == elf.SHT_RELA && len(b) >= 24:
				r = relocation{le.Uint64(b), le.Uint32(b[8:]), le.Uint32(b[12:]), int64(le.Uint64(b[16:]))}
				b = b[24:]
			case f.a == I386 && s.Type == elf.SHT_REL && len(b) >= 8:
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
func (f *storageFinder) storedAddend(r *relocation) int64 {
	at := r.at
	switch r.typ {
	case uint32(elf.R_386_TLS_TPOFF):
	case uint32(elf.R_386_TLS_DESC):
		at += 4
	default:
		return 0
	}
	var b [4]byte
	if f.im.ReadVaddr(b[:], at) != nil {
		return 0
	}
	return int64(int32(binary.LittleEndian.Uint32(b[:])))
}

// ownSymbol returns the offset in the file's storage of the variable that a
// symbol of a relocation is; ok is false when it may be another file's. Symbol
// 0 is the storage itself.
func (f *storageFinder) ownSymbol(index uint32) (off uint64, ok bool) {
	if index == 0 {
		return 0, true
	}
	s, defined := f.im.DynamicSymbol(index)
	if !defined || s.Type != elf.STT_TLS || len(s.Name) == 0 {
		return 0, false
	}
	for _, l := range LibrariesOf(f.p.Libraries()) {
		if l.Image == nil || l.Image == f.im {
			continue
		}
		if _, has := l.Image.Prog(elf.PT_TLS); !has {
			continue
		}
		l.Image.EachSymbol(func(o *ELFSymbol) bool {
			ok = ok || o.Type == elf.STT_TLS && string(o.Name) == string(s.Name)
			return !ok
		})
		if ok {
			return 0, false // which of them the loader has taken is not known
		}
	}
	return s.Value, true
}

// usesMusl reports whether the process has the C library musl, whose loader
// the program asks for.
func (f *storageFinder) usesMusl() bool {
	for _, l := range LibrariesOf(f.p.Libraries()) {
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
