package symbols

import (
	"debug/dwarf"
	"encoding/binary"
	"errors"
	"fmt"
)

// Location list entries (DWARF 5, table 7.10).
const (
	lleEndOfList       = 0
	lleBaseAddressx    = 1
	lleStartxEndx      = 2
	lleStartxLength    = 3
	lleOffsetPair      = 4
	lleDefaultLocation = 5
	lleBaseAddress     = 6
	lleStartEnd        = 7
	lleStartLength     = 8
	lleViewPair        = 9 // GNU
)

// maxExpression bounds the bytes of one location description.
const maxExpression = 1 << 16

// Expression is a DWARF expression, with what its operands refer to.
type Expression struct {
	Code []byte

	// Constant: Code is not an expression, but the bytes of the value.
	Constant bool

	d *dwarfData
	u *unit
}

// addrSize is the size of an address in bytes.
func (x *Expression) addrSize() int {
	if x.u == nil {
		return 0
	}
	return int(x.u.enc.addrSize)
}

// Sub returns the expression whose code is an operand of x.
func (x *Expression) Sub(code []byte) *Expression { return &Expression{Code: code, d: x.d, u: x.u} }

// BaseType returns the type whose entry is at an offset of the unit.
func (x *Expression) BaseType(off uint64) (*Type, error) {
	if x.d == nil {
		return nil, ErrNoDebugInfo
	}
	x.d.lock()
	defer x.d.unlock()
	x.d.allowEntries(x.u)
	e, err := x.d.dieAt(x.u.off + off)
	if err != nil {
		return nil, err
	}
	return e.asType(), nil
}

// Procedure returns the expression that OpCall calls, given its operand; nil
// when there is none at an address, which calls nothing.
func (x *Expression) Procedure(off, vaddr uint64) (*Expression, error) {
	if x.d == nil {
		return nil, ErrNoDebugInfo
	}
	x.d.lock()
	defer x.d.unlock()
	x.d.allowEntries(x.u)
	e, err := x.d.dieAt(off)
	if err != nil {
		return nil, err
	}
	p, err := e.expression(dwarf.AttrLocation, vaddr)
	if errors.Is(err, ErrOptimizedOut) {
		return nil, nil
	}
	return p, err
}

// Object returns the location of the object that an implicit pointer points
// to, at an address, and its type.
func (x *Expression) Object(off, vaddr uint64) (*Expression, *Type, error) {
	if x.d == nil {
		return nil, nil, ErrNoDebugInfo
	}
	x.d.lock()
	defer x.d.unlock()
	x.d.allowEntries(x.u)
	e, err := x.d.dieAt(off)
	if err != nil {
		return nil, nil, err
	}
	return objectOf(e.completed(), vaddr)
}

// objectOf returns the location and the type of a variable, given its entry
// and what completes it.
func objectOf(list []*die, vaddr uint64) (*Expression, *Type, error) {
	loc, err := variableLocation(list, vaddr)
	if err != nil {
		return nil, nil, err
	}
	typ := voidType
	if t := first(list, dwarf.AttrType); t != nil {
		typ = t.typeOf(dwarf.AttrType)
	}
	return loc, typ, nil
}

// variableLocation returns the location or constant value of a variable,
// given its entry and what completes it.
func variableLocation(list []*die, vaddr uint64) (*Expression, error) {
	at, constant := first(list, dwarf.AttrLocation), first(list, dwarf.AttrConstValue)
	if at == nil && constant == nil {
		return nil, ErrOptimizedOut
	}
	if constant != nil && (at == nil || list[0].tag == dwarf.TagVariable) {
		return constant.constant()
	}
	return at.expression(dwarf.AttrLocation, vaddr)
}

