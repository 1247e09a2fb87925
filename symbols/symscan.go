package symbols

import (
	"slices"
	"sort"

	"github.com/swbpf/swbpf/procstate"
)

// scansFirst is how many symbols of a file are looked for one by one before
// its index is made: many files are asked for a few addresses only.
const scansFirst = 4

// scan finds the symbols at link-time addresses, which are in ascending order, as the
// index would, with an index of those symbols only that they depend on. add puts the
// symbols of the file into a builder.
func scan(b *symtabBuilder, vaddrs []uint64, add func(*symtabBuilder) error) (*symtab, error) {
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
	// The symbol at an address depends on the last ones that begin there or before, on
	// those around these or around the address, and on all that begin where one of them
	// does. Of each address, last is where the last ones begin that are behind the address
	// before, as far as is known; 0 where there are none. What is around the address is
	// around these.
	last := make([]uint32, len(at))
	next := func(e entry) int { return sort.Search(len(at), func(i int) bool { return at[i] >= e.off }) }
	matters := func(e entry) bool {
		i := next(e)
		return i < len(at) && (e.off >= last[i] || last[i]-e.off < e.size)
	}
	forget := func() {
		b.entries = slices.DeleteFunc(b.entries, func(e entry) bool { return !matters(e) })
	}
	room := scanRoom + len(at)
	err := b.each(add, matters, func(e entry) {
		if i := next(e); e.off > last[i] {
			last[i] = e.off
			b.from = b.base + uint64(last[0])
		}
		if len(b.entries) >= room {
			forget()
			room = 2*len(b.entries) + scanRoom + len(at)
		}
	})
	if err != nil {
		return b.build(), err
	}
	forget()
	// Beside those that are only around others may be some that were left out.
	var starts []uint32
	others := false
	for _, e := range b.entries {
		starts = append(starts, e.off)
		others = others || e.off != last[next(e)]
	}
	if !others {
		return b.build(), nil
	}
	slices.Sort(starts)
	starts = slices.Compact(starts)
	b.from = b.base + uint64(starts[0])
	err = b.each(add, func(e entry) bool {
		_, ok := slices.BinarySearch(starts, e.off)
		return ok
	}, nil)
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
	t, err := scan(newSymtabBuilder(f.img), vaddrs, f.addTables)
	if err != nil {
		return // whoever asks will be told
	}
	s.budget.charge(t.memory() + 8*cap(vaddrs))
	f.expected = &expected{vaddrs, t}
}
