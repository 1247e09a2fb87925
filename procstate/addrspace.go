package procstate

import (
	"debug/elf"
	"errors"
	"fmt"
	"slices"
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
// without overlap. It follows mmap, munmap and exec as they are reported. A change
// moves no more than maxRun of them, so that it costs little also among tens of
// thousands.
type AddressSpace struct {
	runs       []mapRun // in order of address, none of them empty
	last       *Mapping // most recent hit of MappingAt
	generation uint32
	count      uint32 // of mappings
	shared     bool   // a clone has the same list of runs, and the runs
	text       []byte // of the maps file that SpaceOfProcess has made it of
}

// mapRun is some mappings next to each other. Most processes have one.
type mapRun struct {
	start  uint64     // of the first
	maps   []*Mapping // sorted by Start
	shared bool       // a clone has the same list
}

// from returns the part of the mapping from an address on.
func (m *Mapping) from(addr uint64) *Mapping {
	part := *m
	part.Start = addr
	part.Offset += addr - m.Start
	return &part
}

// maxRun is the number of mappings beyond which a run is divided.
const maxRun = 128

// search returns the index of the first mapping with Start >= addr.
func (r *mapRun) search(addr uint64) int {
	i, j := 0, len(r.maps)
	for i < j {
		if h := int(uint(i+j) >> 1); r.maps[h].Start < addr {
			i = h + 1
		} else {
			j = h
		}
	}
	return i
}

// own makes the list one that may be changed.
func (r *mapRun) own() {
	if r.shared {
		r.maps, r.shared = append(make([]*Mapping, 0, len(r.maps)+2), r.maps...), false
	}
}

// place is where a mapping is, or would be: before one of a run, or behind its last
// one. It is before the first of the first run alone.
type place struct{ run, index int }

// search returns the place of the first mapping with Start >= addr.
func (s *AddressSpace) search(addr uint64) place {
	i, j := 0, len(s.runs) // the first run that starts there or behind it
	for i < j {
		if h := int(uint(i+j) >> 1); s.runs[h].start < addr {
			i = h + 1
		} else {
			j = h
		}
	}
	if i == 0 {
		return place{}
	}
	return place{i - 1, s.runs[i-1].search(addr)}
}

// at returns the mapping at or behind a place, nil behind the last.
func (s *AddressSpace) at(p place) *Mapping {
	for ; p.run < len(s.runs); p = (place{p.run + 1, 0}) {
		if maps := s.runs[p.run].maps; p.index < len(maps) {
			return maps[p.index]
		}
	}
	return nil
}

// before returns the mapping before a place, nil before the first.
func (s *AddressSpace) before(p place) *Mapping {
	if p.index == 0 {
		return nil
	}
	return s.runs[p.run].maps[p.index-1]
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
	s.own()
	s.put(s.search(m.Start), m)
}

// Remove unmaps the run-time addresses [start, end).
func (s *AddressSpace) Remove(start, end uint64) {
	s.last = nil
	s.generation++
	if start >= end {
		return
	}
	at := s.search(start)
	before := s.before(at)
	if next := s.at(at); (before == nil || before.End <= start) && (next == nil || next.Start >= end) {
		return // as most often
	}
	s.own()
	if before != nil && before.End > start {
		low := *before
		low.End = start
		r := &s.runs[at.run]
		r.own()
		r.maps[at.index-1] = &low
		if before.End > end {
			s.put(at, before.from(end))
			return
		}
	}
	// Those that have their start in [start, end) are next to each other.
	for i := at.run; i < len(s.runs); {
		r := &s.runs[i]
		j := r.search(end)
		if j > at.index {
			if m := r.maps[j-1]; m.End > end { // the last of all
				j--
				r.own()
				r.maps[j] = m.from(end)
			}
			r.own()
			r.maps = slices.Delete(r.maps, at.index, j)
			s.count -= uint32(j - at.index)
		}
		if len(r.maps) > at.index {
			r.start = r.maps[0].Start
			break // what is left begins at end, or behind it
		}
		if len(r.maps) == 0 {
			s.runs = slices.Delete(s.runs, i, i+1)
		} else {
			i++
		}
		at.index = 0
	}
}

// put inserts a mapping at its place. The list of runs is owned.
func (s *AddressSpace) put(at place, m *Mapping) {
	s.count++
	if len(s.runs) == 0 {
		s.runs = append(s.runs, mapRun{start: m.Start, maps: []*Mapping{m}})
		return
	}
	if r := &s.runs[at.run]; len(r.maps) == maxRun {
		half := maxRun / 2
		if at.index == maxRun { // as in a list that is read in order
			half = maxRun
		}
		s.divide(at.run, half)
		if at.index > half || half == maxRun {
			at = place{at.run + 1, at.index - half}
		}
	}
	r := &s.runs[at.run]
	r.own()
	r.maps = slices.Insert(r.maps, at.index, m)
	r.start = r.maps[0].Start
}

// divide moves the mappings of a run from an index on to a new one behind it.
func (s *AddressSpace) divide(i, from int) {
	r := &s.runs[i]
	r.own()
	high := mapRun{maps: slices.Clone(r.maps[from:])}
	if len(high.maps) > 0 {
		high.start = high.maps[0].Start
	}
	clear(r.maps[from:])
	r.maps = r.maps[:from]
	s.runs = slices.Insert(s.runs, i+1, high)
}

// own makes the list of runs one that may be changed.
func (s *AddressSpace) own() {
	if s.shared {
		s.runs, s.shared = slices.Clone(s.runs), false
		for i := range s.runs {
			s.runs[i].shared = true
		}
	}
}

// Clear forgets all mappings, as exec does.
func (s *AddressSpace) Clear() {
	s.runs, s.last, s.count, s.shared = nil, nil, 0, false
	s.generation++
}

// Clone returns an independent copy, as fork makes it. It costs little: what is
// changed is copied by the first of both that changes it.
func (s *AddressSpace) Clone() *AddressSpace {
	s.shared = true
	return &AddressSpace{runs: s.runs, count: s.count, shared: true}
}

// Generation changes whenever the mappings do.
func (s *AddressSpace) Generation() uint32 { return s.generation }

// Len returns the number of mappings.
func (s *AddressSpace) Len() int { return int(s.count) }

// Mappings returns the mappings in order of address. The slice must not be
// modified and is valid until the next change. Of more than some hundred it is
// made anew each time.
func (s *AddressSpace) Mappings() []*Mapping {
	switch len(s.runs) {
	case 0:
		return nil
	case 1:
		return s.runs[0].maps
	}
	all := make([]*Mapping, 0, s.count)
	for i := range s.runs {
		all = append(all, s.runs[i].maps...)
	}
	return all
}

// Highest returns the mapping of the highest addresses, nil without any.
func (s *AddressSpace) Highest() *Mapping {
	if len(s.runs) == 0 {
		return nil
	}
	maps := s.runs[len(s.runs)-1].maps
	return maps[len(maps)-1]
}

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
	if addr == ^uint64(0) {
		return nil
	}
	m := s.before(s.search(addr + 1)) // the last mapping that starts at or below addr
	if m == nil || !m.Contains(addr) {
		return nil
	}
	return m
}

