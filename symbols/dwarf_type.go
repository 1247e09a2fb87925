package symbols

import "debug/dwarf"

// Attributes of types that debug/dwarf does not name.
const (
	attrGoKind        dwarf.Attr = 0x2900
	attrDataBitOffset dwarf.Attr = 0x6b
	attrEnumClass     dwarf.Attr = 0x6d
	attrGNUVector     dwarf.Attr = 0x2107
	attrDiscr         dwarf.Attr = 0x15
	attrDiscrValue    dwarf.Attr = 0x16
)

// Limits on one type.
const (
	maxMembers     = 1 << 16
	maxTypes       = 1 << 14 // that are kept of a file
	maxDimensions  = 64
	tagAtomicType  = dwarf.Tag(0x47)
	tagInheritance = dwarf.TagInheritance
	tagVariantPart = dwarf.Tag(0x33)
	tagVariant     = dwarf.Tag(0x19)

	// tagGNUTemplatePack is DW_TAG_GNU_template_parameter_pack.
	tagGNUTemplatePack = dwarf.Tag(0x4107)
)

var typeKinds = map[dwarf.Tag]TypeKind{
	dwarf.TagBaseType: KindBase, dwarf.TagPointerType: KindPointer, dwarf.TagReferenceType: KindReference,
	dwarf.TagRvalueReferenceType: KindRvalueReference, dwarf.TagPtrToMemberType: KindMemberPointer,
	dwarf.TagEnumerationType: KindEnum, dwarf.TagStructType: KindStruct, dwarf.TagClassType: KindClass,
	dwarf.TagUnionType: KindUnion, dwarf.TagArrayType: KindArray, dwarf.TagSubroutineType: KindFunction,
	dwarf.TagTypedef: KindTypedef, dwarf.TagConstType: KindConst, dwarf.TagVolatileType: KindVolatile,
	dwarf.TagRestrictType: KindOther, dwarf.TagSharedType: KindOther, tagAtomicType: KindOther,
	dwarf.TagUnspecifiedType: KindVoid, dwarf.TagTemplateAlias: KindTypedef, dwarf.TagSubrangeType: KindTypedef,
}

// typeOf returns the type that an attribute of e refers to.
func (e *die) typeOf(attr dwarf.Attr) *Type {
	if e.get(attr).value.form == 0 {
		return voidType
	}
	r := e.referred(attr)
	if r == nil {
		return &Type{}
	}
	return r.asType()
}

// asType returns the type that an entry describes. It is made once.
func (e *die) asType() *Type {
	if s := e.referred(dwarf.AttrSignature); s != nil {
		e = s // a declaration of what a type unit describes
	}
	d := e.d
	if t := d.types[e.off]; t != nil {
		return t
	}
	t := &Type{Kind: typeKinds[e.tag], Name: e.string(dwarf.AttrName), entry: e}
	if spec := e.referred(dwarf.AttrSpecification); spec != nil && t.Name == "" {
		t.Name = spec.string(dwarf.AttrName)
	}
	t.Encoding = Encoding(e.get(dwarf.AttrEncoding).value.u)
	t.GoKind = uint8(e.get(attrGoKind).value.u)
	t.Vector = e.has(attrGNUVector)
	t.Scoped = e.has(attrEnumClass)
	t.Incomplete = e.has(dwarf.AttrDeclaration)
	t.Alignment = e.get(dwarf.AttrAlignment).value.u
	if v := e.get(dwarf.AttrByteSize).value; isConstant(v.form) && v.u < maxObject && !t.Incomplete {
		t.size, t.hasSize = v.u, true
	}
	if d.types == nil || len(d.types) >= maxTypes {
		d.types = map[uint64]*Type{}
	}
	d.types[e.off] = t
	d.owner.budget.charge(typeMemory)
	return t
}

// typeMemory is about what a type takes with its members, in bytes.
const typeMemory = 600

// isConstant reports whether a value is a number and no reference.
func isConstant(f form) bool {
	switch f {
	case formData1, formData2, formData4, formData8, formSdata, formUdata, formImplicit:
		return true
	}
	return false
}

