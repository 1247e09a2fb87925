package symbols

import (
	"strconv"
	"strings"
)

// TypeKind says what a Type is.
type TypeKind uint8

// The kinds of type.
const (
	KindUnknown TypeKind = iota
	KindVoid
	KindBase
	KindPointer
	KindReference
	KindRvalueReference
	KindMemberPointer
	KindEnum
	KindStruct
	KindClass
	KindUnion
	KindArray
	KindFunction
	KindTypedef
	KindConst
	KindVolatile
	KindOther // another qualifier
)

// Encoding is how the bits of a base type are to be read (DW_ATE: DWARF 5,
// table 7.11).
type Encoding uint8

// The encodings.
const (
	EncodingAddress      Encoding = 0x01
	EncodingBoolean      Encoding = 0x02
	EncodingComplex      Encoding = 0x03
	EncodingFloat        Encoding = 0x04
	EncodingSigned       Encoding = 0x05
	EncodingSignedChar   Encoding = 0x06
	EncodingUnsigned     Encoding = 0x07
	EncodingUnsignedChar Encoding = 0x08
	EncodingDecimal      Encoding = 0x0f
	EncodingUTF          Encoding = 0x10

	EncodingComplexInteger Encoding = 0x80 // GNU
)

// Type is the type of a variable, of a member of one, or of what one points
// to.
type Type struct {
	Kind       TypeKind
	Name       string   // "" for types without
	Encoding   Encoding // of a base type
	Incomplete bool     // a declaration: its members are elsewhere, see Definition
	Vector     bool     // an array that is one number to the processor
	Scoped     bool     // an enumeration whose names are written with that of the type

	// Alignment is what the program says that the type is aligned to, in bytes; 0:
	// as what it consists of.
	Alignment uint64

	// GoKind is the runtime's number for the kind of a Go type (package
	// reflect), 0 in other languages.
	GoKind uint8

	size    uint64
	hasSize bool
	entry   *die // nil for void

	elem    *Type
	class   *Type // that a member pointer points into
	members []Member
	enum    []Enumerator
	dims    []Dimension
	cases   []Variant
	tag     *Member // that tells the cases apart
	done    bool    // the seven above are read

	definition *Type // of a declaration; nil until it is asked for

	arguments     []*Type // of the template
	argumentsRead bool

	prefix   string // of the name
	prefixed bool   // prefix is read
}

var voidType = &Type{Kind: KindVoid, Name: "void"}

// Member is a member or base class of a struct, class or union.
type Member struct {
	Name   string
	Type   *Type
	Offset uint64 // bytes from the start of the struct

	// BitSize is the size of a bit field, 0 for other members; BitOffset is
	// where it starts, in bits from the start of the struct.
	BitSize, BitOffset uint64

	Base bool // a base class

	// Alignment is what the program says that the member is aligned to, in bytes;
	// 0: as its type.
	Alignment uint64

	// Place computes the address of a virtual base from that of the object;
	// nil for others.
	Place *Expression
}

// Variant is one of the forms that a value of a type can have, as those of an
// enum in Rust.
type Variant struct {
	Member
	Value   int64 // of the tag
	Default bool  // for all other values of the tag
}

// Enumerator is a name of a value of an enumeration type.
type Enumerator struct {
	Name  string
	Value int64
}

// Dimension is one dimension of an array.
type Dimension struct {
	Count int64 // elements; -1 when not known

	// Upper computes the upper bound, and Bound is the variable that holds
	// it, where the bound is known only when the program runs.
	Upper *Expression
	Bound *Variable
	Lower int64
}

// QualifiedName returns the name with those of the namespaces and types around
// it, "" for types without a name.
func (t *Type) QualifiedName() string {
	t.qualify()
	return t.prefix + t.Name
}

// Scope returns the names of the namespaces and types around a type, as they
// stand before its own: "std::", or "".
func (t *Type) Scope() string {
	t.qualify()
	return t.prefix
}

// Class returns the class of a member pointer.
func (t *Type) Class() *Type {
	if t.load(); t.class != nil {
		return t.class
	}
	return voidType
}

// Strip returns the type behind names and qualifiers.
func (t *Type) Strip() *Type {
	for range maxOrigins {
		switch t.Kind {
		case KindTypedef, KindConst, KindVolatile, KindOther:
			t = t.Elem()
			continue
		}
		return t
	}
	return &Type{}
}

// IsStruct reports whether the type is a struct, class or union.
func (t *Type) IsStruct() bool {
	return t.Kind == KindStruct || t.Kind == KindClass || t.Kind == KindUnion
}

// Size returns the size of the type in bytes; ok is false when it is not
// known, or only when the program runs.
func (t *Type) Size() (size uint64, ok bool) { return t.sizeWithin(maxTypeDepth) }

