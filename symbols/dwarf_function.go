package symbols

import (
	"debug/dwarf"
	"slices"
)

// addrRange is a range of link-time addresses [start, end).
type addrRange struct{ start, end uint64 }

// functionReader finds the functions at an address and their variables.
type functionReader struct {
	vaddr uint64
	all   bool     // variables of all blocks, not only of those at vaddr
	calls []dieKey // the inlined calls at vaddr, outermost first
	found []*Function
}

// functions returns the functions at a link-time address, innermost first.
func (d *dwarfData) functions(vaddr uint64) ([]*Function, error) {
	if vaddr < d.base || vaddr-d.base >= none {
		return nil, ErrNoDebugInfo
	}
	off := uint32(vaddr - d.base)
	d.lock()
	defer d.unlock()
	u := d.unitAt(off)
	if u == nil {
		return nil, ErrNoDebugInfo
	}
	code := d.unitCode(u)
	id, ok := code.ranges.find(off)
	if !ok {
		return nil, ErrNoDebugInfo
	}
	var chain []dieKey
	for range maxUnitDepth {
		chain = append(chain, dieKey{code.owner, code.unit.off + uint64(code.scopes[id].die)})
		if id = code.scopes[id].parent; id == none {
			break
		}
	}
	slices.Reverse(chain)
	code.owner.allowRanges(code.unit.end - code.unit.off)
	code.owner.allowEntries(code.unit)
	root, err := code.owner.dieAt(chain[0].off)
	if err != nil {
		return nil, err
	}
	r := functionReader{vaddr: vaddr, calls: chain[1:]}
	fn := r.open(root, nil)
	if fn.Variables, err = r.block(root, fn, fn.scope, 0); err != nil {
		return nil, err
	}
	slices.Reverse(r.found)
	return r.found, nil
}

// open makes the Function of an entry. outer is nil, or the function that a
// call was inlined into.
func (r *functionReader) open(e *die, outer *Function) *Function {
	n := e.d.funcName(e.off, e.d.owner.opt.Demangle)
	fn := &Function{Name: n.function, SystemName: n.system, Inlined: outer != nil, Outer: outer, entry: e, scope: e.ranges()}
	if x := first(e.completed(), dwarf.AttrExternal); x != nil {
		fn.external = x.has(dwarf.AttrExternal)
	}
	if outer != nil && len(fn.scope) == 0 {
		fn.scope = outer.scope // it has code in what was inlined into it only
	}
	r.found = append(r.found, fn)
	return fn
}

// ranges returns the addresses that an entry covers; none when it says
// nothing of that.
func (e *die) ranges() (out []addrRange) {
	e.d.eachRange(e.u, e.get(dwarf.AttrLowpc).value, e.get(dwarf.AttrHighpc).value, e.get(dwarf.AttrRanges).value,
		func(start, end uint64) { out = append(out, addrRange{start, end}) })
	return out
}

func covers(ranges []addrRange, vaddr uint64) bool {
	for _, r := range ranges {
		if vaddr >= r.start && vaddr < r.end {
			return true
		}
	}
	return false
}

