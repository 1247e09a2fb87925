package symbols

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/swbpf/swbpf/procstate"
)

// packedSection is a compressed section, with the parts of it that are in
// memory until that is wanted for something else.
type packedSection struct {
	z     *procstate.Packed // belongs to who holds the lock of the file
	err   error             // what it met: nothing more can be had
	work  uint64            // bytes that were decompressed so far
	owner *Symbolizer

	mu    sync.Mutex
	parts []*packedPart // in order
}

// Bounds on how much of a section is decompressed: so often all of it, and so many bytes
// besides. Some KB in a file may be sections that drive one another out of the memory for
// each name. Tests lower it.
var maxUnpacked = uint64(4 << 30)

const unpackedAgain = 128

// packedPart is a part of a compressed section, decompressed.
type packedPart struct {
	of    *packedSection
	start uint64
	b     []byte
	used  atomic.Bool // since the last round of dropping
}

// at returns n bytes at an offset, nil when they are not in one part. They
// stay as they are.
func (s *packedSection) at(off, n uint64) ([]byte, error) {
	p, err := s.part(off)
	if err != nil {
		return nil, err
	}
	if i := off - p.start; n <= uint64(len(p.b))-i {
		return p.b[i : i+n], nil
	}
	return nil, nil
}

// read fills b from an offset.
func (s *packedSection) read(b []byte, off uint64) error {
	for len(b) > 0 {
		p, err := s.part(off)
		if err != nil {
			return err
		}
		n := copy(b, p.b[off-p.start:])
		b, off = b[n:], off+uint64(n)
	}
	return nil
}

// part returns the part that holds an offset.
func (s *packedSection) part(off uint64) (*packedPart, error) {
	if p := s.kept(off); p != nil {
		return p, nil
	}
	if s.err != nil {
		return nil, s.err
	}
	start, b, err := s.z.Part(off)
	if s.work += uint64(len(b)); err == nil && s.work > maxUnpacked+unpackedAgain*s.z.Size() {
		err = fmt.Errorf("a compressed section is read again and again: %w", ErrMemory)
	}
	if err != nil {
		s.err = err
		return nil, err
	}
	return s.keep(start, b), nil
}

// kept returns the part that holds an offset if it is in memory, or nil.
func (s *packedSection) kept(off uint64) *packedPart {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, found := s.search(off)
	if !found {
		i--
	}
	if i < 0 || off-s.parts[i].start >= uint64(len(s.parts[i].b)) {
		return nil
	}
	s.parts[i].used.Store(true)
	return s.parts[i]
}

// search returns the place of the part that starts at an offset.
func (s *packedSection) search(start uint64) (i int, found bool) {
	return slices.BinarySearchFunc(s.parts, start, func(p *packedPart, at uint64) int { return cmp.Compare(p.start, at) })
}

// keep keeps a part.
func (s *packedSection) keep(start uint64, b []byte) *packedPart {
	p := &packedPart{of: s, start: start, b: b}
	s.mu.Lock()
	i, _ := s.search(start)
	s.parts = slices.Insert(s.parts, i, p)
	s.mu.Unlock()
	s.owner.budget.add(p, len(b))
	return p
}

// inUse implements evictable.
func (p *packedPart) inUse() bool { return p.used.Swap(false) }

// drop implements evictable.
func (p *packedPart) drop() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if i, ok := p.of.search(p.start); ok {
		p.of.parts = slices.Delete(p.of.parts, i, i+1)
	}
}
