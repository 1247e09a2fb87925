package symbols

import (
	"debug/dwarf"
	"fmt"
)

// Limits on one table of abbreviations.
const (
	maxAbbrevTable = 16 << 20 // bytes
	maxAbbrevs     = 1 << 20
	maxAbbrevAttrs = 1 << 12
	usualAttrs     = 20

	// maxAbbrevWork bounds the bytes that are read for all units of a file.
	// Real files stay far below: units share tables, or have small ones.
	maxAbbrevWork = 2 << 30

	// lookedThrough is how much more a byte counts that is looked through for a root entry's, which is among the
	// first of its table.
	lookedThrough = 8
)

// attrSpec says how an attribute of an entry is stored. There are a million of
// them in a large file.
type attrSpec struct {
	attr     dwarf.Attr
	form     form
	implicit int16 // the value itself, for formImplicit; its index in wide for formImplicitWide
}

// abbrev is the shape of a debugging information entry (DIE).
type abbrev struct {
	tag      dwarf.Tag // 0: no such abbreviation
	children bool
	sibling  bool  // has DW_AT_sibling
	fixed    int32 // size of all attributes, or -1 when it varies
	attrs    []attrSpec
	wide     *[]int64 // implicit values that have no room in attrs; nil when there are none
}

// abbrevTable is a table of .debug_abbrev, by code.
type abbrevTable struct {
	enc    encoding
	dense  []abbrev // codes from 1 on, as compilers number them
	sparse map[uint64]*abbrev
}

// memory is what the table takes, in bytes.
func (t *abbrevTable) memory() int {
	n := 64 + 48*cap(t.dense) + 64*len(t.sparse)
	for i := range t.dense {
		n += 8 * len(t.dense[i].attrs)
	}
	for _, a := range t.sparse {
		n += 8 * len(a.attrs)
	}
	return n
}

// get returns the abbreviation of a code, or nil.
func (t *abbrevTable) get(code uint64) *abbrev {
	if code-1 < uint64(len(t.dense)) {
		return &t.dense[code-1]
	}
	return t.sparse[code]
}

// parseAbbrevs reads the table at the start of b. complete is false when b
// ends before the table does.
func parseAbbrevs(b []byte, enc encoding) (t *abbrevTable, complete bool, err error) {
	t = &abbrevTable{enc: enc}
	var specs []attrSpec // of abbreviations; what is full stays in those
	total := 0
	c := cursor{b: b}
	for range maxAbbrevs {
		code := c.uleb()
		if code == 0 {
			return t, !c.failed, nil
		}
		if cap(specs)-len(specs) < usualAttrs {
			specs = make([]attrSpec, 0, max(4*usualAttrs, total/2))
		}
		var a abbrev
		var ok bool
		if specs, ok = a.parse(&c, enc, specs); !ok {
			return t, false, nil
		}
		total += len(a.attrs)
		if len(a.attrs) > maxAbbrevAttrs {
			return nil, false, fmt.Errorf("too many attributes: %w", errDWARF)
		}
		if code == uint64(len(t.dense))+1 {
			t.dense = append(t.dense, a)
			continue
		}
		if t.get(code) != nil {
			continue // the first one counts
		}
		if t.sparse == nil {
			t.sparse = map[uint64]*abbrev{}
		}
		t.sparse[code] = &a
	}
	return nil, false, fmt.Errorf("too many abbreviations: %w", errDWARF)
}

// parse reads what follows the code; ok is false when c ends first. The
// attributes are appended to specs.
func (a *abbrev) parse(c *cursor, enc encoding, specs []attrSpec) (_ []attrSpec, ok bool) {
	*a = abbrev{tag: dwarf.Tag(c.uleb()), children: c.u8() != 0}
	first := len(specs)
	for {
		s := attrSpec{attr: dwarf.Attr(c.uleb()), form: form(c.uleb())}
		switch s.form {
		case formImplicitWide:
			s.form = 0 // no such form
		case formImplicit:
			a.setImplicit(&s, c.sleb())
		}
		if c.failed {
			return specs, false
		}
		if s.attr == 0 && s.form == 0 {
			a.attrs = specs[first:len(specs):len(specs)]
			return specs, true
		}
		if s.attr == dwarf.AttrSibling {
			a.sibling = true
		}
		if size := enc.fixedSize(s.form); size < 0 || a.fixed < 0 {
			a.fixed = -1
		} else {
			a.fixed += int32(size)
		}
		if len(specs)-first <= maxAbbrevAttrs {
			specs = append(specs, s)
		}
	}
}

