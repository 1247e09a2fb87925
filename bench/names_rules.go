package main

import (
	"debug/dwarf"
	"slices"

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

// shortest returns the calls at an address, innermost first, that addr2line
// finds: those of the function, inlined or not, of which the range that holds
// the address is the shortest, the last of several
// (lookup_address_in_function_info_table of bfd/dwarf2.c). From the first
// function of the unit on that is an instance of one in the common file of dwz
// it knows none, for which whole is false.
func (e *evidence) shortest(i int) (calls []*scope, whole bool) {
	var best *scope
	var least uint64
	whole = true
	for _, s := range slices.Backward(e.holds[i]) { // outer ones first
		if !s.isFunction() {
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
	if best != nil {
		calls = best.calls()
	}
	return e.completed(calls), whole
}

// byAddr2line says by which rule an answer of addr2line is made.
func (e *evidence) byAddr2line(i int, theirs []symbols.Line) string {
	if e.holds == nil || len(theirs) == 0 {
		return ""
	}
	calls, whole := e.shortest(i)
	symbol := slices.Contains(e.symbolsAt(i), theirs[0].SystemName)
	switch {
	case len(e.holds[i]) > 0 && e.info.partial[e.holds[i][0].unit.rows] && len(theirs) == 1 && symbol:
		// A partial unit of dwz has the lines of another, and no functions.
		return "line table of a partial unit"
	case !whole && (e.sameCalls(calls, theirs) || len(calls) <= 1 && len(theirs) == 1 && symbol):
		return "common file"
	case e.sameCalls(calls, theirs):
		return "shortest range"
	case len(calls) > 0 && !calls[0].linked && symbol && e.sameCalls(calls[1:], theirs[1:]):
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

// byElfutils says by which rule an answer of eu-addr2line is made: it looks
// only into entries that hold the address themselves, takes the first that ends
// of those that hold it, and gives up where the innermost call in that is an
// instance of one in another unit (dwarf_getscopes). Then it knows the symbol.
func (e *evidence) byElfutils(i int, theirs []symbols.Line) string {
	if e.holds == nil || len(e.scopes[i]) == 0 || len(theirs) == 0 {
		return ""
	}
	symbol := len(theirs) == 1 && slices.ContainsFunc(e.symbolsAt(i), func(n string) bool { return sameName(n, theirs[0].SystemName, e.values) })
	enter := func(s *scope) bool {
		for ; s.parent != nil; s = s.parent {
			if !s.covers(e.addrs[i]) {
				return false
			}
		}
		return true
	}
	at := slices.IndexFunc(e.holds[i], enter)
	if at < 0 {
		return onlyIf(symbol, "not entered")
	}
	calls := e.completed(e.holds[i][at].calls())
	switch {
	case len(calls) == 0:
		return ""
	case calls[0].inlined && calls[0].foreign:
		return onlyIf(symbol, "of another unit")
	case !e.sameCalls(calls, theirs):
		return ""
	}
	for k := range calls[1:] {
		if calls[k].callLine != max(theirs[k+1].Line, 0) {
			return ""
		}
	}
	if innermost := e.scopes[i][len(e.scopes[i])-1]; !enter(innermost) {
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
