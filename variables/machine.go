package variables

import (
	"errors"
	"fmt"

	"github.com/swbpf/swbpf/symbols"
)

// Bounds on what an expression may do.
const (
	maxStack = 128
	maxSteps = 1 << 14 // in all expressions of one value
	maxNest  = 16      // expressions that evaluate expressions, and arrays in arrays
)

// piece is a part of a value, or all of it, and where it is.
type piece struct {
	kind pieceKind
	addr uint64 // run-time address, number of a register, or offset of an entry
	off  int64  // of an implicit pointer, bytes into the object
	data []byte // of a value
	from *symbols.Expression
	err  error // of a piece that is nowhere

	bits, bitOff uint64 // size and start within what it is taken from; 0 bits: all
}

type pieceKind uint8

const (
	nowhere pieceKind = iota
	inMemory
	inRegister
	isValue
	implicitPointer
)

// machine executes one expression.
type machine struct {
	f     *frame
	stack []number
	place piece // of what an operation said other than by the stack
	out   []piece
}

// locations evaluates a location description. initial, where not nil, is on
// the stack at the start.
func (f *frame) locations(x *symbols.Expression, initial *uint64) ([]piece, error) {
	if x.Constant {
		return []piece{{kind: isValue, data: x.Code}}, nil
	}
	m := machine{f: f}
	if initial != nil {
		m.pushAddr(*initial)
	}
	if err := m.run(x); err != nil {
		return nil, err
	}
	if len(m.out) > 0 {
		return m.out, nil
	}
	return []piece{m.here()}, nil
}

// value evaluates an expression for the number that it leaves on the stack.
func (f *frame) value(x *symbols.Expression) (number, error) {
	m := machine{f: f}
	if err := m.run(x); err != nil {
		return number{}, err
	}
	if len(m.out) > 0 || len(m.stack) == 0 {
		return number{}, fmt.Errorf("value of an expression: %w", symbols.ErrUnsupported)
	}
	return m.stack[len(m.stack)-1], nil
}

// here returns what the operations since the last piece described.
func (m *machine) here() piece {
	p := m.place
	m.place = piece{}
	if p.kind == nowhere && len(m.stack) > 0 {
		p = piece{kind: inMemory, addr: m.stack[len(m.stack)-1].bits}
	}
	return p
}

// run executes the operations of x.
func (m *machine) run(x *symbols.Expression) error {
	if m.f.nest >= maxNest {
		return errTooDeep
	}
	if err := m.f.r.late(); err != nil {
		return err
	}
	m.f.nest++
	defer func() { m.f.nest-- }()
	for at := 0; at < len(x.Code); {
		if m.f.steps--; m.f.steps < 0 || len(m.stack) > maxStack || len(m.out) > maxStack {
			return errTooLong
		}
		o, next, err := x.Operation(at)
		if err != nil {
			return err
		}
		switch o.Op {
		case symbols.OpBra, symbols.OpSkip:
			if o.Op == symbols.OpSkip || m.pop().bits != 0 {
				if next += int(int64(o.A)); next < 0 || next > len(x.Code) {
					return errBadExpression
				}
			}
		default:
			if err = m.step(x, &o); err != nil {
				return err
			}
		}
		at = next
	}
	return nil
}

var (
	errBadExpression = errors.New("bad DWARF expression")
	errTooDeep       = fmt.Errorf("expressions nest too deeply: %w", symbols.ErrUnsupported)
	errTooLong       = fmt.Errorf("the expression takes too long: %w", symbols.ErrUnsupported)
)

func (m *machine) push(n number) { m.stack = append(m.stack, n) }

// pushAddr pushes a number of the generic type.
func (m *machine) pushAddr(v uint64) {
	m.push(number{kind: generic, size: m.f.arch().AddressWidth, bits: v}.wrapped())
}

// pop returns the topmost entry. An empty stack gives numbers without a size,
// with which nothing can be computed.
func (m *machine) pop() number {
	n := len(m.stack)
	if n == 0 {
		return number{kind: opaque}
	}
	v := m.stack[n-1]
	m.stack = m.stack[:n-1]
	return v
}

