package variables

import (
	"fmt"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
)

// Kinds of Go types, as the runtime numbers them (package reflect).
const (
	goChan      = 18
	goFunc      = 19
	goInterface = 20
	goMap       = 21
	goPointer   = 22
	goSlice     = 23
	goString    = 24
)

// goKind returns the kind of a Go type, 0 for those of other languages. An
// interface is a name for one of the runtime's structs.
func goKind(t *symbols.Type) uint8 {
	for range maxNames {
		if t.GoKind != 0 || t.Kind != symbols.KindTypedef {
			break
		}
		t = t.Elem()
	}
	return t.GoKind
}

// golang writes a value of a Go type that is more than its debug information
// says: a string, a slice, an interface, a function. It reports whether it did.
func (p *printer) golang(v *Value, t *symbols.Type, depth int) bool {
	switch goKind(v.Type) {
	case goInterface:
		p.goInterface(v, t, depth)
		return true
	case goFunc:
		p.goFunc(v)
		return true
	case goMap:
		p.goMap(v, t, depth)
		return true
	case goChan:
		p.goChannel(v)
		return true
	case goString:
		str, n, err := v.addressAndCount(t, "str", "len")
		if err != nil {
			p.b.WriteString(Unknown(err))
			return true
		}
		p.bytesAt(v.f, str, n)
		return true
	case goSlice:
		array, n, err := v.addressAndCount(t, "array", "len")
		if err != nil {
			p.b.WriteString(Unknown(err))
			return true
		}
		m := memberOf(t, "array")
		elem := m.Type.Strip().Elem()
		size, ok := elem.Size()
		if !ok || n > maxArray || size > 0 && n > maxArray/size {
			p.b.WriteString("<incomplete type>")
			return true
		}
		fmt.Fprintf(&p.b, "%s len %d ", v.Type, n)
		if n > 0 && p.slices == maxSlices {
			p.b.WriteString("{...}")
			return true
		}
		p.slices++
		p.elements(v.f.at(elem, array), size, int64(n), func(part *Value) { p.value(part.as(elem), depth) })
		p.slices--
		return true
	}
	return false
}

// maxSlices bounds how deeply slices are written in slices: one can hold itself.
const maxSlices = 4

// memberOf returns a member of a struct by its name, or nil.
func memberOf(t *symbols.Type, name string) *symbols.Member {
	members := t.Members()
	for i := range members {
		if members[i].Name == name {
			return &members[i]
		}
	}
	return nil
}

// addressAndCount returns the address and number of the elements of a string
// or slice, given the names of the two members.
func (v *Value) addressAndCount(t *symbols.Type, pointer, count string) (addr, n uint64, err error) {
	for _, m := range []struct {
		name string
		to   *uint64
	}{{pointer, &addr}, {count, &n}} {
		member := memberOf(t, m.name)
		if member == nil {
			return 0, 0, symbols.ErrUnsupported
		}
		if *m.to, err = v.part(member.Type, member.Offset).word(); err != nil {
			return 0, 0, err
		}
	}
	return addr, n, nil
}

// goInterface writes the type of what is in an interface, its address, and,
// where that is not within something else, what is there.
func (p *printer) goInterface(v *Value, t *symbols.Type, depth int) {
	tab, what := memberOf(t, "tab"), memberOf(t, "data")
	direct := tab == nil // interface{} has the type itself, others a table
	if direct {
		tab = memberOf(t, "_type")
	}
	if tab == nil || what == nil {
		p.b.WriteString(Unknown(symbols.ErrUnsupported))
		return
	}
	pointer, word := v.part(tab.Type, tab.Offset), v.part(what.Type, what.Offset)
	typ, err := pointer.word()
	var data uint64
	if err == nil {
		data, err = word.word()
	}
	switch {
	case err != nil:
		p.b.WriteString(Unknown(err))
		return
	case typ == 0:
		p.b.WriteString("nil")
		return
	}
	desc := v.f.at(tab.Type.Strip().Elem(), typ)
	if !direct {
		m := memberOf(desc.Type.Strip(), "Type")
		if m == nil {
			m = memberOf(desc.Type.Strip(), "_type") // before Go 1.23
		}
		if m != nil {
			if typ, err = desc.part(m.Type, m.Offset).word(); err == nil {
				desc = v.f.at(m.Type.Strip().Elem(), typ)
			}
		}
	}
	name, ok := desc.goTypeName()
	if !ok {
		name = hex(typ)
	}
	fmt.Fprintf(&p.b, "{type = %s, data = %#x", name, data)
	switch text := goErrorTexts[name]; {
	case depth == 0 && !p.inInterface && (p.o.Depth >= 0 || text == ""):
		if held := goDynamic(desc, word, data); held != nil {
			p.inInterface = true
			p.b.WriteString(": ")
			p.value(held, 0)
			p.inInterface = false
		}
	case text != "":
		if held := goDynamic(desc, word, data); held != nil {
			p.goErrorText(held, text)
		}
	}
	p.b.WriteByte('}')
}

