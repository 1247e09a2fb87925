package symbols

import (
	"debug/elf"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
)

// maxPLT bounds the bytes of PLT code and of relocations that are read.
const maxPLT = 64 << 20

// pltNames are the sections of the procedure linkage table.
var pltNames = []string{".plt", ".plt.sec", ".plt.got", ".iplt"}

// pltCode returns where the procedure linkage table is.
func pltCode(im *procstate.Image) (code []codeRange) {
	for _, name := range pltNames {
		if s, ok := im.Section(name); ok {
			code = append(code, codeRange{s.Vaddr, s.Vaddr + s.Size})
		}
	}
	return code
}

// inPLT reports whether a link-time address lies in the procedure linkage
// table.
func (f *file) inPLT(vaddr uint64) bool {
	for _, r := range f.pltCode {
		if vaddr >= r.start && vaddr < r.end {
			return true
		}
	}
	return false
}

// addPLT puts the entries of the procedure linkage table in, each named after
// the symbol whose address it jumps through: "name@plt". An entry's code is
// decoded to the slot of the global offset table that it loads, and the
// relocation of that slot has the symbol. PLT0, the common tail of lazy
// binding, has no name.
func (b *symtabBuilder) addPLT(im *procstate.Image) error {
	slots, source, ok := b.gotSlots(im)
	if !ok {
		return nil
	}
	for _, name := range pltNames {
		s, found := im.Section(name)
		if !found || s.Type == elf.SHT_NOBITS || len(b.code) == 0 {
			continue
		}
		code, err := im.SectionBytes(s, maxPLT)
		if err != nil {
			return err
		}
		for _, e := range pltEntries(im, s, code, slots) {
			b.add(s.Vaddr+uint64(e.off), uint64(e.size), s.Vaddr+s.Size, e.name, 0, source)
		}
	}
	return nil
}

// gotSlots maps GOT slots and the entries of .rela.plt to symbols.
type gotSlots struct {
	im      *procstate.Image
	dynsym  procstate.Section
	byAddr  map[uint64]uint32 // symbol by the link-time address of a slot
	byIndex []uint32          // of the i-th relocation of the PLT, 0 for none
	got     uint64            // _GLOBAL_OFFSET_TABLE_, for i386
}

// gotSlots reads the relocations that fill the GOT with addresses of
// functions. They are read by parts, and symbols as they are asked for: a large
// library has 20 MB of relocations.
func (b *symtabBuilder) gotSlots(im *procstate.Image) (slots *gotSlots, source uint8, ok bool) {
	dynsym, found := im.Section(".dynsym")
	if !found || uint64(dynsym.Link) >= uint64(len(im.Sections())) {
		return nil, 0, false
	}
	str := im.Sections()[dynsym.Link]
	source, ok = b.addSource(strtab{img: im, off: str.Off, size: str.Size, suffix: "@plt"})
	if !ok {
		return nil, 0, false
	}
	slots = &gotSlots{im: im, dynsym: dynsym, byAddr: map[uint64]uint32{}}
	if s, found := im.Section(".got.plt"); found {
		slots.got = s.Vaddr
	} else if s, found := im.Section(".got"); found {
		slots.got = s.Vaddr
	}
	for _, name := range []string{".rela.plt", ".rel.plt", ".rela.dyn", ".rel.dyn"} {
		s, found := im.Section(name)
		if !found || s.Type != elf.SHT_RELA && s.Type != elf.SHT_REL {
			continue
		}
		plt := name == ".rela.plt" || name == ".rel.plt"
		// Where some cannot be read, the others still serve.
		_ = im.SectionParts(s, maxPLT, func(part []byte) { slots.add(part, s.Type, plt) })
	}
	return slots, source, true
}

// add takes relocations in; plt tells that they are those of the PLT.
func (g *gotSlots) add(data []byte, typ elf.SectionType, plt bool) {
	arch := g.im.Arch()
	for r, rest := nextReloc(data, arch, typ); rest != nil; r, rest = nextReloc(rest, arch, typ) {
		if plt {
			g.byIndex = append(g.byIndex, r.sym)
		}
		if r.sym != 0 && r.fillsGOT(arch) {
			g.byAddr[r.vaddr] = r.sym
		}
	}
}

// name returns where in its string table the name of a symbol is, 0 when it has
// none.
func (g *gotSlots) name(sym uint32) uint32 {
	at := uint64(sym) * uint64(symSize(g.im.Arch().AddressWidth))
	var b [4]byte
	if sym == 0 || at+uint64(len(b)) > g.dynsym.Size {
		return 0
	}
	if n, _ := g.im.ReadAt(b[:], int64(g.dynsym.Off+at)); n < len(b) {
		return 0
	}
	return binary.LittleEndian.Uint32(b[:])
}

type reloc struct {
	vaddr uint64
	typ   uint32
	sym   uint32
}

