package symbols

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/swbpf/swbpf/procstate"
)

// errDWARF is what malformed debug information is reported as.
var errDWARF = errors.New("bad DWARF")

// dwarfSection is a debug section of a file. A compressed one is held in
// memory whole, from its first use until the memory is wanted for something
// else; of others only a window is.
type dwarfSection struct {
	img  *procstate.Image
	off  uint64 // in the file
	size uint64 // when decompressed

	packed  bool // compressed
	header  procstate.Section
	raw     []byte // all of it, decompressed; nil when it is not there
	owner   *dwarfData
	touched bool // since the last round of dropping

	window    []byte // what was read last: section offsets [windowAt, ...)
	windowAt  uint64
	windowLen uint64 // how much to read at a time
}

// openSection finds a section by name, compressed or not, in a file.
func (d *dwarfData) openSection(im *procstate.Image, name string, window uint64) (dwarfSection, error) {
	h, ok := im.Section("." + name)
	if !ok {
		h, ok = im.Section(".z" + name)
	}
	if !ok || h.Size == 0 || h.Type == elf.SHT_NOBITS || h.Off > uint64(im.Size()) || h.Size > uint64(im.Size())-h.Off {
		return dwarfSection{}, nil
	}
	s := dwarfSection{img: im, off: h.Off, size: h.Size, windowLen: window}
	if h.Flags&elf.SHF_COMPRESSED == 0 && h.Name[1] != 'z' {
		return s, nil
	}
	s.packed, s.header, s.owner = true, h, d
	var err error
	s.size, err = inflatedSize(im, h)
	if err == nil && s.size > uint64(d.owner.opt.Memory) {
		err = fmt.Errorf("%s: section %s needs %d bytes: %w", im.Path, h.Name, s.size, ErrMemory)
	}
	return s, err
}

// inflatedSize reads the size of a compressed section before compression.
func inflatedSize(im *procstate.Image, h procstate.Section) (uint64, error) {
	var b [24]byte
	if n, _ := im.ReadAt(b[:min(h.Size, 24)], int64(h.Off)); n < 12 {
		return 0, fmt.Errorf("%s: section %s: header is cut short: %w", im.Path, h.Name, errDWARF)
	}
	switch {
	case h.Flags&elf.SHF_COMPRESSED == 0: // "ZLIB" and a big-endian number
		return binary.BigEndian.Uint64(b[4:]), nil
	case im.Arch().AddressWidth == 8:
		return binary.LittleEndian.Uint64(b[8:]), nil
	}
	return uint64(binary.LittleEndian.Uint32(b[4:])), nil
}

// inflate makes the contents of a compressed section available in raw.
func (s *dwarfSection) inflate() error {
	s.touched = true
	if !s.packed || s.raw != nil {
		return nil
	}
	raw, err := s.img.SectionBytes(s.header, s.size)
	if err == nil && uint64(len(raw)) != s.size {
		err = fmt.Errorf("%s: section %s: %w", s.img.Path, s.header.Name, errDWARF)
	}
	if err != nil {
		s.packed, s.size = false, 0 // as if there were none
		return err
	}
	s.raw = raw
	s.owner.owner.budget.add(s, len(raw))
	return nil
}

// inUse implements evictable.
func (s *dwarfSection) inUse() bool {
	mu := s.owner.lock()
	if !mu.TryLock() {
		return true
	}
	defer mu.Unlock()
	t := s.touched
	s.touched = false
	return t
}

// drop implements evictable.
func (s *dwarfSection) drop() bool {
	mu := s.owner.lock()
	if !mu.TryLock() {
		return false
	}
	defer mu.Unlock()
	s.raw = nil
	return true
}

// part returns the section [off, off+size) as a section of its own.
func (s *dwarfSection) part(off, size uint64) (dwarfSection, error) {
	if err := s.inflate(); err != nil {
		return dwarfSection{}, err
	}
	if off > s.size || size > s.size-off {
		return dwarfSection{}, fmt.Errorf("part [%#x, +%#x) is not in the section: %w", off, size, errDWARF)
	}
	p := dwarfSection{img: s.img, off: s.off + off, size: size, windowLen: s.windowLen}
	if s.raw != nil {
		p.raw = s.raw[off : off+size]
	}
	return p, nil
}

// bytes returns n bytes at a section offset, valid until the next call.
func (s *dwarfSection) bytes(off, n uint64) ([]byte, error) {
	if off > s.size || n > s.size-off {
		return nil, fmt.Errorf("offset %#x is past the end of the section: %w", off, errDWARF)
	}
	if s.packed {
		if err := s.inflate(); err != nil {
			return nil, err
		}
	}
	if s.raw != nil {
		return s.raw[off : off+n], nil
	}
	if i := off - s.windowAt; off >= s.windowAt && i <= uint64(len(s.window)) && n <= uint64(len(s.window))-i {
		return s.window[i : i+n], nil
	}
	want := min(max(n, s.windowLen), s.size-off)
	if uint64(cap(s.window)) < want {
		s.window = make([]byte, want)
	}
	s.window = s.window[:want]
	if m, err := s.img.ReadAt(s.window, int64(s.off+off)); uint64(m) < want {
		s.window = s.window[:0]
		return nil, fmt.Errorf("%s: section is cut short: %w", s.img.Path, err)
	}
	s.windowAt = off
	return s.window[:n], nil
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
	if s.packed {
		if err := s.inflate(); err != nil {
			return nil, nil, err
		}
	}
	if s.raw != nil {
		return s.raw[off : off+n], func() {}, nil
	}
	buf, _ := sectionBuffers.Get().(*[]byte)
	if buf == nil || uint64(cap(*buf)) < n {
		fresh := make([]byte, n)
		buf = &fresh
	}
	b = (*buf)[:n]
	if m, err := s.img.ReadAt(b, int64(s.off+off)); uint64(m) < n {
		return nil, nil, fmt.Errorf("%s: section is cut short: %w", s.img.Path, err)
	}
	return b, func() {
		if cap(*buf) <= maxPooled {
			sectionBuffers.Put(buf)
		}
	}, nil
}

// cstring returns the NUL-terminated string at a section offset, "" when it
// cannot be read.
func (s *dwarfSection) cstring(off uint64) string {
	for n := uint64(128); ; n *= 8 {
		b, err := s.upTo(off, n)
		if err != nil {
			return ""
		}
		if i := bytes.IndexByte(b, 0); i >= 0 {
			return string(b[:i])
		}
		if uint64(len(b)) < n || n >= maxNameLength {
			return ""
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