// goErrorTexts are the members that have the text of errors of Go's library, which
// is written wherever there is one.
var goErrorTexts = map[string]string{"*errors.errorString": "s", "*fmt.wrapError": "msg", "*fmt.wrapErrors": "msg"}

// goErrorText writes an error with the member that has its text alone.
func (p *printer) goErrorText(held *Value, text string) {
	t := held.Type.Strip()
	m := memberOf(t, text)
	if m == nil {
		return
	}
	p.b.WriteString(": {" + text + " = ")
	p.value(held.part(m.Type, m.Offset), 1)
	if len(t.Members()) > 1 {
		p.b.WriteString(", ...")
	}
	p.b.WriteByte('}')
}

// goDynamic returns what is in an interface: word is the value itself or its
// address. Of a pointer it is what that points to. It is nil where that is not
// known.
func goDynamic(desc, word *Value, data uint64) *Value {
	base, ok := desc.f.r.goTypes(desc.f)
	if !ok || data == 0 {
		return nil
	}
	t := desc.Type.RuntimeType(desc.addr - base)
	if t == nil {
		return nil
	}
	kind, err := desc.member("Kind_")
	flags, err2 := desc.member("TFlag")
	if err != nil && err2 != nil { // until Go 1.20
		kind, err = desc.member("kind")
		flags, err2 = desc.member("tflag")
	}
	if err != nil || err2 != nil {
		return nil
	}
	// Until Go 1.25 it is a flag of the kind, then one of the others.
	const directIface = 1 << 5
	what := word.f.at(t, data)
	switch isDirect := (kind|flags)&directIface != 0; {
	case isDirect && goKind(t) == goPointer:
		what = word.f.at(t.Strip().Elem(), data)
	case isDirect:
		what = word.as(t)
	}
	return what
}

// goTypeName reads the name of a type from its description at run time: a
// reference to a flag byte, a length and the name (package internal/abi).
func (v *Value) goTypeName() (string, bool) {
	t := v.Type.Strip()
	str, flag := memberOf(t, "Str"), memberOf(t, "TFlag")
	if str == nil && flag == nil { // until Go 1.20
		str, flag = memberOf(t, "str"), memberOf(t, "tflag")
	}
	base, ok := v.f.r.goTypes(v.f)
	if str == nil || flag == nil || !ok {
		return "", false
	}
	off, err := v.bytes(str.Offset, 4)
	if err != nil {
		return "", false
	}
	flags, err := v.bytes(flag.Offset, 1)
	if err != nil {
		return "", false
	}
	at := base + decode(unsigned, off).bits
	var head [3]byte
	if v.f.r.read(at, head[:]) != nil {
		return "", false
	}
	n, size := int(head[1]), 1
	if n >= 0x80 {
		n, size = n&0x7f|int(head[2])<<7, 2
	}
	name := make([]byte, n)
	if n == 0 || n > maxTypeName || v.f.r.read(at+1+uint64(size), name) != nil {
		return "", false
	}
	const extraStar = 1 << 1 // the name has a star that is not part of it
	if flags[0]&extraStar != 0 {
		name = name[1:]
	}
	return string(name), true
}

const maxTypeName = 1 << 12

// goTypes returns the run-time address that references to names of types count
// from, in the program of a frame.
func (r *Reader) goTypes(f *frame) (uint64, bool) {
	vaddr, ok := r.types[f.image]
	if !ok {
		f.image.EachSymbol(func(s *procstate.ELFSymbol) bool {
			if string(s.Name) == "runtime.types" {
				vaddr = s.Value
			}
			return vaddr == 0
		})
		r.types[f.image] = vaddr
	}
	return vaddr + f.bias, vaddr != 0
}

// goFunc writes a function value: the address of a closure, which begins with
// that of the code.
func (p *printer) goFunc(v *Value) {
	closure, err := v.word()
	if err != nil {
		p.b.WriteString(Unknown(err))
		return
	}
	if closure == 0 {
		p.b.WriteString("nil")
		return
	}
	p.b.WriteString(hex(closure))
	code := v.f.at(v.Type, closure)
	if addr, err := code.word(); err == nil {
		p.b.WriteString(nameIn(p.o.Code, addr))
	}
}

// bytesAt writes a string of known length.
func (p *printer) bytesAt(f *frame, addr, n uint64) {
	b := make([]byte, min(uint64(p.o.Elements), n))
	if err := f.r.read(addr, b); err != nil {
		p.b.WriteString(Unknown(err))
		return
	}
	p.quotedPart(textual{width: 1}, b, n)
}
