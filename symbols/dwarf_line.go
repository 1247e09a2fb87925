package symbols

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
)

// Limits on one line table.
const (
	maxLineProgram = maxBytes
	maxLineRows    = 1 << 24
	maxLineFiles   = 1 << 20
	maxLineFormats = 64
	maxPooledRows  = 1 << 17 // in a buffer that is kept
)

// lineTable maps offsets from the base of the file's code to source lines.
type lineTable struct {
	lineColumns

	version uint16
	names   []lineFile // by file number: from 0 since version 5, from 1 before
	dirs    []value
	program uint64 // where strings of formString count from
	enc     encoding
	paths   map[uint32]string // by file number; those asked for, guarded as the file is
}

// lineFile is a file of a line table; its name is a string value.
type lineFile struct {
	name value
	dir  uint32
}

func (t *lineTable) memory() int {
	return 4*(cap(t.offs)+cap(t.files)+cap(t.lines)) + 24*cap(t.names) + 16*cap(t.dirs)
}

// find returns the file number and line at an offset.
func (t *lineTable) find(off uint32) (file, line uint32, ok bool) {
	i, j := 0, len(t.offs)
	for i < j {
		if h := int(uint(i+j) >> 1); t.offs[h] <= off {
			i = h + 1
		} else {
			j = h
		}
	}
	if i == 0 || t.files[i-1] == none {
		return 0, 0, false
	}
	return t.files[i-1], t.lines[i-1], true
}

// lineHeader is what the line number program runs with.
type lineHeader struct {
	minInst, maxOps uint8
	lineBase        int8
	lineRange       uint8
	opcodeBase      uint8
	opcodeArgs      [256]uint8
	programAt       int
}

// compileLines reads the line number program at an offset of .debug_line.
func (d *dwarfData) compileLines(u *unit) (*lineTable, error) {
	head, err := d.line.upTo(u.stmt, 12)
	if err != nil {
		return nil, fmt.Errorf("line table: %w", err)
	}
	c := cursor{b: head}
	n, dwarf64 := c.length()
	if c.failed || n > maxLineProgram || n > d.line.size-u.stmt-uint64(c.off) {
		return nil, fmt.Errorf("line table at %#x: bad length: %w", u.stmt, errDWARF)
	}
	b, free, err := d.line.readPooled(u.stmt, uint64(c.off)+n)
	if err != nil {
		return nil, fmt.Errorf("line table: %w", err)
	}
	defer free()
	c.b = b
	t := &lineTable{program: u.stmt, enc: encoding{addrSize: u.enc.addrSize, dwarf64: dwarf64}}
	h, err := t.readHeader(&c)
	if err != nil {
		return nil, fmt.Errorf("line table at %#x: %w", u.stmt, err)
	}
	err = d.runLines(t, h, &c)
	return t, err
}

// readHeader reads the header (DWARF 5, section 6.2.4) and leaves c at the
// program.
func (t *lineTable) readHeader(c *cursor) (h lineHeader, err error) {
	bad := func(what string) (lineHeader, error) { return h, fmt.Errorf("%s: %w", what, errDWARF) }
	t.version = c.u16()
	if t.version < 2 || t.version > 5 {
		return bad(fmt.Sprintf("version %d", t.version))
	}
	t.enc.version = uint8(t.version)
	if t.version == 5 {
		t.enc.addrSize = c.u8()
		c.u8() // segment selector size
	}
	n := c.uint(t.enc.offSize())
	if c.failed || n > uint64(len(c.b)-c.off) {
		return bad("bad header length")
	}
	h.programAt = c.off + int(n)
	h.minInst, h.maxOps = c.u8(), 1
	if t.version >= 4 {
		h.maxOps = c.u8()
	}
	c.u8() // default_is_stmt
	h.lineBase, h.lineRange, h.opcodeBase = int8(c.u8()), c.u8(), c.u8()
	if c.failed || h.lineRange == 0 || h.opcodeBase == 0 || h.maxOps == 0 || t.enc.addrSize != 4 && t.enc.addrSize != 8 {
		return bad("bad header")
	}
	for i := 1; i < int(h.opcodeBase); i++ {
		h.opcodeArgs[i] = c.u8()
	}
	if c.failed || h.programAt < c.off {
		return bad("header is cut short")
	}
	files := cursor{b: c.b[:h.programAt], off: c.off}
	if t.version == 5 {
		t.readFiles5(&files)
	} else {
		t.readFiles(&files)
	}
	if files.failed {
		return bad("file table is cut short")
	}
	c.off = h.programAt
	return h, nil
}

