package dataflow

import (
	"encoding/binary"
	"slices"

	"github.com/swbpf/swbpf/procstate"
)

// In programs that are not relocated, and in all of i386, a switch jumps to one of the addresses
// in a table of its own. Where such a table ends nothing tells: at the next
// one, or where a word is no code address.

// maxTable bounds the entries of a jump table.
const maxTable = 4096

// eachLabel calls visit for the entries of the jump table at vaddr.
func (c *Code) eachLabel(table uint64, visit func(label uint64)) {
	width, mark := uint64(c.arch.AddressWidth), uint64(0)
	if c.arch == procstate.I386 {
		mark = table & ofGOT
	}
	vaddr := table - mark
	end := vaddr + width*maxTable
	if i, _ := slices.BinarySearch(c.tables, table+1); i < len(c.tables) {
		end = min(end, c.tables[i]-mark)
	}
	var b [8]byte
	for ; vaddr+width <= end && c.im.ReadVaddr(b[:width], vaddr) == nil; vaddr += width {
		label := binary.LittleEndian.Uint64(b[:])
		if mark != 0 {
			label = (label + c.got) & c.arch.AddrMask
		}
		if _, ok := c.spanOf(label); !ok {
			return
		}
		visit(label)
	}
}

// labels returns the offsets of the entries of all jump tables.
func (c *Code) labels() map[uint32]bool {
	labels := map[uint32]bool{}
	for _, t := range c.tables {
		c.eachLabel(t, func(label uint64) { labels[c.off(label)] = true })
	}
	return labels
}

// dispatchBy passes a state on to the entries of a jump table that are in the
// same piece of code as the jump, and reports whether there are any.
func (f *flow) dispatchBy(table uint64, s *state) (any bool) {
	ch := f.chunkAt(f.at)
	f.c.eachLabel(table, func(label uint64) {
		if f.steps++; f.chunkAt(label) == ch {
			f.arrive(label, s)
			any = true
		}
	})
	return any
}