// nextReloc decodes the first entry of data; rest is nil at the end.
func nextReloc(data []byte, arch *procstate.Arch, typ elf.SectionType) (r reloc, rest []byte) {
	le := binary.LittleEndian
	size := arch.AddressWidth * 2
	if typ == elf.SHT_RELA {
		size += arch.AddressWidth
	}
	if len(data) < size {
		return r, nil
	}
	if arch.AddressWidth == 8 {
		return reloc{le.Uint64(data), le.Uint32(data[8:]), le.Uint32(data[12:])}, data[size:]
	}
	info := le.Uint32(data[4:])
	return reloc{uint64(le.Uint32(data)), info & 0xff, info >> 8}, data[size:]
}

// fillsGOT reports whether the relocation stores the address of its symbol.
func (r *reloc) fillsGOT(arch *procstate.Arch) bool {
	switch arch {
	case procstate.AMD64:
		t := elf.R_X86_64(r.typ)
		return t == elf.R_X86_64_JMP_SLOT || t == elf.R_X86_64_GLOB_DAT || t == elf.R_X86_64_64
	case procstate.ARM64:
		t := elf.R_AARCH64(r.typ)
		return t == elf.R_AARCH64_JUMP_SLOT || t == elf.R_AARCH64_GLOB_DAT || t == elf.R_AARCH64_ABS64
	case procstate.I386:
		t := elf.R_386(r.typ)
		return t == elf.R_386_JMP_SLOT || t == elf.R_386_GLOB_DAT || t == elf.R_386_32
	}
	return false
}

type pltEntry struct{ off, size, name uint32 }

// pltEntries decodes the stubs of a PLT section.
func pltEntries(im *procstate.Image, s procstate.Section, code []byte, slots *gotSlots) []pltEntry {
	if im.Arch() == procstate.ARM64 {
		return pltEntriesARM64(s.Vaddr, code, slots)
	}
	size := 16
	if s.Name == ".plt.got" && s.Entsize == 8 {
		size = 8
	}
	var out []pltEntry
	for off := 0; off+size <= len(code); off += size {
		sym := pltSymbolX86(im.Arch(), s.Vaddr+uint64(off), code[off:off+size], slots)
		if name := slots.name(sym); name != 0 {
			out = append(out, pltEntry{uint32(off), uint32(size), name})
		}
	}
	return out
}

// pltSymbolX86 finds the symbol of one stub, 0 for none: optionally endbr, then
//
//	[bnd] jmp *slot(%rip)    ff 25 rel32   (i386: absolute)
//	jmp *slot(%ebx)          ff a3 disp32  (i386, position independent)
//	push $index              68 imm32      (the lazy half under IBT)
func pltSymbolX86(arch *procstate.Arch, vaddr uint64, code []byte, slots *gotSlots) uint32 {
	i := 0
	if len(code) >= 4 && code[0] == 0xf3 && code[1] == 0x0f && code[2] == 0x1e {
		i = 4
	}
	if i < len(code) && code[i] == 0xf2 {
		i++
	}
	if i+6 > len(code) {
		return 0
	}
	imm := func(at int) uint32 { return binary.LittleEndian.Uint32(code[at:]) }
	switch {
	case code[i] == 0xff && code[i+1] == 0x25 && arch.AddressWidth == 8:
		return slots.byAddr[vaddr+uint64(i)+6+uint64(int64(int32(imm(i+2))))]
	case code[i] == 0xff && code[i+1] == 0x25:
		return slots.byAddr[uint64(imm(i+2))]
	case code[i] == 0xff && code[i+1] == 0xa3:
		return slots.byAddr[uint64(uint32(slots.got)+imm(i+2))]
	case code[i] == 0x68:
		n := uint64(imm(i + 1))
		if arch.AddressWidth == 4 {
			n /= 8 // an offset in .rel.plt
		}
		if n < uint64(len(slots.byIndex)) {
			return slots.byIndex[n]
		}
	}
	return 0
}

// pltEntriesARM64 decodes stubs of
//
//	[bti c]; adrp x16, page; ldr x17, [x16, #off]; add x16, x16, #off; [autia1716;] br x17; [nop...]
func pltEntriesARM64(vaddr uint64, code []byte, slots *gotSlots) []pltEntry {
	const nop = 0xd503201f
	var out []pltEntry
	var page, slot uint64
	start := 0
	for off := 0; off+4 <= len(code); off += 4 {
		insn := binary.LittleEndian.Uint32(code[off:])
		switch {
		case insn&0x9f00001f == 0x90000010: // adrp x16
			imm := int64(insn>>29&3|insn>>3&0x1ffffc) << 43 >> 31
			page, slot = (vaddr+uint64(off))&^0xfff+uint64(imm), 0
		case insn&0xffc003ff == 0xf9400211: // ldr x17, [x16, #imm]
			slot = page + uint64(insn>>10&0xfff)*8
		case insn == 0xd61f0220: // br x17
			end := off + 4
			for end+4 <= len(code) && binary.LittleEndian.Uint32(code[end:]) == nop {
				end += 4
			}
			if name := slots.name(slots.byAddr[slot]); name != 0 {
				out = append(out, pltEntry{uint32(start), uint32(end - start), name})
			}
			start, slot = end, 0
		}
	}
	return out
}