// readFiles reads the directories and files of versions 2 to 4. Both count
// from 1; directory 0 is that of the compilation.
func (t *lineTable) readFiles(c *cursor) {
	t.dirs = append(t.dirs, value{})
	for !c.failed && len(t.dirs) < maxLineFiles {
		at := c.off
		c.skipString()
		if c.off == at+1 {
			break
		}
		t.dirs = append(t.dirs, value{formString, uint64(at)})
	}
	t.names = append(t.names, lineFile{})
	for !c.failed && len(t.names) < maxLineFiles {
		at := c.off
		c.skipString()
		if c.off == at+1 {
			break
		}
		t.names = append(t.names, lineFile{value{formString, uint64(at)}, uint32(c.uleb())})
		c.uleb() // time
		c.uleb() // length
	}
}

// Content types of version 5 (DWARF 5, table 7.27).
const (
	lnctPath      = 1
	lnctDirectory = 2
)

// readFiles5 reads the directories and files of version 5; both count from 0.
func (t *lineTable) readFiles5(c *cursor) {
	entries := func(f func(name value, dir uint32)) {
		var formats [maxLineFormats]struct {
			content uint64
			form    form
		}
		n := int(c.u8())
		if n > maxLineFormats {
			c.fail()
			return
		}
		for i := range n {
			formats[i].content, formats[i].form = c.uleb(), form(c.uleb())
		}
		count := c.uleb()
		// Each has a name, of at least one byte.
		if n == 0 && count > 0 || count > min(maxLineFiles, uint64(len(c.b)-c.off)) {
			c.fail()
		}
		for range count {
			if c.failed {
				return
			}
			var name value
			var dir uint32
			for _, f := range formats[:n] {
				v := t.enc.read(c, f.form, 0)
				switch f.content {
				case lnctPath:
					name = v
				case lnctDirectory:
					dir = uint32(v.u)
				}
			}
			f(name, dir)
		}
	}
	entries(func(name value, _ uint32) { t.dirs = append(t.dirs, name) })
	entries(func(name value, dir uint32) { t.names = append(t.names, lineFile{name, dir}) })
}

// Opcodes (DWARF 5, tables 7.25 and 7.26).
const (
	lnsCopy           = 1
	lnsAdvancePC      = 2
	lnsAdvanceLine    = 3
	lnsSetFile        = 4
	lnsConstAddPC     = 8
	lnsFixedAdvancePC = 9
	lneEndSequence    = 1
	lneSetAddress     = 2
)

// sequence is a run of rows with ascending offsets; the last has no code.
type sequence struct{ first, end int }

// lineState are the registers of the state machine that matter.
type lineState struct {
	addr uint64
	op   uint64 // op_index of VLIW machines
	file uint32
	line uint32
}

// advance adds an operation advance (section 6.2.5.1).
func (s *lineState) advance(h *lineHeader, n uint64) {
	if h.maxOps == 1 {
		s.addr += n * uint64(h.minInst)
		return
	}
	n += s.op
	s.addr += n / uint64(h.maxOps) * uint64(h.minInst)
	s.op = n % uint64(h.maxOps)
}

// lineRows collects the rows of a program.
type lineRows struct {
	d *dwarfData
	lineColumns
	seqs  []sequence
	first int  // of the current sequence
	skip  bool // the current sequence is not of this file's code
	open  bool // the current sequence has rows
}

// lineColumns are rows of a line table: a row holds from its offset to that
// of the next.
type lineColumns struct {
	offs  []uint32 // from the base of the file's code
	files []uint32 // none: no code
	lines []uint32
}

// lineBuffers are rows while a program runs, before they have their order.
var lineBuffers = sync.Pool{New: func() any { return new(lineColumns) }}

// special is what a special opcode adds (section 6.2.5.1).
type special struct {
	advance uint8
	line    int16
}

