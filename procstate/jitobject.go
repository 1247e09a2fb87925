package procstate

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"hash/maphash"
)

// Limits on what is read of an object file that a process has in memory.
const (
	maxJITObject = 32 << 20  // bytes
	maxJITSum    = 256 << 10 // bytes that tell whether it is the same still
	jitChunk     = 256 << 10 // bytes read at a time

	jitObjectBytes = 1 << 10 // what a JITObject takes, besides what is in Frames,
	jitRangeBytes  = 128     // and each piece of its code
)

var errJITObject = errors.New("not an object file of this machine")

// JITObject is an object file that a process has in memory, of code that it made
// at run time. It never changes.
type JITObject struct {
	// Frames is an Image with the call frame information of the object, and
	// nothing else. It is linked: its link-time addresses are run-time addresses.
	Frames *Image

	// Generated says that the object file is of memory for code, all of which has
	// one frame, and not of the code in it: that is made, and replaced, without a
	// word.
	Generated bool

	at    uint64 // address of its entry
	entry jitEntry
	more  *JITObject // of the same entry
	from  uint64     // address of the object file
	code  []jitRange
	parts []jitPart // what sum is of
	sum   uint64
	size  int    // of what is kept, in bytes
	there uint64 // when it was seen to be registered last, in ns of CLOCK_MONOTONIC; 0 where memory does not change
}

// Holds reports whether the object file is of the code at a run-time address.
func (o *JITObject) Holds(addr uint64) bool {
	for _, c := range o.code {
		if addr-c.start < c.end-c.start {
			return true
		}
	}
	return false
}

// holder returns that of the object files of an entry which is of the code at a run-time
// address, nil when none is.
func (o *JITObject) holder(addr uint64) *JITObject {
	for ; o != nil && !o.Holds(addr); o = o.more {
	}
	return o
}

// sizes returns what is kept of the object files of an entry, in bytes.
func (o *JITObject) sizes() (n int) {
	for ; o != nil; o = o.more {
		n += o.size
	}
	return n
}

// jitRange is code at the run-time addresses [start, end).
type jitRange struct {
	start, end uint64
	object     *JITObject
	order      int // of the object in its list, the newest first
}

// jitPart is a part of an object file: offset and length.
type jitPart struct{ off, n uint64 }

// jitSeed is of all sums.
var jitSeed = maphash.MakeSeed()

// readJITObject reads the object file of an entry. linked is the whole of it.
func readJITObject(e jitEntry, read func(addr uint64, buf []byte) bool) (o *JITObject, linked *Image, err error) {
	var magic [4]byte
	if e.size < 64 || e.size > maxJITObject || !read(e.symfile, magic[:]) || string(magic[:]) != elf.ELFMAG {
		return nil, nil, errJITObject
	}
	var raw []byte
	for uint64(len(raw)) < e.size { // the size is not to be trusted: there may be no such memory
		n := min(jitChunk, e.size-uint64(len(raw)))
		raw = append(raw, make([]byte, n)...)
		if !read(e.symfile+uint64(len(raw))-n, raw[uint64(len(raw))-n:]) {
			return nil, nil, ErrUnreadable
		}
	}
	if linked, err = parseImage(bytes.NewReader(raw), int64(len(raw)), "[jit]"); err != nil {
		return nil, nil, err
	}
	o = &JITObject{entry: e, from: e.symfile, parts: linked.jitParts(raw)}
	var h maphash.Hash
	h.SetSeed(jitSeed)
	for _, p := range o.parts {
		_, _ = h.Write(raw[p.off : p.off+p.n])
	}
	o.sum = h.Sum64()
	if err = linked.link(raw); err != nil {
		return nil, nil, err
	}
	for _, s := range linked.sections {
		const flags = elf.SHF_ALLOC | elf.SHF_EXECINSTR
		o.Generated = o.Generated || s.Flags&flags == flags && s.Type == elf.SHT_NOBITS && s.Size != 0
	}
	for _, s := range linked.segs {
		o.code = append(o.code, jitRange{start: s.Vaddr, end: s.Vaddr + s.Memsz, object: o})
	}
	o.Frames = linked.only(raw, ".eh_frame", ".debug_frame")
	o.size = int(o.Frames.size) + jitObjectBytes + jitRangeBytes*len(o.code)
	return o, linked, nil
}

