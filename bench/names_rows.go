package main

import (
	"cmp"
	"debug/dwarf"
	"debug/elf"
	"errors"
	"io"
	"slices"
	"sort"
)

// lineRow is a row of a line table.
type lineRow struct {
	addr uint64
	file *dwarf.LineFile
	line int
}

// lineSpan are the rows of a sequence of a line table, as debug/dwarf reads it.
type lineSpan struct {
	start, end uint64
	rows       []lineRow
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
		var rows []lineRow // of the sequence
		for {
			var l dwarf.LineEntry
			if err := lr.Next(&l); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, err
			}
			switch {
			case !l.EndSequence:
				rows = append(rows, lineRow{l.Address, l.File, l.Line})
				continue
			case len(rows) > 0 && rows[0].addr != 0 && rows[0].addr < l.Address:
				all = append(all, lineSpan{rows[0].addr, l.Address, rows})
			}
			rows = nil
		}
	}
}

// at returns the row in force at an address, the last one at or before it.
func (all lineRows) at(addr uint64) (row lineRow, ok bool) {
	i := sort.Search(len(all), func(i int) bool { return all[i].start > addr }) - 1
	if i < 0 || addr >= all[i].end {
		return row, false
	}
	rows := all[i].rows
	return rows[sort.Search(len(rows), func(j int) bool { return rows[j].addr > addr })-1], true
}
