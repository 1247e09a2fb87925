package symbols

import (
	"debug/dwarf"
	"errors"

	"github.com/swbpf/swbpf/procstate"
)

// Errors of what debug information says about variables.
var (
	ErrNoDebugInfo  = errors.New("no debug information there")
	ErrOutOfScope   = errors.New("the variable is out of scope there")
	ErrOptimizedOut = errors.New("optimized out")
	ErrUnsupported  = errors.New("not supported")
)

// Function is a function in the debug information of a file, or a call that
// was inlined into one.
type Function struct {
	Name       string // for people (demangled), where Lines may have the name of an ELF symbol
	SystemName string // as in the debug information
	Inlined    bool
	Outer      *Function // of an inlined call: what it was inlined into

	// Variables are the parameters and local variables in scope at the
	// address that the Function was asked for, those of inner blocks first.
	Variables []*Variable

	entry    *die
	scope    []addrRange
	external bool
	reenter  reentry // guarded by the lock of entry
}

// Variable is a parameter or local variable of a Function. It stays valid as
// long as the Symbolizer.
type Variable struct {
	Name      string
	Parameter bool
	Line      int // where it is declared, 0 when not known

	fn    *Function
	list  []*die // its own entry and what completes it
	scope []addrRange
	typ   *Type // nil until it is asked for; guarded by the lock of list[0]
}

// Functions returns the functions at link-time address vaddr of a file, with
// their variables in scope there: inlined calls innermost first, the function
// itself last. vaddr is an address within the instruction in question, as for
// Lines. The error is ErrNoDebugInfo where there is none.
func (s *Symbolizer) Functions(im *procstate.Image, vaddr uint64) ([]*Function, error) {
	f := s.file(im)
	f.openOnce.Do(func() { s.open(f) })
	if f.dwarf == nil {
		return nil, ErrNoDebugInfo
	}
	return f.dwarf.functions(vaddr)
}

// AllVariables returns the variables of all blocks of the function, whatever
// is in scope.
func (f *Function) AllVariables() ([]*Variable, error) {
	if f.entry == nil {
		return nil, ErrNoDebugInfo
	}
	f.entry.d.lock()
	defer f.entry.d.unlock()
	f.entry.d.allowEntries(f.entry.u)
	f.entry.d.allowRanges(f.entry.u.end - f.entry.u.off)
	r := functionReader{all: true}
	return r.block(f.entry, f, f.scope, 0)
}

// Physical returns the function that has the code: f itself, or what it was
// inlined into.
func (f *Function) Physical() *Function {
	for f.Outer != nil {
		f = f.Outer
	}
	return f
}

// Same reports whether f and g are the same function, or the same inlined
// call, of one file.
func (f *Function) Same(g *Function) bool {
	if f.entry == nil || g.entry == nil {
		return f == g
	}
	return f.entry.key() == g.entry.key()
}

// Entry returns the link-time address at which the function is entered.
func (f *Function) Entry() uint64 {
	if p := f.Physical(); len(p.scope) > 0 {
		return p.scope[0].start
	}
	return 0
}

// External reports whether functions of other units can call the function by
// its name.
func (f *Function) External() bool { return f.Physical().external }

// FrameBase returns what computes the frame base of the function's frames at
// an address in its code.
func (f *Function) FrameBase(vaddr uint64) (*Expression, error) {
	e := f.Physical().entry
	if e == nil {
		return nil, ErrNoDebugInfo
	}
	e.d.lock()
	defer e.d.unlock()
	return e.expression(dwarf.AttrFrameBase, vaddr)
}

// Function returns the function or inlined call that the variable belongs to.
func (v *Variable) Function() *Function { return v.fn }

// InScope reports whether the variable is in scope at a link-time address.
func (v *Variable) InScope(vaddr uint64) bool { return covers(v.scope, vaddr) }

// Type returns the type of the variable.
func (v *Variable) Type() *Type {
	e := first(v.list, dwarf.AttrType)
	if e == nil {
		return voidType
	}
	e.d.lock()
	defer e.d.unlock()
	if v.typ == nil {
		e.d.allowEntries(e.u)
		v.typ = e.typeOf(dwarf.AttrType)
	}
	return v.typ
}

// Location returns what computes where the variable is, or its value, at a
// link-time address. The error is ErrOutOfScope or ErrOptimizedOut, or tells
// what is wrong with the debug information.
func (v *Variable) Location(vaddr uint64) (*Expression, error) {
	if !v.InScope(vaddr) {
		return nil, ErrOutOfScope
	}
	v.list[0].d.lock()
	defer v.list[0].d.unlock()
	return variableLocation(v.list, vaddr)
}

// newVariable makes a Variable of an entry and what completes it; nil when it
// is none that a person knows: one without a name, or a declaration.
func newVariable(list []*die, fn *Function, scope []addrRange) *Variable {
	named := first(list, dwarf.AttrName)
	if named == nil || list[len(list)-1].has(dwarf.AttrDeclaration) && first(list, dwarf.AttrLocation) == nil {
		return nil
	}
	v := &Variable{Name: named.string(dwarf.AttrName), Parameter: list[0].tag == dwarf.TagFormalParameter, fn: fn, list: list, scope: scope}
	if e := first(list, dwarf.AttrDeclLine); e != nil {
		v.Line = int(uint32(e.get(dwarf.AttrDeclLine).value.u))
	}
	if v.Name == "" {
		return nil
	}
	return v
}

// Bound returns the location and type of a variable that holds the bound of
// an array.
func (v *Variable) Bound(vaddr uint64) (*Expression, *Type, error) {
	if len(v.list) == 0 {
		return nil, nil, ErrOutOfScope
	}
	e := v.list[0]
	e.d.lock()
	defer e.d.unlock()
	e.d.allowEntries(e.u)
	return objectOf(v.list, vaddr)
}