// expression returns the expression of an attribute that is one, or a list of
// them, at a link-time address.
func (e *die) expression(attr dwarf.Attr, vaddr uint64) (*Expression, error) {
	a := e.get(attr)
	x := &Expression{d: e.d, u: e.u}
	var err error
	switch a.value.form {
	case 0:
		return nil, ErrOptimizedOut
	case formExprloc, formBlock, formBlock1, formBlock2, formBlock4:
		x.Code = a.block
	case formSecOffset, formData4, formData8, formLoclistx:
		x.Code, err = e.d.listed(e.u, a.value, vaddr)
	default:
		err = fmt.Errorf("entry at %#x: location has form %#x: %w", e.off, a.value.form, errDWARF)
	}
	if err == nil && len(x.Code) == 0 {
		err = ErrOptimizedOut
	}
	if err != nil {
		return nil, err
	}
	return x, nil
}

// constant returns the value of DW_AT_const_value.
func (e *die) constant() (*Expression, error) {
	a := e.get(dwarf.AttrConstValue)
	x := &Expression{d: e.d, u: e.u, Constant: true}
	switch f := a.value.form; f {
	case formBlock, formBlock1, formBlock2, formBlock4, formExprloc, formData16:
		x.Code = a.block
	case formString, formStrp, formLineStrp, formStrx, formStrx1, formStrx2, formStrx3, formStrx4, formGNUStrIndex, formGNUStrpAlt, formStrpSup:
		x.Code = append([]byte(e.string(dwarf.AttrConstValue)), 0)
	case formData1, formData2, formData4, formData8, formSdata, formUdata, formImplicit:
		x.Code = binary.LittleEndian.AppendUint64(nil, a.value.u)
		if (f == formSdata || f == formImplicit) && int64(a.value.u) < 0 {
			x.Code = append(x.Code, "\xff\xff\xff\xff\xff\xff\xff\xff"...) // of a number with 128 bits
		}
	case formAddr, formAddrx, formAddrx1, formAddrx2, formAddrx3, formAddrx4, formGNUAddrIndex:
		v, ok := e.d.address(e.u, a.value)
		if !ok {
			return nil, errDWARF
		}
		x.Code = binary.LittleEndian.AppendUint64(nil, v)
	default:
		return nil, fmt.Errorf("entry at %#x: constant has form %#x: %w", e.off, f, errDWARF)
	}
	return x, nil
}

// listed returns the expression of a location list that holds at an address.
func (d *dwarfData) listed(u *unit, v value, vaddr uint64) ([]byte, error) {
	base := u.low
	if d.skeleton != nil {
		base = d.skeleton.low
	}
	if u.enc.version < 5 {
		if d.skeleton != nil {
			return d.listedSplit4(u, v.u, vaddr)
		}
		return d.listed4(u, v.u, base, vaddr)
	}
	off := v.u
	if v.form == formLoclistx {
		size := u.enc.offSize()
		if v.u > 1<<32 {
			return nil, errDWARF
		}
		rel, ok := d.loclists.word(u.locBase+v.u*uint64(size), size)
		if !ok {
			return nil, errDWARF
		}
		off = u.locBase + rel
	}
	return d.listed5(u, off, base, vaddr)
}

// copyExpression returns n bytes at an offset of a section.
func copyExpression(s *dwarfSection, off, n uint64) ([]byte, error) {
	if n > maxExpression {
		return nil, errDWARF
	}
	b, err := s.bytes(off, n)
	if err != nil {
		return nil, err
	}
	return append([]byte(nil), b...), nil
}

// maxListEntries bounds the entries of one location list.
const maxListEntries = 1 << 20

// listed4 looks through a list of .debug_loc (DWARF 4, section 2.6.2).
func (d *dwarfData) listed4(u *unit, off, base, vaddr uint64) ([]byte, error) {
	size := uint64(u.enc.addrSize)
	top := uint64(1)<<(8*size-1)<<1 - 1
	for range maxListEntries {
		b, err := d.loc.upTo(off, 2*size+2)
		if err != nil {
			return nil, err
		}
		c := cursor{b: b}
		start, end := c.uint(int(size)), c.uint(int(size))
		off += 2 * size
		switch {
		case c.failed:
			return nil, errDWARF
		case start == 0 && end == 0:
			return nil, ErrOptimizedOut
		case start == top:
			base = end
			continue
		}
		n := uint64(c.u16())
		if c.failed {
			return nil, errDWARF
		}
		off += 2
		if vaddr >= base+start && vaddr < base+end {
			return copyExpression(&d.loc, off, n)
		}
		off += n
	}
	return nil, errDWARF
}

