package procstate

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
)

// findPclntab locates the function table of a file, by section where those
// have names, else by its header, and completes it from the module data.
func findPclntab(im *Image) (*GoTable, error) {
	t, err := findPclntabHeader(im)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", im.Path, err)
	}
	if t.magic == pclntab116 {
		return t, nil
	}
	md := findModuledata(im, t)
	if md.text != 0 {
		t.textStart, t.gofunc = md.text, md.gofunc
	}
	if t.textStart == 0 { // Go 1.26 without its module data
		if s, ok := im.Section(".text"); ok {
			t.textStart = s.Vaddr
		}
	}
	if start, _ := t.Range(); !executable(im, start) {
		return nil, fmt.Errorf("%s: %w", im.Path, &FormatError{0, "pclntab: functions lie outside the code"})
	}
	return t, nil
}

func executable(im *Image, vaddr uint64) bool {
	for _, s := range im.segs {
		if s.Flags&elf.PF_X != 0 && vaddr-s.Vaddr < s.Memsz {
			return true
		}
	}
	return false
}

func findPclntabHeader(im *Image) (*GoTable, error) {
	for _, name := range []string{".gopclntab", ".data.rel.ro.gopclntab"} {
		s, ok := im.Section(name)
		if !ok || s.Type == elf.SHT_NOBITS {
			continue
		}
		return readPclntab(im, s.Vaddr, s.Off, s.Size)
	}
	if !mayHoldGo(im) {
		return nil, ErrNoPclntab
	}
	return scanPclntab(im)
}

// mayHoldGo reports whether a file without a section for the function table
// is worth a search: Go's other sections are there (a linker script merged
// the table into .data.rel.ro), or sections have no names at all.
func mayHoldGo(im *Image) bool {
	for _, name := range []string{".go.buildinfo", ".note.go.buildid", ".go.module"} {
		if _, ok := im.Section(name); ok {
			return true
		}
	}
	_, text := im.Section(".text")
	return !text && im.typ != elf.ET_REL
}

// readPclntab takes a table of at most size bytes that starts at file offset
// off, with the relocations applied.
func readPclntab(im *Image, vaddr, off, size uint64) (*GoTable, error) {
	if size > maxPclntab || off > uint64(im.size) || size > uint64(im.size)-off {
		return nil, &FormatError{int64(off), "pclntab: too large"}
	}
	var head [8]byte
	if size >= uint64(len(head)) {
		if err := im.readFull(head[:], off); err != nil {
			return nil, err
		}
	}
	t, err := parsePclntab(im, newChunked(im, off, size), vaddr)
	if err != nil || im.typ != elf.ET_DYN {
		return t, err
	}
	if t.magic == pclntab116 { // functab is all pointers
		data := make([]byte, size)
		if err := im.readFull(data, off); err != nil {
			return nil, err
		}
		applyRelative(im, data, vaddr)
		return parsePclntab(im, inMemory(data), vaddr)
	}
	var text [8]byte
	at := 8 + 2*t.ptrSize // its only pointer: headerWord(2)
	if err := im.readFull(text[:t.ptrSize], off+at); err != nil {
		return nil, err
	}
	applyRelative(im, text[:t.ptrSize], vaddr+at)
	t.textStart, _ = word(text[:], 0, t.ptrSize)
	return t, nil
}

// maxCandidates bounds the places of a file that look like a table, or like what
// points to it: for each, the file's relocations may be read through. Real files
// have one or two.
const maxCandidates = 64

