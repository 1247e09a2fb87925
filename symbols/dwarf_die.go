package symbols

import (
	"bytes"
	"debug/dwarf"
	"fmt"
	"slices"
)

// freeEntries may be read for any question, however small the unit.
const freeEntries = 1 << 10

// maxEntries bounds the entries that are read for one question, maxAsked the units
// that they are in.
const (
	maxEntries = 1 << 22
	maxAsked   = 64
)

// allowEntries sets how many entries may be read for a question about a unit:
// each of them, and what they refer to.
func (d *dwarfData) allowEntries(u *unit) {
	g := d.group
	g.entryWork, g.entriesAllowed, g.asked = 0, 0, g.asked[:0]
	g.enter(u)
}

// enter allows to read the entries of a unit that the question leads to, too.
func (g *fileGroup) enter(u *unit) {
	if len(g.asked) == maxAsked || slices.Contains(g.asked, u) {
		return
	}
	g.asked = append(g.asked, u)
	more := min(freeEntries+(u.end-u.off)/2, maxEntries-g.entriesAllowed)
	g.entriesAllowed += more
	g.entryWork += more
}

// die is a debugging information entry (DIE), read whole.
type die struct {
	d        *dwarfData
	u        *unit
	off, end uint64 // in .debug_info: of the entry, of what follows its attributes
	tag      dwarf.Tag
	null     bool // the end of a list of children
	children bool
	sibling  uint64 // in .debug_info; 0 when not given
	attrs    []attribute
}

// attribute is an attribute of an entry, with its bytes where it is a block.
type attribute struct {
	attr  dwarf.Attr
	value value
	block []byte
}

// dieKey identifies an entry.
type dieKey struct {
	d   *dwarfData
	off uint64
}

func (e *die) key() dieKey { return dieKey{e.d, e.off} }

// get returns an attribute of the entry itself; its form is 0 when absent.
func (e *die) get(attr dwarf.Attr) *attribute {
	for i := range e.attrs {
		if e.attrs[i].attr == attr {
			return &e.attrs[i]
		}
	}
	return &attribute{}
}

// has reports whether the entry has an attribute, and not as a false flag.
func (e *die) has(attr dwarf.Attr) bool {
	v := e.get(attr).value
	return v.form != 0 && !(v.form == formFlag && v.u == 0)
}

// string returns an attribute of the class string, or "".
func (e *die) string(attr dwarf.Attr) string {
	return e.d.str(e.u, e.get(attr).value, e.off-e.u.off)
}

// readEntry reads the entry at an offset of .debug_info in u. With skim set,
// only the shape is of interest.
func (d *dwarfData) readEntry(u *unit, off uint64, e *die, skim bool) error {
	if d.group.entryWork == 0 {
		return fmt.Errorf("unit at %#x: too many entries: %w", u.off, errDWARF)
	}
	d.group.entryWork--
	if off < u.root || off >= u.end {
		return fmt.Errorf("entry at %#x is not in its unit: %w", off, errDWARF)
	}
	table, err := d.abbrevs(u.abbrevs, u.enc)
	if err != nil {
		return err
	}
	for size := uint64(256); ; size *= 16 {
		b, err := d.info.upTo(off, min(size, u.end-off))
		if err != nil {
			return err
		}
		c := cursor{b: b}
		ok, err := e.parse(&c, table, skim)
		if err != nil {
			return fmt.Errorf("unit at %#x: %w", u.off, err)
		}
		if ok {
			e.d, e.u, e.off, e.end = d, u, off, off+uint64(c.off)
			if e.sibling != 0 {
				e.sibling += u.off
			}
			return nil
		}
		if uint64(len(b)) < size || size >= maxEntry {
			return fmt.Errorf("entry at %#x is cut short: %w", off, errDWARF)
		}
	}
}

