package main

import (
	"cmp"
	"debug/elf"
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"

	"github.com/swbpf/swbpf/symbols"
)

// evidence is what the symbols, entries and line rows of a file say of some
// addresses, read without package symbols.
type evidence struct {
	addrs  []uint64
	own    elfSymbols          // of the file itself
	debug  elfSymbols          // of its separate debug file
	values map[string][]uint64 // of symbols by name; several where versions share one
	info   *debugInfo          // nil when there is none, or it is elsewhere
	split  bool                // it is in files of its own
	rows   lineRows
	scopes [][]*scope     // functions and calls at each address, outermost first
	holds  [][]*scope     // all scopes there, in the order in which they end
	first  map[*scope]int // the first address of each that addr2line finds there; nil until it is needed
	starts []uint64       // where the rows at the addresses begin, for those that eu-addr2line is asked for
}

// elfSymbols are symbols of code in the order of addresses.
type elfSymbols []elf.Symbol

// at returns the names of the sized symbols at an address.
func (all elfSymbols) at(addr uint64) (names []string) {
	i := sort.Search(len(all), func(i int) bool { return all[i].Value > addr })
	for j := i - 1; j >= 0 && i-j < 256; j-- {
		if addr < all[j].Value+all[j].Size {
			names = append(names, all[j].Name)
		}
	}
	return names
}

// before returns the names of the last symbols that begin at or before an
// address.
func (all elfSymbols) before(addr uint64) (names []string) {
	i := sort.Search(len(all), func(i int) bool { return all[i].Value > addr })
	for j := i - 1; j >= 0 && all[j].Value == all[i-1].Value; j-- {
		names = append(names, all[j].Name)
	}
	return names
}

// readEvidence reads what there is of a file.
func readEvidence(path string, addrs []uint64) (*evidence, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	e := &evidence{addrs: addrs, values: map[string][]uint64{}}
	e.own = e.symbols(f)
	info := f
	if f.Section(".debug_info") == nil {
		if id := buildID(f); len(id) > 2 {
			path = "/usr/lib/debug/.build-id/" + id[:2] + "/" + id[2:] + ".debug"
			if info, err = elf.Open(path); err == nil {
				defer info.Close()
				e.debug = e.symbols(info)
			}
		}
	}
	if info == nil || info.Section(".debug_info") == nil || f.Section(".gopclntab") != nil {
		return e, nil
	}
	if e.rows, err = readRows(info); err != nil {
		return nil, err
	}
	if e.split = info.Section(".debug_addr") != nil && hasSplit(info); e.split {
		return e, nil
	}
	if e.info, err = openDebugInfo(info, path); err != nil {
		return nil, err
	}
	for _, a := range addrs[:euAddr2line.asked(len(addrs))] {
		if _, row, known := e.rows.at(a); known {
			a = row.addr
		}
		e.starts = append(e.starts, a)
	}
	e.scopes, e.holds, err = e.info.scopesAt(slices.Concat(addrs, e.starts))
	return e, err
}

// hasSplit says whether units of a file are the skeletons of split ones.
func hasSplit(f *elf.File) bool {
	const attrDWOName = 0x76
	d, err := f.DWARF()
	if err != nil {
		return false
	}
	for r := d.Reader(); ; r.SkipChildren() {
		e, err := r.Next()
		if err != nil || e == nil {
			return false
		}
		if e.Val(attrDWOName) != nil {
			return true
		}
	}
}

// symbols reads the symbols of code of a file, and notes the values of all.
func (e *evidence) symbols(f *elf.File) (all elfSymbols) {
	static, _ := f.Symbols()
	dynamic, _ := f.DynamicSymbols()
	for _, s := range append(static, dynamic...) {
		s.Name, _, _ = strings.Cut(s.Name, "@")
		e.values[s.Name] = append(e.values[s.Name], s.Value)
		if i := int(s.Section); i < len(f.Sections) && f.Sections[i].Flags&elf.SHF_EXECINSTR == 0 {
			continue // undefined, or of data
		}
		if t := elf.ST_TYPE(s.Info); t == elf.STT_FUNC || t == elf.STT_NOTYPE || t == elf.STT_GNU_IFUNC {
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b elf.Symbol) int { return cmp.Compare(a.Value, b.Value) })
	return all
}

// buildID is in hex, "" when there is none.
func buildID(f *elf.File) string {
	if note := f.Section(".note.gnu.build-id"); note != nil {
		if data, err := note.Data(); err == nil && len(data) > 16 {
			return fmt.Sprintf("%x", data[16:])
		}
	}
	return ""
}

