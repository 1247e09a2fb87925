package symbols

// readAranges adds the code that .debug_aranges tells of units of DWARF 2,
// whose root entry can name one range only (DWARF 5, section 6.1.2).
func (d *dwarfData) readAranges() {
	for off := uint64(0); off < d.aranges.size; {
		b, err := d.aranges.upTo(off, windowTables)
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
		d.arangesSet(&c, encoding{version: 2, dwarf64: dwarf64})
		off = next
	}
}

// arangesSet reads what follows the length of the set of one unit.
func (d *dwarfData) arangesSet(c *cursor, enc encoding) {
	c.u16() // version
	info := c.uint(enc.offSize())
	width := int(c.u8())
	c.u8() // segment selector size
	i, ok := d.unitIndex(info)
	if c.failed || width != 4 && width != 8 || !ok || d.units[i].enc.version > 2 {
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
			d.spans = append(d.spans, span{s, e, uint32(i)})
			d.units[i].unranged = false
		}
	}
}
