package symbols

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// Records of a jitdump file (kernel tree, tools/perf/Documentation/
// jitdump-specification.txt).
const (
	jitCodeLoad      = 0
	jitCodeMove      = 1
	jitCodeDebugInfo = 2

	jitDumpMagic         = 0x4a695444 // "JiTD" as a number
	jitDumpArchTimestamp = 1          // flag: times are not of CLOCK_MONOTONIC

	maxJITRecord = 64 << 20 // of debug information
	maxJITLines  = 1 << 20  // of one function
)

// jitDump reads a jitdump file as it grows.
type jitDump struct {
	off     int64
	noTimes bool
	debug   map[uint64][]jitLine // by code address: lines of code yet to be loaded
	pending int                  // lines in debug
	more    bool                 // there is more than was to be read
}

// jitRecordCost is how many bytes could be read in the time that a record takes besides
// its own.
const jitRecordCost = 256

// read adds the code of complete records that were written since the last call, as far
// as so many bytes go as are left to be read, which it takes from left; the next call
// goes on.
func (d *jitDump) read(r io.ReaderAt, size int64, t *jitTable, left *int64) error {
	d.more = false
	if d.off == 0 {
		var h [40]byte
		if n, _ := r.ReadAt(h[:], 0); n < len(h) {
			return nil // not yet written
		}
		le := binary.LittleEndian
		headerSize := le.Uint32(h[8:])
		if le.Uint32(h[:]) != jitDumpMagic || headerSize < 40 || headerSize > 1<<16 {
			return fmt.Errorf("jitdump header: %w", errJITDump)
		}
		d.noTimes = le.Uint64(h[32:])&jitDumpArchTimestamp != 0
		d.off = int64(headerSize)
		d.debug = map[uint64][]jitLine{}
	}
	for {
		if d.more = *left <= 0; d.more {
			return nil
		}
		*left -= jitRecordCost
		var head [16]byte
		if n, _ := r.ReadAt(head[:], d.off); n < len(head) {
			return nil
		}
		le := binary.LittleEndian
		id, total := le.Uint32(head[:]), int64(le.Uint32(head[4:]))
		if total < int64(len(head)) {
			return fmt.Errorf("jitdump record at %#x: %w", d.off, errJITDump)
		}
		if total > size-d.off {
			return nil // not yet complete
		}
		since := le.Uint64(head[8:])
		if d.noTimes {
			since = 0
		}
		at := d.off + int64(len(head))
		d.off += total
		switch id {
		case jitCodeLoad:
			d.load(r, at, d.off-at, t, since)
		case jitCodeMove:
			d.move(r, at, d.off-at, t, since)
		case jitCodeDebugInfo:
			if d.off-at <= maxJITRecord {
				*left -= d.off - at
				d.lines(r, at, d.off-at, t)
			}
		}
	}
}

// load reads pid, tid, vma, address, size, index, and the name; the code that
// follows is left alone.
func (d *jitDump) load(r io.ReaderAt, at, size int64, t *jitTable, since uint64) {
	b := make([]byte, min(size, 40+4096))
	if n, _ := r.ReadAt(b, at); n < len(b) || len(b) < 40 {
		return
	}
	c := cursor{b: b, off: 16}
	addr, n := c.u64(), c.u64()
	t.add(addr, n, since, nulTerminated(b[40:]), d.debug[addr])
	d.pending -= len(d.debug[addr])
	delete(d.debug, addr)
}

// move reads pid, tid, vma, old address, new address, size, index.
func (d *jitDump) move(r io.ReaderAt, at, size int64, t *jitTable, since uint64) {
	var b [48]byte
	if size < int64(len(b)) {
		return
	}
	if n, _ := r.ReadAt(b[:], at); n < len(b) {
		return
	}
	c := cursor{b: b[:], off: 16}
	from, to, n := c.u64(), c.u64(), c.u64()
	t.move(from, to, n, since)
}

// lines reads the debug information of the code that is loaded next: address,
// count, and for each entry an address, a line, a discriminator and a file
// name, which is "\xff" for that of the entry before.
func (d *jitDump) lines(r io.ReaderAt, at, size int64, t *jitTable) {
	b := make([]byte, size)
	if n, _ := r.ReadAt(b, at); n < len(b) {
		return
	}
	c := cursor{b: b}
	addr, count := c.u64(), c.u64()
	var out []jitLine
	var file uint32
	for i := uint64(0); i < count && i < maxJITLines; i++ {
		l := jitLine{addr: c.u64(), line: c.u32()}
		c.u32() // discriminator
		from := c.off
		c.skipString()
		if c.failed {
			break
		}
		if name := b[from : c.off-1]; string(name) != "\xff" || i == 0 {
			var ok bool
			if file, ok = t.intern(name); !ok {
				break
			}
		}
		l.file = file
		if n := len(out); n > 0 && l.addr < out[n-1].addr {
			continue // out of order
		}
		out = append(out, l)
	}
	if d.pending -= len(d.debug[addr]); d.pending+len(out) > maxPendingLines || len(out) == 0 {
		delete(d.debug, addr)
		return
	}
	d.pending += len(out)
	d.debug[addr] = out
}

// maxPendingLines bounds the lines that came before their code.
const maxPendingLines = 4 << 20

// nulTerminated returns b up to its first NUL.
func nulTerminated(b []byte) []byte {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return b[:i]
	}
	return b
}
