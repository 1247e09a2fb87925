package variables

import (
	"fmt"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
)

// standard writes a value of a type of a standard library by what it means: as
// gdb does with the pretty-printers that come with the library. Types are
// recognised by name and members, of libstdc++, libc++ and Rust's library. It
// reports whether it wrote something; else the type or the value is not as the
// library makes it, and is to be written as it is.
func (p *printer) standard(v *Value, t *symbols.Type, depth int) bool {
	if p.o.Raw || !t.IsStruct() {
		return false
	}
	from := p.b.Len()
	if p.standardRust(v, t, depth) || p.standardCpp(v, t, depth) {
		return true
	}
	p.b.Truncate(from)
	return false
}

// Standard reports whether the value is, or refers to, one of a standard library
// that is written by what it means, such as a string or a vector.
func (v *Value) Standard() bool {
	if v.f == nil {
		return false
	}
	t := v.Type.Strip()
	if t.Kind == symbols.KindReference || t.Kind == symbols.KindRvalueReference {
		if v, t = v.standardTarget(t); v == nil {
			return false
		}
	}
	p := printer{o: Format{Elements: 1, Depth: -1}, r: v.f.r}
	defer p.limitReads()()
	return p.standard(v, t, 0)
}

// standardTarget returns what a reference of type t refers to, and the type of it;
// nil when that is certainly not of a standard library.
func (v *Value) standardTarget(t *symbols.Type) (*Value, *symbols.Type) {
	if to := t.Elem().Strip(); !to.IsStruct() {
		return nil, nil
	}
	to, err := v.Target()
	if err != nil {
		return nil, nil
	}
	return to, to.Type.Strip()
}

// standardCpp writes a value of a type of C++'s library.
func (p *printer) standardCpp(v *Value, t *symbols.Type, depth int) bool {
	name, _, _ := strings.Cut(t.Name, "<")
	var write func(v *Value, depth int) bool
	switch name {
	case "basic_string":
		write = p.cppString
	case "basic_string_view":
		write = p.cppStringView
	case "vector":
		write = p.cppVector
	case "array":
		write = p.cppArray
	case "unique_ptr":
		write = p.cppUniquePtr
	case "shared_ptr", "weak_ptr":
		write = p.cppSharedPtr
	case "optional":
		write = p.cppOptional
	case "pair":
		write = p.cppPair
	case "tuple":
		write = p.cppTuple
	case "variant":
		write = p.cppVariant
	case "atomic":
		write = p.cppAtomic
	case "map", "multimap", "set", "multiset":
		write = p.cppTree
	case "unordered_map", "unordered_multimap", "unordered_set", "unordered_multiset":
		write = p.cppHash
	case "list":
		write = p.cppList
	case "forward_list":
		write = p.cppForwardList
	case "deque":
		write = p.cppDeque
	default:
		return false
	}
	return isCppScope(t.Scope()) && write(v, depth)
}

// isCppScope reports whether names are those of C++'s library: it has some in
// namespaces that tell its versions apart.
func isCppScope(scope string) bool {
	switch scope {
	case "std::", "std::__cxx11::", "std::__8::", "std::__1::", "std::__2::", "std::__ndk1::", "std::__Cr::":
		return true
	}
	return false
}

// cppName is the name of a class template of C++'s library, as it is written in
// programs: "std::vector".
func (v *Value) cppName() string {
	name, _, _ := strings.Cut(v.Type.Strip().Name, "<")
	return "std::" + name
}

// typeArgument returns a type that the class template of a value was made with,
// or nil.
func (v *Value) typeArgument(i int) *symbols.Type {
	if args := v.Type.Strip().Definition().Arguments(); i < len(args) {
		return args[i]
	}
	return nil
}

// sameType reports whether two types are the same, as they stand in one unit or
// in several, behind names and qualifiers.
func sameType(a, b *symbols.Type) bool {
	a, b = a.Strip(), b.Strip()
	return a == b || a.Kind == b.Kind && a.String() == b.String()
}

// shorterNames are those of strings.
var shorterNames = strings.NewReplacer(
	"std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >", "std::string",
	"std::__1::basic_string<char, std::__1::char_traits<char>, std::__1::allocator<char> >", "std::string",
	"std::__1::", "std::", "std::__cxx11::", "std::")

func shortTypeName(t *symbols.Type) string { return shorterNames.Replace(t.String()) }

// Bounds on the search for a member: base classes in one another, and members
// looked at.
const (
	maxFindDepth = 16
	maxFound     = 256
)

