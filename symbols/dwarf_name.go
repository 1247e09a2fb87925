package symbols

import (
	"debug/dwarf"
	"strings"
)

// maxOrigins bounds the entries that are followed for one name.
const maxOrigins = 16

// maxEntry bounds the size of one entry.
const maxEntry = 1 << 16

// nameCache keeps names of a file by the offset of their entry.
type nameCache struct {
	names map[uint64]*funcName
	share cacheShare
}

// get returns the name of an entry, or nil.
func (c *nameCache) get(off uint64) *funcName {
	if c.share.begin() {
		c.names = map[uint64]*funcName{}
	}
	return c.names[off]
}

// put keeps the name of an entry.
func (c *nameCache) put(off uint64, n *funcName, b *budget) {
	c.names[off] = n
	c.share.grow(b, 128+len(n.system)+len(n.function))
}

// funcName is what an entry tells of a function, by itself or through those
// that it refers to.
type funcName struct {
	symbolName
	line uint32 // where the function is declared
}

// funcName returns the name of the function or inlined call whose entry is at
// an offset of .debug_info.
func (d *dwarfData) funcName(off uint64, mode DemangleMode) *funcName {
	if n := d.names.get(off); n != nil {
		return n
	}
	n := &funcName{}
	var plain string
	owner, at := d, off
	for range maxOrigins {
		e, ok := owner.nameEntry(at)
		if !ok {
			break
		}
		if n.line == 0 {
			n.line = e.line
		}
		if plain == "" {
			plain = e.name
		}
		if e.linkage != "" {
			n.system = e.linkage
			break
		}
		if e.next == nil {
			break
		}
		owner, at = e.next, e.nextOff
	}
	if n.system == "" {
		n.system = plain
	}
	n.function = Demangle(n.system, mode)
	if u := owner.unitOf(at); u != nil && u.ada {
		n.function = demangleAda(n.function, mode)
	}
	d.names.put(off, n, &d.owner.budget)
	return n
}

// nameEntry is what one entry says about its name.
type nameEntry struct {
	name, linkage string
	line          uint32
	next          *dwarfData // of the entry that completes this one, or nil
	nextOff       uint64
}

// nameEntry reads the entry at an offset of .debug_info.
func (d *dwarfData) nameEntry(off uint64) (e nameEntry, ok bool) {
	u := d.unitOf(off)
	if u == nil || off < u.root {
		return e, false
	}
	table, err := d.abbrevs(u.abbrevs, u.enc)
	if err != nil {
		return e, false
	}
	for size := uint64(256); ; size *= 16 {
		b, err := d.info.upTo(off, min(size, u.end-off))
		if err != nil {
			return e, false
		}
		c := cursor{b: b}
		a := table.get(c.uleb())
		if a == nil {
			return e, false
		}
		var name, linkage, origin value
		e.line = 0
		for i := range a.attrs {
			s := &a.attrs[i]
			switch s.attr {
			case dwarf.AttrName:
				name = a.read(u.enc, &c, s)
			case dwarf.AttrLinkageName, attrMIPSLinkage:
				linkage = a.read(u.enc, &c, s)
			case dwarf.AttrSpecification, dwarf.AttrAbstractOrigin:
				origin = a.read(u.enc, &c, s)
			case dwarf.AttrDeclLine:
				e.line = uint32(a.read(u.enc, &c, s).u)
			default:
				u.enc.skip(&c, s.form)
			}
		}
		if c.failed {
			if uint64(len(b)) < size || size >= maxEntry {
				return e, false
			}
			continue
		}
		// Strings are read last: they may move the window of the section.
		e.next, e.nextOff = d.reference(u, origin)
		e.linkage = d.str(u, linkage, off-u.off)
		if e.linkage == "" {
			e.name = d.str(u, name, off-u.off)
		}
		return e, true
	}
}

// reference returns the entry that an attribute of a unit refers to.
func (d *dwarfData) reference(u *unit, v value) (owner *dwarfData, off uint64) {
	switch {
	case isUnitRef(v.form):
		return d, u.off + v.u
	case v.form == formRefAddr:
		return d, v.u
	case v.form == formGNURefAlt || v.form == formRefSup4 || v.form == formRefSup8:
		return d.alternate(), v.u
	}
	return nil, 0
}

// str returns the string that an attribute holds. Strings in the entry itself
// count from offset at of the unit.
func (d *dwarfData) str(u *unit, v value, at uint64) string {
	switch v.form {
	case formString:
		return d.info.cstring(u.off + at + v.u)
	case formStrp:
		return d.strings.cstring(v.u)
	case formLineStrp:
		return d.lineStr.cstring(v.u)
	case formStrx, formStrx1, formStrx2, formStrx3, formStrx4, formGNUStrIndex:
		if v.u > 1<<32 {
			return ""
		}
		size := u.enc.offSize()
		off, ok := d.strOffsets.word(u.strBase+v.u*uint64(size), size)
		if !ok {
			return ""
		}
		return d.strings.cstring(off)
	case formGNUStrpAlt, formStrpSup:
		if alt := d.alternate(); alt != nil {
			return alt.strings.cstring(v.u)
		}
	}
	return ""
}

// path returns the name of a file of a line table, with the directories that
// lead to it.
func (d *dwarfData) path(u *unit, t *lineTable, n uint32) string {
	if p, ok := t.paths[n]; ok {
		return p
	}
	p := ""
	if n < uint32(len(t.names)) {
		f := t.names[n]
		if p = d.lineString(t, f.name); p != "" && !strings.HasPrefix(p, "/") {
			dir := ""
			if f.dir < uint32(len(t.dirs)) {
				dir = d.lineString(t, t.dirs[f.dir])
			}
			// Directory 0 is that of the compilation, since version 5 by name.
			if !strings.HasPrefix(dir, "/") && (t.version < 5 || f.dir != 0) {
				dir = join(d.str(u, u.compDir, 0), dir)
			}
			p = join(dir, p)
		}
	}
	if t.paths == nil {
		t.paths = map[uint32]string{}
	}
	t.paths[n] = p
	return p
}

// lineString returns a string of a line table.
func (d *dwarfData) lineString(t *lineTable, v value) string {
	switch v.form {
	case formString:
		return d.line.cstring(t.program + v.u)
	case formStrp:
		return d.strings.cstring(v.u)
	case formLineStrp:
		return d.lineStr.cstring(v.u)
	}
	return ""
}

func join(dir, name string) string {
	if dir == "" || name == "" {
		return dir + name
	}
	if strings.HasSuffix(dir, "/") {
		return dir + name
	}
	return dir + "/" + name
}
