package variables

import (
	"fmt"
	"strings"

	"github.com/swbpf/swbpf/symbols"
)

// The types of C++'s library, but for containers of nodes. Of the members that are named here those that begin
// with _M_ are of libstdc++, others of libc++, also in the forms that they had in
// earlier releases.

// findAny is find for a member that has one of several names.
func (v *Value) findAny(names ...string) *Value {
	for _, name := range names {
		if found := v.find(name); found != nil {
			return found
		}
	}
	return nil
}

// first returns what a compressed pair of libc++ has as the first, and other
// values as they are.
func (v *Value) first() *Value {
	if v != nil && v.Type.Strip().IsStruct() {
		return v.find("__value_")
	}
	return v
}

func (p *printer) cppString(v *Value, _ int) bool {
	data, length := v.find("_M_dataplus", "_M_p"), v.find("_M_string_length")
	char := data.pointee()
	if data == nil && length != nil {
		data, char = v.hiddenPointer()
	}
	if data == nil || char == nil || length == nil {
		return p.llvmString(v)
	}
	w, ok := numbers(data, length)
	if !ok {
		return false
	}
	room, ok := v.find("_M_allocated_capacity").number()
	if local := v.find("_M_local_buf"); local != nil && local.memory && local.addr == w[0] {
		room = local.size
	}
	return ok && w[1] <= room && p.countedText(v.f, char, w[0], w[1])
}

// hiddenPointer returns the pointer in a string of libstdc++ and the type of
// characters, where the struct that has it is but declared, as clang leaves it:
// there is room for no more than that before the next member.
func (v *Value) hiddenPointer() (pointer *Value, char *symbols.Type) {
	t := v.Type.Strip().Definition()
	hider, next := memberOf(t, "_M_dataplus"), memberOf(t, "_M_string_length")
	if hider == nil || next == nil || !hider.Type.Strip().Definition().Incomplete || next.Offset-hider.Offset != uint64(v.f.arch().AddressWidth) {
		return nil, nil
	}
	return v.part(next.Type, hider.Offset), v.typeArgument(0)
}

// llvmString writes a string of libc++. One bit tells short ones, which are within
// the string itself.
func (p *printer) llvmString(v *Value) bool {
	rep := v.findAny("__rep_", "__r_")
	if rep != nil && rep.find("__s") == nil {
		rep = rep.first()
	}
	if rep == nil {
		return false
	}
	isLong, ok := rep.find("__s", "__is_long_").number()
	if !ok {
		return false
	}
	if isLong != 0 {
		data := rep.find("__l", "__data_")
		w, ok := numbers(data, rep.find("__l", "__size_"), rep.find("__l", "__cap_"))
		return ok && data.pointee() != nil && w[1]/2 <= w[2] && p.countedText(v.f, data.pointee(), w[0], w[1])
	}
	n, ok := rep.find("__s", "__size_").number()
	data := rep.find("__s", "__data_")
	if !ok || data == nil || data.Type.Strip().Kind != symbols.KindArray {
		return false
	}
	x, ok := textOf(data.Type.Strip().Elem())
	if !ok || n > data.size/uint64(x.width) {
		return false
	}
	b, err := data.bytes(0, int(min(n, uint64(p.o.Elements)))*x.width)
	if err != nil {
		return false
	}
	p.quotedPart(x, b, n)
	return true
}

func (p *printer) cppStringView(v *Value, _ int) bool {
	data := v.findAny("_M_str", "__data_", "__data")
	w, ok := numbers(data, v.findAny("_M_len", "__size_", "__size"))
	return ok && data.pointee() != nil && p.countedText(v.f, data.pointee(), w[0], w[1])
}

func (p *printer) cppVector(v *Value, depth int) bool {
	begin, end, room := v.find("_M_impl", "_M_start"), v.find("_M_impl", "_M_finish"), v.find("_M_impl", "_M_end_of_storage")
	if begin == nil {
		begin, end, room = v.find("__begin_"), v.find("__end_"), v.findAny("__end_cap_", "__cap_").first()
	}
	elem := begin.pointee()
	if elem == nil || end == nil {
		return p.cppBits(v, begin)
	}
	size, ok := v.f.sizeOf(elem)
	w, known := numbers(begin, end, room)
	if !ok || size == 0 || !known || w[0] > w[1] || w[1] > w[2] || (w[1]-w[0])%size != 0 || (w[2]-w[0])%size != 0 {
		return false
	}
	n := (w[1] - w[0]) / size
	head := fmt.Sprintf("%s of length %d, capacity %d", v.cppName(), n, (w[2]-w[0])/size)
	return p.sequence(v.f, head, elem, w[0], n, depth)
}

