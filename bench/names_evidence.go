package main

import (
	"cmp"
	"debug/elf"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/swbpf/swbpf/symbols"
)

// evidence is what the symbols, entries and line rows of a file say of some
// addresses, read without package symbols.
type evidence struct {
	addrs   []uint64
	symbols elfSymbols          // of the file and of its separate debug file
	values  map[string][]uint64 // of symbols by name; several where versions share one
	rows    lineRows
	scopes  [][]*scope // functions and calls at each address, outermost first; nil where that is not read here
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
	e.addSymbols(f)
	info := f
	if f.Section(".debug_info") == nil {
		if id := buildID(f); len(id) > 2 {
			path = "/usr/lib/debug/.build-id/" + id[:2] + "/" + id[2:] + ".debug"
			if info, err = elf.Open(path); err == nil {
				defer info.Close()
				e.addSymbols(info)
			}
		}
	}
	if info == nil || info.Section(".debug_info") == nil || f.Section(".gopclntab") != nil {
		return e, nil
	}
	if info.Section(".debug_addr") != nil && hasSplit(info) {
		return e, nil
	}
	if e.rows, err = readRows(info); err != nil {
		return nil, err
	}
	d, err := openDebugInfo(info, path)
	if err != nil {
		return nil, err
	}
	e.scopes, err = d.scopesAt(addrs)
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

// addSymbols adds the symbols of code of a file, and notes the values of all.
func (e *evidence) addSymbols(f *elf.File) {
	static, _ := f.Symbols()
	dynamic, _ := f.DynamicSymbols()
	for _, s := range append(static, dynamic...) {
		s.Name, _, _ = strings.Cut(s.Name, "@")
		e.values[s.Name] = append(e.values[s.Name], s.Value)
		if i := int(s.Section); i < len(f.Sections) && f.Sections[i].Flags&elf.SHF_EXECINSTR == 0 {
			continue // undefined, or of data
		}
		if t := elf.ST_TYPE(s.Info); t == elf.STT_FUNC || t == elf.STT_NOTYPE || t == elf.STT_GNU_IFUNC {
			e.symbols = append(e.symbols, s)
		}
	}
	slices.SortStableFunc(e.symbols, func(a, b elf.Symbol) int { return cmp.Compare(a.Value, b.Value) })
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
	if e.scopes == nil {
		return false, false
	}
	addr, scopes := e.addrs[i], e.scopes[i]
	row, known := e.rows.at(addr)
	if len(scopes) == 0 {
		names := e.symbols.at(addr)
		if len(own) == 0 {
			return len(names) == 0, true
		}
		if len(own) > 1 || own[0].Line != 0 && (!known || own[0].Line != row.line) {
			return false, true
		}
		if len(names) == 0 { // one without a size reaches to the next
			names = e.symbols.before(addr)
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
