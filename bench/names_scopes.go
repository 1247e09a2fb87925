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

// scope is an entry that may hold code: of a function, of an inlined call, or of
// what these stand in.
type scope struct {
	entry *dwarf.Entry // nil when it was read, or is of no function
	files []*dwarf.LineFile

	tag      dwarf.Tag
	parent   *scope   // around it; nil for a unit
	names    []string // linkage name first; those of what it is an instance of
	callFile string
	callLine int // 0: the entry does not say
}

// isFunction says whether a scope is a function or an inlined call.
func (s *scope) isFunction() bool {
	return s.tag == dwarf.TagSubprogram || s.tag == dwarf.TagInlinedSubroutine
}

// calls returns the function that a scope lies in and the calls inlined around
// it there, itself included, outermost first.
func (s *scope) calls() (all []*scope) {
	for ; s != nil; s = s.parent {
		if s.isFunction() {
			all = append(all, s)
		}
		if s.tag == dwarf.TagSubprogram {
			break
		}
	}
	slices.Reverse(all)
	return all
}

// debugInfo is the debug information of a file, as debug/dwarf reads it.
type debugInfo struct {
	dwarf  *dwarf.Data
	common *dwarf.Data // of the common file of dwz, or nil
	strs   []byte      // .debug_str of that
}

func openDebugInfo(f *elf.File, path string) (*debugInfo, error) {
	data, err := f.DWARF()
	if err != nil {
		return nil, err
	}
	d := &debugInfo{dwarf: data}
	link := f.Section(".gnu_debugaltlink")
	if link == nil {
		return d, nil
	}
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
		d.strs, err = str.Data()
	}
	return d, err
}

// scopesAt returns the functions and inlined calls at each of some addresses,
// outermost first.
func (d *debugInfo) scopesAt(addrs []uint64) ([][]*scope, error) {
	order := make([]int, len(addrs)) // of the addresses
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(addrs[a], addrs[b]) })
	at := make([][]*scope, len(addrs))
	var files []*dwarf.LineFile
	var around *scope // the next entry
	r := d.dwarf.Reader()
	for {
		e, err := r.Next()
		if e == nil || err != nil {
			return at, err
		}
		s := &scope{tag: e.Tag, parent: around}
		switch e.Tag {
		case 0:
			if around != nil {
				around = around.parent
			}
			continue
		case dwarf.TagCompileUnit, dwarf.TagPartialUnit:
			files, s.parent = nil, nil
			if lr, err := d.dwarf.LineReader(e); err == nil && lr != nil {
				files = lr.Files()
			}
		case dwarf.TagSubprogram, dwarf.TagInlinedSubroutine:
			ranges, err := d.dwarf.Ranges(e)
			if err != nil {
				return nil, err
			}
			s.entry, s.files = e, files
			for _, rg := range ranges {
				i := sort.Search(len(order), func(i int) bool { return addrs[order[i]] >= rg[0] })
				for ; i < len(order) && addrs[order[i]] < rg[1]; i++ {
					d.add(s, &at[order[i]])
				}
			}
		}
		if e.Children {
			around = s
		}
	}
}

// add notes that a function or call holds an address.
func (d *debugInfo) add(s *scope, at *[]*scope) {
	if s.tag == dwarf.TagSubprogram {
		*at = (*at)[:0] // one that stands within another is no call in it
	}
	// The addresses of those around it may lack this one: DWARF 2 has no lists.
	for _, o := range s.calls() {
		if !slices.Contains(*at, o) {
			d.complete(o)
			*at = append(*at, o)
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
	data := d.dwarf
	for range 8 { // to what it is an instance of
		for _, a := range []dwarf.Attr{dwarf.AttrLinkageName, dwarf.AttrName} {
			switch f := e.AttrField(a); {
			case f == nil:
			case f.Class == dwarf.ClassString:
				s.names = append(s.names, f.Val.(string))
			case f.Class == dwarf.ClassStringAlt:
				if off := f.Val.(int64); off >= 0 && off < int64(len(d.strs)) {
					name, _, _ := bytes.Cut(d.strs[off:], []byte{0})
					s.names = append(s.names, string(name))
				}
			}
		}
		to := cmp.Or(e.AttrField(dwarf.AttrAbstractOrigin), e.AttrField(dwarf.AttrSpecification))
		if to == nil {
			return
		}
		var off dwarf.Offset
		switch v := to.Val.(type) {
		case dwarf.Offset:
			off = v
		case int64: // DW_FORM_GNU_ref_alt
			off, data = dwarf.Offset(v), d.common
		}
		if data == nil {
			return
		}
		r := data.Reader()
		r.Seek(off)
		next, err := r.Next()
		if err != nil || next == nil {
			return
		}
		e = next
	}
}
