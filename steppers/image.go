package steppers

import (
	"github.com/swbpf/swbpf/procstate"
)

// perImage holds one T for each procstate.Image that was asked for, found by
// Image.Index: what a stepper knows of a file serves all processes that map
// it.
type perImage[T any] struct{ of []*T }

// get returns the T of an image, nil when there is none yet.
func (p *perImage[T]) get(im *procstate.Image) *T {
	if i := int(im.Index); i < len(p.of) {
		return p.of[i]
	}
	return nil
}

// put stores the T of an image.
func (p *perImage[T]) put(im *procstate.Image, v *T) {
	if n := int(im.Index) + 1; n > len(p.of) {
		p.of = append(p.of, make([]*T, n-len(p.of))...)
	}
	p.of[im.Index] = v
}

// known returns the T of an image, which find makes when it is first asked for.
func (p *perImage[T]) known(im *procstate.Image, find func(*procstate.Image) T) *T {
	v := p.get(im)
	if v == nil {
		v = new(T)
		*v = find(im)
		p.put(im, v)
	}
	return v
}

// keepOnly lets go of what is known of other images.
func (p *perImage[T]) keepOnly(isKept func(index uint32) bool) {
	for i, v := range p.of {
		if v != nil && !isKept(uint32(i)) {
			p.of[i] = nil
		}
	}
}

// vaddrCache remembers a small fact about a code address of a file, so that
// its bytes are read and decoded once. It is direct-mapped: a newer fact
// takes the place of an older one. The zero value is empty.
type vaddrCache struct {
	slot [1 << 9]struct {
		vaddr uint64
		image uint32 // Image.Index + 1
		fact  uint8
	}
}

func (c *vaddrCache) index(im *procstate.Image, vaddr uint64) int {
	h := (vaddr ^ uint64(im.Index)<<48) * 0x9e3779b97f4a7c15
	return int(h >> (64 - 9))
}

func (c *vaddrCache) get(im *procstate.Image, vaddr uint64) (fact uint8, ok bool) {
	s := &c.slot[c.index(im, vaddr)]
	return s.fact, s.image == im.Index+1 && s.vaddr == vaddr
}

func (c *vaddrCache) put(im *procstate.Image, vaddr uint64, fact uint8) {
	s := &c.slot[c.index(im, vaddr)]
	s.vaddr, s.image, s.fact = vaddr, im.Index+1, fact
}
