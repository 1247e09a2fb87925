package symbols

import "debug/dwarf"

// Tags and attributes of call sites: those of DWARF 5 by the names that
// debug/dwarf has, and what GNU used before.
const (
	tagGNUCallSiteParameter dwarf.Tag  = 0x410a
	attrGNUCallSiteValue    dwarf.Attr = 0x2111
	attrGNUCallSiteTarget   dwarf.Attr = 0x2113
)

// CallSite is a call in the code of a function.
type CallSite struct {
	// Parameters are what the caller knows of the values that it passes.
	Parameters []CallParameter

	// Target computes the address of the function called, where the caller
	// calls through a pointer; else nil.
	Target *Expression

	// Callee is the function called, as the linker knows it; "" where that is
	// not said.
	Callee string
}

// CallParameter is a value that is passed in a call.
type CallParameter struct {
	Where *Expression // where the callee finds it
	Value *Expression // computes it in the caller's frame
	param dieKey      // the parameter itself, where that is said
}

// CallSite returns the call in f that returns to a link-time address; nil when
// the debug information does not describe it.
func (f *Function) CallSite(ret uint64) (*CallSite, error) {
	e := f.Physical().entry
	if e == nil {
		return nil, ErrNoDebugInfo
	}
	e.d.lock()
	defer e.d.unlock()
	e.d.allowEntries(e.u)
	e.d.allowRanges(e.u.end - e.u.off)
	return findCall(e, ret, 0)
}

// findCall looks for a call in an entry and the blocks in it.
func findCall(e *die, ret uint64, depth int) (found *CallSite, err error) {
	if depth > maxUnitDepth {
		return nil, errDWARF
	}
	var failed error
	err = e.eachChild(func(c *die) bool {
		switch c.tag {
		case dwarf.TagCallSite, tagGNUCallSite:
			at := c.get(dwarf.AttrCallReturnPC)
			if at.value.form == 0 {
				at = c.get(dwarf.AttrLowpc)
			}
			if v, ok := c.d.address(c.u, at.value); ok && v == ret {
				found, failed = c.callSite()
				return false
			}
		case dwarf.TagLexDwarfBlock, dwarf.TagInlinedSubroutine, dwarf.TagTryDwarfBlock, dwarf.TagCatchDwarfBlock:
			if r := c.ranges(); len(r) == 0 || covers(r, ret-1) {
				found, failed = findCall(c, ret, depth+1)
			}
		}
		return found == nil && failed == nil
	})
	if err == nil {
		err = failed
	}
	return found, err
}

func (e *die) callSite() (*CallSite, error) {
	s := &CallSite{}
	for _, attr := range []dwarf.Attr{dwarf.AttrCallTarget, attrGNUCallSiteTarget} {
		if a := e.get(attr); len(a.block) > 0 {
			s.Target = &Expression{Code: a.block, d: e.d, u: e.u}
		}
	}
	for _, attr := range []dwarf.Attr{dwarf.AttrCallOrigin, dwarf.AttrAbstractOrigin} {
		if o := e.referred(attr); o != nil {
			s.Callee = linkName(o.completed())
		}
	}
	err := e.eachChild(func(c *die) bool {
		if c.tag != dwarf.TagCallSiteParameter && c.tag != tagGNUCallSiteParameter {
			return true
		}
		p := CallParameter{}
		if a := c.get(dwarf.AttrLocation); len(a.block) > 0 {
			p.Where = &Expression{Code: a.block, d: c.d, u: c.u}
		}
		for _, attr := range []dwarf.Attr{dwarf.AttrCallValue, attrGNUCallSiteValue} {
			if a := c.get(attr); len(a.block) > 0 {
				p.Value = &Expression{Code: a.block, d: c.d, u: c.u}
			}
		}
		if d, off := c.d.reference(c.u, c.get(dwarf.AttrCallParameter).value); d != nil {
			p.param = dieKey{d, off}
		}
		if p.Value != nil {
			s.Parameters = append(s.Parameters, p)
		}
		return len(s.Parameters) < maxCallParameters
	})
	return s, err
}

