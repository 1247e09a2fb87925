package unwind

import (
	"unsafe"

	"github.com/swbpf/swbpf/procstate"
)

// DWARF operations (DWARF 5, 7.7.1) that are legal in call frame information.
const (
	opAddr       = 0x03
	opDeref      = 0x06
	opConst1u    = 0x08
	opConst1s    = 0x09
	opConst2u    = 0x0a
	opConst2s    = 0x0b
	opConst4u    = 0x0c
	opConst4s    = 0x0d
	opConst8u    = 0x0e
	opConst8s    = 0x0f
	opConstu     = 0x10
	opConsts     = 0x11
	opDup        = 0x12
	opDrop       = 0x13
	opOver       = 0x14
	opPick       = 0x15
	opSwap       = 0x16
	opRot        = 0x17
	opAbs        = 0x19
	opAnd        = 0x1a
	opDiv        = 0x1b
	opMinus      = 0x1c
	opMod        = 0x1d
	opMul        = 0x1e
	opNeg        = 0x1f
	opNot        = 0x20
	opOr         = 0x21
	opPlus       = 0x22
	opPlusUconst = 0x23
	opShl        = 0x24
	opShr        = 0x25
	opShra       = 0x26
	opXor        = 0x27
	opBra        = 0x28
	opEq         = 0x29
	opGe         = 0x2a
	opGt         = 0x2b
	opLe         = 0x2c
	opLt         = 0x2d
	opNe         = 0x2e
	opSkip       = 0x2f
	opLit0       = 0x30
	opReg0       = 0x50
	opBreg0      = 0x70
	opBregx      = 0x92
	opDerefSize  = 0x94
	opNop        = 0x96
)

// Bounds on what an expression may do.
const (
	exprStack = 64
	exprSteps = 2048
)

// expression evaluates the DWARF expressions of one frame. The zero value of
// everything but regs, mem and width is right for most.
type expression struct {
	regs  *procstate.Regs
	pc    procstate.Reg // of the architecture
	mem   procstate.ProcessState
	width int    // bytes in an address: 4 or 8
	bias  uint64 // added to the operand of DW_OP_addr

	stack [exprStack]uint64
	n     int
	why   Reason
}

// eval evaluates code. With initial, *initial is on the stack at the start,
// as the CFA is for the rules of registers.
func (e *expression) eval(code string, initial *uint64) (uint64, Reason) {
	e.n, e.why = 0, ReasonNone
	if initial != nil {
		e.push(*initial)
	}
	c := cursor{b: unsafe.Slice(unsafe.StringData(code), len(code))} // no copy: a cursor only reads
	for steps := 0; c.i < len(code); steps++ {
		if steps >= exprSteps {
			return 0, UnsupportedUnwind
		}
		e.step(&c)
		if c.bad {
			return 0, BadUnwindInfo
		}
		if e.why != ReasonNone {
			return 0, e.why
		}
	}
	v := e.pop()
	return v, e.why
}

func (e *expression) step(c *cursor) {
	op := c.u8()
	switch {
	case op >= opLit0 && op < opReg0:
		e.push(uint64(op - opLit0))
		return
	case op >= opBreg0 && op < opBreg0+32:
		e.register(uint64(op-opBreg0), c.sleb())
		return
	}
	switch op {
	case opAddr:
		e.push(c.uint(e.width) + e.bias)
	case opConst1u:
		e.push(c.uint(1))
	case opConst1s:
		e.push(uint64(c.int(1)))
	case opConst2u:
		e.push(c.uint(2))
	case opConst2s:
		e.push(uint64(c.int(2)))
	case opConst4u:
		e.push(c.uint(4))
	case opConst4s:
		e.push(uint64(c.int(4)))
	case opConst8u, opConst8s:
		e.push(c.uint(8))
	case opConstu:
		e.push(c.uleb())
	case opConsts:
		e.push(uint64(c.sleb()))
	case opDup:
		e.pick(0)
	case opOver:
		e.pick(1)
	case opPick:
		e.pick(int(c.u8()))
	case opDrop:
		e.pop()
	case opSwap:
		a, b := e.pop(), e.pop()
		e.push(a)
		e.push(b)
	case opRot:
		a, b, d := e.pop(), e.pop(), e.pop()
		e.push(a)
		e.push(d)
		e.push(b)
	case opDeref:
		e.deref(e.width)
	case opDerefSize:
		n := int(c.u8())
		if n < 1 || n > e.width {
			c.bad = true
			return
		}
		e.deref(n)
	case opPlusUconst:
		e.push(e.pop() + c.uleb())
	case opBregx:
		reg := c.uleb()
		e.register(reg, c.sleb())
	case opAbs:
		if v := e.signed(e.pop()); v < 0 {
			e.push(uint64(-v))
		} else {
			e.push(uint64(v))
		}
	case opNeg:
		e.push(-e.pop())
	case opNot:
		e.push(^e.pop())
	case opBra:
		if d := c.int(2); e.pop() != 0 {
			c.jump(d)
		}
	case opSkip:
		c.jump(c.int(2))
	case opNop:
	default:
		e.binary(op)
	}
}

