package symbols

import (
	"cmp"
	"debug/dwarf"
	"fmt"
	"slices"
	"sort"
)

// unitIndex finds units by their place in .debug_info and by their code. The
// headers and root entries of units are read in order, as far as a question
// needs. Where .debug_aranges tells whose the code is, that unit is read alone.
type unitIndex struct {
	units []*unit // those read in order, up to next
	next  uint64  // in .debug_info
	alone []*unit // those read alone, in order of offset

	spans      []span   // of units, while they are read
	rootWork   uint64   // range list entries that root entries may still use
	unitRanges rangeSet // of indices in units, when all are read
	complete   bool     // all units are read
	version2   bool     // some unit is of DWARF 2
	expanded   bool     // unitRanges covers the units that do not say where they are
	failed     bool     // some unit could not be read

	tableRanges rangeSet // what .debug_aranges says: of indices in tableUnits
	tableUnits  []uint64 // in .debug_info
	tableRead   bool
}

// unitMemory is what is kept of a unit, in bytes, as long as its file.
const unitMemory = 384

// maxUnits bounds the units of a file.
const maxUnits = 1 << 19

// readUnits reads units in order until one holds an offset of .debug_info.
func (d *dwarfData) readUnits(upTo uint64) {
	if d.next == 0 {
		d.rootWork = d.rangeLimit(d.info.size)
	}
	for d.next < d.info.size && d.next <= upTo {
		if len(d.units) >= maxUnits {
			d.unitFailed(fmt.Errorf("too many units: %w", errDWARF))
			d.next = d.info.size
			return
		}
		u, err := d.readUnit(d.next, true)
		if u == nil {
			d.unitFailed(err)
			d.next = d.info.size // nothing can be found behind it
			return
		}
		d.next = u.end
		if err != nil {
			d.unitFailed(err)
			continue
		}
		if known := unitHolding(d.alone, u.off); known != nil && known.off == u.off {
			u = known
		}
		d.units = append(d.units, u)
		d.owner.budget.charge(unitMemory)
		d.version2 = d.version2 || u.enc.version == 2
	}
}

// note notes what is wrong with the file.
func (d *dwarfData) note(err error) {
	d.owner.note(fmt.Errorf("%s: %w", d.img.Path, err))
}

// unitFailed notes the first error of a unit of the file.
func (d *dwarfData) unitFailed(err error) {
	if !d.failed {
		d.failed = true
		d.note(err)
	}
}

// readAllUnits reads all units and makes the index of their code.
func (d *dwarfData) readAllUnits() {
	if d.complete {
		return
	}
	d.readUnits(d.info.size)
	if d.rootWork == 0 && len(d.units) > 0 {
		d.unitFailed(fmt.Errorf("too many ranges of units: %w", errDWARF))
	}
	d.complete = true
	if d.version2 {
		d.addTableOf2()
	}
	// Several units can claim the one copy of an inline function that the
	// linker kept: the first of them is as good as any.
	d.unitRanges = flattenFirst(d.spans)
	d.spans = nil
}

// unitIndexOf returns the index of the one of units in order that holds an
// offset of .debug_info, or -1.
func unitIndexOf(units []*unit, off uint64) int {
	i := sort.Search(len(units), func(i int) bool { return units[i].off > off }) - 1
	if i < 0 || off >= units[i].end {
		return -1
	}
	return i
}

// unitHolding returns that unit, or nil.
func unitHolding(units []*unit, off uint64) *unit {
	if i := unitIndexOf(units, off); i >= 0 {
		return units[i]
	}
	return nil
}

// unitOf returns the unit that holds an offset of .debug_info, or nil.
func (d *dwarfData) unitOf(off uint64) *unit {
	if u := unitHolding(d.alone, off); u != nil {
		return u
	}
	d.readUnits(off)
	return unitHolding(d.units, off)
}

// unitAt returns the unit that holds the code at an offset, or nil.
func (d *dwarfData) unitAt(off uint32) *unit {
	if !d.complete {
		if u := d.unitInTable(off); u != nil {
			return u
		}
		d.readAllUnits()
	}
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

// unitInTable returns the unit that .debug_aranges gives the code at an offset
// to; nil when there is none.
func (d *dwarfData) unitInTable(off uint32) *unit {
	if !d.tableRead {
		d.readTable()
	}
	id, ok := d.tableRanges.find(off)
	if !ok {
		return nil
	}
	at := d.tableUnits[id]
	if u := unitHolding(d.alone, at); u != nil {
		return u
	}
	if u := unitHolding(d.units, at); u != nil {
		return u
	}
	d.rootWork = d.rangeLimit(d.info.size)
	u, err := d.readUnit(at, false)
	if err != nil || u == nil || u.tag == dwarf.TagTypeUnit || u.tag == dwarf.TagPartialUnit {
		return nil
	}
	i, _ := slices.BinarySearchFunc(d.alone, at, func(u *unit, at uint64) int { return cmp.Compare(u.off, at) })
	d.alone = slices.Insert(d.alone, i, u)
	return u
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
