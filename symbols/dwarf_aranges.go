package symbols

// readTable reads which units .debug_aranges gives code to.
func (d *dwarfData) readTable() {
	d.tableRead = true
	var spans []span
	d.readAranges(func(info uint64, start, end uint32) {
		if n := len(d.tableUnits); n == 0 || d.tableUnits[n-1] != info {
			d.tableUnits = append(d.tableUnits, info)
		}
		spans = append(spans, span{start, end, uint32(len(d.tableUnits) - 1)})
	})
	d.tableRanges = flattenFirst(spans)
}

// addTableOf2 adds the code that .debug_aranges tells of units of DWARF 2,
// whose root entry can name one range only.
func (d *dwarfData) addTableOf2() {
	d.readAranges(func(info uint64, start, end uint32) {
		i := unitIndexOf(d.units, info)
		if i < 0 || d.units[i].enc.version > 2 {
			return
		}
		d.spans = append(d.spans, span{start, end, uint32(i)})
		d.units[i].unranged = false
	})
}

// readAranges calls f for what .debug_aranges (DWARF 5, section 6.1.2) says:
// the place of a unit in .debug_info, and offsets of its code. Of holes, which a file
// may have of any size, no more is read than there can be units.
func (d *dwarfData) readAranges(f func(info uint64, start, end uint32)) {
	off := uint64(0)
	for sets := 0; off < d.aranges.size && sets < maxUnits; sets++ {
		b, err := d.aranges.upTo(off, 12)
		if err != nil {
			return
		}
		c := cursor{b: b}
		n, dwarf64 := c.length()
		if c.failed || n > d.aranges.size-off-uint64(c.off) {
			return
		}
		next := off + uint64(c.off) + n
		if b, err = d.aranges.bytes(off, next-off); err != nil {
			return
		}
		c.b = b
		d.arangesSet(&c, encoding{version: 2, dwarf64: dwarf64}, f)
		off = next
	}
}

// arangesSet reads what follows the length of the set of one unit.
func (d *dwarfData) arangesSet(c *cursor, enc encoding, f func(info uint64, start, end uint32)) {
	c.u16() // version
	info := c.uint(enc.offSize())
	width := int(c.u8())
	segment := c.u8()
	if c.failed || width != 4 && width != 8 || segment != 0 || info >= d.info.size {
		return
	}
	// Pairs are aligned to their size from the start of the set.
	c.skip(uint64(-c.off & (2*width - 1)))
	for {
		start, n := c.uint(width), c.uint(width)
		if c.failed || start == 0 && n == 0 {
			return
		}
		if s, e, ok := d.offsets(start, start+n); ok {
			f(info, s, e)
		}
	}
}
