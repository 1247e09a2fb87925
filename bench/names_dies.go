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

// scope is an entry that may hold code: of a function, of an inlined call, of a
// block in one, or of what these stand in.
type scope struct {
	entry *dwarf.Entry // nil when it was read
	files []*dwarf.LineFile

	tag      dwarf.Tag
	unit     *unit
	off      dwarf.Offset
	parent   *scope // around it; nil for a unit
	ranges   [][2]uint64
	ended    int      // how many scopes end before it does
	names    []string // linkage name first; those of what it is an instance of
	linked   bool     // it has a linkage name
	local    bool     // a name is in this file, not in the common one of dwz
	inlined  bool
	callFile string
	callLine int  // 0: the entry does not say
	foreign  bool // it is an instance of an entry of another unit
	common   bool // of one in the common file of dwz
	listed   bool // its addresses are a DW_FORM_rnglistx
}

// unit is what is noted of a unit.
type unit struct {
	// alternate is where the first function is that is an instance of one in
	// the common file of dwz, 0 when there is none.
	alternate dwarf.Offset
	rows      int64       // its line table, -1 when it has none
	cplus     bool        // its language is C++
	ranges    [][2]uint64 // its own; of strict DWARF 2 one only
}

// isCPlus says whether the entry of a unit has one of the numbers of C++.
func isCPlus(e *dwarf.Entry) bool {
	language, _ := e.Val(dwarf.AttrLanguage).(int64)
	return slices.Contains([]int64{0x04, 0x1a, 0x21, 0x2b, 0x3a}, language)
}

// isFunction says whether a scope is a function or an inlined call.
func (s *scope) isFunction() bool {
	return s.tag == dwarf.TagSubprogram || s.tag == dwarf.TagInlinedSubroutine
}

// covers says whether the scope's own addresses hold addr.
func (s *scope) covers(addr uint64) bool {
	return within(addr, s.ranges)
}

// within says whether one of some ranges holds an address.
func within(addr uint64, ranges [][2]uint64) bool {
	return slices.ContainsFunc(ranges, func(r [2]uint64) bool { return r[0] <= addr && addr < r[1] })
}

// calls returns the function that a scope lies in and the calls inlined around
// it there, itself included, innermost first.
func (s *scope) calls() (all []*scope) {
	for ; s != nil; s = s.parent {
		if s.isFunction() {
			all = append(all, s)
		}
		if s.tag == dwarf.TagSubprogram {
			break
		}
	}
	return all
}

// debugInfo is the debug information of a file, as debug/dwarf reads it.
type debugInfo struct {
	dwarf  *dwarf.Data
	common *dwarf.Data // of the common file of dwz, or nil
	strs   []byte      // .debug_str of that
	units  []dwarf.Offset

	partial map[int64]bool // line tables of partial units
}

func openDebugInfo(f *elf.File, path string) (*debugInfo, error) {
	data, err := f.DWARF()
	if err != nil {
		return nil, err
	}
	d := &debugInfo{dwarf: data, partial: map[int64]bool{}}
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

// scopesAt returns the functions and inlined calls at each of some addresses,
// outermost first, and all scopes that hold the address, in the order in which
// they end.
func (d *debugInfo) scopesAt(addrs []uint64) (calls, holding [][]*scope, err error) {
	order := make([]int, len(addrs)) // of the addresses
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(addrs[a], addrs[b]) })
	calls, holding = make([][]*scope, len(addrs)), make([][]*scope, len(addrs))
	var files []*dwarf.LineFile
	var around *scope // the next entry
	var u *unit
	ended := 0
	r := d.dwarf.Reader()
	for {
		e, err := r.Next()
		if e == nil || err != nil {
			for _, h := range holding {
				slices.SortFunc(h, func(a, b *scope) int { return cmp.Compare(a.ended, b.ended) })
			}
			return calls, holding, err
		}
		s := &scope{tag: e.Tag, unit: u, off: e.Offset, parent: around}
		switch e.Tag {
		case 0:
			if around != nil {
				around.ended = ended
				ended++
				around = around.parent
			}
			continue
		case dwarf.TagCompileUnit, dwarf.TagPartialUnit:
			u, files, s.parent = &unit{rows: -1, cplus: isCPlus(e)}, nil, nil
			if u.ranges, err = d.dwarf.Ranges(e); err != nil {
				return nil, nil, err
			}
			if at, ok := e.Val(dwarf.AttrStmtList).(int64); ok {
				u.rows = at
				if e.Tag == dwarf.TagPartialUnit {
					d.partial[at] = true
				}
			}
			if lr, err := d.dwarf.LineReader(e); err == nil && lr != nil {
				files = lr.Files()
			}
		case dwarf.TagSubprogram, dwarf.TagInlinedSubroutine, dwarf.TagLexDwarfBlock, dwarf.TagTryDwarfBlock, dwarf.TagCatchDwarfBlock:
			if s.ranges, err = d.dwarf.Ranges(e); err != nil {
				return nil, nil, err
			}
			s.entry, s.files, s.inlined = e, files, e.Tag == dwarf.TagInlinedSubroutine
			if u != nil && u.alternate == 0 && s.isFunction() && instanceOf(e) != nil && instanceOf(e).Class == dwarf.ClassReferenceAlt {
				u.alternate = e.Offset
			}
			for _, rg := range s.ranges {
				i := sort.Search(len(order), func(i int) bool { return addrs[order[i]] >= rg[0] })
				for ; i < len(order) && addrs[order[i]] < rg[1]; i++ {
					d.add(s, &calls[order[i]], &holding[order[i]])
				}
			}
		}
		if e.Children {
			around = s
		} else {
			s.ended = ended
			ended++
		}
	}
}

// add notes that a scope holds an address.
func (d *debugInfo) add(s *scope, calls, holding *[]*scope) {
	*holding = append(*holding, s)
	if !s.isFunction() {
		return
	}
	if !s.inlined {
		*calls = (*calls)[:0] // one that stands within another is no call in it
	}
	// The addresses of those around it may lack this one: DWARF 2 has no lists.
	all := s.calls()
	slices.Reverse(all)
	for _, o := range all {
		if !slices.Contains(*calls, o) {
			d.complete(o)
			*calls = append(*calls, o)
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
				continue
			case f.Class == dwarf.ClassString:
				s.names = append(s.names, f.Val.(string))
				s.local = s.local || data == d.dwarf
			case f.Class == dwarf.ClassStringAlt:
				s.common = true
				if off := f.Val.(int64); off >= 0 && off < int64(len(d.strs)) {
					name, _, _ := bytes.Cut(d.strs[off:], []byte{0})
					s.names = append(s.names, string(name))
				}
			}
			s.linked = s.linked || a == dwarf.AttrLinkageName
		}
		to := instanceOf(e)
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

// instanceOf returns what refers to the entry that another is an instance of.
func instanceOf(e *dwarf.Entry) *dwarf.Field {
	if to := e.AttrField(dwarf.AttrAbstractOrigin); to != nil {
		return to
	}
	return e.AttrField(dwarf.AttrSpecification)
}
