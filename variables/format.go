package variables

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
)

// Format says how a Value is written. The zero value is useful.
type Format struct {
	Elements int // of an array, and characters of a string, at most; 0: 200
	Depth    int // how deeply structs are written; 0: 1, below 0: not at all
	Repeats  int // elements in a row that are written once; 0: 10, below 0: never

	// Raw has types of standard libraries, such as strings and vectors of C++ and
	// Rust, written as the structs that they are.
	Raw bool

	// Code names a code address, for pointers to functions; it may be nil.
	Code func(addr uint64) string

	// Data names an address of data or of code, for other pointers; it may be
	// nil.
	Data func(addr uint64) string
}

// Format writes the value as gdb does.
func (v *Value) Format(o Format) string {
	if v.f == nil {
		return Unknown(symbols.ErrUnsupported)
	}
	if o.Elements <= 0 {
		o.Elements = 200
	}
	if o.Depth == 0 {
		o.Depth = 1
	}
	if o.Repeats == 0 {
		o.Repeats = 10
	}
	p := printer{o: o, r: v.f.r}
	defer p.limitReads()()
	p.value(v, 0)
	return p.b.String()
}

// limitReads bounds what is read for a value, until what it returns is called.
func (p *printer) limitReads() (end func()) {
	p.r.left = maxRead
	return func() { p.r.left = math.MaxInt }
}

// Aggregate reports whether the value is, or refers to, a struct, a union or an
// array: what takes more than a word to write.
func (v *Value) Aggregate() bool {
	if v.f == nil {
		return false
	}
	switch goKind(v.Type) {
	case goString, goInterface:
		return false
	case goMap:
		return true
	}
	t := v.Type.Strip()
	if t.Kind == symbols.KindReference || t.Kind == symbols.KindRvalueReference {
		t = t.Elem().Strip()
	}
	if cases, _ := t.Variants(); len(cases) > 0 || t.Name == "&str" {
		return false
	}
	return t.IsStruct() || t.Kind == symbols.KindArray
}

// Unknown writes the reason why a value is not known, in angle brackets.
func Unknown(err error) string {
	var m *memoryError
	switch {
	case errors.Is(err, ErrLate):
		return "<not read in time>"
	case errors.As(err, &m):
		return fmt.Sprintf("<error: Cannot access memory at address %#x>", m.addr)
	case errors.Is(err, ErrSynthetic):
		return "<synthetic pointer>"
	case errors.Is(err, ErrNotSaved):
		return "<not saved>"
	case errors.Is(err, symbols.ErrOptimizedOut):
		return "<optimized out>"
	case errors.Is(err, procstate.ErrUnreadable):
		return "<not readable>"
	}
	return "<" + err.Error() + ">"
}

// printer writes a value.
type printer struct {
	b     bytes.Buffer
	o     Format
	r     *Reader
	bases int // that the one being written is in

	virtual []*symbols.Type // bases of the object being written that were written
	vector  bool            // the elements being written are those of a vector

	slices      int  // of Go that the one being written is in
	inInterface bool // what is being written is what one of Go holds

	parts, nest int // written so far, and that the one being written is in
}

// Bounds on the text of one value: its bytes, the parts that are written, how
// deeply these are in one another, and the bytes that are read for them, each
// time readCost more. Types of a damaged file can be made of themselves, and so can
// slices.
const (
	maxText     = 1 << 16
	maxParts    = 1 << 17
	maxPartNest = 256
	maxRead     = 16 << 20
	readCost    = 64
)

var errTooMuch = errors.New("too much to be read")

// enter begins a part of a value, which leave ends; without room for it, it
// writes that there is more.
func (p *printer) enter() bool {
	if p.b.Len() > maxText || p.parts >= maxParts || p.nest >= maxPartNest || p.r.left <= 0 {
		p.b.WriteString("...")
		return false
	}
	p.parts++
	p.nest++
	return true
}

func (p *printer) leave() { p.nest-- }

