package unwind

import "encoding/binary"

// cursor reads a record of untrusted bytes. Reading past the end sets bad and
// returns zeros; callers check bad once, at the end of what they read.
type cursor struct {
	b   []byte
	i   int
	bad bool
}

func (c *cursor) more() bool { return c.i < len(c.b) && !c.bad }

// take returns the next n bytes, or nil.
func (c *cursor) take(n uint64) []byte {
	if c.bad || n > uint64(len(c.b)-c.i) {
		c.bad = true
		return nil
	}
	b := c.b[c.i : c.i+int(n)]
	c.i += int(n)
	return b
}

func (c *cursor) u8() uint8 {
	if c.bad || c.i >= len(c.b) {
		c.bad = true
		return 0
	}
	v := c.b[c.i]
	c.i++
	return v
}

// uint reads a little-endian number of 1, 2, 4 or 8 bytes.
func (c *cursor) uint(size int) uint64 {
	b := c.take(uint64(size))
	if b == nil {
		return 0
	}
	switch size {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(b))
	case 4:
		return uint64(binary.LittleEndian.Uint32(b))
	case 8:
		return binary.LittleEndian.Uint64(b)
	}
	c.bad = true
	return 0
}

// int is uint, sign-extended.
func (c *cursor) int(size int) int64 {
	return signExtend(c.uint(size), size)
}

func signExtend(v uint64, size int) int64 {
	shift := 64 - 8*uint(size)
	return int64(v<<shift) >> shift
}

// uleb reads an unsigned LEB128 number (DWARF 5, 7.6). Bits past the 64th are
// dropped.
func (c *cursor) uleb() uint64 {
	var v uint64
	for shift := uint(0); ; shift += 7 {
		b := c.u8()
		if shift < 64 {
			v |= uint64(b&0x7f) << shift
		}
		if b < 0x80 {
			return v
		}
	}
}

// sleb reads a signed LEB128 number.
func (c *cursor) sleb() int64 {
	var v uint64
	for shift := uint(0); ; shift += 7 {
		b := c.u8()
		if shift < 64 {
			v |= uint64(b&0x7f) << shift
		}
		if b < 0x80 {
			if b&0x40 != 0 && shift+7 < 64 {
				v |= ^uint64(0) << (shift + 7)
			}
			return int64(v)
		}
	}
}

// cstring reads a NUL-terminated string.
func (c *cursor) cstring() string {
	if !c.bad {
		for i, b := range c.b[c.i:] {
			if b == 0 {
				s := string(c.b[c.i : c.i+i])
				c.i += i + 1
				return s
			}
		}
	}
	c.bad = true
	return ""
}

// Pointer encodings (Linux Standard Base, Core, 10.5.1): the low four bits
// are the format, the next three what the value is relative to.
const (
	peAbsptr  = 0x00
	peULEB    = 0x01
	peUdata2  = 0x02
	peUdata4  = 0x03
	peUdata8  = 0x04
	peSLEB    = 0x09
	peSdata2  = 0x0a
	peSdata4  = 0x0b
	peSdata8  = 0x0c
	peFormat  = 0x0f
	pePcrel   = 0x10
	peTextrel = 0x20
	peDatarel = 0x30
	peFuncrel = 0x40
	peAligned = 0x50
	peApply   = 0x70
	peIndir   = 0x80
	peOmit    = 0xff
)

// pointerBases are the link-time addresses that encoded pointers may be
// relative to.
type pointerBases struct {
	pc    uint64 // of the first byte of the cursor's record
	text  uint64
	data  uint64
	fn    uint64
	width int // bytes in an absolute pointer
}

// pointer reads an encoded pointer. indirect tells that the result is the
// address of the pointer. The result is a link-time address.
func (c *cursor) pointer(enc byte, bases *pointerBases) (v uint64, indirect bool) {
	at := bases.pc + uint64(c.i)
	if enc == peAligned {
		w := uint64(bases.width)
		c.take((w - at%w) % w)
		return c.uint(bases.width), false
	}
	v = c.pointerValue(enc, bases.width)
	switch enc & peApply {
	case 0:
	case pePcrel:
		v += at
	case peTextrel:
		v += bases.text
	case peDatarel:
		v += bases.data
	case peFuncrel:
		v += bases.fn
	default:
		c.bad = true
	}
	if bases.width == 4 {
		v = uint64(uint32(v))
	}
	return v, enc&peIndir != 0
}

// pointerValue reads the number of an encoded pointer.
func (c *cursor) pointerValue(enc byte, width int) uint64 {
	switch enc & peFormat {
	case peAbsptr:
		return c.uint(width)
	case peULEB:
		return c.uleb()
	case peUdata2:
		return c.uint(2)
	case peUdata4:
		return c.uint(4)
	case peUdata8:
		return c.uint(8)
	case peSLEB:
		return uint64(c.sleb())
	case peSdata2:
		return uint64(c.int(2))
	case peSdata4:
		return uint64(c.int(4))
	case peSdata8:
		return c.uint(8)
	}
	c.bad = true
	return 0
}

// pointerSize is the number of bytes of an encoded pointer of fixed size, or
// 0 for one of variable size or an unknown one.
func pointerSize(enc byte, width int) int {
	switch enc & peFormat {
	case peAbsptr:
		return width
	case peUdata2, peSdata2:
		return 2
	case peUdata4, peSdata4:
		return 4
	case peUdata8, peSdata8:
		return 8
	}
	return 0
}
