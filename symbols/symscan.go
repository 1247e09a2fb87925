package symbols

import "slices"

// scansFirst is how many symbols of a file are looked for one by one before
// its index is made: many files are asked for a few addresses only.
const scansFirst = 4

// scan finds the symbol at a link-time address as the index would, with an
// index of those symbols only that it depends on. add puts the symbols of the
// file into a builder.
func scan(b *symtabBuilder, vaddr uint64, add func(*symtabBuilder) error) (*symtab, error) {
	if vaddr < b.base || vaddr-b.base >= none {
		return b.build(), nil
	}
	at := uint32(vaddr - b.base)
	b.upTo = vaddr
	each := func(wanted func(entry) bool, added func(entry)) error {
		b.entries, b.strtabs, b.strs, b.wanted, b.added = nil, nil, nil, wanted, added
		return add(b)
	}
	// It depends on the last symbols that begin there or before, on those
	// around these or around the address, and on all that begin where one of
	// them does.
	last, found := uint32(0), false
	err := each(func(e entry) bool { return !found || e.off > last }, func(e entry) {
		last, found = e.off, true
		b.entries = b.entries[:0]
	})
	if err != nil || !found {
		return b.build(), err
	}
	covers := func(e entry, off uint32) bool { return e.off <= off && off-e.off < e.size }
	starts := []uint32{last}
	err = each(func(e entry) bool { return e.off == last || covers(e, at) || covers(e, last) }, func(e entry) {
		if e.off != last {
			starts = append(starts, e.off)
		}
	})
	if err == nil && len(starts) > 1 {
		slices.Sort(starts)
		err = each(func(e entry) bool {
			_, ok := slices.BinarySearch(starts, e.off)
			return ok
		}, nil)
	}
	return b.build(), err
}
