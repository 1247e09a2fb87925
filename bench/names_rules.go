package main

import (
	"debug/dwarf"
	"slices"
	"strings"

	"github.com/swbpf/swbpf/symbols"
)

// sameCalls says whether an answer names these calls, innermost first.
func (e *evidence) sameCalls(calls []*scope, theirs []symbols.Line) bool {
	if len(calls) != len(theirs) {
		return false
	}
	for k, s := range calls {
		if !slices.ContainsFunc(s.names, func(n string) bool { return sameName(theirs[k].SystemName, n, e.values) }) {
			return false
		}
	}
	return true
}

// besideEarlier says whether an answer is that of a scope that ends before the
// innermost one begins: of blocks that share addresses gdb takes the first
// that it has read (addrmap_mutable::set_empty).
func (e *evidence) besideEarlier(i int, theirs []symbols.Line) bool {
	if e.holds == nil || len(e.scopes[i]) == 0 {
		return false
	}
	innermost := e.scopes[i][len(e.scopes[i])-1]
	for _, s := range e.holds[i] {
		if s == innermost {
			return false
		}
		calls := e.completed(s.calls())
		if !slices.Contains(calls, innermost) && e.sameCalls(calls, theirs) {
			return true
		}
	}
	return false
}

// inFunctionWithoutCode says whether a function stands in the entry of another
// that has none. gdb does not look into these (read_func_scope).
func (s *scope) inFunctionWithoutCode() bool {
	for o := s.parent; o != nil; o = o.parent {
		if o.tag == dwarf.TagSubprogram && len(o.ranges) == 0 {
			return true
		}
	}
	return false
}

// withParameters says whether an answer names the calls at an address, but with
// parameters where a function of a unit of C++ has no linkage name: gdb makes it
// one (dwarf2_compute_name). With LTO such a function may be of C.
func (e *evidence) withParameters(i int, theirs []symbols.Line) bool {
	if e.scopes == nil || len(e.scopes[i]) != len(theirs) {
		return false
	}
	for k, s := range slices.Backward(e.scopes[i]) {
		l := theirs[len(theirs)-1-k : len(theirs)-k]
		name, _, made := strings.Cut(l[0].SystemName, "(")
		if made && !s.linked && s.unit.cplus && slices.Contains(s.names, name) {
			continue
		}
		if !e.sameCalls([]*scope{s}, l) {
			return false
		}
	}
	return true
}

// shortest returns the function, inlined or not, that addr2line finds at an
// address: that of which the range that holds the address is the shortest, the
// last of several (lookup_address_in_function_info_table of bfd/dwarf2.c), and
// not one whose addresses are a DW_FORM_rnglistx, which it does not read. From
// the first function of the unit on that is an instance of one in the common
// file of dwz it knows none, for which whole is false.
func (e *evidence) shortest(i int) (best *scope, whole bool) {
	var least uint64
	whole = true
	for _, s := range slices.Backward(e.holds[i]) { // outer ones first
		if !s.isFunction() || s.listed {
			continue
		}
		if at := s.unit.alternate; at != 0 && s.off >= at {
			whole = false
			continue
		}
		for _, r := range joined(s.ranges) {
			if r[0] <= e.addrs[i] && e.addrs[i] < r[1] && (best == nil || r[1]-r[0] <= least) {
				best, least = s, r[1]-r[0]
			}
		}
	}
	return best, whole
}

// firstAsked returns the index of the first address at which addr2line finds a
// function.
func (e *evidence) firstAsked(s *scope) int {
	if e.first == nil {
		e.first = map[*scope]int{}
		for i := range slices.Backward(e.addrs) {
			if s, _ := e.shortest(i); s != nil {
				e.first[s] = i
			}
		}
	}
	return e.first[s]
}

// unread says whether addr2line has not read the lines and functions of the
// unit at an address when it is asked for it: it reads those of a unit with the
// first address that the unit's own ranges hold, and learns from the lines which
// others it has. In strict DWARF 2 a unit has but one range.
func (e *evidence) unread(i int) bool {
	u := e.holds[i][0].unit
	return len(u.ranges) > 0 && !slices.ContainsFunc(e.addrs[:i+1], func(a uint64) bool { return within(a, u.ranges) })
}

// symbolCalls says whether an answer names these calls, innermost first, but
// for functions without a linkage name: the innermost gets the name of the
// symbol there, the first time that addr2line finds it, and keeps that if it
// begins where the symbol does (_bfd_dwarf2_find_nearest_line_with_alt).
func (e *evidence) symbolCalls(i int, calls []*scope, theirs []symbols.Line) bool {
	if len(calls) != len(theirs) {
		return false
	}
	for k, s := range calls {
		name := theirs[k].SystemName
		asked := k == 0 && e.firstAsked(s) == i && slices.Contains(e.symbolsAt(i), name)
		kept := len(s.ranges) > 0 && slices.Contains(e.values[name], s.ranges[0][0])
		if !(!s.linked && (asked || kept)) && !e.sameCalls(calls[k:k+1], theirs[k:k+1]) {
			return false
		}
	}
	return true
}