// find returns the member of a struct that a path of names leads to, of base
// classes and members without a name included; nil when there is none.
func (v *Value) find(path ...string) *Value {
	for _, name := range path {
		left := maxFound
		if v == nil {
			return nil
		}
		v = v.findMember(name, 0, &left)
	}
	return v
}

func (v *Value) findMember(name string, depth int, left *int) *Value {
	members := v.Type.Strip().Definition().Members()
	for i := range members {
		m := &members[i]
		if *left--; *left < 0 {
			return nil
		}
		if m.Place != nil {
			continue // no standard library has virtual bases where this looks
		}
		if !m.Base && m.Name == name {
			return v.memberValue(m)
		}
		if (m.Base || m.Name == "") && depth < maxFindDepth && m.Type.Strip().IsStruct() {
			if found := v.part(m.Type, m.Offset).findMember(name, depth+1, left); found != nil {
				return found
			}
		}
	}
	return nil
}

// memberValue returns a member, be it a bit field.
func (v *Value) memberValue(m *symbols.Member) *Value {
	if m.BitSize == 0 {
		return v.part(m.Type, m.Offset)
	}
	b, err := v.bits(m.BitOffset, m.BitSize)
	size, ok := m.Type.Strip().Size()
	if err != nil || !ok || size > 16 || m.BitSize > 8*size {
		return nil
	}
	data := make([]byte, size)
	copy(data, b)
	return &Value{Type: m.Type, f: v.f, size: size, sized: true, data: data, why: make([]error, size)}
}

// findDeep returns the first pointer of a name in a struct and the structs in it,
// or nil.
func (v *Value) findDeep(name string, depth int, left *int) *Value {
	members := v.Type.Strip().Definition().Members()
	for i := range members {
		m := &members[i]
		if *left--; *left < 0 || m.Place != nil || m.BitSize != 0 {
			return nil
		}
		part := v.part(m.Type, m.Offset)
		switch t := m.Type.Strip(); {
		case t.Kind == symbols.KindPointer && m.Name == name:
			return part
		case t.IsStruct() && depth < maxFindDepth:
			if found := part.findDeep(name, depth+1, left); found != nil {
				return found
			}
		}
	}
	return nil
}

// number returns the value of an integer without a sign, a bool or a pointer.
func (v *Value) number() (uint64, bool) {
	if v == nil || !v.sized || v.size == 0 || v.size > 8 {
		return 0, false
	}
	switch t := v.Type.Strip(); t.Kind {
	case symbols.KindBase, symbols.KindPointer, symbols.KindEnum:
	default:
		return 0, false
	}
	b, err := v.bytes(0, int(v.size))
	if err != nil {
		return 0, false
	}
	return decode(unsigned, b).bits, true
}

// numbers is number of several values.
func numbers(values ...*Value) (out []uint64, ok bool) {
	for _, v := range values {
		n, ok := v.number()
		if !ok {
			return nil, false
		}
		out = append(out, n)
	}
	return out, true
}

// pointee returns the type that a value points to; nil when it is no pointer.
func (v *Value) pointee() *symbols.Type {
	if v == nil {
		return nil
	}
	if t := v.Type.Strip(); t.Kind == symbols.KindPointer {
		return t.Elem()
	}
	return nil
}

// countedText writes n characters of a type at an address, as far as the limit
// allows. It does not when they cannot be.
func (p *printer) countedText(f *frame, char *symbols.Type, addr, n uint64) bool {
	x, ok := textOf(char)
	if !ok || n > maxArray {
		return false
	}
	b := make([]byte, min(uint64(p.o.Elements), n)*uint64(x.width))
	if f.r.read(addr, b) != nil {
		return false
	}
	p.quotedPart(x, b, n)
	return true
}

// quotedPart writes the first of n characters; of one that the limit cuts, nothing.
func (p *printer) quotedPart(x textual, b []byte, n uint64) {
	more := uint64(len(b)/x.width) < n
	if more {
		for i := 1; i < 4 && i < len(b) && x.width == 1; i++ {
			if e := x.next(b[len(b)-i:]); e.cut {
				b = b[:len(b)-i]
				break
			}
		}
	}
	p.quoted(x, b, more)
}

// sequence writes n elements that lie in a row, as those of an array, after a
// head that tells what they are. It does not when they cannot be read.
func (p *printer) sequence(f *frame, head string, elem *symbols.Type, addr, n uint64, depth int) bool {
	size, ok := f.sizeOf(elem)
	if !ok || size == 0 || n > maxArray/size {
		return false
	}
	if n > 0 {
		var first, last [1]byte
		if f.r.read(addr, first[:]) != nil || f.r.read(addr+n*size-1, last[:]) != nil {
			return false
		}
	}
	p.b.WriteString(head)
	if n == 0 {
		return true
	}
	p.b.WriteString(" = ")
	p.within(func() {
		p.elements(f.at(elem, addr), size, int64(n), func(part *Value) { p.value(part.as(elem), depth) })
	})
	return true
}

