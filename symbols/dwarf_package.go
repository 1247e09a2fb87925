package symbols

import (
	"debug/dwarf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/swbpf/swbpf/procstate"
)

// dwarfPackage is a .dwp file: the sections of many split units together, and
// indexes of which parts belong to a unit.
type dwarfPackage struct {
	img   *procstate.Image
	all   dwarfData    // with whole sections
	units packageIndex // of compilation units, by ID
	types packageIndex // of type units, by signature

	typeUnits map[uint64]typeUnit // those read, by signature
}

// packageIndex tells which parts of the sections belong to a unit.
type packageIndex struct {
	version uint32
	columns []uint32 // section of each column
	slots   uint32
	units   uint32
	index   []byte // from the hash table on
}

// Columns of the index (DWARF 5, section 7.3.5.3). Version 2 is that of GNU.
const (
	dwpInfo       = 1
	dwpTypes      = 2 // in version 2
	dwpAbbrev     = 3
	dwpLoclists   = 5 // .debug_loc.dwo in version 2
	dwpStrOffsets = 6
	dwpRnglists   = 8 // .debug_macro.dwo in version 2
)

const maxPackageIndex = 64 << 20

// fromPackage looks a skeleton's unit up in the package beside the program.
// It returns nil when there is no package, or not this unit in it.
func (d *dwarfData) fromPackage(u *unit) (*splitUnit, error) {
	if !d.dwpDone {
		d.dwpDone = true
		var err error
		if d.dwp, err = d.openPackage(); err != nil {
			return nil, err
		}
	}
	p := d.dwp
	if p == nil {
		return nil, nil
	}
	row, ok := p.units.find(u.dwoID)
	if !ok {
		return nil, nil
	}
	data, err := p.parts(d, &p.units, row)
	if err != nil {
		return nil, err
	}
	data.skeleton = u
	return data.splitUnit(u)
}

// parts returns the debug information in a row of an index, for a program.
func (p *dwarfPackage) parts(main *dwarfData, x *packageIndex, row uint32) (*dwarfData, error) {
	data := &dwarfData{group: main.group, img: p.img, main: main, base: main.base, codeRanges: main.codeRanges, owner: main.owner, pack: p}
	data.strings, data.ranges = p.all.strings.again(), p.all.ranges.again()
	var err error
	for i, column := range x.columns {
		off, size := x.cell(row, i)
		switch column {
		case dwpInfo:
			data.info, err = p.all.info.part(off, size)
		case dwpTypes:
			data.info, err = p.all.typesSection.part(off, size)
			data.ofTypes = true
		case dwpAbbrev:
			data.abbrev, err = p.all.abbrev.part(off, size)
		case dwpLoclists:
			if x.version == 5 {
				data.loclists, err = p.all.loclists.part(off, size)
			} else {
				data.loc, err = p.all.loc.part(off, size)
			}
		case dwpStrOffsets:
			data.strOffsets, err = p.all.strOffsets.part(off, size)
		case dwpRnglists:
			if x.version == 5 {
				data.rnglists, err = p.all.rnglists.part(off, size)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.img.Path, err)
		}
	}
	data.rangeOffsets = data.rnglists.again()
	return data, nil
}

// typeUnitMemory is about what a type unit of a package takes with the windows
// of its sections, in bytes.
const typeUnitMemory = windowInfo + 2*windowTables + 2<<10

// typeUnit returns the type unit with a signature, for a program.
func (p *dwarfPackage) typeUnit(main *dwarfData, signature uint64) (typeUnit, bool) {
	if t, ok := p.typeUnits[signature]; ok {
		return t, t.u != nil
	}
	row, ok := p.types.find(signature)
	if !ok {
		return typeUnit{}, false
	}
	if p.typeUnits == nil || len(p.typeUnits) >= maxTypes {
		p.typeUnits = map[uint64]typeUnit{}
	}
	t := typeUnit{}
	data, err := p.parts(main, &p.types, row)
	if err == nil {
		data.readUnits(data.info.size)
		for _, u := range data.units {
			if u.tag == dwarf.TagTypeUnit && u.dwoID == signature {
				t = typeUnit{data, u}
			}
		}
		if t.u == nil {
			err = fmt.Errorf("%s: no type unit %#x: %w", p.img.Path, signature, errNotSameFile)
		}
	}
	if err != nil {
		main.note(err)
	}
	p.typeUnits[signature] = t
	main.owner.budget.charge(typeUnitMemory)
	return t, t.u != nil
}

// openPackage opens the package beside the program, if there is one.
func (d *dwarfData) openPackage() (*dwarfPackage, error) {
	_, path := placeOf(d.img)
	path = strings.TrimSuffix(path, ".debug") + ".dwp"
	im, err := openImage(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	d.owner.keep(im)
	p := &dwarfPackage{img: im.Image, all: dwarfData{group: d.group, owner: d.owner, main: d}}
	if err := p.all.openSections(im.Image, ".dwo"); err != nil {
		return nil, err
	}
	if err := p.units.open(im.Image, ".debug_cu_index"); err != nil {
		return nil, err
	}
	if _, ok := im.Section(".debug_tu_index"); ok {
		if err := p.types.open(im.Image, ".debug_tu_index"); err != nil {
			d.note(err) // functions and calls are in the others
		}
	}
	return p, nil
}

// open reads the index in a section.
func (x *packageIndex) open(im *procstate.Image, section string) error {
	s, ok := im.Section(section)
	if !ok {
		return fmt.Errorf("%s: no %s: %w", im.Path, section, errDWARF)
	}
	b, err := im.SectionBytes(s, maxPackageIndex)
	if err != nil {
		return err
	}
	c := cursor{b: b}
	version := c.u32() & 0xffff // since version 5 a u16 and padding
	columns := c.u32()
	units, slots := c.u32(), c.u32()
	if c.failed || version != 2 && version != 5 || columns > 16 || slots > 1<<24 || units > slots {
		return fmt.Errorf("%s: %s: bad index: %w", im.Path, section, errDWARF)
	}
	need := uint64(slots)*12 + 4*uint64(columns) + 8*uint64(columns)*uint64(units)
	if need > uint64(len(b)-c.off) {
		return fmt.Errorf("%s: %s: index is cut short: %w", im.Path, section, errDWARF)
	}
	*x = packageIndex{version: version, slots: slots, units: units, index: b[c.off:]}
	c.off += 12 * int(slots)
	for range columns {
		x.columns = append(x.columns, c.u32())
	}
	return nil
}

// find returns the row of a unit in the index: an open hash table of 64-bit
// IDs, with the step taken from the upper half.
func (x *packageIndex) find(id uint64) (row uint32, ok bool) {
	if x.slots == 0 || x.slots&(x.slots-1) != 0 {
		return 0, false
	}
	le := binary.LittleEndian
	mask := uint64(x.slots - 1)
	h, step := id&mask, id>>32&mask|1
	for range x.slots {
		row := le.Uint32(x.index[8*uint64(x.slots)+4*h:])
		if row == 0 {
			return 0, false
		}
		if le.Uint64(x.index[8*h:]) == id {
			return row - 1, row-1 < x.units
		}
		h = (h + step) & mask
	}
	return 0, false
}

// cell returns the part of a section that belongs to a row.
func (x *packageIndex) cell(row uint32, column int) (off, size uint64) {
	n := len(x.columns)
	at := 12*int(x.slots) + 4*n + 4*(int(row)*n+column)
	le := binary.LittleEndian
	return uint64(le.Uint32(x.index[at:])), uint64(le.Uint32(x.index[at+4*n*int(x.units):]))
}
