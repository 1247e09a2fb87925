package symbols

import (
	"sync"

	"github.com/swbpf/swbpf/procstate"
)

// dwarfData is the debug information of one file: of a program or its debug
// file, of a split unit's file, or of the file that dwz moved common entries
// to. Opening it reads the root entry of each unit; units are read on first
// use.
//
// The sections and caches belong to who holds the lock of the main file.
type dwarfData struct {
	mu sync.Mutex // of the main file; guards split and alternate files too

	owner *Symbolizer
	img   *procstate.Image

	info, abbrev, strings, lineStr, line        dwarfSection
	ranges, rnglists, addr, strOffsets, aranges dwarfSection
	loc, loclists                               dwarfSection

	base       uint64 // link-time address that offsets count from
	codeRanges []codeRange

	units      []*unit
	spans      []span   // of units, while they are read
	unitRanges rangeSet // of indices in units
	version2   bool     // some unit is of DWARF 2
	expanded   bool     // unitRanges covers the units that do not say where they are
	firstErr   error    // of a unit that could not be read

	main     *dwarfData            // of a split unit: the file with its addresses
	skeleton *unit                 // of a split unit, in main
	splits   map[uint64]*splitUnit // by offset of the skeleton
	dwp      *dwarfPackage
	dwpDone  bool
	alt      *dwarfData
	altDone  bool
	user     *dwarfData // of an alternate file: the one that refers to it

	rootAbbrev  abbrev // of the root entry that was read last
	rootKey     rootKey
	abbrevCache map[abbrevKey]*abbrevTable
	abbrevWork  uint64 // bytes of abbreviations that were read
	rangeWork   uint64 // range list entries that may still be read
	entryWork   uint64 // entries that may still be read
	types       map[uint64]*Type
	names       map[uint64]*funcName
}

// Sizes of the windows through which sections are read.
const (
	windowInfo   = 4 << 10
	windowTables = 8 << 10
	windowString = 256
)

// openDWARF reads the units of a file; it returns nil when there is no debug
// information in it. The code ranges are those of the program.
func openDWARF(s *Symbolizer, im *procstate.Image, code []codeRange) (*dwarfData, error) {
	d := &dwarfData{owner: s, img: im, codeRanges: code}
	if len(code) == 0 {
		return nil, nil
	}
	d.base = code[0].start
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.openSections(im, ""); err != nil {
		return nil, err
	}
	if d.info.size == 0 || d.abbrev.size == 0 {
		return nil, nil
	}
	return d, d.finish()
}

// finish reads the units and the index of their code.
func (d *dwarfData) finish() error {
	err := d.readUnits()
	if err == nil {
		err = d.firstErr
	}
	if d.version2 {
		d.readAranges()
	}
	// Several units can claim the one copy of an inline function that the
	// linker kept: the first of them is as good as any.
	d.unitRanges = flattenFirst(d.spans)
	d.spans = nil
	return err
}

// lock returns the lock that guards d.
func (d *dwarfData) lock() *sync.Mutex {
	if d.main != nil {
		d = d.main
	}
	if d.user != nil {
		d = d.user
	}
	return &d.mu
}

// openSections finds the debug sections; suffix is ".dwo" in split files.
func (d *dwarfData) openSections(im *procstate.Image, suffix string) error {
	for _, s := range []struct {
		to     *dwarfSection
		name   string
		window uint64
	}{
		{&d.info, "debug_info", windowInfo},
		{&d.abbrev, "debug_abbrev", windowTables},
		{&d.strings, "debug_str", windowString},
		{&d.lineStr, "debug_line_str", windowString},
		{&d.line, "debug_line", windowInfo},
		{&d.ranges, "debug_ranges", windowTables},
		{&d.rnglists, "debug_rnglists", windowTables},
		{&d.addr, "debug_addr", windowTables},
		{&d.strOffsets, "debug_str_offsets", windowTables},
		{&d.aranges, "debug_aranges", windowTables},
		{&d.loc, "debug_loc", windowTables},
		{&d.loclists, "debug_loclists", windowTables},
	} {
		var err error
		if *s.to, err = d.openSection(im, s.name+suffix, s.window); err != nil {
			return err
		}
	}
	return nil
}