// binary executes an operation on the two topmost entries.
func (e *expression) binary(op byte) {
	b, a := e.pop(), e.pop()
	sa, sb := e.signed(a), e.signed(b)
	switch op {
	case opAnd:
		a &= b
	case opOr:
		a |= b
	case opXor:
		a ^= b
	case opPlus:
		a += b
	case opMinus:
		a -= b
	case opMul:
		a *= b
	case opDiv:
		if sb == 0 {
			e.why = BadUnwindInfo
			return
		}
		a = uint64(sa / sb)
	case opMod: // unsigned, as gdb and libgcc have it
		if b == 0 {
			e.why = BadUnwindInfo
			return
		}
		a %= b
	case opShl:
		a <<= b
	case opShr:
		a >>= b
	case opShra:
		a = uint64(sa >> b)
	case opEq:
		a = truth(sa == sb)
	case opNe:
		a = truth(sa != sb)
	case opGe:
		a = truth(sa >= sb)
	case opGt:
		a = truth(sa > sb)
	case opLe:
		a = truth(sa <= sb)
	case opLt:
		a = truth(sa < sb)
	default:
		e.why = UnsupportedUnwind
		return
	}
	e.push(a)
}

func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// signed is an entry as a number with sign, of the width of an address.
func (e *expression) signed(v uint64) int64 { return signExtend(v, e.width) }

func (e *expression) push(v uint64) {
	if e.n == exprStack {
		e.fail(UnsupportedUnwind)
		return
	}
	if e.width == 4 {
		v = uint64(uint32(v))
	}
	e.stack[e.n] = v
	e.n++
}

func (e *expression) pop() uint64 {
	if e.n == 0 {
		e.fail(BadUnwindInfo)
		return 0
	}
	e.n--
	return e.stack[e.n]
}

func (e *expression) pick(i int) {
	if i >= e.n {
		e.fail(BadUnwindInfo)
		return
	}
	e.push(e.stack[e.n-1-i])
}

func (e *expression) register(reg uint64, off int64) {
	if reg >= procstate.MaxRegs {
		e.fail(NoRegister)
		return
	}
	v, ok := e.regs.Value(procstate.Reg(reg))
	if !ok {
		e.fail(NoRegister)
		return
	}
	e.push(v + uint64(off))
}

// deref replaces the topmost entry by the size bytes at that address.
func (e *expression) deref(size int) {
	addr := e.pop()
	if e.why != ReasonNone {
		return
	}
	if size == e.width {
		v, ok := e.mem.ReadWord(addr)
		if !ok {
			e.fail(ReadFailure(e.mem, addr))
			return
		}
		e.push(v)
		return
	}
	// A smaller piece is read as part of an aligned word, which lies in the
	// same page: a buffer for ReadMemory would have to be allocated.
	word := uint64(e.width)
	base := addr &^ (word - 1)
	lo, ok := e.mem.ReadWord(base)
	if !ok {
		e.fail(ReadFailure(e.mem, addr))
		return
	}
	at := addr - base
	v := lo >> (8 * at)
	if at+uint64(size) > word {
		hi, ok := e.mem.ReadWord(base + word)
		if !ok {
			e.fail(ReadFailure(e.mem, base+word))
			return
		}
		v |= hi << (8 * (word - at))
	}
	e.push(v & (^uint64(0) >> (64 - 8*size)))
}

func (e *expression) fail(why Reason) {
	if e.why == ReasonNone {
		e.why = why
	}
}

// jump moves by d bytes from the end of the operation. The end of the
// expression is a legal target.
func (c *cursor) jump(d int64) {
	to := int64(c.i) + d
	if to < 0 || to > int64(len(c.b)) {
		c.bad = true
		return
	}
	c.i = int(to)
}