func (p *printer) value(v *Value, depth int) {
	if !p.enter() {
		return
	}
	defer p.leave()
	err := v.unknown()
	if late := v.f.r.late(); late != nil {
		err = late
	}
	if err != nil {
		p.b.WriteString(Unknown(err))
		return
	}
	t := v.Type.Strip()
	if t.Name == "&str" && p.text8(v, t) {
		return
	}
	if goKind(v.Type) != 0 && p.golang(v, t, depth) {
		return
	}
	switch t.Kind {
	case symbols.KindPointer:
		p.pointer(v, t)
	case symbols.KindReference, symbols.KindRvalueReference:
		p.reference(v, depth)
	case symbols.KindBase:
		p.base(v, t)
	case symbols.KindMemberPointer:
		p.memberPointer(v, t)
	case symbols.KindEnum:
		p.enum(v, t)
	case symbols.KindStruct, symbols.KindClass, symbols.KindUnion:
		if p.standard(v, t, depth) {
			return
		}
		around := p.virtual
		p.virtual = nil
		p.structure(v, t, depth)
		p.virtual = around
	case symbols.KindArray:
		p.array(v, t, v.counts(t), depth)
	case symbols.KindFunction:
		p.b.WriteString("{" + t.String() + "} " + hex(v.addr))
	case symbols.KindVoid:
		if t.IsNullptr() {
			p.b.WriteString("nullptr")
		} else {
			p.b.WriteString("void")
		}
	default:
		p.b.WriteString("<a type that is not known>")
	}
}

// scalar writes f of the value's bytes, or why they are not known.
func (p *printer) scalar(v *Value, f func(b []byte) string) {
	if !v.sized || v.size > maxOpaque {
		p.b.WriteString("<incomplete type>")
		return
	}
	b, err := v.bytes(0, int(v.size))
	if err != nil {
		p.b.WriteString(Unknown(err))
		return
	}
	p.b.WriteString(f(b))
}

func hex(v uint64) string { return "0x" + strconv.FormatUint(v, 16) }

func (p *printer) pointer(v *Value, t *symbols.Type) {
	if v.pointer != nil {
		p.b.WriteString("<synthetic pointer>")
		return
	}
	addr, err := v.word()
	if err != nil {
		p.b.WriteString(Unknown(err))
		return
	}
	p.b.WriteString(hex(addr))
	to := t.Elem().Strip()
	switch {
	case to.Kind == symbols.KindFunction:
		p.b.WriteString(nameIn(p.o.Code, addr))
	case addr != 0:
		p.b.WriteString(nameIn(p.o.Data, addr))
		if x, ok := textOf(t.Elem()); ok {
			p.b.WriteByte(' ')
			p.text(v.f, x, addr)
		} else if strings.HasPrefix(t.Name, "&") && to.Name == "String" { // a reference of Rust
			p.b.WriteByte(' ')
			if !p.standard(v.f.at(to, addr), to, 0) {
				p.b.Truncate(p.b.Len() - 1)
			}
		}
	}
}

// memberPointer writes a pointer to a member of a class.
func (p *printer) memberPointer(v *Value, t *symbols.Type) {
	p.scalar(v, func(b []byte) string {
		if t.Elem().Strip().Kind == symbols.KindFunction {
			return p.methodPointer(v, b)
		}
		if len(b) > 8 {
			return hexBytes(b)
		}
		at := decode(signed, b).signedBits()
		if at == -1 {
			return "NULL"
		}
		for _, m := range t.Class().Members() {
			if !m.Base && m.BitSize == 0 && at == int64(m.Offset) {
				return "&" + t.Class().QualifiedName() + "::" + m.Name
			}
		}
		return strconv.FormatInt(at, 10)
	})
}

// methodPointer writes a pointer to a method: two words, the address of the
// code or an offset in the table of virtual methods, and what is added to the
// object's address (Itanium C++ ABI, section 2.3).
func (p *printer) methodPointer(v *Value, b []byte) string {
	size := v.f.arch().AddressWidth
	if len(b) != 2*size {
		return hexBytes(b)
	}
	code, adjustment := decode(generic, b[:size]).bits, decode(signed, b[size:]).signedBits()
	virtual := code&1 != 0
	if v.f.arch() == procstate.ARM64 { // whose code may lie at odd addresses
		virtual, adjustment = adjustment&1 != 0, adjustment>>1
	} else if virtual {
		code--
	}
	var s string
	switch {
	case virtual:
		s = fmt.Sprintf("&virtual table offset %d", code)
	case code == 0:
		return "NULL"
	default:
		s = hex(code) + nameIn(p.o.Code, code)
	}
	if adjustment != 0 {
		s += fmt.Sprintf(", this adjustment %d", adjustment)
	}
	return s
}

// nameIn is the name of an address as it follows the address, or "".
func nameIn(name func(addr uint64) string, addr uint64) string {
	if name == nil || addr == 0 {
		return ""
	}
	if s := name(addr); s != "" {
		return " <" + s + ">"
	}
	return ""
}

