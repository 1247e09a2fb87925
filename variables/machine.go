package variables

import (
	"errors"
	"fmt"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// Bounds on what an expression may do.
const (
	maxStack = 128
	maxSteps = 1 << 14 // in all expressions of one value
	maxNest  = 16      // expressions that evaluate expressions, and arrays in arrays
)

// frame is what the expressions of one frame are evaluated with.
type frame struct {
	r     *Reader
	walk  []unwind.Frame // the frame's own is the first
	fns   []*symbols.Function
	image *procstate.Image
	bias  uint64
	steps int // that may still be done
	nest  int
}

func (f *frame) arch() *procstate.Arch { return f.r.w.Arch() }

func (f *frame) regs() *procstate.Regs { return &f.walk[0].Regs }

// vaddr is the link-time address at which the frame's variables are looked up.
func (f *frame) vaddr() uint64 { return f.walk[0].LookupPC() - f.bias }

// register returns the value of a register of DWARF's numbering.
func (f *frame) register(n uint64) (uint64, error) {
	if n < uint64(f.arch().NumRegs) {
		if v, ok := f.regs().Value(procstate.Reg(n)); ok {
			return v, nil
		}
	}
	return 0, ErrNotSaved
}

// registerBytes returns the bytes of a register, those for floating point
// and vectors included where the frame is the one that runs: calls do not
// preserve them.
func (f *frame) registerBytes(n uint64) ([]byte, error) {
	if n < uint64(f.arch().NumRegs) {
		v, err := f.register(n)
		return number{kind: unsigned, size: f.arch().AddressWidth, bits: v}.bytes(), err
	}
	s, ok := f.r.w.ProcessState().(procstate.FloatState)
	if !ok || !f.walk[0].IsTop() {
		return nil, ErrNotSaved
	}
	b, err := s.FloatRegister(f.walk[0].Thread, n)
	switch {
	case errors.Is(err, procstate.ErrDetached):
		return nil, ErrLate
	case err != nil:
		return nil, ErrNotSaved
	}
	return b, nil
}

// caller returns the frame of the caller, found anew where the walk does not
// go on.
func (f *frame) caller() (*frame, error) {
	c := *f
	if c.walk = f.walk[1:]; len(c.walk) == 0 {
		c.walk = make([]unwind.Frame, 1)
		in := f.walk[0]
		if v, err := f.r.w.Step(&in, &c.walk[0]); v != unwind.Success {
			if err == nil {
				err = symbols.ErrNoDebugInfo
			}
			return nil, err
		}
	}
	if err := c.locate(); err != nil {
		return nil, err
	}
	return &c, nil
}

// locate finds the image and functions of the frame.
func (f *frame) locate() error {
	lib, _, _ := f.r.w.Library(&f.walk[0])
	f.image, f.bias, f.fns = lib.Image, lib.Bias, nil
	if lib.Image == nil {
		return symbols.ErrNoDebugInfo
	}
	var err error
	f.fns, err = f.r.functionsAt(f.image, f.vaddr())
	return err
}

// cfa returns the canonical frame address.
func (f *frame) cfa() (uint64, error) {
	next := f.walk[1:]
	var found [1]unwind.Frame
	if len(next) == 0 {
		in := f.walk[0]
		v, err := f.r.w.Step(&in, &found[0])
		if err != nil {
			return 0, err
		}
		if v != unwind.Success {
			return 0, fmt.Errorf("the frame has no caller: %w", ErrNotSaved)
		}
		next = found[:]
	}
	if next[0].Flags&unwind.StackSwitched != 0 {
		return 0, fmt.Errorf("the caller is on another stack: %w", ErrNotSaved)
	}
	return next[0].SP(), nil
}

// frameBase returns the address that the function's frame base expression
// gives.
func (f *frame) frameBase() (uint64, error) {
	x, err := f.fns[len(f.fns)-1].FrameBase(f.vaddr())
	if err != nil {
		return 0, err
	}
	pieces, err := f.locations(x, nil)
	if err != nil {
		return 0, err
	}
	if len(pieces) == 1 {
		switch p := &pieces[0]; p.kind {
		case inMemory:
			return p.addr, nil
		case inRegister:
			return f.register(p.addr)
		}
	}
	return 0, fmt.Errorf("frame base: %w", symbols.ErrUnsupported)
}

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
	x     *symbols.Expression
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
	m := machine{f: f, x: x}
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
	m := machine{f: f, x: x}
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
		return fmt.Errorf("expressions nest too deeply: %w", symbols.ErrUnsupported)
	}
	if err := m.f.r.late(); err != nil {
		return err
	}
	m.f.nest++
	defer func() { m.f.nest-- }()
	for at := 0; at < len(x.Code); {
		if m.f.steps--; m.f.steps < 0 || len(m.stack) > maxStack || len(m.out) > maxStack {
			return fmt.Errorf("the expression takes too long: %w", symbols.ErrUnsupported)
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

var errBadExpression = errors.New("bad DWARF expression")

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