// scanPclntab searches the segments for a plausible header.
func scanPclntab(im *Image) (*GoTable, error) {
	var found *GoTable
	candidates, left := 0, uint64(maxScan)
	for _, s := range im.segs {
		err := scanWords(im, s, &left, func(vaddr uint64, b []byte) bool {
			if m := binary.LittleEndian.Uint32(b); m != pclntab116 && m != pclntab118 && m != pclntab120 {
				return true
			}
			if b[4] != 0 || b[5] != 0 || b[6] == 0 || b[6] > 4 || int(b[7]) != im.Arch().AddressWidth {
				return true
			}
			var head [80]byte
			if im.ReadVaddr(head[:], vaddr) != nil {
				return true
			}
			off := vaddr - s.Vaddr
			candidates++
			t, err := readPclntab(im, vaddr, s.Off+off, s.Filesz-off)
			if err != nil || t.nfunc == 0 {
				return candidates < maxCandidates
			}
			found = t
			return false
		})
		if found != nil {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		if candidates >= maxCandidates {
			break
		}
	}
	return nil, ErrNoPclntab
}

// maxScan bounds the bytes of segments that are searched: of a file with holes they
// may be any number.
const maxScan = 2 << 30

// scanWords calls f for each 8-byte aligned address of a segment with the 8
// bytes there, until it returns false. It takes from left the bytes that it reads, and
// ends when there are none.
func scanWords(im *Image, s Segment, left *uint64, f func(vaddr uint64, b []byte) bool) error {
	buf := make([]byte, 1<<16)
	skip := -s.Vaddr & 7
	for off := skip; off+8 <= s.Filesz && *left > 0; off += uint64(len(buf)) {
		b := buf[:min(uint64(len(buf)), s.Filesz-off)]
		*left -= min(*left, uint64(len(b)))
		if err := im.readFull(b, s.Off+off); err != nil {
			return err
		}
		for i := 0; i+8 <= len(b); i += 8 {
			if !f(s.Vaddr+off+uint64(i), b[i:i+8]) {
				return nil
			}
		}
	}
	return nil
}

// goModuledata holds the fields of runtime.moduledata that complete the
// function table.
type goModuledata struct{ text, gofunc uint64 }

// Indices of words in runtime.moduledata: a pointer, six slices, findfunctab,
// minpc, maxpc, text... (src/runtime/symtab.go of Go 1.18, 1.20).
const (
	mdMinPC     = 20
	mdText      = 22
	mdGofunc118 = 38
	mdGofunc120 = 40 // covctrs and ecovctrs came before it
	mdWords     = 41
)

// findModuledata finds the runtime.moduledata whose first word points to the
// function table. It returns the zero value when there is none that agrees
// with the table.
func findModuledata(im *Image, t *GoTable) (md goModuledata) {
	candidates := 0
	try := func(vaddr uint64) bool { // reports whether to go on
		candidates++
		md, _ = readModuledata(im, t, vaddr)
		return md.text == 0 && candidates < maxCandidates
	}
	if s, ok := im.Section(".go.module"); ok && !try(s.Vaddr) {
		return md
	}
	if im.typ == elf.ET_DYN {
		// The pointer is a relocation, with or without a copy in the data.
		relatives(im, func(vaddr, value uint64) bool { return value != t.vaddr || try(vaddr) })
		if md.text != 0 {
			return md
		}
	}
	left := uint64(maxScan)
	for _, s := range im.segs {
		if s.Flags&elf.PF_W == 0 || md.text != 0 || candidates >= maxCandidates {
			continue
		}
		// An unreadable segment leaves the others.
		_ = scanWords(im, s, &left, func(vaddr uint64, b []byte) bool {
			if t.ptrSize == 8 {
				return binary.LittleEndian.Uint64(b) != t.vaddr || try(vaddr)
			}
			for i := uint64(0); i < 8; i += 4 {
				if uint64(binary.LittleEndian.Uint32(b[i:])) == t.vaddr && !try(vaddr+i) {
					return false
				}
			}
			return true
		})
	}
	return md
}

// readModuledata reads the module data at vaddr, and checks it.
func readModuledata(im *Image, t *GoTable, vaddr uint64) (md goModuledata, ok bool) {
	b := make([]byte, mdWords*t.ptrSize)
	if im.ReadVaddr(b, vaddr) != nil {
		return md, false
	}
	if im.typ == elf.ET_DYN {
		applyRelative(im, b, vaddr)
	}
	at := func(i uint64) uint64 { v, _ := word(b, i*t.ptrSize, t.ptrSize); return v }
	names := t.vaddr + t.funcNames
	first, _ := t.word(t.pcln, 4)
	if at(0) != t.vaddr || at(1) != names || at(mdMinPC) != at(mdText)+first || !executable(im, at(mdMinPC)) {
		return md, false
	}
	md = goModuledata{text: at(mdText), gofunc: at(mdGofunc118)}
	if t.magic == pclntab120 {
		md.gofunc = at(mdGofunc120)
	}
	return md, true
}

// applyRelative stores the values of relative relocations in b, the bytes at
// link-time address vaddr.
func applyRelative(im *Image, b []byte, vaddr uint64) {
	width := uint64(im.Arch().AddressWidth)
	relatives(im, func(at, value uint64) bool {
		off := at - vaddr
		if at < vaddr || off >= uint64(len(b)) || width > uint64(len(b))-off {
			return true
		}
		if width == 8 {
			binary.LittleEndian.PutUint64(b[off:], value)
		} else {
			binary.LittleEndian.PutUint32(b[off:], uint32(value))
		}
		return true
	})
}

// maxRelative bounds the bytes of a file's relocations, which are read for each
// candidate.
const maxRelative = 64 << 20

// relatives calls f for each relative relocation with addend: the link-time
// address of a word and the link-time address to be stored there. Formats
// that keep the addend in place (REL, RELR) need no help.
func relatives(im *Image, f func(vaddr, value uint64) bool) {
	var relative uint64
	switch im.arch {
	case AMD64:
		relative = uint64(elf.R_X86_64_RELATIVE)
	case ARM64:
		relative = uint64(elf.R_AARCH64_RELATIVE)
	default:
		return
	}
	off, size := relaTable(im)
	if size > min(maxRelative, uint64(im.size)) {
		return
	}
	buf := make([]byte, 24*2048)
	for size >= 24 {
		b := buf[:min(uint64(len(buf)), size/24*24)]
		if im.readFull(b, off) != nil {
			return
		}
		off, size = off+uint64(len(b)), size-uint64(len(b))
		for ; len(b) > 0; b = b[24:] {
			le := binary.LittleEndian
			if le.Uint64(b[8:]) == relative && !f(le.Uint64(b), le.Uint64(b[16:])) {
				return
			}
		}
	}
}

// relaTable returns the file offset and size of the dynamic relocations with
// addend, from the dynamic section.
func relaTable(im *Image) (off, size uint64) {
	var vaddr uint64
	im.eachDynamic(func(tag elf.DynTag, value uint64) {
		switch tag {
		case elf.DT_RELA:
			vaddr = value
		case elf.DT_RELASZ:
			size = value
		}
	})
	off, ok := im.OffsetOfVaddr(vaddr, size)
	if !ok {
		return 0, 0
	}
	return off, size
}