func (p *printer) reference(v *Value, depth int) {
	if depth <= 0 {
		if to, t := v.standardTarget(v.Type.Strip()); to != nil && p.standard(to, t, depth) {
			return
		}
	}
	if v.pointer != nil {
		p.b.WriteString("<synthetic pointer>")
	} else {
		addr, err := v.word()
		if err != nil {
			p.b.WriteString(Unknown(err))
			return
		}
		p.b.WriteString("@" + hex(addr))
	}
	if depth > 0 {
		return
	}
	p.b.WriteString(": ")
	to, err := v.Target()
	if err != nil {
		p.b.WriteString(Unknown(err))
		return
	}
	if k := to.Type.Strip().Kind; k == symbols.KindReference || k == symbols.KindRvalueReference {
		p.b.WriteString("...") // there are none in a program
		return
	}
	p.value(to, depth)
}

// structure writes a struct, class or union. Those of a base class are on the
// same level as what they are the base of.
func (p *printer) structure(v *Value, t *symbols.Type, depth int) {
	if !p.enter() {
		return
	}
	defer p.leave()
	t = t.Definition()
	switch {
	case t.Incomplete:
		p.b.WriteString("<incomplete type>")
		return
	case depth >= p.o.Depth:
		p.b.WriteString("{...}")
		return
	}
	if cases, tag := t.Variants(); len(cases) > 0 && len(t.Members()) == 0 {
		p.variant(v, cases, tag, depth)
		return
	}
	p.b.WriteByte('{')
	members := p.once(t.Members())
	for i := range members {
		m := &members[i]
		if i == p.o.Elements {
			p.b.WriteString("...")
			break
		}
		if i > 0 {
			p.b.WriteString(", ")
		}
		p.member(v, m, depth)
	}
	switch {
	case len(members) == 0:
		p.b.WriteString("<No data fields>")
	case members[len(members)-1].Base:
		p.b.WriteString(", <No data fields>")
	}
	p.b.WriteByte('}')
}

// once leaves out the virtual bases that were written: an object has one of
// each.
func (p *printer) once(members []symbols.Member) []symbols.Member {
	written := func(m symbols.Member) bool {
		return m.Base && m.Place != nil && slices.Contains(p.virtual, m.Type.Strip())
	}
	if !slices.ContainsFunc(members, written) {
		return members
	}
	return slices.DeleteFunc(slices.Clone(members), written)
}

// maxBases bounds how deeply base classes are written.
const maxBases = 8

func (p *printer) member(v *Value, m *symbols.Member, depth int) {
	part := v.part(m.Type, m.Offset)
	if m.Place != nil {
		part = nil
		if v.memory {
			if pieces, err := v.f.locations(m.Place, &v.addr); err == nil && len(pieces) == 1 && pieces[0].kind == inMemory {
				part = v.f.at(m.Type, pieces[0].addr)
			}
		}
	}
	switch {
	case m.Base:
		if m.Place != nil {
			p.virtual = append(p.virtual, m.Type.Strip())
		}
		p.b.WriteString("<" + m.Type.Strip().QualifiedName() + "> = ")
	case m.Name != "":
		p.b.WriteString(m.Name + " = ")
	}
	switch {
	case part == nil:
		p.b.WriteString("<invalid address>")
	case m.BitSize != 0:
		p.bitField(v, m)
	case m.Base && p.bases < maxBases:
		p.bases++
		p.structure(part, m.Type.Strip(), depth)
		p.bases--
	default:
		p.value(part, depth+1)
	}
}

// bitField writes a member that is a bit field.
func (p *printer) bitField(v *Value, m *symbols.Member) {
	b, err := v.bits(m.BitOffset, m.BitSize)
	if err != nil {
		p.b.WriteString(Unknown(err))
		return
	}
	t := m.Type.Strip()
	size, ok := t.Size()
	if !ok || size > 16 || m.BitSize > 8*size {
		p.b.WriteString("<incomplete type>")
		return
	}
	full := make([]byte, size)
	copy(full, b)
	if isSigned(t) && m.BitSize < 8*size && b[(m.BitSize-1)/8]>>((m.BitSize-1)%8)&1 != 0 {
		for i := m.BitSize; i < 8*size; i++ {
			full[i/8] |= 1 << (i % 8)
		}
	}
	p.value(&Value{Type: m.Type, f: v.f, size: size, sized: true, data: full, why: make([]error, size)}, p.o.Depth)
}