const maxCallParameters = 256

// IsOf reports whether the parameter is the one whose entry lies at an offset
// of the unit of x, an expression in the callee.
func (p *CallParameter) IsOf(x *Expression, off uint64) bool {
	return x.u != nil && p.param == dieKey{x.d, x.u.off + off}
}

// linkName returns the name of a function as the linker knows it.
func linkName(list []*die) string {
	for _, attr := range []dwarf.Attr{dwarf.AttrLinkageName, attrMIPSLinkage, dwarf.AttrName} {
		if e := first(list, attr); e != nil {
			return e.string(attr)
		}
	}
	return ""
}

// Attributes of functions by which all their tail calls are described, and of
// tail calls.
const (
	attrCallAllCalls        dwarf.Attr = 0x7a
	attrCallAllSourceCalls  dwarf.Attr = 0x7b
	attrCallAllTailCalls    dwarf.Attr = 0x7c
	attrGNUAllTailCallSites dwarf.Attr = 0x2116
	attrGNUAllCallSites     dwarf.Attr = 0x2117
	attrGNUAllSourceCalls   dwarf.Attr = 0x2118
	attrGNUTailCall         dwarf.Attr = 0x2115
)

// reentry says whether a function may be entered again: see MayReenter.
type reentry uint8

const (
	reentryUnknown reentry = iota // nobody has asked yet
	reentryNever
	reentryPossible
)

// MayReenter reports whether the function might have been entered again since
// it was called, by a jump to its start at its own end or at that of a function
// that it jumped to. Then nothing is known of the values it was called with. It
// is looked for once for each Function.
func (f *Function) MayReenter() bool {
	f = f.Physical()
	e := f.entry
	if e == nil {
		return true
	}
	e.d.lock()
	defer e.d.unlock()
	if f.reenter == reentryUnknown {
		e.d.allowEntries(e.u)
		f.reenter = reentryNever
		if e.mayReenter() {
			f.reenter = reentryPossible
		}
	}
	return f.reenter == reentryPossible
}

// mayReenter is MayReenter of the entry of a function.
func (e *die) mayReenter() bool {
	seen := map[dieKey]bool{}
	for todo := []*die{e}; len(todo) > 0; {
		fn := todo[0]
		todo = todo[1:]
		targets, ok := fn.tailCalls(nil, 0)
		if !ok || !fn.describesTailCalls() {
			return true
		}
		for _, t := range targets {
			if t.key() == e.key() || len(t.ranges()) == 0 {
				return true // a declaration: what it does is not known
			}
			if !seen[t.key()] {
				seen[t.key()] = true
				todo = append(todo, t)
			}
		}
	}
	return false
}

func (e *die) describesTailCalls() bool {
	for _, attr := range []dwarf.Attr{attrCallAllCalls, attrCallAllSourceCalls, attrCallAllTailCalls,
		attrGNUAllTailCallSites, attrGNUAllCallSites, attrGNUAllSourceCalls} {
		if e.has(attr) {
			return true
		}
	}
	return false
}

// tailCalls appends the functions that an entry and the blocks in it jump to;
// ok is false when one is not known.
func (e *die) tailCalls(dst []*die, depth int) (_ []*die, ok bool) {
	if depth > maxUnitDepth {
		return dst, false
	}
	ok = true
	err := e.eachChild(func(c *die) bool {
		switch c.tag {
		case dwarf.TagCallSite, tagGNUCallSite:
			if !c.has(dwarf.AttrCallTailCall) && !c.has(attrGNUTailCall) {
				break
			}
			target := c.referred(dwarf.AttrCallOrigin)
			if target == nil {
				target = c.referred(dwarf.AttrAbstractOrigin)
			}
			if ok = target != nil; ok {
				dst = append(dst, target)
			}
		case dwarf.TagLexDwarfBlock, dwarf.TagInlinedSubroutine, dwarf.TagTryDwarfBlock, dwarf.TagCatchDwarfBlock:
			dst, ok = c.tailCalls(dst, depth+1)
		}
		return ok
	})
	return dst, ok && err == nil
}
