package symbols

import (
	"sync"

	"github.com/swbpf/swbpf/procstate"
)

// dwarfData is the debug information of one file: of a program or its debug
// file, of a split unit's file, or of the file that dwz moved common entries
// to. Units are read on first use.
//
// The sections and caches belong to who holds the lock of the group.
type dwarfData struct {
	group *fileGroup
	owner *Symbolizer
	img   *procstate.Image

	info, abbrev, strings, lineStr, line        dwarfSection
	ranges, rnglists, addr, strOffsets, aranges dwarfSection
	loc, loclists                               dwarfSection
	rangeOffsets                                dwarfSection // of lists: rnglists, with a window of its own, as both are read in turns

	base       uint64 // link-time address that offsets count from
	codeRanges []codeRange

	unitIndex

	main     *dwarfData            // of a split unit: the file with its addresses; of .debug_types: the file itself
	skeleton *unit                 // of a split unit, in main
	splits   map[uint64]*splitUnit // by offset of the skeleton
	dwp      *dwarfPackage
	pack     *dwarfPackage // of a unit in a package
	dwpDone  bool
	altDone  bool // it was tried to open the alternate file of the group from here

	rootAbbrev  abbrev // of the root entry that was read last
	rootKey     rootKey
	abbrevCache map[abbrevKey]*abbrevTable
	abbrevShare cacheShare
	abbrevWork  uint64 // bytes of abbreviations that were read
	rangeWork   uint64 // range list entries that may still be read
	types       map[uint64]*Type

	definitions *definitions      // of the program; nil until they are asked for
	goTypes     map[uint64]uint64 // entries of Go types, by offset in the program; nil until they are asked for

	typesSection dwarfSection        // .debug_types, of DWARF 4
	ofTypes      bool                // that is its .debug_info
	signatures   map[uint64]typeUnit // of main or of a file of its own; nil until they are asked for

	names nameCache
}

// fileGroup is of files that refer to each other: a program, its split files,
// and the file that dwz moved entries to, which other programs share.
type fileGroup struct {
	mu        sync.Mutex
	entryWork uint64 // entries that may still be read for a question

	entriesAllowed uint64  // for it in all
	asked          []*unit // those that it has led to
	alternate      *dwarfData
}

// Sizes of the windows through which sections are read.
const (
	windowInfo   = 4 << 10
	windowTables = 8 << 10
	windowString = 256
)

// bound returns how many of something a file can have that takes so many bytes of it, when it is
// compressed: at most most, and a million in any case. Compressed sections can expand a thousandfold.
func (d *dwarfData) bound(bytes, most uint64) uint64 {
	const always = 1 << 20
	size := uint64(0)
	if d.img != nil {
		size = uint64(max(d.img.Size(), 0))
	}
	return min(max(size/bytes, always), most)
}

// openDWARF opens the debug information of a file; it returns nil when there
// is none in it. The code ranges are those of the program.
func openDWARF(s *Symbolizer, im *procstate.Image, code []codeRange) (*dwarfData, error) {
	if len(code) == 0 {
		return nil, nil
	}
	d := &dwarfData{group: s.groupOf(im), owner: s, img: im, codeRanges: code, base: code[0].start}
	if err := d.openSections(im, ""); err != nil {
		return nil, err
	}
	if d.info.size == 0 || d.abbrev.size == 0 {
		return nil, nil
	}
	return d, nil
}

// lock and unlock hold the lock that guards d.
func (d *dwarfData) lock()   { d.group.mu.Lock() }
func (d *dwarfData) unlock() { d.group.mu.Unlock() }

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
		{&d.typesSection, "debug_types", windowInfo},
	} {
		var err error
		if *s.to, err = d.openSection(im, s.name+suffix, s.window); err != nil {
			return err
		}
	}
	d.rangeOffsets = d.rnglists.again()
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
	d.lock()
	defer d.unlock()
	u := d.unitAt(off)
	if u == nil {
		return dst, false
	}
	code := d.unitCode(u)
	if code.unit.ada {
		symbol.Function = demangleAda(symbol.Function, d.owner.opt.Demangle)
	}
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
		n := code.owner.funcName(code.unit.off+uint64(s.name), mode)
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
		d.note(err)
	}
	if u.hasStmt {
		var err error
		if c.lines, err = d.compileLines(u); err != nil {
			d.note(err)
		}
	}
	u.code.Store(c)
	u.used.Store(true)
	d.owner.budget.add(u, c.size())
	return c
}
