package unwind

import (
	"strings"

	"github.com/swbpf/swbpf/procstate"
)

// maxRecord bounds the size of a CIE or FDE in bytes. The largest that
// compilers make, for generated functions of megabytes, have some 100 KB.
const maxRecord = 4 << 20

// cie is a common information entry: what the FDEs of a kind of function have
// in common. It is immutable once parsed.
type cie struct {
	codeAlign    uint64
	dataAlign    int64
	raColumn     uint64
	enc          byte // pointer encoding of its FDEs
	width        int  // bytes in an absolute pointer
	segmentSize  uint8
	augmented    bool   // FDEs have augmentation data, with a length
	instructions []byte // the initial ones; own copy
	initial      Row    // after the initial instructions
	named        uint64 // registers that these tell of
	parsing      bool   // its own instructions are being executed
	why          Reason // what is wrong with it; its FDEs are as bad
}

// parseCIE parses the body of a CIE: what follows its id. bases.pc is the
// link-time address of the body.
func parseCIE(a *procstate.Arch, body []byte, bases pointerBases) *cie {
	c := &cie{width: a.AddressWidth}
	c.why = c.parse(a, body, bases)
	return c
}

func (c *cie) parse(a *procstate.Arch, body []byte, bases pointerBases) Reason {
	r := cursor{b: body}
	version := r.u8()
	switch version {
	case 1, 3, 4:
	default:
		return UnsupportedUnwind
	}
	augmentation := r.cstring()
	if strings.HasPrefix(augmentation, "eh") {
		// g++ before 3.0: the address of an exception table.
		r.take(uint64(a.AddressWidth))
		augmentation = augmentation[2:]
	}
	if version == 4 {
		c.width = int(r.u8())
		c.segmentSize = r.u8()
		if c.width != 4 && c.width != 8 && !r.bad {
			return UnsupportedUnwind
		}
	}
	c.codeAlign = r.uleb()
	c.dataAlign = r.sleb()
	if version == 1 {
		c.raColumn = uint64(r.u8())
	} else {
		c.raColumn = r.uleb()
	}
	bases.width = c.width
	if why := c.augment(&r, augmentation, &bases); why != ReasonNone {
		return why
	}
	if r.bad {
		return BadUnwindInfo
	}
	c.instructions = append([]byte(nil), body[r.i:]...)
	return c.execute(a, bases)
}

// augment reads the augmentation data (Linux Standard Base, Core, 10.6.1.1.1).
func (c *cie) augment(r *cursor, augmentation string, bases *pointerBases) Reason {
	data := r
	if strings.HasPrefix(augmentation, "z") {
		c.augmented = true
		augmentation = augmentation[1:]
		at := r.i
		n := r.uleb()
		lenSize := r.i - at
		b := r.take(n)
		// A cursor over the data that still knows its place in the record.
		data = &cursor{b: r.b[:r.i], i: at + lenSize, bad: b == nil && n > 0}
	}
	for i, ch := range []byte(augmentation) {
		switch {
		case ch == 'S':
			c.initial.Signal = true
		case ch == 'B' || ch == 'G':
			// AArch64: signed with key B; frame with memory tags. Neither
			// changes where registers are.
		case ch == 'R' && c.augmented:
			c.enc = data.u8()
		case ch == 'L' && c.augmented:
			data.u8()
		case ch == 'P' && c.augmented:
			enc := data.u8()
			if enc != peOmit {
				data.pointer(enc, bases)
			}
		default:
			// What is not known can be skipped, unless the encoding of
			// pointers lies beyond it.
			if !c.augmented || strings.IndexByte(augmentation[i:], 'R') >= 0 {
				return UnsupportedUnwind
			}
			return ReasonNone
		}
	}
	if data.bad {
		return BadUnwindInfo
	}
	return ReasonNone
}

// execute runs the initial instructions.
func (c *cie) execute(a *procstate.Arch, bases pointerBases) Reason {
	c.initial.RA = raOther
	if c.raColumn < uint64(a.NumRegs) {
		c.initial.RA = uint8(c.raColumn)
	}
	c.parsing = true
	defer func() { c.parsing = false }()
	p := program{cursor: cursor{b: c.instructions}, arch: a, cie: c, row: c.initial, bases: bases}
	_, more, why := p.next()
	if why == ReasonNone && more {
		why = BadUnwindInfo // a CIE has no locations
	}
	c.initial, c.named = p.row, p.named
	return why
}

// fde is a frame description entry: the CFI of [start, end), which are
// link-time addresses.
type fde struct {
	start, end   uint64
	cie          *cie
	instructions []byte       // in the buffer of the record
	bases        pointerBases // of the instructions
}

// parse parses the body of an FDE: what follows its CIE pointer. bases.pc is
// the link-time address of the body. readWord reads an indirect pointer.
func (f *fde) parse(c *cie, body []byte, bases pointerBases, readWord func(vaddr uint64) (uint64, bool)) Reason {
	f.cie = c
	if c.why != ReasonNone {
		return c.why
	}
	bases.width = c.width
	r := cursor{b: body}
	r.take(uint64(c.segmentSize))
	start, indirect := r.pointer(c.enc, &bases)
	size := r.pointerValue(c.enc, c.width)
	if c.augmented {
		r.take(r.uleb())
	}
	if r.bad {
		return BadUnwindInfo
	}
	if indirect {
		var ok bool
		if start, ok = readWord(start); !ok {
			return UnsupportedUnwind
		}
	}
	if f.start, f.end = start, start+size; f.end < start {
		return BadUnwindInfo
	}
	f.bases = bases
	f.bases.pc += uint64(r.i)
	f.bases.fn = start
	f.instructions = body[r.i:]
	return ReasonNone
}
