package symbols

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sort"
	"sync"

	"github.com/swbpf/swbpf/procstate"
)

// errDWARF is what malformed debug information is reported as.
var errDWARF = errors.New("bad DWARF")

// dwarfSection is a debug section of a file, of which only a window is in
// memory, and of a compressed one some parts.
type dwarfSection struct {
	path   string      // for messages
	r      io.ReaderAt // the file
	off    uint64      // in the file, or in what packed decompresses to
	size   uint64      // when decompressed
	packed *packedSection

	window    []byte // what was read last: section offsets [windowAt, ...)
	windowAt  uint64
	windowLen uint64 // how much to read at a time
	missed    uint64 // what was read so far, and what it cost to ask for it
	budget    *budget
}

// A small section that is asked for here and there is read whole as soon as
// the parts that were read have cost as much.
const (
	maxWhole = 1 << 20
	readCost = 4 << 10  // of one read, in bytes that could be read instead
	maxBytes = 64 << 20 // that are in memory for one question: a file with holes may be of any size
)

// leastMemory may be taken by a part of a section, whatever Options.Memory is.
const leastMemory = 1 << 20

// openSection finds a section by name, compressed or not, in a file.
func (d *dwarfData) openSection(im *procstate.Image, name string, window uint64) (dwarfSection, error) {
	h, ok := im.Section("." + name)
	if !ok {
		h, ok = im.Section(".z" + name)
	}
	if !ok || h.Size == 0 || h.Type == elf.SHT_NOBITS || h.Off > uint64(im.Size()) || h.Size > uint64(im.Size())-h.Off {
		return dwarfSection{}, nil
	}
	if im.Type() == elf.ET_REL {
		if j := joinSections(im, h.Name); len(j.starts) > 1 {
			return dwarfSection{path: im.Path, r: j, size: j.size, windowLen: window, budget: &d.owner.budget}, nil
		}
	}
	z, err := im.Packed(h)
	if err != nil {
		return dwarfSection{}, err
	}
	if z == nil {
		return dwarfSection{path: im.Path, r: im, off: h.Off, size: h.Size, windowLen: window, budget: &d.owner.budget}, nil
	}
	if z.PartSize() > max(uint64(d.owner.opt.Memory), leastMemory) {
		return dwarfSection{}, fmt.Errorf("%s: section %s needs %d bytes: %w", im.Path, h.Name, z.PartSize(), ErrMemory)
	}
	p := &packedSection{z: z, owner: d.owner}
	return dwarfSection{path: im.Path, size: z.Size(), packed: p, windowLen: window, budget: &d.owner.budget}, nil
}

// part returns the section [off, off+size) as a section of its own.
func (s *dwarfSection) part(off, size uint64) (dwarfSection, error) {
	if off > s.size || size > s.size-off {
		return dwarfSection{}, fmt.Errorf("part [%#x, +%#x) is not in the section: %w", off, size, errDWARF)
	}
	return dwarfSection{path: s.path, r: s.r, off: s.off + off, size: size, packed: s.packed, windowLen: s.windowLen, budget: s.budget}, nil
}

// joinedSections are sections of one name as one: an object file has each type
// unit in a section of its own.
type joinedSections struct {
	img    *procstate.Image
	starts []uint64 // of the sections, in all of them
	offs   []uint64 // in the file
	size   uint64
}

// joinSections joins the sections of a name that are not compressed.
func joinSections(im *procstate.Image, name string) *joinedSections {
	j := &joinedSections{img: im}
	for _, s := range im.Sections() {
		if s.Name != name || s.Type == elf.SHT_NOBITS || s.Flags&elf.SHF_COMPRESSED != 0 || s.Size == 0 ||
			s.Off > uint64(im.Size()) || s.Size > uint64(im.Size())-s.Off {
			continue
		}
		j.starts, j.offs = append(j.starts, j.size), append(j.offs, s.Off)
		j.size += s.Size
	}
	return j
}

// ReadAt implements io.ReaderAt.
func (j *joinedSections) ReadAt(b []byte, off int64) (n int, err error) {
	for n < len(b) && uint64(off) < j.size {
		at := uint64(off)
		i := sort.Search(len(j.starts), func(i int) bool { return j.starts[i] > at }) - 1
		end := j.size
		if i+1 < len(j.starts) {
			end = j.starts[i+1]
		}
		k, err := j.img.ReadAt(b[n:n+int(min(uint64(len(b)-n), end-at))], int64(j.offs[i]+at-j.starts[i]))
		n, off = n+k, off+int64(k)
		if k == 0 {
			return n, err
		}
	}
	if n < len(b) {
		return n, io.ErrUnexpectedEOF
	}
	return n, nil
}

