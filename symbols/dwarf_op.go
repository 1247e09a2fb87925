package symbols

import "fmt"

// Op is an operation of an Expression. The numbers are those of DWARF 5,
// table 7.9. Operations that differ only in how an operand is stored are one,
// and so are those of GNU and what DWARF 5 made of them.
type Op uint8

// The operations, with what Operation.A and B are.
const (
	OpAddr              Op = 0x03 // A: a link-time address
	OpDeref             Op = 0x06 // A: bytes; 0 stands for an address
	OpConst             Op = 0x10 // A: also small literals, and constants of the table of addresses
	OpDrop              Op = 0x13
	OpPick              Op = 0x15 // A: index; also dup and over
	OpSwap              Op = 0x16
	OpRot               Op = 0x17
	OpAbs               Op = 0x19
	OpAnd               Op = 0x1a
	OpDiv               Op = 0x1b
	OpMinus             Op = 0x1c
	OpMod               Op = 0x1d
	OpMul               Op = 0x1e
	OpNeg               Op = 0x1f
	OpNot               Op = 0x20
	OpOr                Op = 0x21
	OpPlus              Op = 0x22
	OpPlusConst         Op = 0x23 // A
	OpShl               Op = 0x24
	OpShr               Op = 0x25
	OpShra              Op = 0x26
	OpXor               Op = 0x27
	OpBra               Op = 0x28 // A: bytes, signed
	OpEq                Op = 0x29
	OpGe                Op = 0x2a
	OpGt                Op = 0x2b
	OpLe                Op = 0x2c
	OpLt                Op = 0x2d
	OpNe                Op = 0x2e
	OpSkip              Op = 0x2f // A: bytes, signed
	OpReg               Op = 0x90 // A: a register of DWARF's numbering
	OpFrameBase         Op = 0x91 // B: added to the frame base
	OpRegPlus           Op = 0x92 // A: a register, B: added to it
	OpPiece             Op = 0x9d // A: bits, B: from this bit on
	OpNop               Op = 0x96
	OpPushObjectAddress Op = 0x97
	OpCall              Op = 0x9a // A: offset of an entry in .debug_info
	OpTLSAddress        Op = 0x9b
	OpCallFrameCFA      Op = 0x9c
	OpImplicitValue     Op = 0x9e // Block
	OpStackValue        Op = 0x9f
	OpImplicitPointer   Op = 0xa0 // A: offset of an entry in .debug_info, B: bytes
	OpEntryValue        Op = 0xa3 // Block: an expression
	OpConstType         Op = 0xa4 // A: type, Block
	OpRegType           Op = 0xa5 // A: a register, B: type
	OpDerefType         Op = 0xa6 // A: bytes, B: type
	OpConvert           Op = 0xa8 // A: type; types are offsets of entries in the unit, 0 is the generic one
	OpReinterpret       Op = 0xa9 // A: type
	OpUninit            Op = 0xf0
	OpParameterRef      Op = 0xfa // A: offset of an entry in the unit
)

// Operation is an operation of an Expression with its operands.
type Operation struct {
	Op    Op
	A, B  uint64
	Block []byte
}

// Operation decodes the operation at an offset of the code, and returns the
// offset of the next.
func (x *Expression) Operation(at int) (o Operation, next int, err error) {
	if at < 0 || at >= len(x.Code) {
		return o, at, errDWARF
	}
	if x.u == nil {
		return o, at, ErrNoDebugInfo
	}
	c := cursor{b: x.Code, off: at}
	code := c.u8()
	ok := x.operands(&c, code, &o)
	if c.failed {
		return o, at, fmt.Errorf("expression is cut short: %w", errDWARF)
	}
	if !ok {
		return o, at, fmt.Errorf("operation %#x: %w", code, ErrUnsupported)
	}
	return o, c.off, nil
}

