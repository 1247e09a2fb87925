package steppers

import (
	"slices"

	"github.com/swbpf/swbpf/procstate"
)

// flowCode is code from an address on. That of a file is read as far as it is
// asked for.
type flowCode struct {
	size uint64 // in bytes, to the end
	read []byte // what there is of it so far

	img   *procstate.Image // nil when all is read
	vaddr uint64           // link-time address of it
}

// ofFile makes c the code of a file at link-time addresses [start, end), as much
// of it as the file has from start on.
func (c *flowCode) ofFile(img *procstate.Image, start, end uint64) {
	*c = flowCode{read: c.read[:0], img: img, vaddr: start}
	if s, ok := segmentAt(img, start); ok && start < end {
		c.size = min(end, s.Vaddr+s.Filesz) - start
	}
}

// at returns the code at an offset, an instruction of it at least, and none
// where it ends or cannot be read. It is valid until the next call.
func (c *flowCode) at(off uint64) []byte {
	const longest, step = 32, 1 << 10 // bytes of what is taken for one instruction, and of a read
	if off >= c.size {
		return nil
	}
	have := uint64(len(c.read))
	if want := min(off+longest, c.size); want > have {
		want = min(max(want, 2*have, step), c.size)
		c.read = slices.Grow(c.read, int(want-have))[:want]
		if c.img == nil || c.img.ReadVaddr(c.read[have:], c.vaddr+have) != nil {
			c.read, c.size = c.read[:have], have
			return c.at(off)
		}
	}
	return c.read[off:]
}
