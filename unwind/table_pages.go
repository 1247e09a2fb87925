package unwind

import "github.com/swbpf/swbpf/procstate"

// pageCache reads a file by pages and keeps the last few, so that what lies
// together is read once. The zero value is ready for use.
type pageCache struct {
	slots [4]cachedPage
	buf   []byte // for what does not lie in one page
}

// cachedPage is a piece of a file.
type cachedPage struct {
	off  uint64 // in the file
	data []byte // empty, or shorter than buf at the end of the file
	buf  []byte
}

const filePage = 4096

// read returns n bytes of the file, valid until the next read. n must be
// bounded by the caller.
func (c *pageCache) read(img *procstate.Image, off uint64, n int) ([]byte, bool) {
	start := off &^ (filePage - 1)
	i := off - start
	if i+uint64(n) > filePage {
		return c.readAcross(img, off, n)
	}
	p := &c.slots[off/filePage%uint64(len(c.slots))]
	if p.off != start || len(p.data) == 0 {
		p.load(img, start, filePage)
	}
	if i+uint64(n) > uint64(len(p.data)) {
		return nil, false
	}
	return p.data[i : i+uint64(n)], true
}

// load reads size bytes, always the same number; there may be fewer.
func (p *cachedPage) load(img *procstate.Image, start uint64, size int) {
	if p.buf == nil {
		p.buf = make([]byte, size)
	}
	n, _ := img.ReadAt(p.buf, int64(start))
	p.off, p.data = start, p.buf[:max(n, 0)]
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

// size is the memory in use, in bytes.
func (c *pageCache) size() int {
	n := cap(c.buf)
	for i := range c.slots {
		n += cap(c.slots[i].buf)
	}
	return n
}
