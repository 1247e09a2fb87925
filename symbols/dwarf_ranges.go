package symbols

// address returns the link-time address that an attribute holds.
func (d *dwarfData) address(u *unit, v value) (uint64, bool) {
	switch v.form {
	case formAddr:
		return v.u, true
	case formAddrx, formAddrx1, formAddrx2, formAddrx3, formAddrx4, formGNUAddrIndex:
		return d.addrx(u, v.u)
	}
	return 0, false
}

// addrx returns an entry of the unit's part of .debug_addr.
func (d *dwarfData) addrx(u *unit, i uint64) (uint64, bool) {
	if i > 1<<32 {
		return 0, false
	}
	owner, base := d, u.addrBase
	if d.skeleton != nil {
		owner, base = d.main, d.skeleton.addrBase
	}
	return owner.addr.word(base+i*uint64(u.enc.addrSize), int(u.enc.addrSize))
}

// eachRange calls f for the ranges of link-time addresses [start, end) of an
// entry, given its attributes.
func (d *dwarfData) eachRange(u *unit, low, high, ranges value, f func(start, end uint64)) {
	if ranges.form != 0 {
		d.rangeList(u, ranges, f)
		return
	}
	start, ok := d.address(u, low)
	if !ok || high.form == 0 {
		return
	}
	end, ok := d.address(u, high)
	if !ok {
		end = start + high.u // of class constant: a length
	}
	if start < end {
		f(start, end)
	}
}

func (d *dwarfData) rangeList(u *unit, v value, f func(start, end uint64)) {
	base := u.low
	if d.skeleton != nil {
		base = d.skeleton.low
	}
	if u.enc.version < 5 {
		off, owner := v.u, d
		if d.skeleton != nil {
			off, owner = off+d.skeleton.rangeBase, d.main
		}
		d.ranges4(&owner.ranges, u, off, base, f)
		return
	}
	off := v.u
	if v.form == formRnglistx {
		size := u.enc.offSize()
		if v.u > 1<<32 {
			return
		}
		rel, ok := d.rangeOffsets.word(u.rangeBase+v.u*uint64(size), size)
		if !ok {
			return
		}
		off = u.rangeBase + rel
	}
	d.ranges5(u, off, base, f)
}

// maxRanges bounds the entries of range lists that are read for one unit, and for the root entries of all units,
// beside the size of the file: these may share lists, and a compressed section may be of any size.
const maxRanges = 1 << 28

// allowRanges sets how many range list entries may be read for n bytes of
// units. Entries of units can share a list, but not each of them all lists.
func (d *dwarfData) allowRanges(n uint64) { d.rangeWork = d.rangeLimit(n) }

func (d *dwarfData) rangeLimit(n uint64) uint64 {
	n += 1024 + d.ranges.size + d.rnglists.size
	if d.main != nil {
		n += d.main.ranges.size
	}
	return min(n, d.bound(2, maxRanges))
}

func (d *dwarfData) mayReadRange() bool {
	if d.rangeWork == 0 {
		return false
	}
	d.rangeWork--
	return true
}

// ranges4 reads a list of .debug_ranges (DWARF 4, section 2.17.3).
func (d *dwarfData) ranges4(s *dwarfSection, u *unit, off, base uint64, f func(start, end uint64)) {
	size := uint64(u.enc.addrSize)
	top := uint64(1)<<(8*size-1)<<1 - 1
	for d.mayReadRange() {
		b, err := s.bytes(off, 2*size)
		if err != nil {
			return
		}
		c := cursor{b: b}
		start, end := c.uint(int(size)), c.uint(int(size))
		off += 2 * size
		switch {
		case start == 0 && end == 0:
			return
		case start == top:
			base = end
		case start < end:
			f(base+start, base+end)
		}
	}
}

// ranges5 reads a list of .debug_rnglists (DWARF 5, section 2.17.3). Its kinds of entries are
// those of location lists without the default location (table 7.30).
func (d *dwarfData) ranges5(u *unit, off, base uint64, f func(start, end uint64)) {
	for d.mayReadRange() {
		b, err := d.rnglists.upTo(off, 24) // an entry has at most 21 bytes
		if err != nil {
			return
		}
		c := cursor{b: b}
		kind := c.u8()
		if kind == lleEndOfList {
			return
		}
		if kind >= lleDefaultLocation {
			kind++
		}
		var start, end uint64
		var ok bool
		if start, end, base, ok = d.listEntry(&c, u, kind, base); !ok {
			return
		}
		off += uint64(c.off)
		if start < end {
			f(start, end)
		}
	}
}

// offsets turns link-time addresses into offsets from the base of the file's
// code. ok is false for what lies outside: functions that the linker
// discarded keep their entries, with an address of 0 or -1.
func (d *dwarfData) offsets(start, end uint64) (s, e uint32, ok bool) {
	if start >= end || !d.isCode(start) {
		return 0, 0, false
	}
	end -= d.base
	if end >= none {
		return 0, 0, false
	}
	return uint32(start - d.base), uint32(end), true
}

// isCode reports whether a link-time address lies in an executable section.
func (d *dwarfData) isCode(vaddr uint64) bool {
	_, ok := codeAt(d.codeRanges, vaddr)
	return ok
}
