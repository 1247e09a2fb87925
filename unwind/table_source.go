package unwind

import (
	"debug/elf"
	"encoding/binary"
	"sort"

	"github.com/swbpf/swbpf/procstate"
)

// maxFDEs bounds the index of a section that must be read through. The
// largest programs known have some two million, and a .eh_frame_hdr. Tests lower it.
var maxFDEs = 2 << 20

const (
	// maxScan bounds how much of such a section is read through, in bytes, and how much
	// of CIEs.
	maxScan = 256 << 20

	// maxCIEs bounds the CIEs kept parsed.
	maxCIEs = 512
)

// source is a section with CFI: .eh_frame or .debug_frame. A position in it is
// a link-time address for the former, which is loaded, and an offset in the
// section for the latter.
type source struct {
	img    *procstate.Image
	debug  bool // .debug_frame
	start  uint64
	end    uint64 // positions [start, end)
	off    uint64 // file offset of start
	data   []byte // the contents, when they are not as in the file
	table  *Table // whose window is used
	cies   map[uint64]*cie
	parsed uint64 // bytes of CIEs, of some of them again and again
	bases  pointerBases

	// The index: FDEs by the address of their code. Either in the file, or
	// made by reading all.
	hdr   *frameHeader
	index []indexEntry
}

// indexEntry is an FDE in an index: the code [start, end) and its position.
type indexEntry struct{ start, end, pos uint64 }

// record is the frame of a CIE or FDE: its body is [body, end).
type record struct {
	body, end uint64
	isCIE     bool
	cie       uint64 // position of an FDE's CIE
}

// read returns n bytes at a position. They are valid until the next read.
func (s *source) read(pos uint64, n int) ([]byte, bool) {
	if pos < s.start || pos > s.end || uint64(n) > s.end-pos {
		return nil, false
	}
	at := pos - s.start
	if s.data != nil {
		return s.data[at : at+uint64(n)], true
	}
	return s.table.file.read(s.img, s.off+at, n)
}

// record reads the header of the record at pos. A zero length yields an empty
// record: a terminator. ok is false when it cannot be a record; when next is
// not 0, the following one can still be found there.
func (s *source) record(pos uint64) (r record, next uint64, ok bool) {
	n := int(min(s.end-pos, 20))
	if pos < s.start || pos > s.end || n < 4 {
		return r, 0, false
	}
	b, ok := s.read(pos, n)
	if !ok {
		return r, 0, false
	}
	c := cursor{b: b}
	length := c.uint(4)
	idSize := 4
	if length == 0xffffffff {
		length = c.uint(8)
		if s.debug {
			idSize = 8 // in .eh_frame it has four bytes in any case
		}
	} else if length >= 0xfffffff0 {
		return r, 0, false
	}
	idAt := pos + uint64(c.i)
	if c.bad || length > s.end-idAt {
		return r, 0, false
	}
	next = idAt + length
	r.end = next
	if length == 0 {
		return record{body: next, end: next}, next, true
	}
	if length < uint64(idSize) {
		return r, next, false
	}
	id := c.uint(idSize)
	r.body = pos + uint64(c.i)
	switch {
	case c.bad:
		return r, next, false
	case !s.debug:
		r.isCIE = id == 0
		r.cie = idAt - id
	case idSize == 8:
		r.isCIE = id == ^uint64(0)
		r.cie = id
	default:
		r.isCIE = id == 0xffffffff
		r.cie = id
	}
	return r, next, true
}

// bodyOf reads the body of a record.
func (s *source) bodyOf(r *record) ([]byte, bool) {
	if r.end-r.body > maxRecord {
		return nil, false
	}
	return s.read(r.body, int(r.end-r.body))
}

// cieAt returns the CIE at a position, parsed.
func (s *source) cieAt(pos uint64, a *procstate.Arch) *cie {
	if c, ok := s.cies[pos]; ok {
		return c
	}
	c := &cie{why: BadUnwindInfo}
	if r, _, ok := s.record(pos); ok && r.isCIE {
		if body, ok := s.bodyOf(&r); ok {
			bases := s.bases
			bases.pc = r.body
			s.parsed += uint64(len(body))
			c = parseCIE(a, body, bases)
		}
	}
	if len(s.cies) >= maxCIEs {
		clear(s.cies)
	}
	s.cies[pos] = c
	return c
}

// fdeAt parses the FDE at a position. Its instructions are valid until the
// next read.
func (s *source) fdeAt(pos uint64, f *fde) Reason {
	a := s.img.Arch()
	r, _, ok := s.record(pos)
	if !ok || r.isCIE || r.body == r.end {
		return BadUnwindInfo
	}
	c := s.cieAt(r.cie, a)
	body, ok := s.bodyOf(&r)
	if !ok {
		return BadUnwindInfo
	}
	bases := s.bases
	bases.pc = r.body
	return f.parse(c, body, bases, s.readWord)
}

// readWord reads a pointer at a link-time address.
func (s *source) readWord(vaddr uint64) (uint64, bool) {
	var b [8]byte
	n := s.img.Arch().AddressWidth
	if s.img.ReadVaddr(b[:n], vaddr) != nil {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[:]), true
}

// find finds the FDE whose code holds vaddr. NoUnwindInfo tells that there is
// none.
func (s *source) find(vaddr uint64, f *fde) Reason {
	var pos uint64
	next := ^uint64(0) // where the next FDE begins
	if s.hdr != nil {
		var ok bool
		if pos, next, ok = s.hdr.search(s.table.file, vaddr); !ok {
			return NoUnwindInfo
		}
	} else {
		i := sort.Search(len(s.index), func(i int) bool { return s.index[i].start > vaddr })
		if i == 0 || vaddr >= s.index[i-1].end {
			return NoUnwindInfo
		}
		pos = s.index[i-1].pos
		if i < len(s.index) {
			next = s.index[i].start
		}
	}
	if why := s.fdeAt(pos, f); why != ReasonNone {
		return why
	}
	// Of FDEs that overlap the one that begins last counts, whatever was asked
	// for before.
	f.end = min(f.end, next)
	if vaddr < f.start || vaddr >= f.end {
		return NoUnwindInfo
	}
	return ReasonNone
}

// scan reads the whole section and makes its index.
func (s *source) scan() {
	var f fde
	for pos := s.start; pos < s.end && pos-s.start < maxScan && s.parsed < maxScan && len(s.index) < maxFDEs; {
		r, next, ok := s.record(pos)
		if next == 0 || next <= pos {
			break
		}
		if ok && !r.isCIE && r.body < r.end &&
			s.fdeAt(pos, &f) == ReasonNone && f.start < f.end && s.plausible(&f) {
			s.index = append(s.index, indexEntry{f.start, f.end, pos})
		}
		if ok && r.body == r.end && !s.debug {
			break // the terminator
		}
		pos = next
	}
	sort.Slice(s.index, func(i, j int) bool { return s.index[i].start < s.index[j].start })
}

// plausible reports whether the FDE is of code in the file. Linkers leave FDEs
// of removed functions in .debug_frame, with their addresses near zero.
func (s *source) plausible(f *fde) bool {
	for _, seg := range s.img.Segments() {
		if seg.Flags&elf.PF_X != 0 && f.start-seg.Vaddr < seg.Memsz {
			return !s.debug || f.start != 0
		}
	}
	return false
}