// step executes one operation other than a jump.
func (m *machine) step(x *symbols.Expression, o *symbols.Operation) error {
	f := m.f
	switch o.Op {
	case symbols.OpNop, symbols.OpUninit:
	case symbols.OpAddr:
		m.pushAddr(o.A + f.bias)
	case symbols.OpConst:
		m.pushAddr(o.A)
	case symbols.OpRegPlus:
		v, err := f.register(o.A)
		if err != nil {
			return err
		}
		m.pushAddr(v + o.B)
	case symbols.OpFrameBase:
		v, err := f.frameBase()
		if err != nil {
			return err
		}
		m.pushAddr(v + o.B)
	case symbols.OpCallFrameCFA:
		v, err := f.cfa()
		if err != nil {
			return err
		}
		m.pushAddr(v)
	case symbols.OpTLSAddress:
		n := m.pop()
		if n.kind == opaque {
			return errBadExpression
		}
		v, err := f.threadLocal(n.bits)
		if err != nil {
			return err
		}
		m.pushAddr(v)
	case symbols.OpDrop, symbols.OpPick, symbols.OpSwap, symbols.OpRot:
		return m.shuffle(o)
	case symbols.OpDeref, symbols.OpDerefType:
		return m.deref(x, o)
	case symbols.OpConstType, symbols.OpRegType, symbols.OpConvert, symbols.OpReinterpret:
		return m.typed(x, o)
	case symbols.OpEntryValue:
		v, err := f.entryValue(x.Sub(o.Block))
		if err != nil {
			return err
		}
		m.push(v)
	case symbols.OpParameterRef:
		v, err := f.passed(func(p *symbols.CallParameter, _ *frame) bool { return p.IsOf(x, o.A) })
		if err != nil {
			return err
		}
		m.push(v)
	case symbols.OpCall:
		p, err := x.Procedure(o.A, f.vaddr())
		if p == nil || err != nil {
			return err
		}
		return m.run(p)
	case symbols.OpReg, symbols.OpImplicitValue, symbols.OpImplicitPointer, symbols.OpStackValue, symbols.OpPiece:
		return m.describe(x, o)
	case symbols.OpAbs, symbols.OpNeg, symbols.OpNot, symbols.OpPlusConst:
		return m.unary(o)
	default:
		b, a := m.pop(), m.pop()
		n, ok := a.binary(o.Op, b)
		if !ok {
			return fmt.Errorf("operation %#x of an expression: %w", uint8(o.Op), symbols.ErrUnsupported)
		}
		if n.kind == generic {
			n.size = f.arch().AddressWidth
		}
		m.push(n)
	}
	return nil
}

// describe executes an operation that describes a location.
func (m *machine) describe(x *symbols.Expression, o *symbols.Operation) error {
	switch o.Op {
	case symbols.OpReg:
		m.place = piece{kind: inRegister, addr: o.A}
	case symbols.OpImplicitValue:
		m.place = piece{kind: isValue, data: o.Block}
	case symbols.OpImplicitPointer:
		m.place = piece{kind: implicitPointer, addr: o.A, off: int64(o.B), from: x}
	case symbols.OpStackValue:
		if len(m.stack) == 0 {
			return errBadExpression
		}
		m.place = piece{kind: isValue, data: m.pop().bytes()}
	case symbols.OpPiece:
		p := m.here()
		p.bits, p.bitOff = o.A, o.B
		if p.kind == nowhere {
			p.err = symbols.ErrOptimizedOut
		}
		m.stack = m.stack[:0]
		m.out = append(m.out, p)
	}
	return nil
}