// block returns the variables of the scope e in fn: those of blocks within it
// first. What is inlined there becomes functions of their own.
func (r *functionReader) block(e *die, fn *Function, scope []addrRange, depth int) ([]*Variable, error) {
	if depth > maxUnitDepth {
		return nil, errDWARF
	}
	var own, inner []*Variable
	concrete := map[dieKey]bool{} // what the children are instances of
	var failed error
	err := e.eachChild(func(c *die) bool {
		switch c.tag {
		case dwarf.TagFormalParameter, dwarf.TagVariable:
			list := c.completed()
			for _, o := range list[1:] {
				concrete[o.key()] = true
			}
			if v := newVariable(list, fn, scope); v != nil {
				own = append(own, v)
			}
			return true
		case dwarf.TagLexDwarfBlock, dwarf.TagTryDwarfBlock, dwarf.TagCatchDwarfBlock, tagGNUFormalPack:
			if !noteInstance(c, concrete) && e.has(dwarf.AttrAbstractOrigin) {
				noteNested(c, concrete, 0)
			}
			var vars []*Variable
			if vars, failed = r.nested(c, fn, scope, depth); failed != nil {
				return false
			}
			if c.tag == tagGNUFormalPack {
				own = append(own, vars...)
			} else {
				inner = append(inner, vars...)
			}
		case dwarf.TagInlinedSubroutine:
			noteInstance(c, concrete)
			failed = r.call(c, fn, depth)
		}
		return failed == nil
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return nil, err
	}
	if origin := e.referred(dwarf.AttrAbstractOrigin); origin != nil {
		own = inherit(own, origin, concrete, fn, scope, 0)
	}
	return append(inner, own...), nil
}

// tagGNUFormalPack is DW_TAG_GNU_formal_parameter_pack: the parameters that a
// parameter pack became.
const tagGNUFormalPack dwarf.Tag = 0x4108

// noteInstance notes what an entry is an instance of, if it says.
func noteInstance(e *die, concrete map[dieKey]bool) bool {
	d, off := e.d.reference(e.u, e.get(dwarf.AttrAbstractOrigin).value)
	if d != nil {
		concrete[dieKey{d, off}] = true
	}
	return d != nil
}

// noteNested notes what the variables in a block are instances of. Clang's
// blocks do not say what they are instances of themselves.
func noteNested(e *die, concrete map[dieKey]bool, depth int) {
	if depth > maxUnitDepth {
		return
	}
	err := e.eachChild(func(c *die) bool {
		switch c.tag {
		case dwarf.TagFormalParameter, dwarf.TagVariable, dwarf.TagInlinedSubroutine:
			noteInstance(c, concrete)
		case dwarf.TagLexDwarfBlock, dwarf.TagTryDwarfBlock, dwarf.TagCatchDwarfBlock, tagGNUFormalPack:
			noteInstance(c, concrete)
			noteNested(c, concrete, depth+1)
		}
		return true
	})
	if err != nil {
		e.d.note(err)
	}
}

// nested returns the variables of a block, if it is to be read. A block that
// does not say where it is belongs to the scope around it.
func (r *functionReader) nested(c *die, fn *Function, scope []addrRange, depth int) ([]*Variable, error) {
	if ranges := c.ranges(); len(ranges) > 0 {
		if !r.all && !covers(ranges, r.vaddr) {
			return nil, nil
		}
		scope = ranges
	}
	return r.block(c, fn, scope, depth+1)
}

// call reads a call that was inlined into fn, if it is one at the address.
func (r *functionReader) call(c *die, fn *Function, depth int) error {
	if r.all || len(r.calls) == 0 || r.calls[0] != c.key() {
		return nil
	}
	r.calls = r.calls[1:]
	inlined := r.open(c, fn)
	var err error
	inlined.Variables, err = r.block(c, inlined, inlined.scope, depth+1)
	return err
}

// inherit appends the variables of an abstract instance that have no concrete
// counterpart: the compiler left nothing of them.
func inherit(dst []*Variable, origin *die, concrete map[dieKey]bool, fn *Function, scope []addrRange, depth int) []*Variable {
	if depth > maxUnitDepth {
		return dst
	}
	err := origin.eachChild(func(c *die) bool {
		if concrete[c.key()] {
			return true
		}
		switch c.tag {
		case dwarf.TagFormalParameter, dwarf.TagVariable:
			if v := newVariable(c.completed(), fn, scope); v != nil {
				dst = append(dst, v)
			}
		case dwarf.TagLexDwarfBlock, dwarf.TagTryDwarfBlock, dwarf.TagCatchDwarfBlock, tagGNUFormalPack:
			dst = inherit(dst, c, concrete, fn, scope, depth+1)
		}
		return true
	})
	if err != nil {
		origin.d.note(err)
	}
	return dst
}
