package ruby

import (
	"debug/elf"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
)

// storage is how a thread's storage of a file is found (Drepper, ELF Handling For Thread-Local Storage).
type storage struct {
	distance uint64 // a program's begins so far behind the thread pointer
	word     uint64 // the link-time address of the word by which the loader tells it; 0: it is a program
	offset   uint64 // of what in it that tells, where it is one of a descriptor
}

// findStorage finds that of a file with some thread-local storage.
func findStorage(im *procstate.Image, a *arch, tls elf.ProgHeader) (s storage, ok bool) {
	if _, isProgram := im.Prog(elf.PT_INTERP); !isProgram {
		return told(im, a)
	}
	mask := max(tls.Align, 1) - 1
	if a.block != 0 {
		return storage{distance: (a.block + mask) &^ mask}, true
	}
	return storage{distance: -((tls.Memsz + mask) &^ mask)}, true
}

// told finds the word by which the loader tells a library where its thread-local storage is.
func told(im *procstate.Image, a *arch) (s storage, ok bool) {
	const relaBytes, limit = 24, 16 << 20
	le := binary.LittleEndian
	for _, name := range [...]string{".rela.dyn", ".rela.plt"} {
		sec, _ := im.Section(name)
		b, _ := im.SectionBytes(sec, limit)
		for ; len(b) >= relaBytes; b = b[relaBytes:] {
			symbol := le.Uint32(b[12:])
			switch {
			case le.Uint32(b[8:]) != a.relocation:
			case a.isDescribed:
				// What needs to be known to find it is in the second word.
				s = storage{word: le.Uint64(b) + 8, offset: le.Uint64(b[16:])}
				if symbol == 0 {
					return s, true
				}
				if sym, own := im.DynamicSymbol(symbol); own {
					s.offset += sym.Value
					return s, true
				}
			case symbol == 0:
				return storage{word: le.Uint64(b)}, true
			}
		}
	}
	return storage{}, false
}
