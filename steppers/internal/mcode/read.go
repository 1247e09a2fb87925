package mcode

import (
	"bytes"
	"debug/elf"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Range is the link-time addresses [start, end).
type Range struct{ Start, End uint64 }

// Holds reports whether an address is in the range.
func (r Range) Holds(vaddr uint64) bool { return vaddr-r.Start < r.End-r.Start }

// LookupPC is Frame.LookupPC of a frame whose PC is pc.
func LookupPC(pc uint64, interrupted bool) uint64 {
	if interrupted {
		return pc
	}
	return pc - 1
}

// Read reads up to len(buf) bytes of code at addr: as many as come before
// the end of the mapping m, and of what its file has there. What was not captured, of a segment
// that can be written, is as the file has it, and so are breakpoints, those of uprobes and debuggers.
func Read(w *unwind.Walker, m *procstate.Mapping, addr uint64, buf []byte) []byte {
	buf = buf[:min(uint64(len(buf)), m.End-addr)]
	if m.Image != nil {
		for _, s := range m.Image.Segments() {
			if off := addr - m.Bias - s.Vaddr; off < s.Filesz {
				buf = buf[:min(uint64(len(buf)), s.Filesz-off)]
				break
			}
		}
	}
	n := procstate.ReadPart(w.ProcessState(), addr, buf)
	if m.Image != nil && (n == 0 || bytes.IndexByte(buf[:n], BreakpointAMD64) >= 0) {
		if n == 0 {
			n = len(buf)
		}
		if m.Image.ReadVaddr(buf[:n], addr-m.Bias) != nil {
			return nil
		}
	}
	return buf[:n]
}

// Instructions of x86 of one byte.
const (
	BreakpointAMD64 = 0xcc // int3
	NopAMD64        = 0x90
)

// ReadFile reads the code at link-time addresses [start, end), as much of it
// as the file has from start on.
func ReadFile(img *procstate.Image, start, end uint64) []byte {
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

// Size returns the size of a file's executable segments.
func Size(im *procstate.Image) (n uint64) {
	for _, s := range im.Segments() {
		if s.Flags&elf.PF_X != 0 {
			n += s.Filesz
		}
	}
	return n
}

// Begin returns the link-time address at which the code of a file begins.
func Begin(im *procstate.Image) uint64 {
	for _, s := range im.Segments() {
		if s.Flags&elf.PF_X != 0 {
			return s.Vaddr
		}
	}
	return 0
}