// says whether an answer is what the file says, as it is read here; ok is
// false where this cannot read it.
func (e *evidence) says(i int, own []symbols.Line) (same, ok bool) {
	if e.info == nil {
		return false, false
	}
	addr, scopes := e.addrs[i], e.scopes[i]
	_, row, known := e.rows.at(addr)
	if len(scopes) == 0 {
		names := append(e.own.at(addr), e.debug.at(addr)...)
		if len(own) == 0 {
			return len(names) == 0, true
		}
		if len(own) > 1 || own[0].Line != 0 && (!known || own[0].Line != row.line) {
			return false, true
		}
		if len(names) == 0 { // one without a size reaches to the next
			names = append(e.own.before(addr), e.debug.before(addr)...)
		}
		return slices.Contains(names, own[0].SystemName), true
	}
	if len(own) != len(scopes) {
		return false, true
	}
	for k, o := range own {
		s := scopes[len(scopes)-1-k]
		if !slices.ContainsFunc(s.names, func(n string) bool { return sameName(o.SystemName, n, e.values) }) {
			return false, true
		}
		file, line := "", 0
		if k > 0 {
			inner := scopes[len(scopes)-k]
			file, line = inner.callFile, inner.callLine
		} else if known {
			line = row.line
			if row.file != nil {
				file = row.file.Name
			}
		}
		if o.Line != line || line != 0 && !sameFile(o.File, file) {
			return false, true
		}
	}
	return true, true
}

// notInFile is the reason where the file says what is said here, and no rule of
// the peer is known by which it says something else.
const notInFile = "not in the file"

// why returns the reason for a difference of a kind from a peer's answer at
// an address: a rule of the peer, by which its answer follows from what the
// file says, or at least that the file says what is said here. It returns ""
// when there is no reason.
func (e *evidence) why(peer *namer, kind string, i int, own, theirs []symbols.Line) string {
	if rule := e.rule(peer, kind, i, own, theirs); rule != "" {
		return rule
	}
	if same, ok := e.says(i, own); ok && same {
		return notInFile
	}
	return ""
}

// rule returns the rule of the peer that makes a difference, or "".
func (e *evidence) rule(peer *namer, kind string, i int, own, theirs []symbols.Line) string {
	addr := e.addrs[i]
	if kind == "named there only" {
		names := append(e.own.at(addr), e.debug.at(addr)...)
		last, _, _ := strings.Cut(theirs[len(theirs)-1].SystemName, "@")
		before := append(e.own.before(addr), e.debug.before(addr)...)
		if len(names) == 0 && (e.scopes == nil || len(e.scopes[i]) == 0) && slices.ContainsFunc(before, func(n string) bool { return sameName(n, last, e.values) }) {
			return "padding"
		}
		return ""
	}
	var scopes []*scope // outermost first
	if e.scopes != nil {
		scopes = e.scopes[i]
	}
	left := func(keep func(*scope) bool) bool { // whether the peer leaves out all others
		n := 0
		for _, s := range scopes {
			if keep(s) {
				n++
			}
		}
		return n == len(theirs) && n < len(scopes)
	}
	unit, row, known := e.rows.at(addr)
	switch peer {
	case gdbNamer:
		switch kind {
		case "line", "file", "line there only", "line here only":
			if known && own[0].Line == row.line && unit.gdbTakes(theirs[0].File, theirs[0].Line, addr) {
				return "a statement's row"
			}
		case "name":
			if e.withParameters(i, theirs) {
				return "a name made with parameters"
			}
		case "chain":
			switch {
			case left(func(s *scope) bool { return !s.inlined || s.callLine != 0 }):
				return "no call line"
			case e.besideEarlier(i, theirs):
				return "side by side"
			}
		}
		if len(scopes) > 0 && scopes[0].inFunctionWithoutCode() &&
			(len(theirs) == 0 || len(theirs) == 1 && slices.Contains(e.symbolsAt(i), theirs[0].SystemName)) {
			return "in a function without code"
		}
	case gnuAddr2line:
		switch kind {
		case "file":
			if known && len(unit.files) > 1 && row.file == unit.files[1] && sameFile(theirs[0].File, unit.files[0].Name) {
				return "file 0 for 1"
			}
		case "line here only", "chain":
			switch {
			case e.info != nil && e.info.common != nil && len(theirs) == 1 && theirs[0].Line == 0:
				return "common file"
			case e.split && len(theirs) == 1:
				return "split file"
			}
		}
		return e.byAddr2line(i, theirs)
	case euAddr2line:
		switch {
		case kind == "chain" && e.split && len(theirs) == 1:
			return "split file"
		case kind == "line there only" && e.rows.beforeEnd(addr, theirs[0]):
			return "row of the end"
		}
		return e.byElfutils(i, theirs)
	case llvmSymbolizer:
		unknown := kind == "named here only" || kind == "name here only" && len(scopes) == 0
		switch {
		case kind == "chain" && e.hidden(i, own, theirs):
			return "common file"
		case unknown && !slices.Contains(e.own.before(addr), own[0].SystemName) && slices.Contains(e.debug.before(addr), own[0].SystemName):
			return "symbol of the debug file"
		case kind == "name here only":
			for k, o := range theirs {
				if s := len(scopes) - 1 - k; o.SystemName == "" && (s < 0 || !scopes[s].common) {
					return ""
				}
			}
			return "common file"
		}
	}
	return ""
}

// printExample shows a difference.
func printExample(file string, addr uint64, k *differenceKind, own, theirs []symbols.Line) {
	fmt.Fprintf(os.Stderr, "%s %#x: %s: %s (%s)\n  here  %s\n  there %s\n", file, addr, k.peer.name, k.kind, k.reason, chainText(own), chainText(theirs))
}