// parse reads an entry; ok is false when c ends first.
func (e *die) parse(c *cursor, table *abbrevTable, skim bool) (ok bool, err error) {
	*e = die{u: e.u, attrs: e.attrs[:0]}
	code := c.uleb()
	if c.failed {
		return false, nil
	}
	if code == 0 {
		e.null = true
		return true, nil
	}
	a := table.get(code)
	if a == nil {
		return false, fmt.Errorf("no abbreviation %d: %w", code, errDWARF)
	}
	e.tag, e.children = a.tag, a.children
	enc := table.enc
	for i := range a.attrs {
		s := &a.attrs[i]
		if skim && s.attr != dwarf.AttrSibling {
			enc.skip(c, s.form)
			continue
		}
		start := c.off
		v := a.read(enc, c, s)
		if s.attr == dwarf.AttrSibling {
			if isUnitRef(v.form) {
				e.sibling = v.u
			}
			continue
		}
		at := attribute{attr: s.attr, value: v}
		if !c.failed {
			at.block = blockOf(c.b[start:c.off], s.form, v.form)
		}
		e.attrs = append(e.attrs, at)
	}
	return !c.failed, nil
}

// blockOf returns a copy of the bytes of a value that is a block: b is the
// whole of it as it is stored, with its length.
func blockOf(b []byte, stored, f form) []byte {
	c := cursor{b: b}
	if stored == formIndirect {
		c.uleb()
	}
	switch f {
	case formBlock, formExprloc:
		c.uleb()
	case formBlock1:
		c.u8()
	case formBlock2:
		c.u16()
	case formBlock4:
		c.u32()
	case formData16:
	default:
		return nil
	}
	return bytes.Clone(c.b[c.off:])
}

// dieAt reads the entry at an offset of .debug_info.
func (d *dwarfData) dieAt(off uint64) (*die, error) {
	u := d.unitOf(off)
	if u == nil {
		return nil, fmt.Errorf("no unit holds the entry at %#x: %w", off, errDWARF)
	}
	d.group.enter(u)
	e := &die{}
	if err := d.readEntry(u, off, e, false); err != nil {
		return nil, err
	}
	if e.null {
		return nil, fmt.Errorf("no entry at %#x: %w", off, errDWARF)
	}
	return e, nil
}

// referred reads the entry that an attribute of e refers to; nil when e has
// no such attribute, or one that leads nowhere.
func (e *die) referred(attr dwarf.Attr) *die {
	v := e.get(attr).value
	if v.form == formRefSig8 {
		return e.d.typeUnitEntry(v.u)
	}
	d, off := e.d.reference(e.u, v)
	if d == nil {
		return nil
	}
	r, err := d.dieAt(off)
	if err != nil {
		e.d.note(err)
		return nil
	}
	return r
}

// completed returns e and the entries that complete it: those of its abstract
// instance and of its declaration.
func (e *die) completed() []*die {
	list := []*die{e}
	for range maxOrigins {
		next := e.referred(dwarf.AttrAbstractOrigin)
		if next == nil {
			next = e.referred(dwarf.AttrSpecification)
		}
		if next == nil {
			break
		}
		list = append(list, next)
		e = next
	}
	return list
}

// first returns the first of entries that has an attribute, or nil.
func first(entries []*die, attr dwarf.Attr) *die {
	for _, e := range entries {
		if e.get(attr).value.form != 0 {
			return e
		}
	}
	return nil
}

// eachChild calls f for the children of e until it returns false.
func (e *die) eachChild(f func(c *die) bool) error {
	if !e.children {
		return nil
	}
	for off := e.end; off < e.u.end; {
		c := &die{}
		if err := e.d.readEntry(e.u, off, c, false); err != nil {
			return err
		}
		if c.null || !f(c) {
			return nil
		}
		var err error
		if off, err = c.after(); err != nil {
			return err
		}
	}
	return nil
}

// after returns the offset in .debug_info of what follows e and its children.
func (e *die) after() (uint64, error) {
	if !e.children {
		return e.end, nil
	}
	if e.sibling > e.end && e.sibling <= e.u.end {
		return e.sibling, nil
	}
	var c die
	off := e.end
	for depth := 1; depth > 0; {
		if off >= e.u.end {
			return off, nil // lists need not be closed at the end of a unit
		}
		if err := e.d.readEntry(e.u, off, &c, true); err != nil {
			return 0, err
		}
		off = c.end
		switch {
		case c.null:
			depth--
		case c.children && c.sibling > c.end && c.sibling <= e.u.end:
			off = c.sibling
		case c.children:
			depth++
		}
	}
	return off, nil
}
