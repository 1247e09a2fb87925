package symbols

import "debug/dwarf"

// form is a DW_FORM number: DWARF 5, table 7.6, and the GNU extensions.
type form uint16

const (
	formAddr         form = 0x01
	formBlock2       form = 0x03
	formBlock4       form = 0x04
	formData2        form = 0x05
	formData4        form = 0x06
	formData8        form = 0x07
	formString       form = 0x08
	formBlock        form = 0x09
	formBlock1       form = 0x0a
	formData1        form = 0x0b
	formFlag         form = 0x0c
	formSdata        form = 0x0d
	formStrp         form = 0x0e
	formUdata        form = 0x0f
	formRefAddr      form = 0x10
	formRef1         form = 0x11
	formRef2         form = 0x12
	formRef4         form = 0x13
	formRef8         form = 0x14
	formRefUdata     form = 0x15
	formIndirect     form = 0x16
	formSecOffset    form = 0x17
	formExprloc      form = 0x18
	formFlagPresent  form = 0x19
	formStrx         form = 0x1a
	formAddrx        form = 0x1b
	formRefSup4      form = 0x1c
	formStrpSup      form = 0x1d
	formData16       form = 0x1e
	formLineStrp     form = 0x1f
	formRefSig8      form = 0x20
	formImplicit     form = 0x21
	formLoclistx     form = 0x22
	formRnglistx     form = 0x23
	formRefSup8      form = 0x24
	formStrx1        form = 0x25
	formStrx2        form = 0x26
	formStrx3        form = 0x27
	formStrx4        form = 0x28
	formAddrx1       form = 0x29
	formAddrx2       form = 0x2a
	formAddrx3       form = 0x2b
	formAddrx4       form = 0x2c
	formGNUAddrIndex form = 0x1f01
	formGNUStrIndex  form = 0x1f02
	formGNURefAlt    form = 0x1f20
	formGNUStrpAlt   form = 0x1f21
)

// formImplicitWide stands for formImplicit of a large value.
const formImplicitWide form = 0xffff

// Attributes that debug/dwarf does not name.
const (
	attrGNUDwoName    dwarf.Attr = 0x2130
	attrGNUDwoID      dwarf.Attr = 0x2131
	attrGNURangesBase dwarf.Attr = 0x2132
	attrGNUAddrBase   dwarf.Attr = 0x2133
	attrMIPSLinkage   dwarf.Attr = 0x2007
)

// Unit types (DWARF 5, table 7.2).
const (
	unitCompile      = 1
	unitType         = 2
	unitPartial      = 3
	unitSkeleton     = 4
	unitSplitCompile = 5
	unitSplitType    = 6
)

// encoding is what the size of forms depends on.
type encoding struct {
	version  uint8
	addrSize uint8 // 4 or 8
	dwarf64  bool
}

func (e encoding) offSize() int {
	if e.dwarf64 {
		return 8
	}
	return 4
}

// fixedSize returns the size of a form, or -1 when it varies.
func (e encoding) fixedSize(f form) int {
	switch f {
	case formFlagPresent, formImplicit, formImplicitWide:
		return 0
	case formData1, formRef1, formFlag, formStrx1, formAddrx1:
		return 1
	case formData2, formRef2, formStrx2, formAddrx2:
		return 2
	case formStrx3, formAddrx3:
		return 3
	case formData4, formRef4, formStrx4, formAddrx4, formRefSup4:
		return 4
	case formData8, formRef8, formRefSig8, formRefSup8:
		return 8
	case formData16:
		return 16
	case formAddr:
		return int(e.addrSize)
	case formStrp, formLineStrp, formSecOffset, formStrpSup, formGNURefAlt, formGNUStrpAlt:
		return e.offSize()
	case formRefAddr:
		if e.version <= 2 {
			return int(e.addrSize)
		}
		return e.offSize()
	}
	return -1
}

// skip passes over a value.
func (e encoding) skip(c *cursor, f form) {
	if n := e.fixedSize(f); n >= 0 {
		c.skip(uint64(n))
		return
	}
	switch f {
	case formUdata, formRefUdata, formStrx, formAddrx, formLoclistx, formRnglistx, formGNUAddrIndex, formGNUStrIndex, formSdata:
		c.uleb()
	case formString:
		c.skipString()
	case formBlock, formExprloc:
		c.skip(c.uleb())
	case formBlock1:
		c.skip(uint64(c.u8()))
	case formBlock2:
		c.skip(uint64(c.u16()))
	case formBlock4:
		c.skip(uint64(c.u32()))
	case formIndirect:
		if g := form(c.uleb()); g != formIndirect && g != formImplicit {
			e.skip(c, g)
			return
		}
		c.fail()
	default:
		c.fail()
	}
}

// value is an attribute's value: the number as it stands in the section, for
// formString the position in the cursor. Blocks have no value.
type value struct {
	form form // 0: the attribute is absent
	u    uint64
}

// read returns a value.
func (e encoding) read(c *cursor, f form, implicit int64) value {
	if f == formIndirect {
		f = form(c.uleb())
		if f == formIndirect || f == formImplicit {
			c.fail()
			return value{}
		}
	}
	switch f {
	case formImplicit:
		return value{f, uint64(implicit)}
	case formFlagPresent:
		return value{f, 1}
	case formSdata:
		return value{f, uint64(c.sleb())}
	case formString:
		v := value{f, uint64(c.off)}
		c.skipString()
		return v
	case formUdata, formRefUdata, formStrx, formAddrx, formLoclistx, formRnglistx, formGNUAddrIndex, formGNUStrIndex:
		return value{f, c.uleb()}
	case formData16:
		c.skip(16)
		return value{form: f}
	}
	if n := e.fixedSize(f); n >= 0 {
		return value{f, c.uint(n)}
	}
	e.skip(c, f)
	return value{form: f}
}