// setImplicit gives an attribute its implicit value.
func (a *abbrev) setImplicit(s *attrSpec, v int64) {
	if s.implicit = int16(v); int64(s.implicit) == v {
		return
	}
	if a.wide == nil {
		a.wide = new([]int64)
	}
	if len(*a.wide) < maxAbbrevAttrs {
		s.form, s.implicit = formImplicitWide, int16(len(*a.wide))
		*a.wide = append(*a.wide, v)
	}
}

// read reads an attribute of an entry.
func (a *abbrev) read(enc encoding, c *cursor, s *attrSpec) value {
	if s.form == formImplicitWide {
		return value{formImplicit, uint64((*a.wide)[s.implicit])}
	}
	return enc.read(c, s.form, int64(s.implicit))
}

// oneAbbrev reads the abbreviation of one code from the table at an offset,
// into a.
func (d *dwarfData) oneAbbrev(off uint64, enc encoding, code uint64, a *abbrev) error {
	for n := uint64(1 << 12); ; n *= 4 {
		b, err := d.abbrevBytes(off, n)
		if err != nil {
			return err
		}
		c := cursor{b: b}
		for !c.failed {
			have := c.uleb()
			if have == code {
				if _, ok := a.parse(&c, enc, a.attrs[:0]); !ok {
					break
				}
				if len(a.attrs) > maxAbbrevAttrs {
					return fmt.Errorf("too many attributes: %w", errDWARF)
				}
				d.abbrevWork += lookedThrough * uint64(c.off)
				return nil
			}
			if have == 0 && !c.failed {
				d.abbrevWork += lookedThrough * uint64(c.off)
				return fmt.Errorf("no abbreviation %d: %w", code, errDWARF)
			}
			skipAbbrev(&c)
		}
		d.abbrevWork += lookedThrough * uint64(len(b))
		if uint64(len(b)) < n || n >= maxAbbrevTable {
			return fmt.Errorf("abbreviations at %#x have no end: %w", off, errDWARF)
		}
	}
}

// abbrevBytes returns up to n bytes at an offset of .debug_abbrev.
func (d *dwarfData) abbrevBytes(off, n uint64) ([]byte, error) {
	if d.abbrevWork > maxAbbrevWork {
		return nil, fmt.Errorf("abbreviations take too long to read: %w", errDWARF)
	}
	b, err := d.abbrev.upTo(off, n)
	if err != nil {
		return nil, fmt.Errorf("abbreviations: %w", err)
	}
	return b, nil
}

// skipAbbrev passes over what follows a code.
func skipAbbrev(c *cursor) {
	c.uleb()
	c.u8()
	for !c.failed {
		attr, f := c.uleb(), c.uleb()
		if form(f) == formImplicit {
			c.sleb()
		}
		if attr == 0 && f == 0 {
			return
		}
	}
}

// abbrevs returns the table at an offset of .debug_abbrev. Units share
// tables, so they are kept.
func (d *dwarfData) abbrevs(off uint64, enc encoding) (*abbrevTable, error) {
	key := abbrevKey{off, enc}
	if d.abbrevShare.begin() {
		d.abbrevCache = map[abbrevKey]*abbrevTable{}
	}
	if t := d.abbrevCache[key]; t != nil {
		return t, nil
	}
	for n := uint64(1 << 12); ; n *= 4 {
		b, err := d.abbrevBytes(off, n)
		if err != nil {
			return nil, err
		}
		t, complete, err := parseAbbrevs(b, enc)
		d.abbrevWork += uint64(len(b))
		if err != nil {
			return nil, err
		}
		if complete {
			d.abbrevCache[key] = t
			d.abbrevShare.grow(&d.owner.budget, t.memory())
			return t, nil
		}
		if uint64(len(b)) < n || n >= maxAbbrevTable {
			return nil, fmt.Errorf("abbreviations at %#x have no end: %w", off, errDWARF)
		}
	}
}

type abbrevKey struct {
	off uint64
	enc encoding
}

// rootKey tells which abbreviation rootAbbrev is.
type rootKey struct {
	abbrevKey
	code uint64 // 0: none
}