// listedSplit4 looks through a list of .debug_loc.dwo of GNU's split DWARF 4.
func (d *dwarfData) listedSplit4(u *unit, off, vaddr uint64) ([]byte, error) {
	for range maxListEntries {
		b, err := d.loc.upTo(off, 32)
		if err != nil {
			return nil, err
		}
		c := cursor{b: b}
		var start, end uint64
		ok := true
		switch c.u8() {
		case lleEndOfList:
			return nil, ErrOptimizedOut
		case lleBaseAddressx:
			c.uleb()
			off += uint64(c.off)
			if c.failed {
				return nil, errDWARF
			}
			continue
		case lleStartxEndx:
			var ok2 bool
			start, ok = d.addrx(u, c.uleb())
			end, ok2 = d.addrx(u, c.uleb())
			ok = ok && ok2
		case lleStartxLength:
			start, ok = d.addrx(u, c.uleb())
			end = start + uint64(c.u32())
		default:
			ok = false
		}
		n := uint64(c.u16())
		if c.failed || !ok {
			return nil, errDWARF
		}
		off += uint64(c.off)
		if vaddr >= start && vaddr < end {
			return copyExpression(&d.loc, off, n)
		}
		off += n
	}
	return nil, errDWARF
}

// listed5 looks through a list of .debug_loclists (DWARF 5, section 7.7.3).
func (d *dwarfData) listed5(u *unit, off, base, vaddr uint64) ([]byte, error) {
	fallback, fallbackSize := uint64(0), uint64(0) // of the default location
	for range maxListEntries {
		b, err := d.loclists.upTo(off, 40)
		if err != nil {
			return nil, err
		}
		c := cursor{b: b}
		var start, end uint64
		ok, located := true, true
		kind := c.u8()
		switch kind {
		case lleEndOfList:
			if fallbackSize > 0 {
				return copyExpression(&d.loclists, fallback, fallbackSize)
			}
			return nil, ErrOptimizedOut
		case lleDefaultLocation:
		case lleViewPair:
			c.uleb()
			c.uleb()
			located = false
		default:
			start, end, base, ok = d.listEntry(&c, u, kind, base)
			located = kind != lleBaseAddressx && kind != lleBaseAddress
		}
		n := uint64(0)
		if located {
			n = c.uleb()
		}
		if c.failed || !ok {
			return nil, errDWARF
		}
		off += uint64(c.off)
		switch {
		case kind == lleDefaultLocation:
			fallback, fallbackSize = off, n
		case located && vaddr >= start && vaddr < end:
			return copyExpression(&d.loclists, off, n)
		}
		if n > maxExpression {
			return nil, errDWARF
		}
		off += n
	}
	return nil, errDWARF
}

// listEntry reads what follows the kind of an entry in a DWARF 5 list: the link-time addresses
// [start, end), or none where it sets the base of the entries to come. ok is false where it is of
// neither kind, or cannot be read.
func (d *dwarfData) listEntry(c *cursor, u *unit, kind uint8, base uint64) (start, end, nextBase uint64, ok bool) {
	size := int(u.enc.addrSize)
	ok = true
	switch kind {
	case lleBaseAddressx:
		base, ok = d.addrx(u, c.uleb())
	case lleStartxEndx:
		var ok2 bool
		start, ok = d.addrx(u, c.uleb())
		end, ok2 = d.addrx(u, c.uleb())
		ok = ok && ok2
	case lleStartxLength:
		start, ok = d.addrx(u, c.uleb())
		end = start + c.uleb()
	case lleOffsetPair:
		start = base + c.uleb()
		end = base + c.uleb()
	case lleBaseAddress:
		base = c.uint(size)
	case lleStartEnd:
		start, end = c.uint(size), c.uint(size)
	case lleStartLength:
		start = c.uint(size)
		end = start + c.uleb()
	default:
		ok = false
	}
	return start, end, base, ok && !c.failed
}
