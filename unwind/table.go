package unwind

import (
	"debug/elf"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/swbpf/swbpf/procstate"
)

// Table is the call frame information of one image: .eh_frame, and
// .debug_frame for code that the former does not cover. It reads the file
// lazily, compiles what is asked for, and keeps that in a compact form until
// its Tables need the memory. It may be used by any goroutine.
type Table struct {
	img   *procstate.Image
	owner *Tables // nil for a Table of its own

	mu      sync.Mutex
	windows *windows
	file    *window   // while the file is read,
	prog    *program  // and this, too
	opened  int       // of the kinds of source, how many have been looked for
	sources []*source // those that were found
	fde     fde

	base    uint64 // link-time address of the lowest segment
	kept    rows
	used    atomic.Int64  // bytes accounted for
	lastUse atomic.Uint64 // by the clock of Tables
}

// NewTable makes the Table of an image, without a bound on its memory. Tables
// that come and go are made by [Tables.For]. That of nil is the zero Table.
func NewTable(img *procstate.Image) *Table {
	if img == nil {
		return new(Table)
	}
	return &Table{img: img, windows: new(windows), kept: rows{all: new(rulePool)}}
}

// Rule returns the rule for the code at a link-time address. The result is
// never nil; its Reason tells when there is no rule. It allocates only for
// code of which nothing is kept.
func (t *Table) Rule(vaddr uint64) *Rule {
	t.mu.Lock()
	r, grown := t.rule(vaddr)
	t.unlock(grown)
	return r
}

// unlock ends the hold of the lock by a function that had the Table grow.
func (t *Table) unlock(grown int64) {
	t.mu.Unlock()
	if grown != 0 && t.owner != nil {
		t.owner.grow(t, grown)
	}
}

// rule is Rule with the lock held. grown is the number of bytes that the Table
// has grown by.
func (t *Table) rule(vaddr uint64) (r *Rule, grown int64) {
	if r := t.kept.find(vaddr - t.base); r != nil {
		return r, 0
	}
	t.begin()
	r = t.compile(vaddr)
	t.end()
	size := t.size()
	grown = size - t.used.Swap(size)
	return r, grown
}

// Row returns the whole row for the code at a link-time address, and the
// addresses [start, end) to which it applies. It reads the file each time. The
// error is a Reason with context.
func (t *Table) Row(vaddr uint64) (row Row, start, end uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begin()
	defer t.end()
	if why := t.seek(vaddr); why != ReasonNone {
		return Row{}, 0, 0, fmt.Errorf("%s: CFI of %#x: %w", t.img.Path, vaddr, why)
	}
	end, why := t.runTo(vaddr)
	if why != ReasonNone {
		return Row{}, 0, 0, fmt.Errorf("%s: CFI of %#x: %w", t.img.Path, vaddr, why)
	}
	return t.prog.ownRow(), t.prog.loc, end, nil
}

// Place is what a Table tells of a code address and what lies behind it.
type Place struct {
	Rule *Rule // as Table.Rule returns it

	// Inside is true where the address one higher is known to be in the same
	// function.
	Inside bool

	// Next is the rule that follows in the same function, and NextAt the link-time
	// address at which it begins. It is nil where that is farther than was asked for,
	// the rule at the address begins right there, or is not kept.
	Next   *Rule
	NextAt uint64
}

// Look returns the rule for the code at a link-time address, and the next one if it
// begins within that many bytes. Of what is kept it reads the file at the ends of a
// page alone.
func (t *Table) Look(vaddr, within uint64) Place {
	t.mu.Lock()
	p, grown := t.look(vaddr, within)
	t.unlock(grown)
	return p
}

// look is Look with the lock held.
func (t *Table) look(vaddr, within uint64) (p Place, grown int64) {
	page, i := t.kept.in(vaddr - t.base)
	if page == nil {
		p.Rule, grown = t.rule(vaddr)
		if page, i = t.kept.in(vaddr - t.base); page == nil {
			return p, grown
		}
	}
	p.Rule = t.kept.number(page[i].rule)
	off, end, ends := (vaddr-t.base)&offsetMask, uint64(offsetMask+1), false
	if i+1 < len(page) {
		end, ends = uint64(page[i+1].start&offsetMask), page[i+1].endsPiece()
	}
	p.Inside = end != off+1 || end <= offsetMask && !ends
	switch {
	case ends, end-off > within, uint64(page[i].start&offsetMask) == off && off != 0:
	case end <= offsetMask && off != 0:
		p.NextAt, p.Next = vaddr+end-off, t.kept.number(page[i+1].rule)
	default: // rows go on from page to page
		if start, end := t.rowOf(vaddr); start != vaddr && end != t.fde.end && end-vaddr <= within {
			next, more := t.rule(end)
			p.NextAt, p.Next = end, next
			grown += more
		}
	}
	return p, grown
}

// FirstRule returns the link-time addresses [start, end) of the row for vaddr, if a
// function begins with it, and whether it is the only one of that. ok is false
// when it is not the first.
func (t *Table) FirstRule(vaddr uint64) (start, end uint64, only, ok bool) {
	t.mu.Lock()
	_, grown := t.rule(vaddr)
	defer t.unlock(grown)
	rel := vaddr - t.base
	page, i := t.kept.in(rel)
	if page == nil || page[i].start&firstOfFDE == 0 {
		return 0, 0, false, false
	}
	if first := page[i].start & offsetMask; first != 0 && i+1 < len(page) {
		low := vaddr - rel&offsetMask
		return low + uint64(first), low + uint64(page[i+1].start&offsetMask), page[i+1].endsPiece(), true
	}
	start, end = t.rowOf(vaddr)
	return start, end, end == t.fde.end, end != 0 && start == t.fde.start
}

