package variables

import (
	"fmt"
	"strings"

	"github.com/swbpf/swbpf/symbols"
)

// standardRust writes a string, a vector or a slice of Rust.
func (p *printer) standardRust(v *Value, t *symbols.Type, depth int) bool {
	name := strings.TrimPrefix(t.Name, "alloc::boxed::")
	switch {
	case t.Name == "String" && t.Scope() == "alloc::string::":
		vec := v.find("vec")
		if vec == nil {
			return false
		}
		addr, n, ok := vec.rustVec()
		return ok && p.rustText(v.f, addr, n)
	case strings.HasPrefix(t.Name, "Vec<") && t.Scope() == "alloc::vec::":
		addr, n, ok := v.rustVec()
		elem := v.typeArgument(0)
		return ok && elem != nil && p.sequence(v.f, fmt.Sprintf("Vec(size=%d)", n), elem, addr, n, depth)
	case strings.HasPrefix(name, "&[") || strings.HasPrefix(name, "&mut [") || strings.HasPrefix(name, "Box<[") || strings.HasPrefix(name, "Box<str,") || name == "&mut str":
		data, length := v.find("data_ptr"), v.find("length")
		elem := data.pointee()
		w, ok := numbers(data, length)
		switch {
		case !ok || elem == nil:
			return false
		case strings.HasSuffix(name, "str") || strings.HasPrefix(name, "Box<str,"):
			return p.rustText(v.f, w[0], w[1])
		}
		name, _, _ = strings.Cut(name, ", ")
		if strings.HasPrefix(name, "Box<") {
			name += ">"
		}
		return p.sequence(v.f, fmt.Sprintf("%s(size=%d)", name, w[1]), elem, w[0], w[1], depth)
	}
	return false
}

// rustVec returns the address and number of the elements of a vector.
func (v *Value) rustVec() (addr, n uint64, ok bool) {
	buf := v.find("buf")
	if buf == nil {
		return 0, 0, false
	}
	left := maxFound
	w, ok := numbers(buf.findDeep("pointer", 0, &left), v.find("len"))
	if !ok {
		return 0, 0, false
	}
	return w[0], w[1], true
}

// rustText writes n bytes of UTF-8 at an address.
func (p *printer) rustText(f *frame, addr, n uint64) bool {
	if n > maxArray {
		return false
	}
	b := make([]byte, min(uint64(p.o.Elements), n))
	if f.r.read(addr, b) != nil {
		return false
	}
	p.quotedPart(textual{width: 1}, b, n)
	return true
}
