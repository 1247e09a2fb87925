package unwind

import (
	"sync"

	"github.com/swbpf/swbpf/procstate"
)

// pageCache reads files by pieces and keeps the last few, so that what lies
// together is read once. The zero value is ready for use.
type pageCache struct {
	slots [16]cachedPiece
	buf   []byte // for what does not lie in one page
}

// cachedPiece is a piece of a file, a page at most.
type cachedPiece struct {
	off   uint64 // in the file
	image uint32 // its Index
	size  int    // asked for; 0 when there is nothing
	data  []byte // shorter at the end of the file
	buf   []byte // a page; nil before the first
}

const filePage = 4096

// read returns n bytes of a file, valid until the next read. n must be
// bounded by the caller.
func (c *pageCache) read(img *procstate.Image, off uint64, n int) ([]byte, bool) {
	start := off &^ (filePage - 1)
	i := off - start
	if i+uint64(n) > filePage {
		return c.readAcross(img, off, n)
	}
	data := c.piece(img, start, filePage)
	if i+uint64(n) > uint64(len(data)) {
		return nil, false
	}
	return data[i : i+uint64(n)], true
}

// piece returns size bytes of a file, a page at most, or what there is of them.
// They are valid until the next read.
func (c *pageCache) piece(img *procstate.Image, off uint64, size int) []byte {
	p := &c.slots[(off/(filePage/2)+5*uint64(img.Index))%uint64(len(c.slots))]
	if p.off != off || p.image != img.Index || p.size != size {
		if p.buf == nil {
			p.buf = make([]byte, filePage)
		}
		n, _ := img.ReadAt(p.buf[:size], int64(off))
		p.off, p.image, p.size, p.data = off, img.Index, size, p.buf[:max(n, 0)]
	}
	return p.data
}

// readAcross reads what lies in more than one page.
func (c *pageCache) readAcross(img *procstate.Image, off uint64, n int) ([]byte, bool) {
	if off > uint64(img.Size()) || uint64(n) > uint64(img.Size())-off {
		return nil, false
	}
	if cap(c.buf) < n {
		c.buf = make([]byte, n)
	}
	b := c.buf[:n]
	m, _ := img.ReadAt(b, int64(off))
	return b, m == n
}

// pageCaches lends a pageCache to each goroutine that reads files.
type pageCaches struct {
	mu   sync.Mutex
	free []*pageCache
}

// take takes a pageCache; give gives it back.
func (p *pageCaches) take() *pageCache {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.free)
	if n == 0 {
		return new(pageCache)
	}
	c := p.free[n-1]
	p.free = p.free[:n-1]
	return c
}

func (p *pageCaches) give(c *pageCache) {
	p.mu.Lock()
	p.free = append(p.free, c)
	p.mu.Unlock()
}