// runLines runs a line number program.
func (d *dwarfData) runLines(t *lineTable, h lineHeader, c *cursor) error {
	buf := lineBuffers.Get().(*lineColumns)
	rows := lineRows{d: d, lineColumns: lineColumns{buf.offs[:0], buf.files[:0], buf.lines[:0]}}
	defer func() {
		t.lineColumns = rows.ordered()
		if cap(rows.offs) <= maxPooledRows {
			*buf = rows.lineColumns
			lineBuffers.Put(buf)
		}
	}()
	var specials [256]special
	for op := int(h.opcodeBase); op < len(specials); op++ {
		adj := uint8(op) - h.opcodeBase
		specials[op] = special{adj / h.lineRange, int16(h.lineBase) + int16(adj%h.lineRange)}
	}
	most := int(d.bound(2, maxLineRows))
	cutShort := func() error { return fmt.Errorf("line table at %#x: program is cut short: %w", t.program, errDWARF) }
	s := lineState{file: 1, line: 1}
	for c.off < len(c.b) {
		op := c.u8()
		if op >= h.opcodeBase {
			s.advance(&h, uint64(specials[op].advance))
			s.line += uint32(int32(specials[op].line))
			rows.add(&s)
			if len(rows.offs) >= most {
				return cutShort()
			}
			continue
		}
		switch op {
		case 0:
			n := c.uleb()
			if c.failed || n == 0 || n > uint64(len(c.b)-c.off) {
				c.fail()
				break
			}
			next := c.off + int(n)
			switch c.u8() {
			case lneEndSequence:
				rows.end(&s)
				s = lineState{file: 1, line: 1}
			case lneSetAddress:
				s.addr, s.op = c.uint(int(n-1)), 0
			}
			c.off = next
		case lnsCopy:
			rows.add(&s)
		case lnsAdvancePC:
			s.advance(&h, c.uleb())
		case lnsAdvanceLine:
			s.line += uint32(c.sleb())
		case lnsSetFile:
			s.file = uint32(c.uleb())
		case lnsConstAddPC:
			s.advance(&h, uint64((255-h.opcodeBase)/h.lineRange))
		case lnsFixedAdvancePC:
			s.addr, s.op = s.addr+uint64(c.u16()), 0
		default:
			for range h.opcodeArgs[op] {
				c.uleb()
			}
		}
		if c.failed || len(rows.offs) >= most {
			return cutShort()
		}
	}
	return nil
}

// add appends a row.
func (r *lineRows) add(s *lineState) {
	if !r.open {
		// Discarded functions keep their sequence, at address 0 or -1.
		r.open, r.first, r.skip = true, len(r.offs), !r.d.isCode(s.addr)
	}
	off := s.addr - r.d.base
	if r.skip || off >= none {
		return
	}
	if n := len(r.offs); n > r.first {
		last := r.offs[n-1]
		if uint32(off) < last {
			r.skip = true // addresses must not go back
			return
		}
		if uint32(off) == last { // the last row at an address counts
			r.files[n-1], r.lines[n-1] = s.file, s.line
			return
		}
	}
	r.offs = append(r.offs, uint32(off))
	r.files = append(r.files, s.file)
	r.lines = append(r.lines, s.line)
}

// end ends the sequence at the current address.
func (r *lineRows) end(s *lineState) {
	if r.open && len(r.offs) > r.first {
		off := s.addr - r.d.base
		last := r.offs[len(r.offs)-1]
		if r.skip || off < uint64(last) || off >= none {
			off = uint64(last) // how far it reaches is not known
		}
		if uint32(off) == last {
			r.files[len(r.files)-1] = none
		} else {
			r.offs, r.files, r.lines = append(r.offs, uint32(off)), append(r.files, none), append(r.lines, 0)
		}
		r.seqs = append(r.seqs, sequence{r.first, len(r.offs)})
	}
	r.open, r.skip = false, false
}

// ordered returns the rows in order of offset, but for a sequence without an
// end, and one that begins within another.
func (r *lineRows) ordered() lineColumns {
	byStart := func(a, b sequence) int { return cmp.Compare(r.offs[a.first], r.offs[b.first]) }
	if !slices.IsSortedFunc(r.seqs, byStart) {
		slices.SortStableFunc(r.seqs, byStart)
	}
	n := 0
	for _, s := range r.seqs {
		n += s.end - s.first
	}
	offs, files, lines := make([]uint32, 0, n), make([]uint32, 0, n), make([]uint32, 0, n)
	for _, s := range r.seqs {
		if k := len(offs); k > 0 {
			last := offs[k-1]
			if r.offs[s.first] < last {
				continue
			}
			if r.offs[s.first] == last { // takes the place of the end row
				offs, files, lines = offs[:k-1], files[:k-1], lines[:k-1]
			}
		}
		offs = append(offs, r.offs[s.first:s.end]...)
		files = append(files, r.files[s.first:s.end]...)
		lines = append(lines, r.lines[s.first:s.end]...)
	}
	return lineColumns{offs, files, lines}
}
