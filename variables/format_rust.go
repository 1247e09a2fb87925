package variables

import "github.com/swbpf/swbpf/symbols"

// variant writes a value of a type with several forms: Rust's enums.
func (p *printer) variant(v *Value, cases []symbols.Variant, tag *symbols.Member, depth int) {
	chosen := &cases[0]
	if tag != nil {
		part := v.part(tag.Type, tag.Offset)
		if !part.sized || part.size > 8 {
			p.b.WriteString(Unknown(symbols.ErrUnsupported))
			return
		}
		b, err := part.bytes(0, int(part.size))
		if err != nil {
			p.b.WriteString(Unknown(err))
			return
		}
		chosen = nil
		for i := range cases {
			c := &cases[i]
			if !c.Default && decode(unsigned, b).bits == (number{kind: unsigned, size: len(b), bits: uint64(c.Value)}).wrapped().bits {
				chosen = c
				break
			}
			if c.Default {
				chosen = c
			}
		}
		if chosen == nil {
			p.b.WriteString("<no such variant>")
			return
		}
	}
	p.b.WriteString(chosen.Name)
	if t := chosen.Type.Strip(); len(t.Members()) > 0 {
		p.b.WriteByte(' ')
		p.structure(v.part(t, chosen.Offset), t, depth)
	}
}

// text8 writes a string slice of Rust: an address and a length in bytes.
func (p *printer) text8(v *Value, t *symbols.Type) bool {
	addr, n, err := v.addressAndCount(t, "data_ptr", "length")
	switch {
	case err == symbols.ErrUnsupported:
		return false
	case err != nil:
		p.b.WriteString(Unknown(err))
		return true
	}
	p.bytesAt(v.f, addr, n)
	return true
}