// within writes the elements of a container, but for containers in too many
// others, or where nothing of structs is to be written.
func (p *printer) within(write func()) {
	if p.o.Depth < 0 || p.slices == maxSlices {
		p.b.WriteString("{...}")
		return
	}
	p.slices++
	write()
	p.slices--
}

// chain writes the n elements of a container that are found one after the other,
// by next, which returns nil where there is none. It reports false when they are
// fewer.
func (p *printer) chain(head string, n uint64, next func() *Value, write func(i int, v *Value)) bool {
	p.b.WriteString(head)
	if n == 0 {
		return true
	}
	p.b.WriteString(" = ")
	whole := true
	p.within(func() {
		p.b.WriteByte('{')
		for i := 0; uint64(i) < n; i++ {
			if i >= p.o.Elements || p.b.Len() > maxText {
				p.b.WriteString("...")
				break
			}
			v := next()
			if whole = v != nil; !whole {
				return
			}
			if i > 0 {
				p.b.WriteString(", ")
			}
			write(i, v)
		}
		p.b.WriteByte('}')
	})
	return whole
}

// numbered returns what writes an element of a chain behind its number.
func (p *printer) numbered(depth int) func(i int, v *Value) {
	return func(i int, v *Value) {
		fmt.Fprintf(&p.b, "[%d] = ", i)
		p.value(v, depth)
	}
}

// keyed is numbered for pairs of a key and a value.
func (p *printer) keyed(depth int) func(i int, v *Value) {
	number := p.numbered(depth)
	return func(i int, v *Value) {
		key, value := v.find("first"), v.find("second")
		if key == nil || value == nil {
			number(i, v)
			return
		}
		p.b.WriteByte('[')
		p.value(key, depth)
		p.b.WriteString("] = ")
		p.value(value, depth)
	}
}

// withElements writes "std::map with 3 elements".
func withElements(name string, n uint64) string {
	if n == 1 {
		return name + " with 1 element"
	}
	return fmt.Sprintf("%s with %d elements", name, n)
}

// behind returns the offset of a value of a type that lies in a struct behind a
// base class; ok is false when the debug information does not tell.
func (f *frame) behind(base, elem *symbols.Type) (off uint64, ok bool) {
	size, ok := f.sizeOf(base)
	if !ok || size == 0 {
		return 0, false
	}
	left := maxFound
	align, ok := f.alignment(elem, 0, &left)
	if !ok {
		return 0, false
	}
	return (size + align - 1) / align * align, true
}

// alignment returns what values of a type are aligned to, in bytes: as the ABIs of
// System V and ARM have it for C, or as the program says. ok is false where that
// is not all, as in a packed struct.
func (f *frame) alignment(t *symbols.Type, depth int, left *int) (align uint64, ok bool) {
	if *left--; *left < 0 || depth > maxFindDepth {
		return 0, false
	}
	said := uint64(1)
	for range maxNames {
		said = max(said, t.Alignment)
		if t.Kind != symbols.KindTypedef && t.Kind != symbols.KindConst && t.Kind != symbols.KindVolatile && t.Kind != symbols.KindOther {
			break
		}
		t = t.Elem()
	}
	t = t.Definition()
	size, sized := t.Size()
	if name, _, _ := strings.Cut(t.Name, "<"); name == "basic_string" && isCppScope(t.Scope()) {
		return uint64(f.arch().AddressWidth), true // clang leaves out what is in it
	}
	switch t.Kind {
	case symbols.KindStruct, symbols.KindClass, symbols.KindUnion:
		align = max(said, t.Alignment)
		for _, m := range t.Members() {
			of, ok := f.alignment(m.Type, depth+1, left)
			of = max(of, m.Alignment)
			if !ok || m.BitSize == 0 && m.Offset%of != 0 {
				return 0, false
			}
			align = max(align, of)
		}
	case symbols.KindArray:
		if align, ok = f.alignment(t.Elem(), depth+1, left); !ok {
			return 0, false
		}
		if t.Vector {
			align = size
		}
		align = max(align, said)
	default:
		// Numbers of eight bytes are aligned to four or eight on i386, by where they are.
		if sized && size > 4 && f.arch() == procstate.I386 {
			return 0, false
		}
		align = max(size, said)
	}
	if !sized || align == 0 || align > 1<<16 || align&(align-1) != 0 || size%align != 0 && t.Kind != symbols.KindArray {
		return 0, false
	}
	return align, true
}
