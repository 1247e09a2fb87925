package symbols

import (
	"debug/dwarf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/swbpf/swbpf/procstate"
)

// splitUnit is the full unit behind a skeleton, in its own file or package.
type splitUnit struct {
	data *dwarfData
	unit *unit
}

// split returns the unit that a skeleton stands for, or nil when u is none or
// the file of its unit is not to be had.
func (d *dwarfData) split(u *unit) *splitUnit {
	if u.dwoName.form == 0 || d.main != nil {
		return nil
	}
	if s, ok := d.splits[u.off]; ok {
		return s
	}
	s, err := d.openSplit(u)
	if err != nil {
		d.owner.note(err)
	}
	if d.splits == nil {
		d.splits = map[uint64]*splitUnit{}
	}
	d.splits[u.off] = s
	return s
}

// openSplit looks in the package beside the program, then for the file that
// the skeleton names.
func (d *dwarfData) openSplit(u *unit) (*splitUnit, error) {
	if s, err := d.fromPackage(u); s != nil || err != nil {
		return s, err
	}
	name := d.str(u, u.dwoName, 0)
	if name == "" {
		return nil, nil
	}
	var paths []string
	root, place := placeOf(d.img)
	dir := filepath.Dir(place)
	if strings.HasPrefix(name, "/") {
		paths = append(paths, root+name)
	} else {
		paths = append(paths, root+join(d.str(u, u.compDir, 0), name), filepath.Join(dir, name))
	}
	paths = append(paths, filepath.Join(dir, filepath.Base(name)))
	for _, path := range paths {
		im, err := openImage(path)
		if err != nil {
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			return nil, err
		}
		d.owner.keep(im)
		data := &dwarfData{group: d.group, img: im.Image, main: d, skeleton: u, base: d.base, codeRanges: d.codeRanges, owner: d.owner}
		if err := data.openSections(im.Image, ".dwo"); err != nil {
			return nil, err
		}
		return data.splitUnit(u)
	}
	return nil, fmt.Errorf("%s: split unit %s: %w", d.img.Path, name, os.ErrNotExist)
}

// splitUnit finds the unit of a skeleton among those of d.
func (d *dwarfData) splitUnit(skeleton *unit) (*splitUnit, error) {
	d.readUnits(d.info.size)
	for _, u := range d.units {
		if u.tag == dwarf.TagCompileUnit && u.dwoID == skeleton.dwoID {
			return &splitUnit{d, u}, nil
		}
	}
	return nil, fmt.Errorf("%s: no unit %#x: %w", d.img.Path, skeleton.dwoID, errNotSameFile)
}

// dwarfPackage is a .dwp file: the sections of many split units together, and
// an index of which parts belong to a unit.
type dwarfPackage struct {
	img     *procstate.Image
	all     dwarfData // with whole sections
	version uint32
	columns []uint32 // section of each column of the index
	slots   uint32
	units   uint32
	index   []byte // from the hash table on
}

// Columns of the index (DWARF 5, section 7.3.5.3). Version 2 is that of GNU.
const (
	dwpInfo       = 1
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
	row, ok := p.find(u.dwoID)
	if !ok {
		return nil, nil
	}
	data := &dwarfData{group: d.group, img: p.img, main: d, skeleton: u, base: d.base, codeRanges: d.codeRanges, owner: d.owner}
	data.strings, data.ranges = p.all.strings, p.all.ranges
	var err error
	for i, column := range p.columns {
		off, size := p.cell(row, i)
		switch column {
		case dwpInfo:
			data.info, err = p.all.info.part(off, size)
		case dwpAbbrev:
			data.abbrev, err = p.all.abbrev.part(off, size)
		case dwpLoclists:
			if p.version == 5 {
				data.loclists, err = p.all.loclists.part(off, size)
			} else {
				data.loc, err = p.all.loc.part(off, size)
			}
		case dwpStrOffsets:
			data.strOffsets, err = p.all.strOffsets.part(off, size)
		case dwpRnglists:
			if p.version == 5 {
				data.rnglists, err = p.all.rnglists.part(off, size)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.img.Path, err)
		}
	}
	return data.splitUnit(u)
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
	s, ok := im.Section(".debug_cu_index")
	if !ok {
		return nil, fmt.Errorf("%s: no .debug_cu_index: %w", path, errDWARF)
	}
	b, err := im.SectionBytes(s, maxPackageIndex)
	if err != nil {
		return nil, err
	}
	c := cursor{b: b}
	p.version = c.u32() & 0xffff // since version 5 a u16 and padding
	columns := c.u32()
	p.units, p.slots = c.u32(), c.u32()
	if c.failed || p.version != 2 && p.version != 5 || columns > 16 || p.slots > 1<<24 || p.units > p.slots {
		return nil, fmt.Errorf("%s: bad index: %w", path, errDWARF)
	}
	need := uint64(p.slots)*12 + 4*uint64(columns) + 8*uint64(columns)*uint64(p.units)
	if need > uint64(len(b)-c.off) {
		return nil, fmt.Errorf("%s: index is cut short: %w", path, errDWARF)
	}
	p.index = b[c.off:]
	c.off += 12 * int(p.slots)
	for range columns {
		p.columns = append(p.columns, c.u32())
	}
	return p, nil
}

