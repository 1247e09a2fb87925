package symbols

import (
	"debug/dwarf"
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
		d.note(err)
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
			d.note(err)
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
