package variables

import (
	"fmt"

	"github.com/swbpf/swbpf/symbols"
)

// Bounds on what is looked at of a map.
const (
	maxTables = 1 << 10
	maxGroups = 1 << 12 // of all its tables
)

// goMap writes a map with its entries, in the order in which they lie in
// memory.
func (p *printer) goMap(v *Value, t *symbols.Type, depth int) {
	m, err := v.Target()
	if err != nil {
		p.b.WriteString(Unknown(err))
		return
	}
	if m.addr == 0 {
		p.b.WriteString("nil")
		return
	}
	count := "used"
	if memberOf(t.Elem().Strip(), count) == nil {
		count = "count"
	}
	n, err := m.member(count)
	if err != nil {
		p.b.WriteString(Unknown(err))
		return
	}
	fmt.Fprintf(&p.b, "%s len %d ", v.Type, n)
	if n > 0 && depth >= p.o.Depth {
		p.b.WriteString("{...}")
		return
	}
	p.b.WriteByte('{')
	shown := 0
	whole := m.eachEntry(func(key, elem *Value) bool {
		if shown > 0 {
			p.b.WriteString(", ")
		}
		if shown++; shown > p.o.Elements || p.b.Len() > maxText {
			return false
		}
		p.value(key, depth+1)
		p.b.WriteString(": ")
		p.value(elem, depth+1)
		return true
	})
	if !whole {
		p.b.WriteString("...")
	}
	p.b.WriteByte('}')
}

// member returns a member of a struct that is a number or an address.
func (v *Value) member(name string) (uint64, error) {
	m := memberOf(v.Type.Strip(), name)
	if m == nil {
		return 0, symbols.ErrUnsupported
	}
	part := v.part(m.Type, m.Offset)
	if !part.sized || part.size > 8 {
		return 0, symbols.ErrUnsupported
	}
	b, err := part.bytes(0, int(part.size))
	if err != nil {
		return 0, err
	}
	return decode(unsigned, b).bits, nil
}

// eachEntry calls fn for the entries of a map until it returns false; whole
// tells that it was called for all of them. Since Go 1.24 they are in groups of
// eight, those of a small map in one, else in tables of them (package
// internal/runtime/maps).
func (v *Value) eachEntry(fn func(key, elem *Value) bool) (whole bool) {
	if memberOf(v.Type.Strip(), "dirPtr") == nil {
		return v.eachOldEntry(fn)
	}
	return v.eachGroup(func(group *Value) bool { return group.eachSlot(fn) })
}

// eachGroup calls fn for the groups of a map until it returns false; whole
// tells that it was called for all of them.
func (v *Value) eachGroup(fn func(group *Value) bool) (whole bool) {
	dir, err := v.member("dirPtr")
	tables, err2 := v.member("dirLen")
	table := memberOf(v.Type.Strip(), "dirPtr").Type.Strip().Elem().Strip().Elem()
	if err != nil || err2 != nil || memberOf(table.Strip(), "groups") == nil {
		return false
	}
	reference := memberOf(table.Strip(), "groups")
	data := memberOf(reference.Type.Strip(), "data")
	if data == nil {
		return false
	}
	group := data.Type.Strip().Elem()
	size, ok := group.Size()
	switch {
	case !ok || tables > maxTables:
		return false
	case tables == 0:
		return dir == 0 || fn(v.f.at(group, dir))
	}
	last := uint64(0)
	left := uint64(maxGroups)
	for i := range tables {
		addr, ok := v.f.word(dir + i*uint64(v.f.arch().AddressWidth))
		if !ok {
			return false
		}
		if addr == last {
			continue // a table can be there more than once, in a row
		}
		last = addr
		groups := v.f.at(table, addr).part(reference.Type, reference.Offset)
		at, err := groups.member("data")
		mask, err2 := groups.member("lengthMask")
		if err != nil || err2 != nil || mask >= left {
			return false
		}
		left -= mask + 1
		for j := range mask + 1 {
			if !fn(v.f.at(group, at+j*size)) {
				return false
			}
		}
	}
	return true
}

// eachSlot calls fn for the entries of a group of a map until it returns
// false. A byte for each of them tells whether it is in use.
func (v *Value) eachSlot(fn func(key, elem *Value) bool) (whole bool) {
	const free = 0x80
	t := v.Type.Strip()
	slots := memberOf(t, "slots")
	control, err := v.member("ctrl")
	if slots == nil || err != nil {
		return false
	}
	slot := slots.Type.Strip().Elem()
	size, ok := slot.Size()
	key, elem := memberOf(slot.Strip(), "key"), memberOf(slot.Strip(), "elem")
	if !ok || key == nil || elem == nil {
		return false
	}
	for i := range uint64(8) {
		if control>>(8*i)&free != 0 {
			continue
		}
		entry := v.part(slot, slots.Offset+i*size)
		if !fn(entry.part(key.Type, key.Offset), entry.part(elem.Type, elem.Offset)) {
			return false
		}
	}
	return true
}

// goChannel writes how full a channel is.
func (p *printer) goChannel(v *Value) {
	c, err := v.Target()
	if err != nil {
		p.b.WriteString(Unknown(err))
		return
	}
	if c.addr == 0 {
		p.b.WriteString("nil")
		return
	}
	n, err := c.member("qcount")
	room, err2 := c.member("dataqsiz")
	if err != nil || err2 != nil {
		p.b.WriteString(hex(c.addr))
		return
	}
	fmt.Fprintf(&p.b, "%s %#x len %d cap %d", v.Type, c.addr, n, room)
}