// same reports whether the object file is, in memory, what it was: by all that
// frames and names come from.
func (o *JITObject) same(read func(addr uint64, buf []byte) bool) bool {
	var h maphash.Hash
	h.SetSeed(jitSeed)
	buf := make([]byte, 4<<10)
	for _, p := range o.parts {
		for p.n > 0 {
			b := buf[:min(p.n, uint64(len(buf)))]
			if !read(o.from+p.off, b) {
				return false
			}
			_, _ = h.Write(b)
			p.off, p.n = p.off+uint64(len(b)), p.n-uint64(len(b))
		}
	}
	return h.Sum64() == o.sum
}

// jitParts returns the parts of an object file by which it is recognised: its
// headers, its call frame information and its symbols.
func (im *Image) jitParts(raw []byte) []jitPart {
	left := uint64(maxJITSum)
	var parts []jitPart
	add := func(off, n uint64) {
		if n = min(n, left); off < uint64(len(raw)) {
			n = min(n, uint64(len(raw))-off)
			parts = append(parts, jitPart{off, n})
			left -= n
		}
	}
	add(0, 64)
	add(binary.LittleEndian.Uint64(raw[40:]), 64*uint64(len(im.sections)))
	for _, name := range []string{".eh_frame", ".debug_frame", ".symtab", ".strtab"} {
		if s, ok := im.Section(name); ok && s.Type != elf.SHT_NOBITS {
			add(s.Off, s.Size)
		}
	}
	return parts
}

// link makes im, just parsed, that of an object file whose sections have the
// addresses that they were loaded at. In a relocatable file symbols and debug
// information are relative to sections: they are put right, in raw. Its segments are
// its code, of which it has no bytes: in memory they differ.
func (im *Image) link(raw []byte) error {
	if im.Arch().AddressWidth != 8 {
		return errJITObject
	}
	end := uint64(0)
	var code []Segment
	for _, s := range im.sections {
		const flags = elf.SHF_ALLOC | elf.SHF_EXECINSTR
		if s.Flags&flags == flags && s.Vaddr != 0 && s.Size != 0 && s.Vaddr+s.Size > s.Vaddr {
			code = append(code, Segment{Vaddr: s.Vaddr, Memsz: s.Size, Flags: elf.PF_X | elf.PF_R})
			end = max(end, s.Vaddr+s.Size)
		}
	}
	for _, s := range im.segs {
		if len(im.sections) == 0 && s.Flags&elf.PF_X != 0 && s.Memsz != 0 && s.Vaddr+s.Memsz > s.Vaddr {
			code = append(code, Segment{Vaddr: s.Vaddr, Memsz: s.Memsz, Flags: s.Flags})
		}
	}
	if len(code) == 0 {
		return errJITObject
	}
	im.segs = code
	if im.typ == elf.ET_REL {
		// What was not loaded has no address. Pointers in it need one near the code.
		for i := range im.sections {
			if s := &im.sections[i]; s.Name == ".eh_frame" && s.Vaddr == 0 {
				s.Vaddr = (end + 0xfff) &^ 0xfff
			}
		}
		im.moveSymbols(raw)
		im.relocate(raw)
		im.typ = elf.ET_EXEC
	}
	im.Index = imageCount.Add(1)
	return nil
}