// cppBits writes a vector of bool, which has a bit for each.
func (p *printer) cppBits(v, begin *Value) bool {
	var addr, n, room uint64
	if word := begin.pointee(); word != nil { // of libc++
		size, ok := v.f.sizeOf(word)
		w, known := numbers(begin, v.find("__size_"), v.findAny("__cap_alloc_", "__cap_").first())
		if !ok || !known || w[2] > maxArray {
			return false
		}
		addr, n, room = w[0], w[1], w[2]*8*size
	} else {
		if begin == nil {
			return false
		}
		end := v.find("_M_impl", "_M_finish")
		w, ok := numbers(begin.find("_M_p"), begin.find("_M_offset"), end.find("_M_p"), end.find("_M_offset"), v.find("_M_impl", "_M_end_of_storage"))
		if !ok || w[1] != 0 || w[0] > w[2] || w[2] > w[4] || w[4]-w[0] > maxArray {
			return false
		}
		addr, n, room = w[0], 8*(w[2]-w[0])+w[3], 8*(w[4]-w[0])
	}
	shown := min(n, uint64(p.o.Elements))
	b := make([]byte, (shown+7)/8)
	if n > room || v.f.r.read(addr, b) != nil {
		return false
	}
	fmt.Fprintf(&p.b, "std::vector<bool> of length %d, capacity %d", n, room)
	if n == 0 {
		return true
	}
	p.b.WriteString(" = ")
	p.within(func() {
		p.b.WriteByte('{')
		for i := range shown {
			if i > 0 {
				p.b.WriteString(", ")
			}
			fmt.Fprint(&p.b, b[i/8]>>(i%8)&1 != 0)
		}
		if shown < n {
			p.b.WriteString("...")
		}
		p.b.WriteByte('}')
	})
	return true
}

func (p *printer) cppArray(v *Value, depth int) bool {
	elems, elem := v.findAny("_M_elems", "__elems_"), v.typeArgument(0)
	if elems == nil || elem == nil || elems.Type.Strip().Kind != symbols.KindArray || !sameType(elems.Type.Strip().Elem(), elem) {
		return false // without elements
	}
	p.value(elems, depth)
	return true
}

// got writes a pointer that an object holds, after what the object is.
func (p *printer) got(head string, pointer *Value) bool {
	p.b.WriteString(head + " = {get() = ")
	p.value(pointer, 1)
	p.b.WriteByte('}')
	return true
}

// heldName is the name of a class template with its first argument: "std::optional<int>".
func (v *Value) heldName() (string, bool) {
	held := v.typeArgument(0)
	if held == nil {
		return "", false
	}
	return v.cppName() + "<" + shortTypeName(held) + ">", true
}

func (p *printer) cppUniquePtr(v *Value, _ int) bool {
	name, ok := v.heldName()
	pointer := v.find("__ptr_").first()
	if t := v.find("_M_t"); t != nil {
		if inner := t.find("_M_t"); inner != nil {
			t = inner
		}
		if parts := t.tupleParts(nil, 0); len(parts) > 0 {
			pointer = parts[0]
		}
	}
	if _, known := pointer.number(); !ok || !known || pointer.pointee() == nil {
		return false
	}
	return p.got(name, pointer)
}

// cppSharedPtr writes a shared or weak pointer with the number of its owners. Those
// of weak ones count as one more as long as there are others.
func (p *printer) cppSharedPtr(v *Value, _ int) bool {
	name, ok := v.heldName()
	pointer, control := v.find("_M_ptr"), v.find("_M_refcount", "_M_pi")
	if pointer == nil {
		pointer, control = v.find("__ptr_"), v.find("__cntrl_")
	}
	counts := control.pointee()
	w, known := numbers(pointer, control)
	if !ok || !known || pointer.pointee() == nil || counts == nil {
		return false
	}
	if w[1] == 0 {
		return p.got(name+" (empty)", pointer)
	}
	at := v.f.at(counts, w[1])
	used, weak, more := at.find("_M_use_count"), at.find("_M_weak_count"), 0
	if used == nil {
		used, weak, more = at.find("__shared_owners_"), at.find("__shared_weak_owners_"), 1
	}
	c, ok := numbers(used, weak)
	if !ok {
		return false
	}
	owners, observers := int32(c[0])+int32(more), int32(c[1])+int32(more)
	switch {
	case owners < 0 || observers < 0:
		return false
	case owners > 0:
		return p.got(fmt.Sprintf("%s (use count %d, weak count %d)", name, owners, observers-1), pointer)
	}
	return p.got(fmt.Sprintf("%s (expired, weak count %d)", name, observers), pointer)
}

