package symbols

import "debug/dwarf"

// typeUnit is a type unit, in .debug_info or in .debug_types.
type typeUnit struct {
	d *dwarfData
	u *unit
}

// typeUnitEntry reads the type that the type unit with a signature is about;
// nil when there is none.
func (d *dwarfData) typeUnitEntry(signature uint64) *die {
	t, ok := d.typeUnit(signature)
	if !ok {
		return nil
	}
	e, err := t.d.dieAt(t.u.off + t.u.typeOff)
	if err != nil {
		d.note(err)
		return nil
	}
	return e
}

// typeUnit finds the type unit with a signature.
func (d *dwarfData) typeUnit(signature uint64) (t typeUnit, ok bool) {
	if d.pack != nil {
		return d.pack.typeUnit(d.main, signature)
	}
	if d.ofTypes {
		d = d.main
	}
	if d.signatures == nil {
		d.readSignatures()
	}
	t, ok = d.signatures[signature]
	return t, ok
}

// readSignatures finds the type units of a file. Copies of one are alike: the
// first is as good as any.
func (d *dwarfData) readSignatures() {
	d.signatures = map[uint64]typeUnit{}
	add := func(of *dwarfData) {
		of.readUnits(of.info.size)
		for _, u := range of.units {
			if _, known := d.signatures[u.dwoID]; u.tag == dwarf.TagTypeUnit && !known {
				d.signatures[u.dwoID] = typeUnit{of, u}
			}
		}
	}
	add(d)
	if d.typesSection.size == 0 {
		return
	}
	add(&dwarfData{
		group: d.group, owner: d.owner, img: d.img, base: d.base, codeRanges: d.codeRanges, main: d, ofTypes: true,
		info: d.typesSection, abbrev: d.abbrev.again(), strings: d.strings.again(), strOffsets: d.strOffsets.again(),
	})
}