// byAddr2line says by which rule an answer of addr2line is made.
func (e *evidence) byAddr2line(i int, theirs []symbols.Line) string {
	if e.holds == nil || len(e.holds[i]) == 0 {
		return ""
	}
	best, whole := e.shortest(i)
	calls := e.completed(best.calls())
	// Of a name in the common file it prints question marks.
	local := slices.DeleteFunc(slices.Clone(calls), func(s *scope) bool { return !s.local })
	if len(local) < len(calls) && e.sameCalls(local, theirs) {
		return "common file"
	}
	if len(theirs) == 0 {
		return ""
	}
	symbol := slices.Contains(e.symbolsAt(i), theirs[0].SystemName)
	switch {
	case len(theirs) == 1 && symbol && theirs[0].Line == 0 && e.unread(i):
		return "unit not read yet"
	case e.info.partial[e.holds[i][0].unit.rows] && len(theirs) == 1 && symbol:
		// A partial unit of dwz has the lines of another, and no functions.
		return "line table of a partial unit"
	case !whole && (e.sameCalls(calls, theirs) || len(calls) <= 1 && len(theirs) == 1 && symbol):
		return "common file"
	case e.sameCalls(calls, theirs) && slices.ContainsFunc(e.holds[i], func(s *scope) bool { return s.listed }):
		return "rnglistx"
	case e.sameCalls(calls, theirs):
		return "shortest range"
	case e.symbolCalls(i, calls, theirs):
		return "symbol for a name that is not mangled"
	}
	return ""
}

// symbolsAt returns the names of the symbols at an address.
func (e *evidence) symbolsAt(i int) []string {
	return append(e.own.at(e.addrs[i]), e.debug.at(e.addrs[i])...)
}

// completed reads the entries of calls.
func (e *evidence) completed(calls []*scope) []*scope {
	for _, c := range calls {
		e.info.complete(c)
	}
	return calls
}

// joined returns ranges as addr2line keeps them: one that begins or ends where
// one before it ends or begins is made part of that (arange_add).
func joined(ranges [][2]uint64) (all [][2]uint64) {
next:
	for _, r := range ranges {
		for k := range all {
			switch {
			case all[k][1] == r[0]:
				all[k][1] = r[1]
				continue next
			case all[k][0] == r[1]:
				all[k][0] = r[0]
				continue next
			}
		}
		all = append(all, r)
	}
	return all
}

// hidden says whether an answer of llvm-symbolizer lacks only calls whose name
// is in the common file and that have no line: nothing is left of these.
func (e *evidence) hidden(i int, own, theirs []symbols.Line) bool {
	if e.scopes == nil || len(own) != len(e.scopes[i]) {
		return false
	}
	var left []symbols.Line
	for k, o := range own {
		if o.Line != 0 || !e.scopes[i][len(own)-1-k].common {
			left = append(left, o)
		}
	}
	return slices.EqualFunc(left, theirs, func(o, t symbols.Line) bool {
		return o.Line == t.Line && (t.SystemName == "" || sameName(o.SystemName, t.SystemName, e.values))
	})
}

// entered says whether a scope and those around it all hold an address
// themselves. eu-addr2line looks into no others (dwarf_getscopes).
func (s *scope) entered(addr uint64) bool {
	for ; s.parent != nil; s = s.parent {
		if !s.covers(addr) {
			return false
		}
	}
	return true
}

// firstEnded returns the calls, innermost first, that eu-addr2line finds at an
// address that these scopes hold. It takes the first that ends of those that it
// enters, and gives up where the innermost call in that is an instance of one in
// another unit (dwarf_getscopes); rule says why there are none.
func (e *evidence) firstEnded(addr uint64, holds []*scope) (calls []*scope, rule string) {
	at := slices.IndexFunc(holds, func(s *scope) bool { return s.entered(addr) })
	if at < 0 {
		return nil, "not entered"
	}
	calls = e.completed(holds[at].calls())
	if len(calls) > 0 && calls[0].inlined && calls[0].foreign {
		return nil, "of another unit"
	}
	return calls, ""
}

// sameCallers says whether an answer has the callers, with the lines of their
// calls, of the innermost of these calls.
func (e *evidence) sameCallers(calls []*scope, theirs []symbols.Line) bool {
	if len(calls) <= 1 || len(theirs) == 1 {
		return len(calls) <= 1 && len(theirs) == 1
	}
	for k := range calls[1:] {
		if k+1 < len(theirs) && calls[k].callLine != max(theirs[k+1].Line, 0) {
			return false
		}
	}
	return e.sameCalls(calls[1:], theirs[1:])
}

// byElfutils says by which rule an answer of eu-addr2line is made. It looks for
// the function at the address, and for the callers where the row of the line
// table begins (handle_address of addr2line.c). Where it finds no function it
// knows the symbol.
func (e *evidence) byElfutils(i int, theirs []symbols.Line) string {
	if e.holds == nil || i >= len(e.starts) || len(e.scopes[i]) == 0 || len(theirs) == 0 {
		return ""
	}
	addr, start := e.addrs[i], e.starts[i]
	if _, row, known := e.rows.at(addr); known && row.line != theirs[0].Line {
		return ""
	}
	calls, rule := e.firstEnded(addr, e.holds[i])
	switch {
	case len(calls) > 0 && !e.sameCalls(calls[:1], theirs[:1]):
		return ""
	case len(calls) == 0 && !slices.ContainsFunc(e.symbolsAt(i), func(n string) bool { return sameName(n, theirs[0].SystemName, e.values) }):
		return ""
	case !e.sameCallers(calls, theirs):
		callers, _ := e.firstEnded(start, e.holds[len(e.addrs)+i])
		return onlyIf(e.sameCallers(callers, theirs), "callers of the row's start")
	case rule != "":
		return rule
	case !e.scopes[i][len(e.scopes[i])-1].entered(addr):
		return "not entered"
	}
	return "side by side"
}

// onlyIf returns a reason that stands under a condition.
func onlyIf(ok bool, reason string) string {
	if ok {
		return reason
	}
	return ""
}
