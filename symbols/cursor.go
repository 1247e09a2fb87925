package symbols

import (
	"bytes"
	"encoding/binary"
)

// cursor reads numbers from bytes. A read past the end sets failed, and all
// further reads give zero.
type cursor struct {
	b      []byte
	off    int
	failed bool
}

func (c *cursor) fail() {
	c.failed = true
	c.off = len(c.b)
}

func (c *cursor) u8() uint8 {
	if c.off >= len(c.b) {
		c.fail()
		return 0
	}
	v := c.b[c.off]
	c.off++
	return v
}

func (c *cursor) u16() uint16 {
	if len(c.b)-c.off < 2 {
		c.fail()
		return 0
	}
	v := binary.LittleEndian.Uint16(c.b[c.off:])
	c.off += 2
	return v
}

func (c *cursor) u32() uint32 {
	if len(c.b)-c.off < 4 {
		c.fail()
		return 0
	}
	v := binary.LittleEndian.Uint32(c.b[c.off:])
	c.off += 4
	return v
}

func (c *cursor) u64() uint64 {
	if len(c.b)-c.off < 8 {
		c.fail()
		return 0
	}
	v := binary.LittleEndian.Uint64(c.b[c.off:])
	c.off += 8
	return v
}

// uint reads a number of 1, 2, 3, 4 or 8 bytes.
func (c *cursor) uint(size int) uint64 {
	switch size {
	case 1:
		return uint64(c.u8())
	case 2:
		return uint64(c.u16())
	case 3:
		lo := uint64(c.u16())
		return lo | uint64(c.u8())<<16
	case 4:
		return uint64(c.u32())
	case 8:
		return c.u64()
	}
	c.fail()
	return 0
}

// uleb and sleb read LEB128 numbers, modulo 2^64.
func (c *cursor) uleb() (v uint64) {
	if c.off < len(c.b) && c.b[c.off] < 0x80 {
		v = uint64(c.b[c.off])
		c.off++
		return v
	}
	for shift := uint(0); ; shift += 7 {
		if c.off >= len(c.b) {
			c.fail()
			return 0
		}
		b := c.b[c.off]
		c.off++
		if shift < 64 {
			v |= uint64(b&0x7f) << shift
		}
		if b < 0x80 {
			return v
		}
	}
}

func (c *cursor) sleb() (v int64) {
	for shift := uint(0); ; {
		if c.off >= len(c.b) {
			c.fail()
			return 0
		}
		b := c.b[c.off]
		c.off++
		if shift < 64 {
			v |= int64(b&0x7f) << shift
		}
		shift += 7
		if b < 0x80 {
			if b&0x40 != 0 && shift < 64 {
				v |= -1 << shift
			}
			return v
		}
	}
}

func (c *cursor) skip(n uint64) {
	if n > uint64(len(c.b)-c.off) {
		c.fail()
		return
	}
	c.off += int(n)
}

// take returns the next n bytes.
func (c *cursor) take(n uint64) []byte {
	at := c.off
	if c.skip(n); c.failed {
		return nil
	}
	return c.b[at:c.off]
}

// skipString passes over a NUL-terminated string.
func (c *cursor) skipString() {
	i := bytes.IndexByte(c.b[c.off:], 0)
	if i < 0 {
		c.fail()
		return
	}
	c.off += i + 1
}

// length reads an initial length: that of what follows, and whether offsets
// have 64 bits.
func (c *cursor) length() (n uint64, dwarf64 bool) {
	v := c.u32()
	if v == 0xffffffff {
		return c.u64(), true
	}
	if v >= 0xfffffff0 {
		c.fail()
		return 0, false
	}
	return uint64(v), false
}
