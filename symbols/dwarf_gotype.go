package symbols

import "debug/dwarf"

const attrGoRuntimeType dwarf.Attr = 0x2904

// goTypeMemory is what the index of Go types takes for one, in bytes.
const goTypeMemory = 32

// RuntimeType returns the type that a program in Go describes at run time at an
// offset from the symbol runtime.types; t is another type of it. It is nil
// where the debug information has none.
func (t *Type) RuntimeType(off uint64) *Type {
	if t.entry == nil || off == 0 {
		return nil
	}
	d := t.entry.d.program()
	d.lock()
	defer d.unlock()
	if d.goTypes == nil {
		if d.owner.defers(wantedTypes{d, true}) {
			return nil
		}
		d.readGoTypes()
	}
	at, ok := d.goTypes[off]
	if !ok {
		return nil
	}
	e, err := d.dieAt(at)
	if err != nil {
		d.note(err)
		return nil
	}
	return e.asType()
}

// readGoTypes finds the entries of the types that have a description at run
// time.
func (d *dwarfData) readGoTypes() {
	d.goTypes = map[uint64]uint64{}
	d.readUnits(d.info.size)
	for _, u := range d.units {
		d.allowEntries(u)
		if err := d.addGoTypes(u); err != nil {
			d.note(err)
		}
	}
	d.owner.budget.charge(goTypeMemory * len(d.goTypes))
}

// addGoTypes adds those that stand in a unit by themselves.
func (d *dwarfData) addGoTypes(u *unit) error {
	var root, c die
	if err := d.readEntry(u, u.root, &root, true); err != nil || !root.children {
		return err
	}
	for off := root.end; off < u.end && len(d.goTypes) < maxDefinitions; {
		if err := d.readEntry(u, off, &c, false); err != nil || c.null {
			return err
		}
		if v := c.get(attrGoRuntimeType).value; v.form != 0 && v.u != 0 {
			d.goTypes[v.u] = c.off
		}
		var err error
		if off, err = c.after(); err != nil {
			return err
		}
	}
	return nil
}