// Overlaps reports whether any mapping has an address in [start, end).
func (s *AddressSpace) Overlaps(start, end uint64) bool {
	m := s.before(s.search(end)) // the last mapping that starts below end
	return start < end && m != nil && m.End > start
}

// near returns the mappings that overlap [start, end) and those on both sides.
func (s *AddressSpace) near(start, end uint64) (near []*Mapping) {
	at := s.search(start)
	if m := s.before(at); m != nil {
		near = append(near, m)
	}
	for ; at.run < len(s.runs); at = (place{at.run + 1, 0}) {
		for _, m := range s.runs[at.run].maps[at.index:] {
			near = append(near, m)
			if m.Start >= end {
				return near
			}
		}
	}
	return near
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
	at := s.search(addr)
	for _, m := range [2]*Mapping{s.before(at), s.at(at)} {
		if m != nil && m.Image != nil && m.Image.readConstant(b, addr-m.Bias) == nil {
			return nil
		}
	}
	return ErrUnreadable
}

// Libraries implements [LibraryState].
func (s *AddressSpace) Libraries() []Library {
	var libs []Library
	for i := range s.runs {
		for _, m := range s.runs[i].maps {
			if m.Image == nil {
				continue
			}
			lib := Library{Path: m.Path, Bias: m.Bias, Image: m.Image}
			if n := len(libs); n == 0 || libs[n-1] != lib {
				libs = append(libs, lib)
			}
		}
	}
	return libs
}

// Update implements [LibraryState]; an AddressSpace is fed by its owner and
// has nothing to refresh.
func (s *AddressSpace) Update() error { return nil }

// TrapAddress implements [LibraryState].
func (s *AddressSpace) TrapAddress() uint64 { return 0 }
