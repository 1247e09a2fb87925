package procstate

import (
	"debug/elf"
	"encoding/binary"
	"slices"
)

// Limits on what the tables of a file may make us read.
const (
	maxSymtab = 512 << 20
	maxFDEs   = 16 << 20
)

// FuncStarts returns the link-time addresses at which functions begin, by
// what the file says of itself: symbols of functions in .symtab and .dynsym,
// global ones without a type in code, which are functions written in assembly,
// and the search table of .eh_frame_hdr. They are sorted and unique. A file
// that says nothing gives none; damaged tables are left out. The result is
// made anew by each call.
func (im *Image) FuncStarts() []uint64 {
	out := im.appendFDEStarts(nil)
	slices.Sort(out)
	fdes := len(out)
	for _, name := range []string{".symtab", ".dynsym"} {
		if s, ok := im.Section(name); ok {
			out = im.appendFuncSymbols(out, fdes, s)
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	if cap(out)-len(out) > len(out)/8 {
		out = slices.Clone(out)
	}
	return out
}

// appendFuncSymbols adds what is not among the first fdes addresses, which most are.
func (im *Image) appendFuncSymbols(out []uint64, fdes int, s Section) []uint64 {
	size, info, shndx, value := 24, 4, 6, 8
	if im.arch.AddressWidth == 4 {
		size, info, shndx, value = 16, 12, 14, 4
	}
	each := func(add func(vaddr uint64)) error {
		return im.SectionParts(s, maxSymtab, func(b []byte) {
			for ; len(b) >= size; b = b[size:] {
				in := int(binary.LittleEndian.Uint16(b[shndx:]))
				switch elf.SymType(b[info] & 15) {
				case elf.STT_FUNC, elf.STT_GNU_IFUNC:
				case elf.STT_NOTYPE:
					if elf.ST_BIND(b[info]) != elf.STB_GLOBAL || in >= len(im.sections) || im.sections[in].Flags&elf.SHF_EXECINSTR == 0 {
						continue
					}
				default:
					continue
				}
				if in == int(elf.SHN_UNDEF) {
					continue
				}
				vaddr := im.word(b[value:])
				if _, known := slices.BinarySearch(out[:fdes], vaddr); !known {
					add(vaddr)
				}
			}
		})
	}
	n := 0 // rather than to grow by steps, which takes several times the memory
	if each(func(uint64) { n++ }) != nil {
		return out
	}
	start := len(out)
	out = slices.Grow(out, n)
	if each(func(vaddr uint64) { out = append(out, vaddr) }) != nil {
		return out[:start]
	}
	return out
}

// word reads an address of the file's width.
func (im *Image) word(b []byte) uint64 {
	if im.arch.AddressWidth == 4 {
		return uint64(binary.LittleEndian.Uint32(b))
	}
	return binary.LittleEndian.Uint64(b)
}

// appendFDEStarts reads the search table of .eh_frame_hdr (Linux Standard
// Base, Core, section 10.6.2) in the one encoding that linkers write: pairs
// of 32-bit offsets from the start of the header.
func (im *Image) appendFDEStarts(out []uint64) []uint64 {
	p, ok := im.Prog(elf.PT_GNU_EH_FRAME)
	if !ok || p.Filesz < 12 {
		return out
	}
	var hdr [12]byte
	if im.ReadVaddr(hdr[:], p.Vaddr) != nil {
		return out
	}
	const udata4, sdata4, pcrel, datarelSdata4 = 0x03, 0x0b, 0x10, 0x3b
	if hdr[0] != 1 || hdr[1] != pcrel|sdata4 && hdr[1] != pcrel|udata4 || hdr[2] != udata4 || hdr[3] != datarelSdata4 {
		return out
	}
	n := uint64(binary.LittleEndian.Uint32(hdr[8:]))
	if n > maxFDEs || n*8 > min(p.Filesz, uint64(im.size))-12 {
		return out
	}
	off, ok := im.OffsetOfVaddr(p.Vaddr+12, n*8)
	if !ok {
		return out
	}
	buf := sectionBuffers.Get().(*[sectionPart]byte)
	defer sectionBuffers.Put(buf)
	start := len(out)
	out = slices.Grow(out, int(n))
	for at := uint64(0); at < n*8; at += sectionPart {
		tab := buf[:min(n*8-at, sectionPart)]
		if im.readFull(tab, off+at) != nil {
			return out[:start]
		}
		for ; len(tab) >= 8; tab = tab[8:] {
			out = append(out, p.Vaddr+uint64(int64(int32(binary.LittleEndian.Uint32(tab)))))
		}
	}
	return out
}
