package procstate

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
)

// Limits on what a file may make us allocate.
const (
	maxProgs       = 512
	maxSections    = 1 << 16
	maxShstrtab    = 4 << 20
	maxSectionName = 1 << 10 // bytes; a longer one is none
	maxNotes       = 1 << 16
	maxAllNotes    = 1 << 20
	maxSectionData = 2 << 30
	maxZstdWindow  = 128 << 20 // what zstd --ultra --long makes
	minZstdWindow  = 8 << 20   // what every decoder should have (RFC 8878, section 3.1.1.1.2)
)

// FormatError reports a malformed file and where in it.
type FormatError struct {
	Off  int64  // file offset of the trouble
	What string // what is wrong there
}

// Error implements error.
func (e *FormatError) Error() string { return fmt.Sprintf("bad ELF at offset %#x: %s", e.Off, e.What) }

// ErrNotELF is returned for a file that has been read and is no ELF file at all: code in it
// is like code in no file.
var ErrNotELF error = &FormatError{0, "no ELF magic"}

// ErrNoSection is returned for a section that a file does not have.
var ErrNoSection = errors.New("no such section")

// Segment is a PT_LOAD program header.
type Segment struct {
	Off, Filesz  uint64 // in the file
	Vaddr, Memsz uint64 // link-time
	Flags        elf.ProgFlag
}

// Section is a section header. Name is unique by first occurrence.
type Section struct {
	Name      string
	Type      elf.SectionType
	Flags     elf.SectionFlag
	Vaddr     uint64 // link-time address; 0 when not loaded
	Off, Size uint64 // in the file
	Link      uint32
	Info      uint32
	Entsize   uint64
}

// ImageIdentity tells files apart: equal identities are the same contents.
type ImageIdentity struct {
	Dev, Inode uint64
	Generation uint64 // change time of the file in ns, or a caller's own number
	BuildID    string // raw bytes of the GNU build ID
}

// Image is an ELF file read through an io.ReaderAt. Its headers are checked
// and read once, by NewImage; everything else is read when asked for. Bytes
// of hostile files cause errors, never panics or large allocations. An Image
// is safe for concurrent use. The zero value is of no file: reads of it are
// ErrUnreadable.
type Image struct {
	Path  string // for messages; where it was opened
	Root  string // "", or a directory that Path counts from: where the process that maps it has another root
	Index uint32 // unique among all Images of this run, dense from 1; 0 is that of the zero values

	ID ImageIdentity

	arch     *Arch
	typ      elf.Type
	entry    uint64
	r        io.ReaderAt
	size     int64
	segs     []Segment
	progs    []elf.ProgHeader
	sections []Section
	buildID  []byte
	marks    codeMarks

	pclntab   pclntabCache
	goRuntime goRuntimeCache
	goLists   goListsCache
	jit       jitCache

	context atomic.Pointer[contextVariable] // nil where it was not looked for yet
}

var imageCount atomic.Uint32

// NewImage reads the headers of an ELF file of the given size. The reader is
// kept for the life of the Image. Errors are *FormatError, or the reader's.
func NewImage(r io.ReaderAt, size int64, path string) (*Image, error) {
	im, err := parseImage(r, size, path)
	if err != nil {
		return nil, err
	}
	im.buildID = im.findBuildID()
	im.ID.BuildID = string(im.buildID)
	im.Index = imageCount.Add(1)
	return im, nil
}