// addresses is the size of n addresses of the program.
func (t *Type) addresses(n uint64) (size uint64, ok bool) {
	if t.entry == nil {
		return 0, false
	}
	return n * uint64(t.entry.u.enc.addrSize), true
}

// sizeWithin is Size of a type that is in so many arrays at most: one of a
// damaged file can hold itself.
func (t *Type) sizeWithin(depth int) (size uint64, ok bool) {
	t = t.Strip()
	if t.hasSize {
		return t.size, true
	}
	switch t.Kind {
	case KindStruct, KindClass, KindUnion:
		t = t.Definition()
		return t.size, t.hasSize
	case KindPointer, KindReference, KindRvalueReference:
		return t.addresses(1)
	case KindMemberPointer:
		if t.Elem().Strip().Kind == KindFunction {
			return t.addresses(2)
		}
		return t.addresses(1)
	case KindEnum:
		if e := t.Elem().Strip(); e.Kind == KindBase {
			return e.size, e.hasSize
		}
	case KindVoid:
		if t.IsNullptr() {
			return t.addresses(1)
		}
	case KindArray:
		if depth == 0 {
			return 0, false
		}
		n, ok := t.Elem().sizeWithin(depth - 1)
		for _, d := range t.Dimensions() {
			if d.Count < 0 || d.Count > 0 && n > maxObject/uint64(d.Count) {
				return 0, false
			}
			n *= uint64(d.Count)
		}
		return n, ok
	}
	return 0, false
}

// maxObject bounds the size of a variable.
const maxObject = 1 << 47

// String returns the type as it is written in C, or the name that the
// language gives it.
func (t *Type) String() string {
	left := maxTypeParts
	return t.declare("", 0, &left)
}

// Bounds on how a type is written: how deeply, and of how many others. Those of
// a damaged file can be made of themselves.
const (
	maxTypeDepth = 32
	maxTypeParts = 1 << 10
)

// declare writes a declaration of inner with the type, of as many others as
// left says.
func (t *Type) declare(inner string, depth int, left *int) string {
	if *left--; depth > maxTypeDepth || *left < 0 {
		return "..."
	}
	join := func(name string) string {
		if inner == "" || inner[0] == '[' {
			return name + inner
		}
		return name + " " + inner
	}
	pointer := func(sign string) string {
		inner = sign + inner
		if k := t.Elem().Kind; (k == KindArray || k == KindFunction) && !t.IsGo() {
			inner = "(" + inner + ")" // these bind tighter
		}
		return t.Elem().declare(inner, depth+1, left)
	}
	if t.IsGo() && t.Name != "" {
		return join(t.Name)
	}
	switch t.Kind {
	case KindPointer:
		return pointer("*")
	case KindReference:
		return pointer("&")
	case KindRvalueReference:
		return pointer("&&")
	case KindArray:
		for _, d := range t.Dimensions() {
			if d.Count >= 0 {
				inner += "[" + strconv.FormatInt(d.Count, 10) + "]"
			} else {
				inner += "[]"
			}
		}
		return t.Elem().declare(inner, depth+1, left)
	case KindFunction:
		var params []string
		for _, m := range t.Members() {
			if params = append(params, m.Type.declare("", depth+1, left)); *left < 0 {
				break
			}
		}
		if len(params) == 0 {
			params = []string{"void"}
		}
		return t.Elem().declare(inner+"("+strings.Join(params, ", ")+")", depth+1, left)
	case KindConst:
		return t.qualified("const", inner, depth, left)
	case KindVolatile:
		return t.qualified("volatile", inner, depth, left)
	case KindOther:
		return t.Elem().declare(inner, depth+1, left)
	case KindUnknown:
		return join("?")
	}
	if t.Kind == KindMemberPointer {
		return t.Elem().declare(t.Class().QualifiedName()+"::*"+inner, depth+1, left)
	}
	if t.Name != "" {
		return join(t.QualifiedName())
	}
	return join(map[TypeKind]string{KindStruct: "struct", KindClass: "class", KindUnion: "union", KindEnum: "enum"}[t.Kind] + " {...}")
}

// qualified writes a qualifier: after a pointer's star, before other types.
func (t *Type) qualified(word, inner string, depth int, left *int) string {
	switch t.Elem().Kind {
	case KindPointer, KindReference, KindRvalueReference:
		if inner != "" {
			word += " "
		}
		return t.Elem().declare(word+inner, depth+1, left)
	}
	return word + " " + t.Elem().declare(inner, depth+1, left)
}

// IsNullptr reports whether the type is that of C++'s nullptr.
func (t *Type) IsNullptr() bool {
	return t.Kind == KindVoid && strings.Contains(t.Name, "nullptr") && t.entry != nil
}

// IsGo reports whether the type is one of the Go language.
func (t *Type) IsGo() bool { return t.GoKind != 0 }
