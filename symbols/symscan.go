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
		b.entries, b.strtabs, b.strs, b.wanted, b.added = b.entries[:0], nil, nil, wanted, added
		return add(b)
	}
	// It depends on the last symbols that begin there or before, on those
	// around these or around the address, and on all that begin where one of
	// them does.
	last, found := uint32(0), false
	matters := func(e entry) bool {
		covers := func(off uint32) bool { return e.off <= off && off-e.off < e.size }
		return !found || e.off >= last || covers(at) || covers(last)
	}
	forget := func() {
		b.entries = slices.DeleteFunc(b.entries, func(e entry) bool { return !matters(e) })
	}
	room := scanRoom
	err := each(matters, func(e entry) {
		if !found || e.off > last {
			last, found = e.off, true
			b.from = b.base + uint64(last)
		}
		if len(b.entries) >= room {
			forget()
			room = 2*len(b.entries) + scanRoom
		}
	})
	if err != nil {
		return b.build(), err
	}
	forget()
	starts := make([]uint32, 0, scanRoom)
	for _, e := range b.entries {
		starts = append(starts, e.off)
	}
	slices.Sort(starts)
	if starts = slices.Compact(starts); len(starts) > 1 {
		b.from = b.base + uint64(starts[0])
		err = each(func(e entry) bool {
			_, ok := slices.BinarySearch(starts, e.off)
			return ok
		}, nil)
	}
	return b.build(), err
}

// scanRoom is how many symbols may be kept that turn out not to matter.
const scanRoom = 16