// rowOf reads the row for vaddr and returns the addresses [start, end) to which
// it applies, 0 when it is bad.
func (t *Table) rowOf(vaddr uint64) (start, end uint64) {
	t.begin()
	defer t.end()
	if t.seek(vaddr) != ReasonNone {
		return 0, 0
	}
	end, why := t.runTo(vaddr)
	if why != ReasonNone {
		return 0, 0
	}
	return t.prog.loc, end
}

// FunctionAt returns the link-time addresses [start, end) of the function, or
// part of one, that has CFI and holds vaddr.
func (t *Table) FunctionAt(vaddr uint64) (start, end uint64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begin()
	defer t.end()
	if t.seek(vaddr) != ReasonNone {
		return 0, 0, false
	}
	return t.fde.start, t.fde.end, true
}

// begin and end enclose reads of the file.
func (t *Table) begin() {
	if t.windows == nil { // nobody has made it
		t.windows, t.img = new(windows), new(procstate.Image)
	}
	t.file = t.windows.take()
	t.prog, t.kept.made = &t.file.prog, t.file.made
}

func (t *Table) end() {
	t.file.made = t.kept.made
	t.windows.give(t.file)
	t.file, t.prog, t.kept.made = nil, nil, nil
}

// IsInside reports whether what is kept tells that a link-time address is in the
// middle of a function: then FunctionAt is of an address below. It reads nothing.
func (t *Table) IsInside(vaddr uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kept.inside(vaddr - t.base)
}

// seek finds the FDE of vaddr and prepares t.prog to execute it. A source is
// opened when those before it have nothing.
func (t *Table) seek(vaddr uint64) Reason {
	for i := 0; ; i++ {
		for i >= len(t.sources) {
			if !t.openNext() {
				return NoUnwindInfo
			}
		}
		switch why := t.sources[i].find(vaddr, &t.fde); why {
		case NoUnwindInfo:
		case ReasonNone:
			t.prog.thunk.img = t.img
			t.prog.start(t.img.Arch(), &t.fde)
			return ReasonNone
		default:
			return why
		}
	}
}

// runTo executes t.prog up to the row that holds vaddr and returns its end.
func (t *Table) runTo(vaddr uint64) (end uint64, why Reason) {
	for {
		end, more, why := t.prog.next()
		if why != ReasonNone {
			return 0, why
		}
		if !more || end > vaddr {
			if !more || end > t.fde.end {
				end = t.fde.end
			}
			return end, ReasonNone
		}
		t.prog.loc = end
	}
}

// openNext looks for the next kind of source. It returns false when there are
// no more kinds.
func (t *Table) openNext() bool {
	var s *source
	switch t.opened {
	case 0:
		segs := t.img.Segments()
		for i := range segs {
			if i == 0 || segs[i].Vaddr < t.base {
				t.base = segs[i].Vaddr
			}
		}
		s = t.openEhFrame()
	case 1:
		s = t.openDebugFrame()
	default:
		return false
	}
	t.opened++
	if s != nil {
		t.sources = append(t.sources, s)
	}
	return true
}

// openEhFrame opens .eh_frame: by its header, or else by section.
func (t *Table) openEhFrame() *source {
	s := &source{img: t.img, table: t, cies: map[uint64]*cie{}}
	sec, named := t.img.Section(".eh_frame")
	named = named && sec.Type != elf.SHT_NOBITS
	if h, ok := readFrameHeader(t.img); ok {
		if seg, ok := segmentOf(t.img, h.ehFrame); ok {
			s.hdr = h
			s.start, s.end, s.off = seg.Vaddr, seg.Vaddr+seg.Filesz, seg.Off
		}
	}
	if s.hdr == nil {
		if !named {
			return nil
		}
		s.start, s.end, s.off = sec.Vaddr, sec.Vaddr+sec.Size, sec.Off
	}
	if s.end < s.start {
		return nil
	}
	s.bases = t.bases()
	if s.hdr == nil {
		s.scan()
	}
	return s
}

// segmentOf returns the segment whose bytes in the file hold vaddr.
func segmentOf(img *procstate.Image, vaddr uint64) (procstate.Segment, bool) {
	for _, seg := range img.Segments() {
		if vaddr-seg.Vaddr < seg.Filesz {
			return seg, true
		}
	}
	return procstate.Segment{}, false
}

// bases are the addresses that pointers of an image's .eh_frame are relative
// to: text and the global offset table.
func (t *Table) bases() pointerBases {
	b := pointerBases{width: t.img.Arch().AddressWidth}
	if sec, ok := t.img.Section(".text"); ok {
		b.text = sec.Vaddr
	}
	if sec, ok := t.img.Section(".got.plt"); ok {
		b.data = sec.Vaddr
	} else if sec, ok := t.img.Section(".got"); ok {
		b.data = sec.Vaddr
	}
	return b
}

// maxDebugFrame bounds the size of a .debug_frame in bytes, decompressed.
const maxDebugFrame = 64 << 20

// openDebugFrame opens .debug_frame, compressed or not.
func (t *Table) openDebugFrame() *source {
	sec, ok := t.img.Section(".debug_frame")
	if !ok {
		sec, ok = t.img.Section(".zdebug_frame")
	}
	if !ok || sec.Type == elf.SHT_NOBITS {
		return nil
	}
	s := &source{img: t.img, table: t, debug: true, end: sec.Size, off: sec.Off, cies: map[uint64]*cie{}, bases: t.bases()}
	if sec.Flags&elf.SHF_COMPRESSED != 0 || sec.Name == ".zdebug_frame" {
		data, err := t.img.SectionBytes(sec, maxDebugFrame)
		if err != nil || len(data) == 0 {
			return nil
		}
		s.data, s.end = data, uint64(len(data))
	}
	s.scan()
	return s
}