// find returns the row of a unit in the index: an open hash table of 64-bit
// IDs, with the step taken from the upper half.
func (p *dwarfPackage) find(id uint64) (row uint32, ok bool) {
	if p.slots == 0 || p.slots&(p.slots-1) != 0 {
		return 0, false
	}
	le := binary.LittleEndian
	mask := uint64(p.slots - 1)
	h, step := id&mask, id>>32&mask|1
	for range p.slots {
		row := le.Uint32(p.index[8*uint64(p.slots)+4*h:])
		if row == 0 {
			return 0, false
		}
		if le.Uint64(p.index[8*h:]) == id {
			return row - 1, row-1 < p.units
		}
		h = (h + step) & mask
	}
	return 0, false
}

// cell returns the part of a section that belongs to a row.
func (p *dwarfPackage) cell(row uint32, column int) (off, size uint64) {
	n := len(p.columns)
	at := 12*int(p.slots) + 4*n + 4*(int(row)*n+column)
	le := binary.LittleEndian
	return uint64(le.Uint32(p.index[at:])), uint64(le.Uint32(p.index[at+4*n*int(p.units):]))
}

// alternate returns the file that dwz moved common entries to, or nil.
func (d *dwarfData) alternate() *dwarfData {
	if d.main != nil {
		return d.main.alternate()
	}
	if d.group.alternate == d {
		return nil
	}
	if !d.altDone && d.group.alternate == nil {
		var err error
		if d.group.alternate, err = d.openAlternate(); err != nil {
			d.owner.note(err)
		}
	}
	d.altDone = true
	return d.group.alternate
}

// alternateLink reads .gnu_debugaltlink: a file name and a build ID; name is
// "" when there is none.
func alternateLink(im *procstate.Image) (name, id string, err error) {
	s, ok := im.Section(".gnu_debugaltlink")
	if !ok {
		return "", "", nil
	}
	b, err := im.SectionBytes(s, 1<<12)
	if err != nil {
		return "", "", err
	}
	name, id, ok = strings.Cut(string(b), "\x00")
	if !ok || name == "" {
		return "", "", fmt.Errorf("%s: .gnu_debugaltlink: %w", im.Path, errDWARF)
	}
	return name, id, nil
}

// groupOf returns the group of a file: with those that refer to the same
// alternate file, or alone.
func (s *Symbolizer) groupOf(im *procstate.Image) *fileGroup {
	_, id, err := alternateLink(im)
	if err != nil || id == "" {
		return &fileGroup{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[id]
	if g == nil {
		g = &fileGroup{}
		s.groups[id] = g
	}
	return g
}

// openAlternate opens the file that .gnu_debugaltlink names.
func (d *dwarfData) openAlternate() (*dwarfData, error) {
	name, id, err := alternateLink(d.img)
	if name == "" {
		return nil, err
	}
	root, place := placeOf(d.img)
	var paths []string
	if strings.HasPrefix(name, "/") {
		paths = append(paths, root+name)
	} else {
		paths = append(paths, filepath.Join(filepath.Dir(place), name))
	}
	if hex := fmt.Sprintf("%x", id); len(hex) > 2 {
		for _, dir := range d.owner.opt.DebugDirs {
			for _, dir := range []string{root + dir, dir} {
				paths = append(paths, filepath.Join(dir, ".build-id", hex[:2], hex[2:]+".debug"), filepath.Join(dir, ".dwz", filepath.Base(name)))
			}
		}
	}
	for _, path := range paths {
		im, err := openImage(path)
		if err != nil {
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			return nil, err
		}
		if id != "" && im.ID.BuildID != id {
			im.f.Close()
			continue
		}
		d.owner.keep(im)
		alt := &dwarfData{group: d.group, img: im.Image, base: d.base, owner: d.owner}
		if err := alt.openSections(im.Image, ""); err != nil {
			return nil, err
		}
		return alt, nil
	}
	return nil, fmt.Errorf("%s: alternate debug file %s: %w", d.img.Path, name, os.ErrNotExist)
}