// moveSymbols adds to the values of symbols the addresses of their sections.
func (im *Image) moveSymbols(raw []byte) {
	const size, shndx, value = 24, 6, 8
	le := binary.LittleEndian
	s, ok := im.Section(".symtab")
	if !ok || s.Type != elf.SHT_SYMTAB {
		return
	}
	for b := bytesAt(raw, s.Off, s.Size); len(b) >= size; b = b[size:] {
		if in := int(le.Uint16(b[shndx:])); in != 0 && in < len(im.sections) {
			le.PutUint64(b[value:], le.Uint64(b[value:])+im.sections[in].Vaddr)
		}
	}
}

// relocate carries out the relocations of what is not code.
func (im *Image) relocate(raw []byte) {
	const entry = 24
	left := len(raw) / entry
	for _, s := range im.sections {
		if s.Type != elf.SHT_RELA || uint64(s.Info) >= uint64(len(im.sections)) || uint64(s.Link) >= uint64(len(im.sections)) {
			continue
		}
		to, symbols := im.sections[s.Info], im.sections[s.Link]
		if to.Type == elf.SHT_NOBITS || to.Flags&(elf.SHF_EXECINSTR|elf.SHF_COMPRESSED) != 0 {
			continue
		}
		data, table := bytesAt(raw, to.Off, to.Size), bytesAt(raw, symbols.Off, symbols.Size)
		for b := bytesAt(raw, s.Off, s.Size); len(b) >= entry && left > 0; b, left = b[entry:], left-1 {
			im.relocateOne(data, to.Vaddr, table, b)
		}
	}
}

// relocateOne carries out a relocation (Elf64_Rela) of data, which is at an address:
// those that debug information and call frame information have.
func (im *Image) relocateOne(data []byte, vaddr uint64, symbols, rela []byte) {
	le := binary.LittleEndian
	off, info, addend := le.Uint64(rela), le.Uint64(rela[8:]), le.Uint64(rela[16:])
	symbol := bytesAt(symbols, 24*(info>>32), 24)
	if len(symbol) == 0 {
		return
	}
	value := le.Uint64(symbol[8:]) + addend
	width := 4
	if im.arch == AMD64 {
		switch elf.R_X86_64(uint32(info)) {
		case elf.R_X86_64_64:
			width = 8
		case elf.R_X86_64_32, elf.R_X86_64_32S:
		case elf.R_X86_64_PC32, elf.R_X86_64_PLT32:
			value -= vaddr + off
		case elf.R_X86_64_PC64:
			value, width = value-vaddr-off, 8
		default:
			return
		}
	} else {
		switch elf.R_AARCH64(uint32(info)) {
		case elf.R_AARCH64_ABS64:
			width = 8
		case elf.R_AARCH64_ABS32:
		case elf.R_AARCH64_PREL32:
			value -= vaddr + off
		case elf.R_AARCH64_PREL64:
			value, width = value-vaddr-off, 8
		default:
			return
		}
	}
	if at := bytesAt(data, off, uint64(width)); width == 8 && len(at) == 8 {
		le.PutUint64(at, value)
	} else if len(at) == 4 {
		le.PutUint32(at, uint32(value))
	}
}

// only returns an Image of the same code, with the contents of some sections and
// those sections alone.
func (im *Image) only(raw []byte, names ...string) *Image {
	out := &Image{Path: im.Path, Index: imageCount.Add(1), arch: im.arch, typ: im.typ, segs: im.segs}
	var data []byte
	for _, name := range names {
		s, ok := im.Section(name)
		b := bytesAt(raw, s.Off, s.Size)
		if !ok || s.Type == elf.SHT_NOBITS || len(b) == 0 {
			continue
		}
		s.Off = uint64(len(data))
		data = append(data, b...)
		out.sections = append(out.sections, s)
	}
	out.r, out.size = bytes.NewReader(data), int64(len(data))
	return out
}

// bytesAt returns n bytes of b at an offset, none when there are fewer.
func bytesAt(b []byte, off, n uint64) []byte {
	if off > uint64(len(b)) || n > uint64(len(b))-off {
		return nil
	}
	return b[off : off+n]
}
