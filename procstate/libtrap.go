package procstate

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// A dynamic loader calls an empty function whenever its list of libraries has
// changed, and around that change, for debuggers to set a breakpoint there:
// _dl_debug_state in glibc and musl alike (System V gABI, r_brk of struct
// r_debug). Here it carries a uprobe; see libraryTrap.

const trapFunction = "_dl_debug_state"

var (
	// ErrNoLibraryTrap: the program has no dynamic loader, so it cannot load
	// libraries.
	ErrNoLibraryTrap = errors.New("the program has no dynamic loader to watch")

	errTrapNotAsked = errors.New("library changes are not being watched")
)

// trapSite is where a loader reports changes.
type trapSite struct {
	mapping *Mapping
	addr    uint64 // run-time address of the function
	off     uint64 // its offset in the file
}

// findTrap finds the loader's function: in the interpreter, which the kernel
// names in the auxiliary vector, or in a static program that contains a
// loader.
func findTrap(pid int, space *AddressSpace) (trapSite, error) {
	if base := auxBase(pid); base != 0 {
		for _, m := range space.Mappings() {
			if m.Image != nil && m.Bias == base {
				if site, ok := trapIn(m, ".dynsym", ".dynstr"); ok {
					return site, nil
				}
			}
		}
		return trapSite{}, fmt.Errorf("loader at %#x has no function %s: %w", base, trapFunction, ErrNotSupported)
	}
	exe := "/proc/" + strconv.Itoa(pid) + "/exe"
	if path, err := os.Readlink(exe); err == nil {
		for _, m := range space.Mappings() {
			if m.Image != nil && m.Path == path {
				if site, ok := trapIn(m, ".symtab", ".strtab"); ok {
					return site, nil
				}
			}
		}
	}
	return trapSite{}, ErrNoLibraryTrap
}

// trapIn looks the function up in a symbol table of the mapping's image.
func trapIn(m *Mapping, symtab, strtab string) (trapSite, bool) {
	vaddr, ok := symbolIn(m.Image, symtab, strtab, trapFunction)
	if !ok {
		return trapSite{}, false
	}
	off, ok := m.Image.OffsetOfVaddr(vaddr, 1)
	if !ok || !m.Contains(vaddr+m.Bias) {
		return trapSite{}, false
	}
	return trapSite{mapping: m, addr: vaddr + m.Bias, off: off}, true
}

const maxTrapSymtab = 64 << 20

// symbolIn returns the link-time address of a defined function.
func symbolIn(im *Image, symtab, strtab, name string) (vaddr uint64, ok bool) {
	ss, ok1 := im.Section(symtab)
	ts, ok2 := im.Section(strtab)
	if !ok1 || !ok2 {
		return 0, false
	}
	syms, err1 := im.SectionBytes(ss, maxTrapSymtab)
	strs, err2 := im.SectionBytes(ts, maxTrapSymtab)
	if err1 != nil || err2 != nil {
		return 0, false
	}
	le := binary.LittleEndian
	want := append([]byte(name), 0)
	size := 24
	if im.Arch().AddressWidth == 4 {
		size = 16
	}
	for ; len(syms) >= size; syms = syms[size:] {
		at, info, shndx, value := uint64(le.Uint32(syms)), syms[4], le.Uint16(syms[6:]), uint64(0)
		if size == 24 {
			value = le.Uint64(syms[8:])
		} else {
			info, shndx, value = syms[12], le.Uint16(syms[14:]), uint64(le.Uint32(syms[4:]))
		}
		if shndx != uint16(elf.SHN_UNDEF) && elf.ST_TYPE(info) == elf.STT_FUNC &&
			at < uint64(len(strs)) && bytes.HasPrefix(strs[at:], want) {
			return value, true
		}
	}
	return 0, false
}

const atBase = 7 // AT_BASE of getauxval(3): where the interpreter was loaded

// auxBase returns AT_BASE of a process, 0 when it has no interpreter.
func auxBase(pid int) uint64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/auxv")
	if err != nil {
		return 0
	}
	// A 32-bit process has pairs of 32-bit words. In either reading, the
	// other's entries do not begin with a plausible tag and value.
	le := binary.LittleEndian
	if len(b) >= 16 && le.Uint32(b[4:]) != 0 {
		for ; len(b) >= 8; b = b[8:] {
			if le.Uint32(b) == atBase {
				return uint64(le.Uint32(b[4:]))
			}
		}
		return 0
	}
	for ; len(b) >= 16; b = b[16:] {
		if le.Uint64(b) == atBase {
			return le.Uint64(b[8:])
		}
	}
	return 0
}
