package procstate

import (
	"debug/elf"
	"encoding/binary"
	"slices"
	"time"
)

// Programs without any symbols, as QEMU is where it is linked statically, do not say where their
// descriptor is. It is told by what it leads to: an entry that is the first of its list, and an
// object file. It has a value when the program starts, so that it is in the data of the file.
const (
	maxJITData     = 16 << 20 // bytes of a segment that is searched
	maxJITTries    = 1 << 10  // words of all that may be a descriptor, and are looked at
	maxJITFound    = 16
	jitSearchFirst = 400 * time.Millisecond
	jitSearchLast  = time.Minute
)

// jitSearch is what has come of looking for descriptors that no symbol tells of.
type jitSearch struct {
	found []uint64 // their addresses
	tries int      // that are left
	last  time.Time
	wait  time.Duration // from then until the next time
	buf   []byte
}

// search looks for descriptors in the data of programs without symbols, now and then, and reports
// whether there are any that were not known.
func (j *JITObjects) search() bool {
	s := &j.unnamed
	if j.ps == nil || len(s.found) > 0 || s.wait > 0 && (j.live == nil || time.Since(s.last) < s.wait) {
		return false
	}
	libs := j.ps.Libraries()
	if libs == nil {
		return false
	}
	s.wait, s.tries = max(jitSearchFirst, min(4*s.wait, jitSearchLast)), maxJITTries
	for _, lib := range libs.Libraries() {
		if lib.Image == nil || lib.Image.Arch().AddressWidth != 8 || !lib.Image.isNameless() {
			continue
		}
		for _, seg := range lib.Image.segs {
			if seg.Flags&elf.PF_W != 0 && seg.Filesz <= maxJITData {
				j.searchData(seg.Vaddr+lib.Bias, seg.Filesz)
			}
		}
	}
	s.last, s.buf = time.Now(), nil
	if len(s.found) > 0 {
		j.looked, j.generation = 0, 0
	}
	return len(s.found) > 0
}

// isNameless reports whether a file has no symbols, nor any that others could link to.
func (im *Image) isNameless() bool {
	_, symtab := im.Section(".symtab")
	dynsym, _ := im.Section(".dynsym")
	return !symtab && dynsym.Size <= 24 // the first symbol is none
}

// searchData looks for descriptors in memory.
func (j *JITObjects) searchData(from, size uint64) {
	const piece, register, unregister = 64 << 10, 1 << 32, 2 << 32 // actions, behind the version
	isEntry := func(addr uint64) bool { return addr != 0 && addr%8 == 0 }
	le := binary.LittleEndian
	s := &j.unnamed
	for at := (from + 7) &^ 7; at < from+size; at += piece {
		s.buf = slices.Grow(s.buf[:0], piece+16)[:min(piece+16, from+size-at)] // one may begin at the end of a piece
		if !j.readMemory(at, s.buf) {
			continue
		}
		for off := 0; off+24 <= len(s.buf) && off < piece; off += 8 {
			d := s.buf[off:]
			said, relevant, first := le.Uint64(d), le.Uint64(d[8:]), le.Uint64(d[16:])
			if said != 1|register && said != 1|unregister || !isEntry(relevant) || !isEntry(first) {
				continue
			}
			if s.tries--; s.tries < 0 || len(s.found) == maxJITFound {
				return // it does not want to be found
			}
			if j.leadsToObject(first) {
				s.found = append(s.found, at+uint64(off))
			}
		}
	}
}

// leadsToObject reports whether there is the first entry of a list at an address, with an object file.
func (j *JITObjects) leadsToObject(first uint64) bool {
	le := binary.LittleEndian
	entry := j.word[:jitOfGDB.size]
	if !j.readMemory(first, entry) || le.Uint64(entry[8:]) != 0 {
		return false
	}
	e := jitOfGDB.entryOf(entry)
	magic := j.word[:len(elf.ELFMAG)]
	return e.size >= 64 && e.size <= maxJITObject && j.readMemory(e.symfile, magic) && string(magic) == elf.ELFMAG
}
