package symbols

import (
	"debug/dwarf"
	"fmt"
	"slices"
	"sync"
)

// Limits on one unit.
const (
	maxUnitSize  = 1 << 30 // bytes of .debug_info
	maxUnitDepth = 1 << 10 // nested entries
	maxScopes    = 1 << 24 // functions and inlined calls
)

// scope is a function, or a call inlined into another scope.
type scope struct {
	die      uint32 // its entry, from the start of the unit
	name     uint32 // the entry that its name is asked of: that of an inlined call may be another's
	parent   uint32 // the scope that it was inlined into; none for a function
	start    uint32 // of its first range, from the base of the file's code
	callFile uint32 // of an inlined call
	callLine uint32
}

// unitCode is what a unit tells about its code, in a compact form. It is
// immutable.
type unitCode struct {
	scopes []scope
	ranges rangeSet // of indices in scopes: the innermost scope at an offset
	lines  *lineTable

	owner *dwarfData // the file that holds the entries: a split one, perhaps
	unit  *unit      // in owner
}

// size is the memory that it takes, in bytes.
func (u *unitCode) size() int {
	n := 64 + 24*cap(u.scopes) + 4*cap(u.ranges.starts) + 4*cap(u.ranges.ids)
	if u.lines != nil {
		n += u.lines.memory()
	}
	return n
}

// compileScopes reads the entries of a unit for functions and inlined calls.
func (d *dwarfData) compileScopes(u *unit, out *unitCode) error {
	if u.end-u.off > maxUnitSize {
		return fmt.Errorf("unit at %#x: too large: %w", u.off, errDWARF)
	}
	table, err := d.abbrevs(u.abbrevs, u.enc)
	if err != nil {
		return fmt.Errorf("unit at %#x: %w", u.off, err)
	}
	b, free, err := d.info.readPooled(u.off, u.end-u.off)
	if err != nil {
		return fmt.Errorf("unit at %#x: %w", u.off, err)
	}
	defer free()
	d.allowRanges(u.end - u.off)
	buf := scopeBuffers.Get().(*scopeBuffer)
	out.scopes = buf.scopes[:0]
	w := scopeWalk{d: d, u: u, out: out, c: cursor{b: b, off: int(u.root - u.off)}, spans: buf.spans[:0]}
	err = w.walk(table)
	buf.scopes, buf.spans = out.scopes, w.spans
	out.scopes, out.ranges = slices.Clone(out.scopes), flatten(w.spans)
	if cap(buf.spans) <= maxPooledRows && cap(buf.scopes) <= maxPooledRows {
		scopeBuffers.Put(buf)
	}
	return err
}

// scopeBuffer is room for the scopes of a unit, and where they are, while it is read.
type scopeBuffer struct {
	scopes []scope
	spans  []span
}

var scopeBuffers = sync.Pool{New: func() any { return new(scopeBuffer) }}

// scopeWalk is the state of a pass over the entries of a unit.
type scopeWalk struct {
	d     *dwarfData
	u     *unit
	out   *unitCode
	c     cursor
	spans []span
	stack []uint32 // scope of each open entry with children
}

func (w *scopeWalk) walk(table *abbrevTable) error {
	current := uint32(none) // the scope around the current entry
	for w.c.off < len(w.c.b) {
		at := w.c.off
		code := w.c.uleb()
		if code == 0 {
			if len(w.stack) == 0 {
				break
			}
			current = w.stack[len(w.stack)-1]
			w.stack = w.stack[:len(w.stack)-1]
			if len(w.stack) == 0 {
				break // the root has ended
			}
			continue
		}
		a := table.get(code)
		if a == nil {
			return fmt.Errorf("unit at %#x: no abbreviation %d: %w", w.u.off, code, errDWARF)
		}
		inner := current
		switch {
		case scopeTag(a.tag):
			inner = w.scope(a, at, current)
		case a.children && a.sibling && noCode(a.tag):
			if next := w.sibling(a); next > w.c.off && next <= len(w.c.b) {
				w.c.off = next
				continue
			}
		case a.fixed >= 0:
			w.c.skip(uint64(a.fixed))
		default:
			for i := range a.attrs {
				w.u.enc.skip(&w.c, a.attrs[i].form)
			}
		}
		if len(w.out.scopes) > int(w.d.bound(4, maxScopes)) || w.d.rangeWork == 0 {
			return fmt.Errorf("unit at %#x: too many functions, inlined calls or ranges: %w", w.u.off, errDWARF)
		}
		if w.c.failed {
			return fmt.Errorf("unit at %#x: cut short: %w", w.u.off, errDWARF)
		}
		if a.children {
			if len(w.stack) >= maxUnitDepth {
				return fmt.Errorf("unit at %#x: entries nest too deeply: %w", w.u.off, errDWARF)
			}
			w.stack = append(w.stack, current)
			current = inner
		} else if len(w.stack) == 0 {
			break // a root without children
		}
	}
	return nil
}