// operands decodes what follows an operation's code.
func (x *Expression) operands(c *cursor, code uint8, o *Operation) bool {
	o.Op = Op(code)
	signed := func(size int) uint64 {
		shift := 64 - 8*size
		return uint64(int64(c.uint(size)<<shift) >> shift)
	}
	switch {
	case code >= 0x30 && code < 0x50: // DW_OP_lit0
		o.Op, o.A = OpConst, uint64(code-0x30)
		return true
	case code >= 0x50 && code < 0x70: // DW_OP_reg0
		o.Op, o.A = OpReg, uint64(code-0x50)
		return true
	case code >= 0x70 && code < 0x90: // DW_OP_breg0
		o.Op, o.A, o.B = OpRegPlus, uint64(code-0x70), uint64(c.sleb())
		return true
	case code >= 0x08 && code <= 0x11: // DW_OP_const1u to consts
		o.Op = OpConst
		switch code {
		case 0x10:
			o.A = c.uleb()
		case 0x11:
			o.A = uint64(c.sleb())
		default:
			size := 1 << ((code - 8) / 2)
			if code&1 == 0 {
				o.A = c.uint(size)
			} else {
				o.A = signed(size)
			}
		}
		return true
	}
	var ok = true
	switch code {
	case uint8(OpAddr):
		o.A = c.uint(x.addrSize())
	case uint8(OpDeref), uint8(OpDrop), uint8(OpSwap), uint8(OpRot), uint8(OpAbs), uint8(OpAnd), uint8(OpDiv), uint8(OpMinus),
		uint8(OpMod), uint8(OpMul), uint8(OpNeg), uint8(OpNot), uint8(OpOr), uint8(OpPlus), uint8(OpShl), uint8(OpShr), uint8(OpShra),
		uint8(OpXor), uint8(OpEq), uint8(OpGe), uint8(OpGt), uint8(OpLe), uint8(OpLt), uint8(OpNe), uint8(OpNop), uint8(OpStackValue),
		uint8(OpCallFrameCFA), uint8(OpPushObjectAddress), uint8(OpTLSAddress), uint8(OpUninit):
	case 0x12: // DW_OP_dup
		o.Op = OpPick
	case 0x14: // DW_OP_over
		o.Op, o.A = OpPick, 1
	case uint8(OpPick):
		o.A = uint64(c.u8())
	case uint8(OpPlusConst), uint8(OpReg):
		o.A = c.uleb()
	case uint8(OpBra), uint8(OpSkip):
		o.A = signed(2)
	case uint8(OpFrameBase):
		o.B = uint64(c.sleb())
	case uint8(OpRegPlus):
		o.A, o.B = c.uleb(), uint64(c.sleb())
	case 0x93: // DW_OP_piece
		o.Op, o.A = OpPiece, c.uleb()
		ok = o.A < maxObject
		o.A *= 8
	case uint8(OpPiece):
		o.A, o.B = c.uleb(), c.uleb()
		ok = o.A < maxObject && o.B < maxObject
	case 0x94: // DW_OP_deref_size
		o.Op, o.A = OpDeref, uint64(c.u8())
		ok = o.A > 0
	case 0x98, 0x99: // DW_OP_call2, call4
		o.Op, o.A = OpCall, x.u.off+c.uint(2<<(code-0x98))
	case uint8(OpCall):
		o.A = c.uint(x.u.enc.fixedSize(formRefAddr))
	case 0xe0: // DW_OP_GNU_push_tls_address
		o.Op = OpTLSAddress
	case uint8(OpImplicitValue):
		o.Block = c.take(c.uleb())
	case uint8(OpImplicitPointer), 0xf2:
		o.Op = OpImplicitPointer
		o.A, o.B = c.uint(x.u.enc.fixedSize(formRefAddr)), uint64(c.sleb())
	case 0xa1, 0xfb: // DW_OP_addrx
		o.Op = OpAddr
		o.A, ok = x.address(c.uleb())
	case 0xa2, 0xfc: // DW_OP_constx
		o.Op = OpConst
		o.A, ok = x.address(c.uleb())
	case uint8(OpEntryValue), 0xf3:
		o.Op, o.Block = OpEntryValue, c.take(c.uleb())
	case uint8(OpConstType), 0xf4:
		o.Op, o.A, o.Block = OpConstType, c.uleb(), c.take(uint64(c.u8()))
	case uint8(OpRegType), 0xf5:
		o.Op, o.A, o.B = OpRegType, c.uleb(), c.uleb()
	case uint8(OpDerefType), 0xf6:
		o.Op, o.A, o.B = OpDerefType, uint64(c.u8()), c.uleb()
	case uint8(OpConvert), 0xf7:
		o.Op, o.A = OpConvert, c.uleb()
	case uint8(OpReinterpret), 0xf9:
		o.Op, o.A = OpReinterpret, c.uleb()
	case uint8(OpParameterRef):
		o.A = uint64(c.u32())
	default:
		return false
	}
	return ok
}

// address returns an entry of the unit's table of addresses.
func (x *Expression) address(index uint64) (uint64, bool) {
	x.d.lock()
	defer x.d.unlock()
	return x.d.addrx(x.u, index)
}
