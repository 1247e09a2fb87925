package procstate

import (
	"debug/elf"
	"errors"
	"fmt"
	"slices"
	"sort"
)

// Mapping is one executable mapping of a process: the run-time addresses
// [Start, End), backed by the file from offset Offset on, or by no file. It is
// immutable once inserted in an [AddressSpace].
type Mapping struct {
	Start, End uint64 // run-time addresses
	Offset     uint64 // file offset of Start
	Path       string // as the process sees it; "[vdso]", "//anon", ...
	Image      *Image // the file; nil for anonymous memory or when not opened
	ImageErr   error  // why Image is nil although there is a file
	Bias       uint64 // run-time address minus link-time address; valid with Image
}

// Contains reports whether addr lies in the mapping.
func (m *Mapping) Contains(addr uint64) bool { return addr-m.Start < m.End-m.Start }

var errNoSegment = errors.New("mapped part of the file is in no loaded segment")

// clip ends the mapping where the segment does that it starts in, or one of
// code that follows it without a gap: a program that makes its code writable
// may have one mapping for them. Loaders map a library whole before they put
// its data segments in place, of which a report of executable mappings tells
// nothing.
func (m *Mapping) clip() {
	if m.Image == nil {
		return
	}
	seg := m.Image.segmentOfOffset(m.Offset, pageSize)
	if seg == nil {
		return
	}
	_, end := seg.pages(pageSize)
	for i := range m.Image.segs {
		next := &m.Image.segs[i]
		from, to := next.pages(pageSize)
		if next.Flags&elf.PF_X != 0 && next.Vaddr-next.Off == seg.Vaddr-seg.Off && from <= end && to > end {
			end = to
		}
	}
	m.End = m.Start + min(m.End-m.Start, end-m.Offset)
}

// AddressSpace is the set of executable mappings of a process, in order and
// without overlap. It follows mmap, munmap and exec as they are reported.
type AddressSpace struct {
	maps       []*Mapping // sorted by Start
	last       *Mapping   // most recent hit of MappingAt
	generation uint32
}

// Insert adds a mapping, cutting away what it covers of older ones, as mmap
// with MAP_FIXED does. When m.Image is set, m.Bias is computed from it. The
// AddressSpace owns m from then on.
func (s *AddressSpace) Insert(m *Mapping) {
	if m.End <= m.Start {
		return
	}
	if m.Image != nil {
		if vaddr, ok := m.Image.VaddrOfOffset(m.Offset); ok {
			m.Bias = m.Start - vaddr
		} else {
			m.Image, m.ImageErr = nil, fmt.Errorf("%s: offset %#x: %w", m.Path, m.Offset, errNoSegment)
		}
	}
	s.Remove(m.Start, m.End)
	i := s.search(m.Start)
	s.maps = append(s.maps, nil)
	copy(s.maps[i+1:], s.maps[i:])
	s.maps[i] = m
}

// Remove unmaps the run-time addresses [start, end).
func (s *AddressSpace) Remove(start, end uint64) {
	s.last = nil
	s.generation++
	// Those that have an address in [start, end) are next to each other.
	i, j := s.search(start), s.search(end)
	if i > 0 && s.maps[i-1].End > start {
		i--
	}
	if i >= j || start >= end {
		return
	}
	left := make([]*Mapping, 0, 2) // what is left of them
	if m := s.maps[i]; m.Start < start {
		low := *m
		low.End = start
		left = append(left, &low)
	}
	if m := s.maps[j-1]; m.End > end {
		high := *m
		high.Start = end
		high.Offset += end - m.Start
		left = append(left, &high)
	}
	out := make([]*Mapping, 0, len(s.maps)+2)
	s.maps = append(append(append(out, s.maps[:i]...), left...), s.maps[j:]...)
}

// Clear forgets all mappings, as exec does.
func (s *AddressSpace) Clear() {
	s.maps, s.last = nil, nil
	s.generation++
}

// Clone returns an independent copy, as fork makes it. It costs little: the list
// is copied by the first of both that changes.
func (s *AddressSpace) Clone() *AddressSpace {
	s.maps = slices.Clip(s.maps)
	return &AddressSpace{maps: s.maps}
}

// Generation changes whenever the mappings do.
func (s *AddressSpace) Generation() uint32 { return s.generation }

// Mappings returns the mappings in order of address. The slice must not be
// modified and is valid until the next change.
func (s *AddressSpace) Mappings() []*Mapping { return s.maps }

// MappingAt implements [LibraryState].
func (s *AddressSpace) MappingAt(addr uint64) *Mapping {
	if m := s.last; m != nil && m.Contains(addr) {
		return m
	}
	m := s.find(addr)
	if m != nil {
		s.last = m
	}
	return m
}

// find is MappingAt for any number of goroutines at a time.
func (s *AddressSpace) find(addr uint64) *Mapping {
	i := s.search(addr+1) - 1 // the last mapping that starts at or below addr
	if addr == ^uint64(0) || i < 0 || !s.maps[i].Contains(addr) {
		return nil
	}
	return s.maps[i]
}

// Overlaps reports whether any mapping has an address in [start, end).
func (s *AddressSpace) Overlaps(start, end uint64) bool {
	i := s.search(end) - 1 // the last mapping that starts below end
	return start < end && i >= 0 && s.maps[i].End > start
}

// near returns the mappings that overlap [start, end) and those on both sides.
func (s *AddressSpace) near(start, end uint64) []*Mapping {
	i := max(s.search(start)-1, 0)
	j := s.search(end)
	return s.maps[i:min(j+1, len(s.maps))]
}

// ReadFile fills b with what the files of the address space hold for addr, in
// a segment that the process cannot write: its code, its constants, its unwind
// tables. Data that can be written is never answered from a file, as the
// process may have changed it. The error is ErrUnreadable.
func (s *AddressSpace) ReadFile(b []byte, addr uint64) error {
	if m := s.MappingAt(addr); m != nil {
		if m.Image == nil {
			return ErrUnreadable
		}
		return m.Image.readConstant(b, addr-m.Bias)
	}
	// The other segments of a file lie beside its code.
	i := s.search(addr)
	for _, j := range [2]int{i - 1, i} {
		if j < 0 || j >= len(s.maps) {
			continue
		}
		if m := s.maps[j]; m.Image != nil && m.Image.readConstant(b, addr-m.Bias) == nil {
			return nil
		}
	}
	return ErrUnreadable
}

// search returns the index of the first mapping with Start >= addr.
func (s *AddressSpace) search(addr uint64) int {
	return sort.Search(len(s.maps), func(i int) bool { return s.maps[i].Start >= addr })
}

// Libraries implements [LibraryState].
func (s *AddressSpace) Libraries() []Library {
	var libs []Library
	for _, m := range s.maps {
		if m.Image == nil {
			continue
		}
		lib := Library{Path: m.Path, Bias: m.Bias, Image: m.Image}
		if n := len(libs); n == 0 || libs[n-1] != lib {
			libs = append(libs, lib)
		}
	}
	return libs
}

// Update implements [LibraryState]; an AddressSpace is fed by its owner and
// has nothing to refresh.
func (s *AddressSpace) Update() error { return nil }

// TrapAddress implements [LibraryState].
func (s *AddressSpace) TrapAddress() uint64 { return 0 }
