package procstate

import (
	"sync/atomic"
	"unsafe"
)

const (
	// Sizes of a chunk, in bytes. Both together are a size of which the allocator
	// wastes nothing.
	chunkBytes   = 1024
	chunkOverlap = 128 // of the chunks that follow

	chunkGroup = 64 // chunks whose places are made together
)

// chunked is a part of a file that is read as it is asked for, in chunks, which
// are kept until they are forgotten. It may be used by any goroutine.
type chunked struct {
	img       *Image
	off, size uint64 // in the file

	groups []atomic.Pointer[chunks] // nil with whole
	kept   atomic.Int64             // bytes in them
	whole  []byte                   // all of it, where that is in memory anyway
}

// chunks are places of chunks that follow each other, nil where none is kept.
type chunks [chunkGroup]atomic.Pointer[chunk]

// chunk holds what lies in it and the beginning of what follows.
type chunk [chunkBytes + chunkOverlap]byte

func newChunked(im *Image, off, size uint64) *chunked {
	const groupBytes = chunkGroup * chunkBytes
	n := (size + groupBytes - 1) / groupBytes
	return &chunked{img: im, off: off, size: size, groups: make([]atomic.Pointer[chunks], n)}
}

func inMemory(b []byte) *chunked { return &chunked{whole: b, size: uint64(len(b))} }

// from returns bytes from offset at on: as many as there are, or chunkOverlap
// at least. They stay as they are for as long as somebody holds them. It
// returns nil past the end, and where the file cannot be read.
func (c *chunked) from(at uint64) []byte {
	if at >= c.size {
		return nil
	}
	if c.whole != nil {
		return c.whole[at:]
	}
	i := at / chunkBytes
	var p *chunk
	if g := c.groups[i/chunkGroup].Load(); g != nil {
		p = g[i%chunkGroup].Load()
	}
	if p == nil {
		if p = c.load(i); p == nil {
			return nil
		}
	}
	return p[at%chunkBytes : min(uint64(len(p)), c.size-i*chunkBytes)]
}

func (c *chunked) load(i uint64) *chunk {
	p, at := new(chunk), i*chunkBytes
	if c.img.readFull(p[:min(uint64(len(p)), c.size-at)], c.off+at) != nil {
		return nil
	}
	group := &c.groups[i/chunkGroup]
	g := group.Load()
	if g == nil {
		g = new(chunks)
		if !group.CompareAndSwap(nil, g) {
			return p // somebody else makes it
		}
		c.kept.Add(int64(unsafe.Sizeof(*g)))
	}
	if g[i%chunkGroup].CompareAndSwap(nil, p) {
		c.kept.Add(int64(len(p)))
	}
	return p
}

// memory is what is kept, in bytes.
func (c *chunked) memory() int64 {
	if c == nil {
		return 0
	}
	return int64(len(c.whole)) + int64(len(c.groups))*8 + c.kept.Load()
}

// forget lets go of what is kept.
func (c *chunked) forget() {
	if c == nil {
		return
	}
	for i := range c.groups {
		c.groups[i].Store(nil)
	}
	c.kept.Store(0)
}

// window reads a chunked from front to back through a buffer of its own, and
// leaves nothing behind.
type window struct {
	c    *chunked
	at   uint64 // of buf
	buf  []byte
	room uint64 // that may still be read
}

// windowBytes is the size of a window, windowMin the least that it shows.
const (
	windowBytes = 64 << 10
	windowMin   = 64
)

// newWindow makes a window over c. What is not read in order is read more than
// once: not more than four times in all, lest a hostile file take forever.
func newWindow(c *chunked) *window { return &window{c: c, room: 4*c.size + windowBytes} }

// from returns the bytes from offset at on: as many as there are, or windowMin
// at least, until the next call; nil where there are none.
func (w *window) from(at uint64) []byte {
	switch {
	case at >= w.c.size:
		return nil
	case w.c.whole != nil:
		return w.c.whole[at:]
	case at >= w.at && at < w.at+uint64(len(w.buf)) &&
		(at+windowMin <= w.at+uint64(len(w.buf)) || w.at+uint64(len(w.buf)) == w.c.size):
		return w.buf[at-w.at:]
	}
	n := min(windowBytes, w.c.size-at)
	if n > w.room {
		return nil
	}
	w.room -= n
	if w.buf == nil {
		w.buf = make([]byte, 0, windowBytes)
	}
	w.at, w.buf = at, w.buf[:n]
	if w.c.img.readFull(w.buf, w.c.off+at) != nil {
		w.buf = w.buf[:0]
		return nil
	}
	return w.buf
}
