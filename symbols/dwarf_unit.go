package symbols

import (
	"debug/dwarf"
	"fmt"
	"sync/atomic"
)

// unit is a unit of .debug_info: its header and what its root entry says.
type unit struct {
	off, end uint64 // in .debug_info: of the header, of the next unit
	root     uint64 // of the root entry
	abbrevs  uint64 // in .debug_abbrev
	enc      encoding
	tag      dwarf.Tag // of the root entry
	kind     uint8     // unitCompile...

	low                          uint64 // base address of range lists
	addrBase, strBase, rangeBase uint64 // in .debug_addr, .debug_str_offsets, .debug_rnglists
	locBase                      uint64 // in .debug_loclists
	stmt                         uint64 // in .debug_line
	hasStmt                      bool

	compDir, dwoName value  // strings; formString values count from off
	dwoID            uint64 // of a type unit: its signature
	typeOff          uint64 // of a type unit: its type, from off
	unranged         bool   // has code, but does not say where
	ada              bool   // the language is Ada

	code atomic.Pointer[unitCode] // compiled on first use, dropped for memory
	used atomic.Bool              // since the last round of dropping
}

// inUse implements evictable.
func (u *unit) inUse() bool { return u.used.Swap(false) }

// drop implements evictable.
func (u *unit) drop() { u.code.Store(nil) }

// rootEntrySize is how much of a unit is read for its header and root entry.
const rootEntrySize = 512

// readUnit reads the header and root entry of the unit at off. Without a
// usable length it returns no unit; else the error means that this one unit
// cannot be used. One that is read in order tells d.spans where its code is.
func (d *dwarfData) readUnit(off uint64, inOrder bool) (*unit, error) {
	b, err := d.info.upTo(off, rootEntrySize)
	if err != nil {
		return nil, err
	}
	c := cursor{b: b}
	u := &unit{off: off}
	n, dwarf64 := c.length()
	if c.failed || n == 0 || n > d.info.size-off-uint64(c.off) {
		return nil, fmt.Errorf("unit at %#x: bad length: %w", off, errDWARF)
	}
	u.end = off + uint64(c.off) + n
	version := c.u16()
	if version < 2 || version > 5 {
		return u, fmt.Errorf("unit at %#x: version %d: %w", off, version, errDWARF)
	}
	u.enc = encoding{version: uint8(version), dwarf64: dwarf64}
	u.kind = unitCompile
	if version == 5 {
		u.kind = c.u8()
		u.enc.addrSize = c.u8()
		u.abbrevs = c.uint(u.enc.offSize())
		switch u.kind {
		case unitSkeleton, unitSplitCompile:
			u.dwoID = c.u64()
		case unitType, unitSplitType:
			u.dwoID, u.typeOff = c.u64(), c.uint(u.enc.offSize())
		}
	} else {
		u.abbrevs = c.uint(u.enc.offSize())
		u.enc.addrSize = c.u8()
		if d.ofTypes {
			u.dwoID, u.typeOff = c.u64(), c.uint(u.enc.offSize())
		}
	}
	u.root = off + uint64(c.off)
	if c.failed || u.enc.addrSize != 4 && u.enc.addrSize != 8 || u.root > u.end {
		return u, fmt.Errorf("unit at %#x: bad header: %w", off, errDWARF)
	}
	u.addrBase, u.strBase, u.rangeBase = u.enc.defaultBases()
	u.locBase = u.rangeBase
	saved := d.rangeWork
	d.rangeWork = d.rootWork
	err = d.readRoot(u, inOrder)
	d.rootWork, d.rangeWork = d.rangeWork, saved
	return u, err
}

// defaultBases returns the bases of a unit that gives none: in split files
// behind the one header of the section.
func (e encoding) defaultBases() (addr, str, rng uint64) {
	if e.version < 5 {
		return 0, 0, 0
	}
	if e.dwarf64 {
		return 16, 16, 20
	}
	return 8, 8, 12
}

// readRoot reads the attributes of the root entry.
func (d *dwarfData) readRoot(u *unit, inOrder bool) error {
	size := uint64(rootEntrySize)
	for {
		b, err := d.info.upTo(u.root, min(size, u.end-u.root))
		if err != nil {
			return fmt.Errorf("unit at %#x: %w", u.off, err)
		}
		c := cursor{b: b}
		code := c.uleb()
		if code == 0 || c.failed {
			return nil // an empty unit
		}
		a := &d.rootAbbrev
		if key := (rootKey{abbrevKey{u.abbrevs, u.enc}, code}); d.rootKey != key {
			d.rootKey = rootKey{}
			if err := d.oneAbbrev(u.abbrevs, u.enc, code, a); err != nil {
				return fmt.Errorf("unit at %#x: %w", u.off, err)
			}
			d.rootKey = key
		}
		if d.readRootAttrs(u, a, &c, inOrder) {
			return nil
		}
		if uint64(len(b)) < size || size > 1<<20 {
			return fmt.Errorf("unit at %#x: root entry is cut short: %w", u.off, errDWARF)
		}
		size *= 16
	}
}

func (d *dwarfData) readRootAttrs(u *unit, a *abbrev, c *cursor, inOrder bool) bool {
	u.tag = a.tag
	var low, high, ranges, strBase value
	for i := range a.attrs {
		s := &a.attrs[i]
		v := a.read(u.enc, c, s)
		if v.form == formString {
			v.u += u.root - u.off // from the unit, not from the root
		}
		switch s.attr {
		case dwarf.AttrLowpc:
			low = v
		case dwarf.AttrHighpc:
			high = v
		case dwarf.AttrRanges:
			ranges = v
		case dwarf.AttrStmtList:
			u.stmt, u.hasStmt = v.u, true
		case dwarf.AttrCompDir:
			u.compDir = v
		case dwarf.AttrAddrBase, attrGNUAddrBase:
			u.addrBase = v.u
		case dwarf.AttrStrOffsetsBase:
			strBase = v
		case dwarf.AttrRnglistsBase, attrGNURangesBase:
			u.rangeBase = v.u
		case dwarf.AttrLoclistsBase:
			u.locBase = v.u
		case dwarf.AttrDwoName, attrGNUDwoName:
			u.dwoName = v
		case attrGNUDwoID:
			u.dwoID = v.u
		case dwarf.AttrLanguage:
			u.ada = isAda(v.u)
		}
	}
	if c.failed {
		return false
	}
	if strBase.form != 0 {
		u.strBase = strBase.u
	}
	if low.form != 0 {
		u.low, _ = d.address(u, low)
	}
	u.unranged = a.children && a.tag != dwarf.TagPartialUnit && a.tag != dwarf.TagTypeUnit
	if d.skeleton != nil {
		return true // a split unit: its skeleton says where the code is
	}
	id := uint32(len(d.units))
	d.eachRange(u, low, high, ranges, func(start, end uint64) {
		u.unranged = false
		if s, e, ok := d.offsets(start, end); ok && inOrder {
			d.spans = append(d.spans, span{s, e, id})
		}
	})
	if ranges.form != 0 || low.form != 0 && high.form != 0 {
		u.unranged = false // all its code was discarded by the linker
	}
	return true
}