// lines appends the logical frames at a link-time address to dst. symbol is
// the ELF symbol there, with an empty name when there is none; its name is
// preferred to that of the function in the debug information when both mean
// the same code: it tells clones apart. ok is false when the debug
// information has neither function nor line.
func (d *dwarfData) lines(dst []Line, vaddr uint64, symbol Line) (out []Line, ok bool) {
	if vaddr < d.base || vaddr-d.base >= none {
		return dst, false
	}
	off := uint32(vaddr - d.base)
	d.mu.Lock()
	defer d.mu.Unlock()
	u := d.unitAt(off)
	if u == nil {
		return dst, false
	}
	code := d.unitCode(u)
	var file string
	var line uint32
	if code.lines != nil {
		if n, l, ok := code.lines.find(off); ok {
			file, line = d.path(u, code.lines, n), l
		}
	}
	id, found := code.ranges.find(off)
	if !found {
		if symbol.Function == "" || file == "" {
			return dst, false
		}
		symbol.File, symbol.Line = file, int(line)
		return append(dst, symbol), true
	}
	mode := d.owner.opt.Demangle
	first := len(dst)
	for range maxUnitDepth {
		s := &code.scopes[id]
		n := code.owner.funcName(code.unit.off+uint64(s.die), mode)
		l := Line{
			Function: n.function, SystemName: n.system, File: file, Line: int(line), StartLine: int(n.line),
			FunctionStart: d.base + uint64(s.start), Inlined: s.parent != none,
		}
		if !l.Inlined {
			if symbol.Function != "" && (l.Function == "" || code.mayBelong(id, symbol.FunctionStart-d.base)) {
				l.Function, l.SystemName, l.FunctionStart = symbol.Function, symbol.SystemName, symbol.FunctionStart
			}
			if l.Function == "" {
				return dst[:first], false
			}
			return append(dst, l), true
		}
		if l.Function != "" {
			dst = append(dst, l)
		}
		file, line = "", s.callLine
		if code.lines != nil {
			file = d.path(u, code.lines, s.callFile)
		}
		id = s.parent
	}
	return dst[:first], false
}

// mayBelong reports whether the code at an offset belongs to the function with
// index id in scopes, by itself or by a call inlined into it, or to none.
func (u *unitCode) mayBelong(id uint32, off uint64) bool {
	if off >= none {
		return false
	}
	at, ok := u.ranges.find(uint32(off))
	for range maxUnitDepth {
		if !ok || at == id {
			return true
		}
		at = u.scopes[at].parent
		if at == none {
			break
		}
	}
	return false
}

// unitAt returns the unit that holds the code at an offset, or nil.
func (d *dwarfData) unitAt(off uint32) *unit {
	id, ok := d.unitRanges.find(off)
	if !ok && !d.expanded {
		d.expand()
		id, ok = d.unitRanges.find(off)
	}
	if !ok {
		return nil
	}
	return d.units[id]
}

// expand adds the code of units whose root entry does not tell where it is.
func (d *dwarfData) expand() {
	d.expanded = true
	var spans []span
	for i, u := range d.units {
		if !u.unranged {
			continue
		}
		code := d.unitCode(u)
		for j, id := range code.ranges.ids {
			if id != none && j+1 < len(code.ranges.starts) {
				spans = append(spans, span{code.ranges.starts[j], code.ranges.starts[j+1], uint32(i)})
			}
		}
	}
	if len(spans) == 0 {
		return
	}
	r := &d.unitRanges
	for j, id := range r.ids {
		if id != none && j+1 < len(r.starts) {
			spans = append(spans, span{r.starts[j], r.starts[j+1], id})
		}
	}
	*r = flattenFirst(spans)
}

// unitCode returns the code of a unit, read on first use.
func (d *dwarfData) unitCode(u *unit) *unitCode {
	if c := u.code.Load(); c != nil {
		u.used.Store(true)
		return c
	}
	c := &unitCode{owner: d, unit: u}
	if split := d.split(u); split != nil {
		c.owner, c.unit = split.data, split.unit
	}
	if err := c.owner.compileScopes(c.unit, c); err != nil {
		d.owner.note(err)
	}
	if u.hasStmt {
		var err error
		if c.lines, err = d.compileLines(u); err != nil {
			d.owner.note(err)
		}
	}
	u.code.Store(c)
	u.used.Store(true)
	d.owner.budget.add(u, c.size())
	return c
}