func (p *printer) cppOptional(v *Value, depth int) bool {
	name, ok := v.heldName()
	if !ok {
		return false
	}
	engaged, held := v.find("_M_payload", "_M_engaged"), v.find("_M_payload", "_M_payload")
	if held != nil && !sameType(held.Type, v.typeArgument(0)) {
		held = held.find("_M_value")
	}
	if engaged == nil {
		engaged, held = v.find("__engaged_"), v.find("__val_")
	}
	has, known := engaged.number()
	if !known || held == nil || has > 1 {
		return false
	}
	if has == 0 {
		p.b.WriteString(name + " [no contained value]")
		return true
	}
	p.b.WriteString(name + " = {[contained value] = ")
	p.value(held, depth)
	p.b.WriteByte('}')
	return true
}

func (p *printer) cppPair(v *Value, depth int) bool {
	first, second := v.find("first"), v.find("second")
	switch {
	case first == nil || second == nil:
		return false
	case depth >= p.o.Depth:
		p.b.WriteString("{...}")
		return true
	}
	p.b.WriteString("{first = ")
	p.value(first, depth+1)
	p.b.WriteString(", second = ")
	p.value(second, depth+1)
	p.b.WriteByte('}')
	return true
}

// tupleParts appends the elements of a tuple. libstdc++ has each in a base class
// of its own, and the further ones in another; libc++ has all in base classes of
// one member.
func (v *Value) tupleParts(dst []*Value, depth int) []*Value {
	if depth > maxFindDepth {
		return nil
	}
	if base := v.find("__base_"); base != nil && depth == 0 {
		v = base
	}
	var rest *Value
	for _, m := range v.Type.Strip().Definition().Members() {
		if !m.Base || m.Place != nil {
			continue
		}
		part := v.part(m.Type, m.Offset)
		switch t := m.Type.Strip(); {
		case strings.HasPrefix(t.Name, "_Head_base"), strings.HasPrefix(t.Name, "__tuple_leaf"):
			own := part.findAny("_M_head_impl", "__value_")
			if own == nil {
				own = part // of an empty class, which is a base class itself
			}
			dst = append(dst, own)
		case strings.HasPrefix(t.Name, "_Tuple_impl"):
			rest = part
		}
	}
	if rest != nil {
		return rest.tupleParts(dst, depth+1)
	}
	return dst
}

func (p *printer) cppTuple(v *Value, depth int) bool {
	parts := v.tupleParts(nil, 0)
	switch t := v.Type.Strip().Definition(); {
	case len(parts) == 0 && (t.Incomplete || len(t.Members()) > 0):
		return false
	case len(parts) == 0:
		p.b.WriteString("empty std::tuple")
		return true
	}
	p.b.WriteString("std::tuple containing = ")
	if depth >= p.o.Depth {
		p.b.WriteString("{...}")
		return true
	}
	for i, part := range parts {
		if i == 0 {
			p.b.WriteByte('{')
		} else {
			p.b.WriteString(", ")
		}
		fmt.Fprintf(&p.b, "[%d] = ", i+1)
		p.value(part, depth+1)
	}
	p.b.WriteByte('}')
	return true
}

func (p *printer) cppVariant(v *Value, depth int) bool {
	types := v.Type.Strip().Definition().Arguments()
	index, storage := v.find("_M_index"), v.find("_M_u")
	rest, first, held := "_M_rest", "_M_first", "_M_storage"
	if index == nil {
		impl := v.findAny("__impl_", "__impl")
		if impl == nil {
			return false
		}
		index, storage = impl.find("__index"), impl.find("__data")
		rest, first, held = "__tail", "__head", "__value"
	}
	n, ok := index.number()
	if !ok || len(types) == 0 {
		return false
	}
	var names []string
	for _, t := range types {
		names = append(names, shortTypeName(t))
	}
	name := "std::variant<" + strings.Join(names, ", ") + ">"
	if none := ^uint64(0) >> (64 - 8*index.size); n == none {
		p.b.WriteString(name + " [no contained value]")
		return true
	}
	if n >= uint64(len(types)) {
		return false
	}
	for range n {
		if storage = storage.find(rest); storage == nil {
			return false
		}
	}
	at := storage.find(first, held)
	if at == nil {
		return false
	}
	size, ok := v.f.sizeOf(types[n])
	if !ok || !at.sized || at.size < size {
		return false
	}
	fmt.Fprintf(&p.b, "%s [index %d] = {", name, n)
	p.value(at.part(types[n], 0), depth)
	p.b.WriteByte('}')
	return true
}

func (p *printer) cppAtomic(v *Value, depth int) bool {
	name, ok := v.heldName()
	held := v.findAny("_M_i", "_M_fp")
	for _, path := range [][]string{{"_M_base", "_M_i"}, {"_M_b", "_M_p"}, {"__a_", "__a_value"}} {
		if held == nil {
			held = v.find(path...)
		}
	}
	if !ok || held == nil || !sameType(held.Type, v.typeArgument(0)) {
		return false
	}
	p.b.WriteString(name + " = { ")
	p.value(held, depth)
	p.b.WriteString(" }")
	return true
}