// parseImage makes an Image without a build ID and a number.
func parseImage(r io.ReaderAt, size int64, path string) (*Image, error) {
	im := &Image{Path: path, r: r, size: size}
	var ident [64]byte
	if n, err := r.ReadAt(ident[:], 0); n < 52 {
		if err == nil || err == io.EOF {
			err = &FormatError{0, "file too short"}
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if string(ident[:4]) != elf.ELFMAG {
		return nil, fmt.Errorf("%s: %w", path, ErrNotELF)
	}
	class := elf.Class(ident[elf.EI_CLASS])
	if (class != elf.ELFCLASS64 && class != elf.ELFCLASS32) || elf.Data(ident[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return nil, fmt.Errorf("%s: %w", path, &FormatError{4, "not a little-endian 32 or 64-bit file"})
	}
	le := binary.LittleEndian
	im.typ = elf.Type(le.Uint16(ident[16:]))
	im.arch = ArchByMachine(elf.Machine(le.Uint16(ident[18:])))
	if im.arch == nil {
		return nil, fmt.Errorf("%s: %w", path, &FormatError{18, "machine " + elf.Machine(le.Uint16(ident[18:])).String() + " is not known"})
	}
	var phoff, shoff uint64
	var phnum, shnum, shstrndx, phentsize, shentsize int
	if class == elf.ELFCLASS64 {
		im.entry, phoff, shoff = le.Uint64(ident[24:]), le.Uint64(ident[32:]), le.Uint64(ident[40:])
		phentsize, phnum = int(le.Uint16(ident[54:])), int(le.Uint16(ident[56:]))
		shentsize, shnum, shstrndx = int(le.Uint16(ident[58:])), int(le.Uint16(ident[60:])), int(le.Uint16(ident[62:]))
	} else {
		im.entry, phoff, shoff = uint64(le.Uint32(ident[24:])), uint64(le.Uint32(ident[28:])), uint64(le.Uint32(ident[32:]))
		phentsize, phnum = int(le.Uint16(ident[42:])), int(le.Uint16(ident[44:]))
		shentsize, shnum, shstrndx = int(le.Uint16(ident[46:])), int(le.Uint16(ident[48:])), int(le.Uint16(ident[50:]))
	}
	if err := im.readProgs(class, phoff, phentsize, phnum); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	// A file without readable sections, such as the vdso's image cut short by
	// a core, can still be unwound through its program headers.
	if err := im.readSections(class, shoff, shentsize, shnum, shstrndx); err != nil {
		im.sections = nil
	}
	return im, nil
}

// NewImageBytes makes an Image of a file held in memory, such as the vdso.
func NewImageBytes(b []byte, path string) (*Image, error) {
	return NewImage(bytes.NewReader(b), int64(len(b)), path)
}

func (im *Image) readProgs(class elf.Class, off uint64, entsize, n int) error {
	want := 56
	if class == elf.ELFCLASS32 {
		want = 32
	}
	if n == 0 {
		return nil
	}
	if entsize != want || n > maxProgs {
		return &FormatError{int64(off), "bad program header table"}
	}
	b, err := im.readNew(off, uint64(n*entsize))
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	for ; len(b) > 0; b = b[entsize:] {
		p := elf.ProgHeader{Type: elf.ProgType(le.Uint32(b))}
		if class == elf.ELFCLASS64 {
			p.Flags = elf.ProgFlag(le.Uint32(b[4:]))
			p.Off, p.Vaddr = le.Uint64(b[8:]), le.Uint64(b[16:])
			p.Filesz, p.Memsz, p.Align = le.Uint64(b[32:]), le.Uint64(b[40:]), le.Uint64(b[48:])
		} else {
			p.Off, p.Vaddr = uint64(le.Uint32(b[4:])), uint64(le.Uint32(b[8:]))
			p.Filesz, p.Memsz = uint64(le.Uint32(b[16:])), uint64(le.Uint32(b[20:]))
			p.Flags, p.Align = elf.ProgFlag(le.Uint32(b[24:])), uint64(le.Uint32(b[28:]))
		}
		im.progs = append(im.progs, p)
		if p.Type == elf.PT_LOAD && p.Vaddr+max(p.Memsz, p.Filesz) >= p.Vaddr && max(p.Off, p.Filesz) < 1<<62 {
			im.segs = append(im.segs, Segment{p.Off, p.Filesz, p.Vaddr, p.Memsz, p.Flags})
		}
	}
	return nil
}

func (im *Image) readSections(class elf.Class, off uint64, entsize, n, shstrndx int) error {
	want := 64
	if class == elf.ELFCLASS32 {
		want = 40
	}
	if off == 0 {
		return nil
	}
	if entsize != want {
		return &FormatError{int64(off), "bad section header size"}
	}
	first, err := im.readNew(off, uint64(entsize))
	if err != nil {
		return err
	}
	s0, _ := parseSection(class, first)
	if n == 0 { // more than SHN_LORESERVE sections: the count is in the first
		if s0.Size > maxSections {
			return &FormatError{int64(off), "too many sections"}
		}
		n = int(s0.Size)
	}
	if shstrndx == int(elf.SHN_XINDEX) {
		shstrndx = int(s0.Link)
	}
	if n > maxSections || shstrndx >= n {
		return &FormatError{int64(off), "bad section count"}
	}
	b, err := im.readNew(off, uint64(n*entsize))
	if err != nil {
		return err
	}
	names := make([]uint32, n)
	im.sections = make([]Section, n)
	for i := range n {
		im.sections[i], names[i] = parseSection(class, b[i*entsize:])
	}
	str := im.sections[shstrndx]
	if str.Size > maxShstrtab {
		return &FormatError{int64(str.Off), "section name table too large"}
	}
	tab, err := im.readNew(str.Off, str.Size)
	if err != nil {
		return err
	}
	var text []byte // of all names
	ends := make([]int, n)
	for i, o := range names {
		if o := uint64(o); o < uint64(len(tab)) {
			name := tab[o:min(o+maxSectionName, uint64(len(tab)))]
			text = append(text, name[:max(bytes.IndexByte(name, 0), 0)]...)
		}
		ends[i] = len(text)
	}
	all, start := string(text), 0
	for i, end := range ends {
		im.sections[i].Name, start = all[start:end], end
	}
	return nil
}

func parseSection(class elf.Class, b []byte) (s Section, name uint32) {
	le := binary.LittleEndian
	s.Type = elf.SectionType(le.Uint32(b[4:]))
	if class == elf.ELFCLASS64 {
		s.Flags, s.Vaddr = elf.SectionFlag(le.Uint64(b[8:])), le.Uint64(b[16:])
		s.Off, s.Size = le.Uint64(b[24:]), le.Uint64(b[32:])
		s.Link, s.Info, s.Entsize = le.Uint32(b[40:]), le.Uint32(b[44:]), le.Uint64(b[56:])
	} else {
		s.Flags, s.Vaddr = elf.SectionFlag(le.Uint32(b[8:])), uint64(le.Uint32(b[12:]))
		s.Off, s.Size = uint64(le.Uint32(b[16:])), uint64(le.Uint32(b[20:]))
		s.Link, s.Info, s.Entsize = le.Uint32(b[24:]), le.Uint32(b[28:]), uint64(le.Uint32(b[36:]))
	}
	return s, le.Uint32(b)
}

// readNew reads n bytes at file offset off into new memory, which is not
// made before it is known that the file is that long.
func (im *Image) readNew(off, n uint64) ([]byte, error) {
	if im.r == nil {
		return nil, ErrUnreadable
	}
	if off > uint64(im.size) || n > uint64(im.size)-off {
		return nil, &FormatError{int64(off), "past the end of the file"}
	}
	b := make([]byte, n)
	return b, im.readFull(b, off)
}

// readFull fills b from file offset off, or says what is missing.
func (im *Image) readFull(b []byte, off uint64) error {
	if off > uint64(im.size) || uint64(len(b)) > uint64(im.size)-off {
		return &FormatError{int64(off), "past the end of the file"}
	}
	if n, err := im.ReadAt(b, int64(off)); n < len(b) {
		if err == nil || err == io.EOF {
			err = &FormatError{int64(off), "file was cut short"}
		}
		return err
	}
	return nil
}

func (im *Image) findBuildID() []byte {
	left := uint64(maxAllNotes) // many headers may lead to the same notes
	try := func(off, size uint64) []byte {
		if size > min(maxNotes, left) {
			return nil
		}
		left -= size
		b, err := im.readNew(off, size)
		if err != nil {
			return nil
		}
		return buildIDInNotes(b)
	}
	for _, p := range im.progs {
		if p.Type == elf.PT_NOTE {
			if id := try(p.Off, p.Filesz); id != nil {
				return id
			}
		}
	}
	for _, s := range im.sections {
		if s.Type == elf.SHT_NOTE {
			if id := try(s.Off, s.Size); id != nil {
				return id
			}
		}
	}
	return nil
}

// buildIDInNotes returns the GNU build ID among the ELF notes in b, or nil.
func buildIDInNotes(b []byte) []byte {
	le := binary.LittleEndian
	for len(b) >= 12 {
		namesz, descsz, typ := uint64(le.Uint32(b)), uint64(le.Uint32(b[4:])), le.Uint32(b[8:])
		desc := 12 + (namesz+3)&^3
		next := desc + (descsz+3)&^3
		if desc+descsz > uint64(len(b)) {
			return nil
		}
		if typ == 3 && namesz == 4 && string(b[12:16]) == "GNU\x00" && descsz > 0 && descsz <= 64 {
			return append([]byte(nil), b[desc:desc+descsz]...)
		}
		if next > uint64(len(b)) {
			return nil
		}
		b = b[next:]
	}
	return nil
}

// Arch is the architecture of the code in the file; that of no file is none of those known.
func (im *Image) Arch() *Arch {
	if im.arch == nil {
		return &archOfNoFile
	}
	return im.arch
}

var archOfNoFile = Arch{AddressWidth: AMD64.AddressWidth, PCAlign: AMD64.PCAlign, PC: AMD64.PC, SP: AMD64.SP, FP: AMD64.FP, LR: NoReg, RA: AMD64.RA}

// Type is the ELF file type.
func (im *Image) Type() elf.Type { return im.typ }

// Entry is the link-time address of the entry point, 0 when there is none.
func (im *Image) Entry() uint64 { return im.entry }

// Size is the length of the file in bytes.
func (im *Image) Size() int64 { return im.size }

// BuildID is the GNU build ID in hex digits, "" when there is none.
func (im *Image) BuildID() string { return hex.EncodeToString(im.buildID) }

// Segments returns the PT_LOAD segments in file order. Ends of them, in memory and in
// the file, do not wrap around: one that does is left out.
func (im *Image) Segments() []Segment { return im.segs }

// Prog returns the first program header of a type.
func (im *Image) Prog(t elf.ProgType) (elf.ProgHeader, bool) {
	for _, p := range im.progs {
		if p.Type == t {
			return p, true
		}
	}
	return elf.ProgHeader{}, false
}

// IsProgram reports whether the file is a program, not a library. A loader that
// it asks for does not tell: glibc's libc.so.6 asks for one as well.
func (im *Image) IsProgram() bool {
	var flags uint64
	im.eachDynamic(func(tag elf.DynTag, value uint64) {
		if tag == elf.DT_FLAGS_1 {
			flags = value
		}
	})
	return im.typ == elf.ET_EXEC || elf.DynFlag1(flags)&elf.DF_1_PIE != 0
}

// eachDynamic calls f for the entries of the dynamic section.
func (im *Image) eachDynamic(f func(tag elf.DynTag, value uint64)) {
	p, ok := im.Prog(elf.PT_DYNAMIC)
	if !ok || p.Filesz > 1<<16 {
		return
	}
	b := make([]byte, p.Filesz)
	if im.readFull(b, p.Off) != nil {
		return
	}
	word := im.Arch().AddressWidth
	for ; len(b) >= 2*word; b = b[2*word:] {
		tag, value := im.word(b), im.word(b[word:])
		if elf.DynTag(tag) == elf.DT_NULL {
			return
		}
		f(elf.DynTag(tag), value)
	}
}

// Sections returns all section headers; the slice must not be modified.
func (im *Image) Sections() []Section { return im.sections }

// Section returns the section of a name.
func (im *Image) Section(name string) (Section, bool) {
	for i := range im.sections {
		if im.sections[i].Name == name {
			return im.sections[i], true
		}
	}
	return Section{}, false
}

// ReadAt reads at a file offset; it implements io.ReaderAt.
func (im *Image) ReadAt(b []byte, off int64) (int, error) {
	if im.r == nil {
		return 0, ErrUnreadable
	}
	return im.r.ReadAt(b, off)
}

// readOnce is ReadAt of what is not read again soon.
func (im *Image) readOnce(b []byte, off int64) (int, error) {
	if f, ok := im.r.(*imageFile); ok {
		f.touch()
		return f.read(b, off)
	}
	return im.ReadAt(b, off)
}

// ReadVaddr fills b with the file's bytes for a link-time address. Bytes that
// the file does not hold (.bss) are an error that wraps ErrUnreadable, as is
// a range across segments.
func (im *Image) ReadVaddr(b []byte, vaddr uint64) error {
	off, ok := im.OffsetOfVaddr(vaddr, uint64(len(b)))
	if !ok {
		return ErrUnreadable
	}
	if n, _ := im.ReadAt(b, int64(off)); n < len(b) {
		return ErrUnreadable
	}
	return nil
}

// OffsetOfVaddr returns the file offset of n bytes at a link-time address.
func (im *Image) OffsetOfVaddr(vaddr, n uint64) (off uint64, ok bool) {
	for i := range im.segs {
		if s := &im.segs[i]; vaddr-s.Vaddr < s.Filesz && n <= s.Filesz-(vaddr-s.Vaddr) {
			return s.Off + (vaddr - s.Vaddr), true
		}
	}
	return 0, false
}

// VaddrOfOffset returns the link-time address at which the file offset off is
// loaded, page padding of the segment included. Where segments share a page
// an executable one that starts there is preferred, then an executable one.
func (im *Image) VaddrOfOffset(off uint64) (vaddr uint64, ok bool) {
	s := im.segmentOfOffset(off, pageSize)
	if s == nil {
		return 0, false
	}
	return s.Vaddr - s.Off + off, true
}

// pageSize is the unit in which this machine maps segments: arm64 kernels may
// have pages of 16 or 64 KiB.
var pageSize = uint64(os.Getpagesize())

// pages returns the file offsets between which the segment is mapped.
func (s *Segment) pages(page uint64) (start, end uint64) {
	return s.Off &^ (page - 1), (s.Off + s.Filesz + page - 1) &^ (page - 1)
}

// segmentOfOffset returns the segment that is mapped at file offset off, with
// pages of a size, or nil.
func (im *Image) segmentOfOffset(off, page uint64) *Segment {
	var best *Segment
	var rank int
	for i := range im.segs {
		s := &im.segs[i]
		start, end := s.pages(page)
		if s.Filesz == 0 || off < start || off >= end {
			continue
		}
		r := 1
		if s.Flags&elf.PF_X != 0 {
			r += 4
		}
		if off == start {
			r += 2
		} else if off-s.Off < s.Filesz {
			r++
		}
		if r > rank {
			best, rank = s, r
		}
	}
	return best
}

// codeOffset returns the file offset of the link-time range [vaddr, vaddr+n)
// when an executable segment holds all of it, page padding included.
func (im *Image) codeOffset(vaddr, n uint64) (off uint64, ok bool) {
	for i := range im.segs {
		s := &im.segs[i]
		if s.Flags&elf.PF_X == 0 {
			continue
		}
		start, end := s.pages(pageSize)
		off := s.Off + (vaddr - s.Vaddr)
		if off >= start && off < end && n <= end-off {
			return off, true
		}
	}
	return 0, false
}

// readConstant fills b with the file's bytes for a link-time address, of a
// segment that is not writable.
func (im *Image) readConstant(b []byte, vaddr uint64) error {
	for i := range im.segs {
		s := &im.segs[i]
		if s.Flags&elf.PF_W != 0 || vaddr-s.Vaddr >= s.Filesz || uint64(len(b)) > s.Filesz-(vaddr-s.Vaddr) {
			continue
		}
		if n, _ := im.ReadAt(b, int64(s.Off+(vaddr-s.Vaddr))); n == len(b) {
			return nil
		}
	}
	return ErrUnreadable
}
