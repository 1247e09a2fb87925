package perfdata

import (
	"encoding/binary"
	"fmt"
	"io"
)

// block is memory that records lie in as they came. It is used again when none of them is wanted
// any more.
type block struct {
	data []byte
	refs int // records in it that wait, and the cutter that fills it
}

// The length of blocks, in bytes; where a record is longer than the shortest, one is made for it.
const (
	minBlock = 4 << 10
	maxBlock = 1 << 20
)

// blockList gives out blocks.
type blockList struct {
	each  int // bytes of a block, if it is not made for a longer record
	free  []*block
	inUse int // bytes
}

// get returns a block of at least n bytes.
func (l *blockList) get(n int) *block {
	var b *block
	for (b == nil || len(b.data) < n) && len(l.free) > 0 {
		b = l.free[len(l.free)-1]
		l.free = l.free[:len(l.free)-1]
	}
	if b == nil || len(b.data) < n {
		b = &block{data: make([]byte, max(l.each, 2*n))}
	}
	b.refs = 1
	l.inUse += len(b.data)
	return b
}

// maxFree is how many blocks are kept for use.
const maxFree = 64

func (l *blockList) release(b *block) {
	if b.refs--; b.refs > 0 {
		return
	}
	l.inUse -= len(b.data)
	if len(l.free) < maxFree {
		l.free = append(l.free, b)
	}
}

// cutter cuts a stream of bytes into records, which stay where they were read to.
type cutter struct {
	blocks *blockList
	read   func(b []byte, at int64) (int, error) // nil: what there is was put in from outside

	cur        *block
	begin, end int   // of what is in cur and not cut yet
	offset     int64 // in the stream, of end
	recordAt   int64 // in the stream, of the last record
}

// next returns the next record and where it lies. It returns io.EOF at the end of the stream, or
// where it ends for now, in which case a record may have begun.
func (c *cutter) next() ([]byte, *block, error) {
	if err := c.need(8); err != nil {
		return nil, nil, err
	}
	c.recordAt = c.offset - int64(c.end-c.begin)
	size := int(binary.LittleEndian.Uint16(c.cur.data[c.begin+6:]))
	if size < 8 {
		return nil, nil, &FormatError{c.recordAt, fmt.Sprintf("a record of %d bytes", size)}
	}
	if err := c.need(size); err != nil {
		return nil, nil, err
	}
	rec := c.cur.data[c.begin : c.begin+size : c.begin+size]
	c.begin += size
	return rec, c.cur, nil
}

// need makes sure that n bytes are there to be cut.
func (c *cutter) need(n int) error {
	if c.end-c.begin >= n {
		return nil
	}
	if c.read == nil {
		return io.EOF
	}
	c.makeRoom(n)
	for c.end-c.begin < n {
		m, err := c.read(c.cur.data[c.end:], c.offset)
		c.end += m
		c.offset += int64(m)
		if m == 0 {
			if err == nil {
				err = io.EOF
			}
			return err
		}
	}
	return nil
}

// makeRoom makes sure that n bytes have room from begin on, and that there is some behind end.
func (c *cutter) makeRoom(n int) {
	if c.cur != nil && c.begin+n <= len(c.cur.data) && c.end < len(c.cur.data) {
		return
	}
	b := c.blocks.get(n)
	if c.cur != nil {
		c.end = copy(b.data, c.cur.data[c.begin:c.end])
		c.blocks.release(c.cur)
	}
	c.cur, c.begin = b, 0
}

// skip passes over bytes of the stream, which ends somewhere.
func (c *cutter) skip(n, end int64) error {
	here := int64(c.end - c.begin)
	if n <= here {
		c.begin += int(n)
		return nil
	}
	c.begin = c.end
	if c.offset += n - here; c.offset > end || n < 0 {
		return io.EOF
	}
	return nil
}

// put adds bytes to the stream, as many as have room, and returns how many.
func (c *cutter) put(b []byte) int {
	c.makeRoom(c.end - c.begin + 1)
	n := copy(c.cur.data[c.end:], b)
	c.end += n
	c.offset += int64(n)
	return n
}

// drop gives back the block that records were cut off last.
func (c *cutter) drop() {
	if c.cur != nil {
		c.blocks.release(c.cur)
		c.cur = nil
	}
}

// isInside reports whether a record has begun that is not all there.
func (c *cutter) isInside() bool { return c.begin < c.end }