// load reads what a type consists of. It is called without the lock.
func (t *Type) load() {
	if t.entry == nil {
		return
	}
	e := t.entry
	e.d.lock()
	defer e.d.unlock()
	if t.done {
		return
	}
	t.done = true
	e.d.allowEntries(e.u)
	t.elem = e.typeOf(dwarf.AttrType)
	t.class = e.typeOf(dwarf.AttrContainingType)
	if e.tag == dwarf.TagSubrangeType && t.elem == voidType {
		t.elem = &Type{Kind: KindBase, Encoding: EncodingSigned, size: uint64(e.u.enc.addrSize), hasSize: true}
	}
	switch t.Kind {
	case KindStruct, KindClass, KindUnion, KindFunction, KindEnum, KindArray:
	default:
		return
	}
	err := e.eachChild(func(c *die) bool {
		switch {
		case c.tag == dwarf.TagEnumerator && t.Kind == KindEnum:
			t.enum = append(t.enum, Enumerator{c.string(dwarf.AttrName), int64(c.get(dwarf.AttrConstValue).value.u)})
		case c.tag == dwarf.TagSubrangeType && t.Kind == KindArray:
			t.dims = append(t.dims, c.dimension())
		case c.tag == dwarf.TagFormalParameter && t.Kind == KindFunction:
			t.members = append(t.members, Member{Type: c.typeOf(dwarf.AttrType)})
		case c.tag == tagVariantPart && t.IsStruct() && t.cases == nil:
			t.variants(c)
		case (c.tag == dwarf.TagMember || c.tag == tagInheritance) && t.IsStruct():
			if m, ok := c.member(); ok {
				t.members = append(t.members, m)
			}
		}
		return len(t.members) < maxMembers && len(t.enum) < maxMembers && len(t.dims) < maxDimensions
	})
	if err != nil {
		e.d.note(err)
	}
}

// variants reads the entry of a variant part.
func (t *Type) variants(e *die) {
	if c := e.referred(attrDiscr); c != nil {
		if m, ok := c.member(); ok {
			t.tag = &m
		}
	}
	err := e.eachChild(func(c *die) bool {
		if c.tag != tagVariant {
			return true
		}
		v := Variant{Value: int64(c.get(attrDiscrValue).value.u), Default: c.get(attrDiscrValue).value.form == 0}
		err := c.eachChild(func(m *die) bool {
			var ok bool
			if m.tag == dwarf.TagMember {
				v.Member, ok = m.member()
			}
			return !ok
		})
		if err == nil && v.Type != nil {
			t.cases = append(t.cases, v)
		}
		return err == nil && len(t.cases) < maxMembers
	})
	if err != nil {
		e.d.note(err)
	}
}

// Elem returns the type that a pointer or reference points to, of an array's
// elements, of a function's result, that an enumeration is stored as, or that
// a name or qualifier stands before.
func (t *Type) Elem() *Type {
	if t.load(); t.elem != nil {
		return t.elem
	}
	return voidType
}

// Members returns the base classes and members of a struct, class or union,
// in order, without static ones; of a function type its parameters.
func (t *Type) Members() []Member {
	t.load()
	return t.members
}

// Variants returns the forms that a value of the type can have, and the member
// that tells them apart; nil where there is but one form.
func (t *Type) Variants() (cases []Variant, tag *Member) {
	t.load()
	return t.cases, t.tag
}

// Arguments returns the types that a class template or generic type was made
// with, in order, those of a parameter pack included, without arguments that are
// no types.
func (t *Type) Arguments() []*Type {
	if t.entry == nil || !t.IsStruct() {
		return nil
	}
	e := t.entry
	e.d.lock()
	defer e.d.unlock()
	if !t.argumentsRead {
		t.argumentsRead = true
		e.d.allowEntries(e.u)
		t.arguments = e.templateTypes(nil, 0)
	}
	return t.arguments
}

// templateTypes appends the types that an entry, or a parameter pack in it, was
// made with.
func (e *die) templateTypes(dst []*Type, depth int) []*Type {
	err := e.eachChild(func(c *die) bool {
		switch {
		case c.tag == dwarf.TagTemplateTypeParameter:
			dst = append(dst, c.typeOf(dwarf.AttrType))
		case c.tag == tagGNUTemplatePack && depth == 0:
			dst = c.templateTypes(dst, depth+1)
		}
		return len(dst) < maxDimensions
	})
	if err != nil {
		e.d.note(err)
	}
	return dst
}

// Enumerators returns the names of an enumeration type.
func (t *Type) Enumerators() []Enumerator {
	t.load()
	return t.enum
}

// Dimensions returns those of an array, outermost first.
func (t *Type) Dimensions() []Dimension {
	t.load()
	return t.dims
}

