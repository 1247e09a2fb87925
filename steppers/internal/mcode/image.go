package mcode

import "github.com/swbpf/swbpf/procstate"

// PerImage holds one T for each procstate.Image that was asked for, found by
// Image.Index: what a stepper knows of a file serves all processes that map
// it.
type PerImage[T any] struct{ Of []*T }

// Get returns the T of an image, nil when there is none yet.
func (p *PerImage[T]) Get(im *procstate.Image) *T {
	if i := int(im.Index); i < len(p.Of) {
		return p.Of[i]
	}
	return nil
}

// Put stores the T of an image.
func (p *PerImage[T]) Put(im *procstate.Image, v *T) {
	if n := int(im.Index) + 1; n > len(p.Of) {
		p.Of = append(p.Of, make([]*T, n-len(p.Of))...)
	}
	p.Of[im.Index] = v
}

// Known returns the T of an image, which find makes when it is first asked for.
func (p *PerImage[T]) Known(im *procstate.Image, find func(*procstate.Image) T) *T {
	v := p.Get(im)
	if v == nil {
		v = new(T)
		*v = find(im)
		p.Put(im, v)
	}
	return v
}

// KeepOnly lets go of what is known of other images.
func (p *PerImage[T]) KeepOnly(isKept func(index uint32) bool) {
	for i, v := range p.Of {
		if v != nil && !isKept(uint32(i)) {
			p.Of[i] = nil
		}
	}
}

// VaddrCache remembers a small fact about a code address of a file, so that
// its bytes are read and decoded once. It is direct-mapped: a newer fact
// takes the place of an older one. The zero value is empty.
type VaddrCache struct {
	slot [1 << 9]struct {
		vaddr uint64
		image uint32 // Image.Index + 1
		fact  uint8
	}
}

func (c *VaddrCache) index(im *procstate.Image, vaddr uint64) int {
	h := (vaddr ^ uint64(im.Index)<<48) * 0x9e3779b97f4a7c15
	return int(h >> (64 - 9))
}

// Get returns the fact about a link-time address of an image, if it is remembered.
func (c *VaddrCache) Get(im *procstate.Image, vaddr uint64) (fact uint8, ok bool) {
	s := &c.slot[c.index(im, vaddr)]
	return s.fact, s.image == im.Index+1 && s.vaddr == vaddr
}

// Put remembers a fact.
func (c *VaddrCache) Put(im *procstate.Image, vaddr uint64, fact uint8) {
	s := &c.slot[c.index(im, vaddr)]
	s.vaddr, s.image, s.fact = vaddr, im.Index+1, fact
}