// shuffle executes an operation that moves entries of the stack.
func (m *machine) shuffle(o *symbols.Operation) error {
	n := uint64(len(m.stack))
	need := map[symbols.Op]uint64{symbols.OpDrop: 1, symbols.OpPick: o.A + 1, symbols.OpSwap: 2, symbols.OpRot: 3}[o.Op]
	if n < need {
		return errBadExpression
	}
	s := m.stack
	switch o.Op {
	case symbols.OpDrop:
		m.stack = s[:n-1]
	case symbols.OpPick:
		m.push(s[n-1-o.A])
	case symbols.OpSwap:
		s[n-1], s[n-2] = s[n-2], s[n-1]
	case symbols.OpRot:
		s[n-1], s[n-2], s[n-3] = s[n-2], s[n-3], s[n-1]
	}
	return nil
}

// unary executes an operation on the topmost entry.
func (m *machine) unary(o *symbols.Operation) error {
	n := m.pop()
	switch {
	case n.kind == opaque:
		return errBadExpression
	case n.kind == float && o.Op == symbols.OpNeg:
		n = n.withFloat(-n.float())
	case n.kind == float && o.Op == symbols.OpAbs:
		n = n.withFloat(max(n.float(), -n.float()))
	case n.kind == float:
		return errBadExpression
	case o.Op == symbols.OpPlusConst:
		n = n.with(n.bits + o.A)
	case o.Op == symbols.OpNeg:
		n = n.with(-n.bits)
	case o.Op == symbols.OpNot:
		n = n.with(^n.bits)
	case n.signedBits() < 0 && n.kind != unsigned:
		n = n.with(-n.bits)
	}
	m.push(n)
	return nil
}

// deref replaces an address by what is there.
func (m *machine) deref(x *symbols.Expression, o *symbols.Operation) error {
	kind, size := generic, m.f.arch().AddressWidth
	if o.A != 0 {
		size = int(o.A)
	}
	if o.Op == symbols.OpDerefType {
		var err error
		if kind, _, err = m.f.numberType(x, o.B); err != nil {
			return err
		}
	}
	at := m.pop()
	if kind == generic && size > 8 {
		kind = opaque // of a register that was wider when it was stored
	}
	if size > maxOpaque || at.size == 0 || kind != opaque && size > 8 || kind == float && size != 4 && size != 8 {
		return errBadExpression
	}
	b := make([]byte, size)
	if err := m.f.r.read(at.bits, b); err != nil {
		return err
	}
	n := decode(kind, b)
	if kind == generic {
		n.size = m.f.arch().AddressWidth
	}
	m.push(n)
	return nil
}

// typed executes an operation that names a base type.
func (m *machine) typed(x *symbols.Expression, o *symbols.Operation) error {
	off := o.A
	if o.Op == symbols.OpRegType {
		off = o.B
	}
	kind, size, err := m.f.numberType(x, off)
	if err != nil {
		return err
	}
	var n number
	ok := true
	switch o.Op {
	case symbols.OpConstType:
		if len(o.Block) != size {
			return errBadExpression
		}
		n = decode(kind, o.Block)
	case symbols.OpRegType:
		b, err := m.f.registerBytes(o.A)
		if err != nil {
			return err
		}
		if kind == float && len(b) == sizeExtended {
			b = fromExtended(b, size)
		}
		if size > len(b) {
			return fmt.Errorf("a register of %d bytes: %w", size, symbols.ErrUnsupported)
		}
		n = decode(kind, b[:size])
	case symbols.OpConvert:
		n, ok = m.pop().convert(kind, size)
	case symbols.OpReinterpret:
		n, ok = m.pop().reinterpret(kind, size)
	}
	if !ok {
		return fmt.Errorf("conversion in an expression: %w", symbols.ErrUnsupported)
	}
	m.push(n)
	return nil
}

// numberType returns the type of numbers that the unit of x has at an offset;
// 0 stands for the generic one.
func (f *frame) numberType(x *symbols.Expression, off uint64) (numberKind, int, error) {
	if off == 0 {
		return generic, f.arch().AddressWidth, nil
	}
	t, err := x.BaseType(off)
	if err != nil {
		return 0, 0, err
	}
	kind, size, ok := numberType(t)
	if !ok {
		return 0, 0, fmt.Errorf("type %s in an expression: %w", t, symbols.ErrUnsupported)
	}
	return kind, size, nil
}