// member reads the entry of a member; ok is false for static ones.
func (c *die) member() (m Member, ok bool) {
	if c.has(dwarf.AttrDeclaration) || c.has(dwarf.AttrExternal) {
		return m, false
	}
	m = Member{Name: c.string(dwarf.AttrName), Type: c.typeOf(dwarf.AttrType), Base: c.tag == tagInheritance,
		Alignment: c.get(dwarf.AttrAlignment).value.u}
	if at := c.get(dwarf.AttrDataMemberLoc); isConstant(at.value.form) {
		m.Offset = at.value.u
	} else if at.value.form != 0 {
		if n, plain := plusConstant(at.block); plain {
			m.Offset = n
		} else {
			m.Place = &Expression{Code: at.block, d: c.d, u: c.u}
		}
	}
	if m.Offset >= maxObject {
		return m, false
	}
	m.BitOffset = 8 * m.Offset
	v := c.get(dwarf.AttrBitSize).value
	if v.form == 0 {
		return m, true
	}
	if !isConstant(v.form) || v.u == 0 || v.u > 128 {
		return m, false
	}
	m.BitSize = v.u
	if v := c.get(attrDataBitOffset).value; v.form != 0 {
		m.BitOffset += v.u
	} else if v := c.get(dwarf.AttrBitOffset).value; v.form != 0 {
		// Before DWARF 4: bits from the most significant end of the storage.
		storage, _ := m.Type.entrySize()
		if s := c.get(dwarf.AttrByteSize).value; s.form != 0 {
			storage = s.u
		}
		m.BitOffset += 8*storage - v.u - m.BitSize
	}
	return m, m.BitOffset < 8*maxObject
}

// entrySize is Size, with the lock held.
func (t *Type) entrySize() (uint64, bool) {
	for range maxOrigins {
		if t.hasSize || t.entry == nil {
			break
		}
		t = t.entry.typeOf(dwarf.AttrType)
	}
	return t.size, t.hasSize
}

// plusConstant reads the expression DW_OP_plus_uconst N.
func plusConstant(code []byte) (n uint64, ok bool) {
	const opPlusUconst = 0x23
	c := cursor{b: code}
	ok = c.u8() == opPlusUconst
	n = c.uleb()
	return n, ok && !c.failed && c.off == len(code)
}

// dimension reads the entry of a subrange.
func (c *die) dimension() Dimension {
	dim := Dimension{Count: -1, Lower: int64(c.get(dwarf.AttrLowerBound).value.u)}
	upper := c.get(dwarf.AttrUpperBound)
	plus := int64(1) // an upper bound is inclusive
	if upper.value.form == 0 {
		upper, plus = c.get(dwarf.AttrCount), dim.Lower
	}
	switch f := upper.value.form; {
	case f == 0:
	case isConstant(f):
		n := int64(upper.value.u)
		// -1, in any width: an array of no known size.
		if f == formData4 && n == 1<<32-1 || f == formData8 && n == -1 {
			n = -1
		}
		if n = n - dim.Lower + plus; n >= 0 && n < maxObject {
			dim.Count = n
		}
	case upper.block != nil:
		dim.Upper = &Expression{Code: upper.block, d: c.d, u: c.u}
	default:
		if e := c.referred(upper.attr); e != nil {
			dim.Bound = &Variable{list: e.completed()}
		}
	}
	if dim.Upper != nil || dim.Bound != nil {
		dim.Lower += 1 - plus
	}
	return dim
}

// qualify reads the name of a type with those of the namespaces and types
// around it. It is called without the lock.
func (t *Type) qualify() {
	if t.entry == nil || t.Name == "" && t.Kind != KindEnum || t.GoKind != 0 {
		return
	}
	e := t.entry
	e.d.lock()
	defer e.d.unlock()
	if t.prefixed {
		return
	}
	t.prefixed = true
	e.d.allowEntries(e.u)
	if list := e.completed(); len(list) > 1 {
		e = list[len(list)-1] // the declaration is where the name belongs
	}
	root, err := e.d.dieAt(e.u.root)
	if err == nil && hasNamespaces(root.get(dwarf.AttrLanguage).value.u) {
		t.prefix, err = root.namesAround(e.off)
	}
	if err != nil {
		e.d.note(err)
	}
}

// hasNamespaces reports whether names of a language (DWARF 5, table 7.17) can
// lie within others.
func hasNamespaces(language uint64) bool {
	switch language {
	case 0x01, 0x02, 0x0c, 0x1d, 0x2c, 0x16: // C89, C, C99, C11, C17, Go
		return false
	}
	return true
}

// namesAround returns the names of the entries around the one at an offset:
// "std::chrono::".
func (e *die) namesAround(off uint64) (names string, err error) {
	for at := e.end; at < e.u.end; {
		c := &die{}
		if err := e.d.readEntry(e.u, at, c, true); err != nil || c.null || c.off == off {
			return names, err
		}
		next, err := c.after()
		if err != nil {
			return names, err
		}
		if off >= next {
			at = next
			continue
		}
		if err := e.d.readEntry(e.u, at, c, false); err != nil {
			return names, err
		}
		switch c.tag {
		case dwarf.TagNamespace, dwarf.TagStructType, dwarf.TagClassType, dwarf.TagUnionType:
			if name := c.string(dwarf.AttrName); name != "" {
				names += name + "::"
			} else if c.tag == dwarf.TagNamespace {
				names += "(anonymous namespace)::"
			}
		}
		at = c.end
	}
	return names, nil
}
