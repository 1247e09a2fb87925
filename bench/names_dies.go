package main

import (
	"bytes"
	"cmp"
	"debug/dwarf"
	"debug/elf"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// scope is the entry of a function or of an inlined call.
type scope struct {
	entry *dwarf.Entry // nil when it was read
	files []*dwarf.LineFile

	names    []string // linkage name first; those of what it is an instance of
	inlined  bool
	callFile string
	callLine int  // 0: the entry does not say
	foreign  bool // it is an instance of an entry of another unit
	common   bool // of one in the common file of dwz
	listed   bool // its addresses are a DW_FORM_rnglistx
}

// debugInfo is the debug information of a file, as debug/dwarf reads it.
type debugInfo struct {
	dwarf  *dwarf.Data
	common *dwarf.Data // of the common file of dwz, or nil
	strs   []byte      // .debug_str of that
	units  []dwarf.Offset
}

func openDebugInfo(f *elf.File, path string) (*debugInfo, error) {
	data, err := f.DWARF()
	if err != nil {
		return nil, err
	}
	d := &debugInfo{dwarf: data}
	for r := data.Reader(); ; r.SkipChildren() {
		e, err := r.Next()
		if err != nil {
			return nil, err
		}
		if e == nil {
			break
		}
		d.units = append(d.units, e.Offset)
	}
	if link := f.Section(".gnu_debugaltlink"); link != nil {
		text, err := link.Data()
		if err != nil {
			return nil, err
		}
		name, _, _ := strings.Cut(string(text), "\x00")
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		c, err := elf.Open(name)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		if d.common, err = c.DWARF(); err != nil {
			return nil, err
		}
		if str := c.Section(".debug_str"); str != nil {
			if d.strs, err = str.Data(); err != nil {
				return nil, err
			}
		}
	}
	return d, nil
}

// unitOf returns where the unit of an entry begins.
func (d *debugInfo) unitOf(off dwarf.Offset) dwarf.Offset {
	i := sort.Search(len(d.units), func(i int) bool { return d.units[i] > off })
	return d.units[max(i-1, 0)]
}

// scopesAt returns the scopes at each of some addresses, outermost first.
func (d *debugInfo) scopesAt(addrs []uint64) ([][]*scope, error) {
	order := make([]int, len(addrs)) // of the addresses
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(addrs[a], addrs[b]) })
	all := make([][]*scope, len(addrs))
	var files []*dwarf.LineFile
	var open []*scope // entries around the next one; nil for those that are no calls
	r := d.dwarf.Reader()
	for {
		e, err := r.Next()
		if e == nil || err != nil {
			return all, err
		}
		var s *scope
		switch e.Tag {
		case 0:
			open = open[:max(len(open)-1, 0)]
			continue
		case dwarf.TagCompileUnit, dwarf.TagPartialUnit:
			files, open = nil, open[:0]
			if lr, err := d.dwarf.LineReader(e); err == nil && lr != nil {
				files = lr.Files()
			}
		case dwarf.TagSubprogram, dwarf.TagInlinedSubroutine:
			ranges, err := d.dwarf.Ranges(e)
			if err != nil {
				return nil, err
			}
			s = &scope{entry: e, files: files, inlined: e.Tag == dwarf.TagInlinedSubroutine}
			for _, rg := range ranges {
				i := sort.Search(len(order), func(i int) bool { return addrs[order[i]] >= rg[0] })
				for ; i < len(order) && addrs[order[i]] < rg[1]; i++ {
					at := &all[order[i]]
					if !s.inlined {
						*at = (*at)[:0] // one that stands within another is no call in it
					}
					for _, o := range open {
						if o != nil && !slices.Contains(*at, o) { // its own addresses may lack this one: DWARF 2 has no lists
							d.complete(o)
							*at = append(*at, o)
						}
					}
					d.complete(s)
					*at = append(*at, s)
				}
			}
		}
		if e.Children {
			if s != nil && !s.inlined {
				s = nil
			}
			open = append(open, s)
		}
	}
}

// complete reads the entry of a scope.
func (d *debugInfo) complete(s *scope) {
	e, files := s.entry, s.files
	if e == nil {
		return
	}
	s.entry, s.files = nil, nil
	if n, ok := e.Val(dwarf.AttrCallFile).(int64); ok && n >= 0 && int(n) < len(files) && files[n] != nil {
		s.callFile = files[n].Name
	}
	if n, ok := e.Val(dwarf.AttrCallLine).(int64); ok {
		s.callLine = int(n)
	}
	if f := e.AttrField(dwarf.AttrRanges); f != nil {
		s.listed = f.Class == dwarf.ClassRngList
	}
	data := d.dwarf
	for range 8 { // to what it is an instance of
		for _, a := range []dwarf.Attr{dwarf.AttrLinkageName, dwarf.AttrName} {
			switch f := e.AttrField(a); {
			case f == nil:
			case f.Class == dwarf.ClassString:
				s.names = append(s.names, f.Val.(string))
			case f.Class == dwarf.ClassStringAlt:
				s.common = true
				if off := f.Val.(int64); off >= 0 && off < int64(len(d.strs)) {
					name, _, _ := bytes.Cut(d.strs[off:], []byte{0})
					s.names = append(s.names, string(name))
				}
			}
		}
		to := e.AttrField(dwarf.AttrAbstractOrigin)
		if to == nil {
			to = e.AttrField(dwarf.AttrSpecification)
		}
		if to == nil {
			break
		}
		var off dwarf.Offset
		switch v := to.Val.(type) {
		case dwarf.Offset:
			off = v
			s.foreign = s.foreign || data == d.dwarf && d.unitOf(off) != d.unitOf(e.Offset)
		case int64: // DW_FORM_GNU_ref_alt
			off, s.common, s.foreign, data = dwarf.Offset(v), true, true, d.common
		}
		if data == nil {
			break
		}
		r := data.Reader()
		r.Seek(off)
		next, err := r.Next()
		if err != nil || next == nil {
			break
		}
		e = next
	}
}