// again returns the section with a window of its own.
func (s *dwarfSection) again() dwarfSection {
	return dwarfSection{path: s.path, r: s.r, off: s.off, size: s.size, packed: s.packed, windowLen: s.windowLen, budget: s.budget}
}

// bytes returns n bytes at a section offset, valid until the next call.
func (s *dwarfSection) bytes(off, n uint64) ([]byte, error) {
	if off > s.size || n > s.size-off {
		return nil, fmt.Errorf("offset %#x is past the end of the section: %w", off, errDWARF)
	}
	if n > maxBytes {
		return nil, fmt.Errorf("%d bytes at %#x: %w", n, off, errDWARF)
	}
	if s.packed != nil {
		if b, err := s.packed.at(s.off+off, n); b != nil || err != nil {
			return b, err
		}
	}
	if i := off - s.windowAt; off >= s.windowAt && i <= uint64(len(s.window)) && n <= uint64(len(s.window))-i {
		return s.window[i : i+n], nil
	}
	want := min(max(n, s.windowLen), s.size-off)
	if s.missed += want + readCost; s.missed > s.size && s.size <= maxWhole && s.budget.mayCharge(int(s.size)) {
		whole := make([]byte, s.size)
		if err := s.read(whole, 0); err == nil {
			s.window, s.windowAt = whole, 0
			return whole[off : off+n], nil
		}
	}
	if uint64(cap(s.window)) < want {
		s.window = make([]byte, want)
	}
	s.window = s.window[:want]
	if err := s.read(s.window, off); err != nil {
		s.window = s.window[:0]
		return nil, err
	}
	s.windowAt = off
	return s.window[:n], nil
}

// read fills b from a section offset.
func (s *dwarfSection) read(b []byte, off uint64) error {
	if s.packed != nil {
		return s.packed.read(b, s.off+off)
	}
	if n, err := s.r.ReadAt(b, int64(s.off+off)); n < len(b) {
		return fmt.Errorf("%s: section is cut short: %w", s.path, err)
	}
	return nil
}

// upTo returns between 1 and n bytes at a section offset, as many as there
// are, valid until the next call.
func (s *dwarfSection) upTo(off, n uint64) ([]byte, error) {
	if off < s.size {
		n = min(n, s.size-off)
	}
	return s.bytes(off, max(n, 1))
}

// sectionBuffers are buffers of units and line tables, of which only one is
// in memory at a time.
var sectionBuffers sync.Pool

// maxPooled bounds a buffer that is kept.
const maxPooled = 4 << 20

// readPooled returns n bytes at a section offset that stay valid until free is
// called.
func (s *dwarfSection) readPooled(off, n uint64) (b []byte, free func(), err error) {
	if off > s.size || n > s.size-off {
		return nil, nil, fmt.Errorf("offset %#x is past the end of the section: %w", off, errDWARF)
	}
	if s.packed != nil {
		if b, err := s.packed.at(s.off+off, n); b != nil || err != nil {
			return b, func() {}, err
		}
	}
	buf, _ := sectionBuffers.Get().(*[]byte)
	if buf == nil || uint64(cap(*buf)) < n {
		fresh := make([]byte, n)
		buf = &fresh
	}
	b = (*buf)[:n]
	if err := s.read(b, off); err != nil {
		return nil, nil, err
	}
	return b, func() {
		if cap(*buf) <= maxPooled {
			sectionBuffers.Put(buf)
		}
	}, nil
}

// cstring returns the NUL-terminated string at a section offset, "" when it
// cannot be read. One of more than maxNameLength is cut there.
func (s *dwarfSection) cstring(off uint64) string {
	for n := uint64(128); ; n = min(8*n, maxNameLength) {
		b, err := s.upTo(off, n)
		if err != nil {
			return ""
		}
		if i := bytes.IndexByte(b, 0); i >= 0 {
			return s.budget.boundName(string(b[:i]))
		}
		if uint64(len(b)) < n {
			return ""
		}
		if n == maxNameLength {
			return s.budget.boundName(string(b))
		}
	}
}

// word reads a little-endian number of size 4 or 8 at a section offset.
func (s *dwarfSection) word(off uint64, size int) (uint64, bool) {
	b, err := s.bytes(off, uint64(size))
	if err != nil {
		return 0, false
	}
	if size == 8 {
		return binary.LittleEndian.Uint64(b), true
	}
	return uint64(binary.LittleEndian.Uint32(b)), true
}
