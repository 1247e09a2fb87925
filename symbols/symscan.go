package symbols

import (
	"slices"
	"sort"

	"github.com/swbpf/swbpf/procstate"
)

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
	err := b.each(add, matters, func(e entry) {
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
		err = b.each(add, func(e entry) bool {
			_, ok := slices.BinarySearch(starts, e.off)
			return ok
		}, nil)
	}
	return b.build(), err
}

// scanRoom is how many symbols may be kept that turn out not to matter.
const scanRoom = 16

// each looks at the symbols of a file, which add puts in, from the start: those that
// are wanted are added, and added, which may be nil, is told of them.
func (b *symtabBuilder) each(add func(*symtabBuilder) error, wanted func(entry) bool, added func(entry)) error {
	b.entries, b.strtabs, b.strs, b.wanted, b.added = b.entries[:0], nil, nil, wanted, added
	return add(b)
}

// expected is an index for some link-time addresses only.
type expected struct {
	vaddrs []uint64 // ascending
	table  *symtab
}

// has reports whether the index has what it takes to name an address.
func (x *expected) has(vaddr uint64) bool {
	if x == nil {
		return false
	}
	_, ok := slices.BinarySearch(x.vaddrs, vaddr)
	return ok
}

// scanAll is scan for many addresses, in ascending order.
func scanAll(b *symtabBuilder, vaddrs []uint64, add func(*symtabBuilder) error) (*symtab, error) {
	var at []uint32
	for _, v := range vaddrs {
		if v >= b.base && v-b.base < none {
			at = append(at, uint32(v-b.base))
			b.upTo = v
		}
	}
	if len(at) == 0 {
		return b.build(), nil
	}
	// Where the last symbols begin that are not behind each address, at first of
	// those that are behind the address before; 0 where there are none.
	last := make([]uint32, len(at))
	next := func(e entry) int { return sort.Search(len(at), func(i int) bool { return at[i] >= e.off }) }
	forget := func() { b.entries = b.entries[:0] }
	err := b.each(add, func(e entry) bool {
		i := next(e)
		return i < len(at) && e.off >= last[i]
	}, func(e entry) {
		last[next(e)] = e.off
		forget()
	})
	if err != nil {
		return b.build(), err
	}
	for i := 1; i < len(last); i++ {
		last[i] = max(last[i], last[i-1])
	}
	points := append(at, last...)
	slices.Sort(points)
	points = slices.Compact(points)
	var starts []uint32
	compact := func() {
		slices.Sort(starts)
		starts = slices.Compact(starts)
	}
	// Symbols that begin at none of the points have others beside them that are not
	// known yet; mostly there are none.
	room, most, others := scanRoom, 2*len(points)+scanRoom, false
	b.from = b.base + uint64(last[0])
	err = b.each(add, func(e entry) bool {
		i, found := slices.BinarySearch(points, e.off)
		covers := i < len(points) && points[i]-e.off < e.size
		others = others || covers && !found
		return found || covers
	}, func(e entry) {
		if others = others || len(b.entries) > most; others {
			forget()
		}
		if starts = append(starts, e.off); len(starts) >= room {
			compact()
			room = 2*len(starts) + scanRoom
		}
	})
	if compact(); err != nil || len(starts) == 0 || !others {
		return b.build(), err
	}
	b.from = b.base + uint64(starts[0])
	err = b.each(add, func(e entry) bool {
		_, ok := slices.BinarySearch(starts, e.off)
		return ok
	}, nil)
	return b.build(), err
}

// Expect says which link-time addresses of a file, in ascending order, will be asked
// for, and keeps them: an index of the symbols of these takes less than one of all. It
// is called before anything else is asked of the file; further calls do nothing until
// Forget.
func (s *Symbolizer) Expect(im *procstate.Image, vaddrs []uint64) {
	f := s.file(im)
	if len(vaddrs) < 2 || f.goTable(s) != nil || f.expected != nil {
		return
	}
	f.openOnce.Do(func() { s.open(f) })
	t, err := scanAll(newSymtabBuilder(f.img), vaddrs, f.addTables)
	if err != nil {
		return // whoever asks will be told
	}
	s.budget.charge(t.memory() + 8*cap(vaddrs))
	f.expected = &expected{vaddrs, t}
}
