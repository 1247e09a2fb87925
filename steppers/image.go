package steppers

import (
	"bytes"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
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

// readCode reads up to len(buf) bytes of code at addr: as many as come before
// the end of the mapping m, and of what its file has there. Breakpoints that
// are not in the file, those of uprobes and debuggers, are left out.
func readCode(w *unwind.Walker, m *procstate.Mapping, addr uint64, buf []byte) []byte {
	buf = buf[:min(uint64(len(buf)), m.End-addr)]
	if m.Image != nil {
		for _, s := range m.Image.Segments() {
			if off := addr - m.Bias - s.Vaddr; off < s.Filesz {
				buf = buf[:min(uint64(len(buf)), s.Filesz-off)]
				break
			}
		}
	}
	n, _ := w.ProcessState().ReadMemory(addr, buf)
	buf = buf[:n]
	if m.Image != nil && bytes.IndexByte(buf, breakpointAMD64) >= 0 && m.Image.ReadVaddr(buf, addr-m.Bias) != nil {
		return nil
	}
	return buf
}

// Instructions of x86 of one byte.
const (
	breakpointAMD64 = 0xcc // int3
	nopAMD64        = 0x90
)

// readVaddr reads the code at link-time addresses [start, end), as much of it
// as the file has from start on.
func readVaddr(img *procstate.Image, start, end uint64) []byte {
	for _, s := range img.Segments() {
		if start < end && start-s.Vaddr < s.Filesz {
			b := make([]byte, min(end-start, s.Filesz-(start-s.Vaddr)))
			if img.ReadVaddr(b, start) == nil {
				return b
			}
		}
	}
	return nil
}
