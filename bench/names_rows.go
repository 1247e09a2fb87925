package main

import (
	"cmp"
	"debug/dwarf"
	"debug/elf"
	"errors"
	"io"
	"slices"
	"sort"

	"github.com/swbpf/swbpf/symbols"
)

// lineRow is a row of a line table.
type lineRow struct {
	addr          uint64
	file          *dwarf.LineFile
	line          int
	stmt, end     bool
	discriminator bool // is not 0
}

// lineUnit is the line table of a unit, as debug/dwarf reads it.
type lineUnit struct {
	rows  []lineRow // as the program makes them
	files []*dwarf.LineFile
	gdb   [][]gdbRow // of each file; nil until they are needed
}

// lineSpan are the rows of a unit between two ends of a sequence.
type lineSpan struct {
	start, end  uint64
	unit        *lineUnit
	first, last int // rows, the end included
}

// lineRows are the line tables of a file.
type lineRows []lineSpan

// readRows reads the line tables of all units of an ELF file.
func readRows(f *elf.File) (lineRows, error) {
	d, err := f.DWARF()
	if err != nil {
		return nil, err
	}
	var all lineRows
	tables := map[int64]bool{}
	for r := d.Reader(); ; {
		e, err := r.Next()
		if err != nil || e == nil {
			slices.SortFunc(all, func(a, b lineSpan) int { return cmp.Compare(a.start, b.start) })
			return all, err
		}
		r.SkipChildren()
		at, ok := e.Val(dwarf.AttrStmtList).(int64)
		if !ok || e.Tag == dwarf.TagPartialUnit || tables[at] {
			continue
		}
		tables[at] = true
		lr, err := d.LineReader(e)
		if err != nil || lr == nil {
			continue
		}
		u := &lineUnit{files: lr.Files()}
		start := 0
		for {
			var l dwarf.LineEntry
			if err := lr.Next(&l); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, err
			}
			u.rows = append(u.rows, lineRow{l.Address, l.File, l.Line, l.IsStmt, l.EndSequence, l.Discriminator != 0})
			if l.EndSequence {
				last := len(u.rows) - 1
				if first := u.rows[start].addr; first != 0 && first < l.Address {
					all = append(all, lineSpan{first, l.Address, u, start, last})
				}
				start = last + 1
			}
		}
	}
}

// at returns the row in force at an address, the last one at or before it, and
// its unit.
func (all lineRows) at(addr uint64) (*lineUnit, lineRow, bool) {
	i := sort.Search(len(all), func(i int) bool { return all[i].start > addr }) - 1
	if i < 0 || addr >= all[i].end {
		return nil, lineRow{}, false
	}
	s := all[i]
	rows := s.unit.rows[s.first:s.last]
	j := sort.Search(len(rows), func(j int) bool { return rows[j].addr > addr }) - 1
	return s.unit, rows[j], true
}

// beforeEnd says whether the last sequence before an address has a row of no
// code at its end, and this is its place. eu-addr2line puts it behind the end
// (compare_lines of libdw), from where it reaches to the next sequence.
func (all lineRows) beforeEnd(addr uint64, place symbols.Line) bool {
	i := sort.Search(len(all), func(i int) bool { return all[i].start > addr }) - 1
	if i < 0 || addr < all[i].end {
		return false
	}
	r := all[i].unit.rows[all[i].last-1]
	return r.addr == all[i].end && r.file != nil && r.line == place.Line && sameFile(r.file.Name, place.File)
}

// gdbRow is an entry of the table that gdb 13 makes of the rows of one file.
type gdbRow struct {
	addr uint64
	file *dwarf.LineFile
	line int // 0 ends what is before
	stmt bool
}

// gdbTables makes the tables that gdb makes, one for each file: buildsym.c
// and the lnp_state_machine of dwarf2/read.c.
func (u *lineUnit) gdbTables() [][]gdbRow {
	if u.gdb != nil {
		return u.gdb
	}
	tables := map[string][]gdbRow{}
	record := func(f *dwarf.LineFile, r gdbRow) {
		t := tables[f.Name]
		if r.line == 0 { // an end removes the rows that have no code
			for len(t) > 0 && t[len(t)-1].addr == r.addr {
				t = t[:len(t)-1]
			}
		}
		tables[f.Name] = append(t, r)
	}
	var last *dwarf.LineFile // of the row before, nil at the start of a sequence
	var lastLine, rowLine int
	var lastAddr uint64
	var stmtThere, discriminated bool
	for _, r := range u.rows {
		discriminated = r.discriminator || discriminated && r.line == rowLine
		rowLine = r.line
		changed := last == nil || r.file == nil || last.Name != r.file.Name
		ignored := !r.end && (r.line == 0 || changed && lastAddr == r.addr && !r.stmt && stmtThere)
		if (changed && !ignored || r.end) && last != nil {
			record(last, gdbRow{r.addr, last, 0, true})
		}
		if !r.end && !ignored && r.file != nil {
			if r.line != lastLine || changed || !discriminated {
				record(r.file, gdbRow{r.addr, r.file, r.line, r.stmt})
			}
			last, lastLine = r.file, r.line
		}
		if lastAddr != r.addr {
			stmtThere, lastAddr = false, r.addr
		}
		stmtThere = stmtThere || r.stmt
		if r.end {
			last, lastLine, lastAddr, stmtThere, discriminated = nil, 0, 0, false, false
		}
	}
	for _, t := range tables {
		slices.SortStableFunc(t, func(a, b gdbRow) int {
			if a.addr == b.addr && (a.line == 0) != (b.line == 0) {
				return cmp.Compare(min(a.line, 1), min(b.line, 1))
			}
			return cmp.Compare(a.addr, b.addr)
		})
		u.gdb = append(u.gdb, t)
	}
	return u.gdb
}

// gdbTakes says whether gdb 13 may take a place for an address, by what
// find_pc_sect_line of symtab.c does: of each file's last row at or before the
// address the latest, and of the rows of that file there one that begins a
// statement, if any does. Between files with rows at one address the order of
// gdb's tables decides, which is not followed here.
func (u *lineUnit) gdbTakes(file string, line int, addr uint64) bool {
	var last uint64
	var best []*gdbRow
	for _, t := range u.gdbTables() {
		i := sort.Search(len(t), func(i int) bool { return t[i].addr > addr }) - 1
		if i < 0 || t[i].addr < last {
			continue
		}
		if t[i].addr > last {
			last, best = t[i].addr, best[:0]
		}
		j := i
		for !t[j].stmt && j > 0 && t[j-1].addr == last && t[j-1].line != 0 {
			j--
		}
		if !t[j].stmt {
			j = i
		}
		best = append(best, &t[j])
	}
	return slices.ContainsFunc(best, func(r *gdbRow) bool {
		return r.line == line && (line == 0 || sameFile(file, r.file.Name))
	})
}
