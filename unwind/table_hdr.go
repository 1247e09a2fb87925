package unwind

import (
	"debug/elf"

	"github.com/swbpf/swbpf/procstate"
)

// frameHeader is a .eh_frame_hdr (Linux Standard Base, Core, 10.6.2): a table
// of the FDEs of .eh_frame in order of address, searched where it lies, in the
// file.
type frameHeader struct {
	img     *procstate.Image
	off     uint64 // file offset of the first entry
	vaddr   uint64 // link-time address of it
	count   uint64
	enc     byte
	size    int // bytes in an encoded pointer; an entry has two
	bases   pointerBases
	ehFrame uint64 // link-time address of .eh_frame

	// firsts are the addresses of the first entry of each block, 0 where that
	// has not been read yet.
	firsts []uint64
	one    [16]byte // buffer of an entry
}

const (
	headerBlock      = 256     // entries that are read together
	maxHeaderEntries = 1 << 26 // more than any program has
)

// readFrameHeader reads the header that PT_GNU_EH_FRAME points to. ok is false
// when there is none that can be searched.
func readFrameHeader(img *procstate.Image) (*frameHeader, bool) {
	prog, ok := img.Prog(elf.PT_GNU_EH_FRAME)
	if !ok {
		return nil, false
	}
	var b [32]byte
	n := min(prog.Filesz, uint64(len(b)))
	if m, _ := img.ReadAt(b[:n], int64(prog.Off)); uint64(m) < n {
		return nil, false
	}
	h := &frameHeader{img: img, bases: pointerBases{pc: prog.Vaddr, data: prog.Vaddr, width: img.Arch().AddressWidth}}
	c := cursor{b: b[:n]}
	version, ehEnc, countEnc, tableEnc := c.u8(), c.u8(), c.u8(), c.u8()
	if c.bad || version != 1 || ehEnc == peOmit {
		return nil, false
	}
	ehFrame, indirect := c.pointer(ehEnc, &h.bases)
	if indirect || countEnc == peOmit || tableEnc == peOmit {
		return nil, false
	}
	h.count, indirect = c.pointer(countEnc, &h.bases)
	h.size = pointerSize(tableEnc, h.bases.width)
	if c.bad || indirect || h.size == 0 || tableEnc&peIndir != 0 || tableEnc&peApply == peAligned {
		return nil, false
	}
	h.ehFrame, h.enc = ehFrame, tableEnc
	h.off, h.vaddr = prog.Off+uint64(c.i), prog.Vaddr+uint64(c.i)
	inFile := min(prog.Filesz, uint64(max(img.Size(), 0)))
	if inFile < uint64(c.i) {
		return nil, false
	}
	h.count = min(h.count, (inFile-uint64(c.i))/uint64(2*h.size), maxHeaderEntries)
	h.firsts = make([]uint64, (h.count+headerBlock-1)/headerBlock)
	return h, h.count > 0
}

// entry decodes the i-th entry, of which b are the bytes: the address where
// the code begins and that of its FDE, both link-time.
func (h *frameHeader) entry(b []byte, i uint64) (start, fde uint64, ok bool) {
	c := cursor{b: b}
	bases := h.bases
	bases.pc = h.vaddr + i*uint64(2*h.size)
	start, _ = c.pointer(h.enc, &bases)
	fde, _ = c.pointer(h.enc, &bases)
	return start, fde, !c.bad
}

// entries returns the bytes of the entries [i, j).
func (h *frameHeader) entries(file *window, i, j uint64) ([]byte, bool) {
	entry := uint64(2 * h.size)
	return file.read(h.img, h.off+i*entry, int((j-i)*entry))
}

// first returns the address of the first entry of a block.
func (h *frameHeader) first(block uint64) (start uint64, ok bool) {
	if h.firsts[block] != 0 {
		return h.firsts[block], true
	}
	i := block * headerBlock
	b := h.one[:2*h.size]
	if n, _ := h.img.ReadAt(b, int64(h.off+i*uint64(2*h.size))); n < len(b) {
		return 0, false
	}
	start, _, ok = h.entry(b, i)
	h.firsts[block] = start
	return start, ok
}

// search returns the link-time address of the last FDE that begins at or
// below vaddr, and where the code of the one after it begins.
func (h *frameHeader) search(file *window, vaddr uint64) (fde, next uint64, ok bool) {
	next = ^uint64(0)
	// Blocks below lo begin at or below vaddr, those from hi on above.
	lo, hi := uint64(0), uint64(len(h.firsts))
	for lo < hi {
		mid := lo + (hi-lo)/2
		start, ok := h.first(mid)
		if !ok {
			return 0, 0, false
		}
		if start <= vaddr {
			lo = mid + 1
		} else {
			hi, next = mid, start
		}
	}
	if lo == 0 {
		return 0, 0, false
	}
	i := (lo - 1) * headerBlock
	j := min(i+headerBlock, h.count)
	b, ok := h.entries(file, i, j)
	if !ok {
		return 0, 0, false
	}
	entry := uint64(2 * h.size)
	for base := i; i < j; {
		mid := i + (j-i)/2
		start, at, ok := h.entry(b[(mid-base)*entry:][:entry], mid)
		if !ok {
			return 0, 0, false
		}
		if start <= vaddr {
			i, fde = mid+1, at
		} else {
			j, next = mid, start
		}
	}
	return fde, next, true
}