// noCode reports whether entries of this kind hold no function with code.
func noCode(t dwarf.Tag) bool {
	switch t {
	case dwarf.TagEnumerationType, dwarf.TagSubroutineType, dwarf.TagArrayType, dwarf.TagCallSite, dwarf.TagVariable, tagGNUCallSite:
		return true
	}
	return false
}

// tagGNUCallSite is what DW_TAG_call_site was before DWARF 5.
const tagGNUCallSite dwarf.Tag = 0x4109

// sibling reads the attributes and returns where the next sibling starts.
func (w *scopeWalk) sibling(a *abbrev) int {
	next := 0
	for i := range a.attrs {
		s := &a.attrs[i]
		if s.attr == dwarf.AttrSibling {
			v := a.read(w.u.enc, &w.c, s)
			if isUnitRef(v.form) && v.u < uint64(len(w.c.b)) {
				next = int(v.u)
			}
			continue
		}
		w.u.enc.skip(&w.c, s.form)
	}
	return next
}

// isUnitRef reports whether a reference counts from the start of its unit.
func isUnitRef(f form) bool {
	return f == formRef1 || f == formRef2 || f == formRef4 || f == formRef8 || f == formRefUdata
}

// scope reads the entry of a function or inlined call and returns its index,
// or the scope around it where it has no code.
func (w *scopeWalk) scope(a *abbrev, at int, parent uint32) uint32 {
	var low, high, ranges, entry, origin value
	s := scope{die: uint32(at), name: uint32(at), parent: none}
	named := false // by the entry itself
	for i := range a.attrs {
		spec := &a.attrs[i]
		switch spec.attr {
		case dwarf.AttrLowpc:
			low = a.read(w.u.enc, &w.c, spec)
		case dwarf.AttrHighpc:
			high = a.read(w.u.enc, &w.c, spec)
		case dwarf.AttrRanges:
			ranges = a.read(w.u.enc, &w.c, spec)
		case dwarf.AttrEntrypc:
			entry = a.read(w.u.enc, &w.c, spec)
		case dwarf.AttrCallFile:
			s.callFile = uint32(a.read(w.u.enc, &w.c, spec).u)
		case dwarf.AttrCallLine:
			s.callLine = uint32(a.read(w.u.enc, &w.c, spec).u)
		case dwarf.AttrAbstractOrigin:
			origin = a.read(w.u.enc, &w.c, spec)
		default:
			switch spec.attr {
			case dwarf.AttrName, dwarf.AttrLinkageName, attrMIPSLinkage, dwarf.AttrDeclLine, dwarf.AttrSpecification:
				named = true
			}
			w.u.enc.skip(&w.c, spec.form)
		}
	}
	if !named && isUnitRef(origin.form) && origin.u < uint64(len(w.c.b)) {
		s.name = uint32(origin.u)
	}
	if a.tag == dwarf.TagInlinedSubroutine {
		if parent == none {
			return parent // inlined into nothing that has code
		}
		s.parent = parent
	} else if low.form == 0 && ranges.form == 0 {
		return none // a declaration, or what inlined calls refer to
	}
	id := uint32(len(w.out.scopes))
	n := len(w.spans)
	w.d.eachRange(w.u, low, high, ranges, func(start, end uint64) {
		if from, to, ok := w.d.offsets(start, end); ok {
			if len(w.spans) == n {
				s.start = from
			}
			w.spans = append(w.spans, span{from, to, id})
		}
	})
	if len(w.spans) == n && (s.parent == none || !a.children) {
		return s.parent // without code; a call can still hold calls that have some
	}
	if s.parent == none {
		// The first range need not hold the function's entry.
		if v, ok := w.d.address(w.u, entry); ok && w.d.isCode(v) {
			s.start = uint32(v - w.d.base)
		} else if v, ok := w.d.address(w.u, low); ok && w.d.isCode(v) {
			s.start = uint32(v - w.d.base)
		}
	}
	w.out.scopes = append(w.out.scopes, s)
	return id
}

// scopeTag reports whether an entry of this kind is a function or an inlined
// call.
func scopeTag(t dwarf.Tag) bool {
	return t == dwarf.TagSubprogram || t == dwarf.TagInlinedSubroutine
}
