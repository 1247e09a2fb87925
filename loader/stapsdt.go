package loader

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/swbpf/swbpf/procstate"
)

// staticProbe is a location of a static probe, as a note of the file has it. A
// probe has one wherever it was compiled to.
type staticProbe struct {
	provider, name string
	arguments      string // where they are, in the assembler's terms
	pc             uint64 // link-time address of its instruction, which does nothing
	semaphore      uint64 // link-time address of the count of those who watch it, of 2 bytes; 0: none
}

// The notes of static probes, as SystemTap's <sys/sdt.h> makes them, and the section
// by whose address they tell where they were linked to.
const (
	stapsdtNotes = ".note.stapsdt"
	stapsdtBase  = ".stapsdt.base"
	stapsdtOwner = "stapsdt\x00"
	stapsdtType  = 3
	maxStapsdt   = 16 << 20 // bytes of a file's notes
	maxProbeName = 1 << 10  // bytes of provider and name
)

// staticProbes reads the notes of a file's static probes, in their order. Damaged
// ones are left out.
func staticProbes(im *procstate.Image) ([]staticProbe, error) {
	var probes []staticProbe
	base, _ := im.Section(stapsdtBase)
	left := uint64(min(im.Size(), maxStapsdt))
	for _, s := range im.Sections() {
		if s.Name != stapsdtNotes || s.Type != elf.SHT_NOTE {
			continue
		}
		if s.Size > left {
			return nil, fmt.Errorf("%s: %d bytes of notes of probes are more than there can be", im.Path, s.Size)
		}
		left -= s.Size
		b := make([]byte, s.Size)
		if n, err := im.ReadAt(b, int64(s.Off)); n < len(b) {
			return nil, fmt.Errorf("%s: notes of probes: %w", im.Path, errors.Join(procstate.ErrUnreadable, err))
		}
		probes = append(probes, probesInNotes(b, im.Arch().AddressWidth, base.Vaddr)...)
	}
	return probes, nil
}

// probesInNotes reads notes, whose addresses have width bytes. base is the address of
// stapsdtBase, 0 when there is none.
func probesInNotes(b []byte, width int, base uint64) (probes []staticProbe) {
	le := binary.LittleEndian
	for len(b) >= 12 {
		owner, desc, typ := uint64(le.Uint32(b)), uint64(le.Uint32(b[4:])), le.Uint32(b[8:])
		begin := 12 + (owner+3)&^3
		if begin+desc > uint64(len(b)) {
			break
		}
		if typ == stapsdtType && string(b[12:12+owner]) == stapsdtOwner {
			if p, ok := parseStaticProbe(b[begin:begin+desc], width, base); ok {
				probes = append(probes, p)
			}
		}
		b = b[min(begin+(desc+3)&^3, uint64(len(b))):]
	}
	return probes
}

// parseStaticProbe reads what a note says: addresses of the probe, of stapsdtBase and of
// the semaphore, and three strings. A file that was moved since it was linked, as by
// prelink, has all of them moved as far as its stapsdtBase.
func parseStaticProbe(desc []byte, width int, base uint64) (p staticProbe, ok bool) {
	if len(desc) < 3*width {
		return p, false
	}
	address := func(i int) uint64 {
		if width == 4 {
			return uint64(binary.LittleEndian.Uint32(desc[4*i:]))
		}
		return binary.LittleEndian.Uint64(desc[8*i:])
	}
	moved := uint64(0)
	if base != 0 && address(1) != 0 {
		moved = base - address(1)
	}
	p.pc = address(0) + moved
	if p.semaphore = address(2); p.semaphore != 0 {
		p.semaphore += moved
	}
	texts := bytes.SplitN(desc[3*width:], []byte{0}, 4)
	if len(texts) < 4 || len(texts[0]) == 0 || len(texts[1]) == 0 || len(texts[0])+len(texts[1]) > maxProbeName {
		return p, false
	}
	p.provider, p.name, p.arguments = string(texts[0]), string(texts[1]), string(texts[2])
	return p, true
}
