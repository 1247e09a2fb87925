package unwind

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// exprMemory has words at 0x1000 and 0x1008 only.
type exprMemory struct {
	wordMemory
	width int
}

func (m exprMemory) ReadWord(addr uint64) (uint64, bool) {
	mem := []byte{0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0x01}
	i := addr - 0x1000
	if i > uint64(len(mem)-m.width) {
		return 0, false
	}
	if m.width == 4 {
		return uint64(binary.LittleEndian.Uint32(mem[i:])), true
	}
	return binary.LittleEndian.Uint64(mem[i:]), true
}

// TestExpression has the operations' meaning from DWARF 5, 2.5.
func TestExpression(t *testing.T) {
	const minus1 = ^uint64(0)
	lit := func(n byte) byte { return opLit0 + n }
	var regs procstate.Regs
	regs.Set(6, 0x1000)
	regs.Set(7, 0x7000)
	for _, tc := range []struct {
		name  string
		code  []byte
		width int // 0: 8
		want  uint64
		why   Reason
	}{
		{"lit31", []byte{lit(31)}, 0, 31, 0},
		{"addr", []byte{opAddr, 1, 2, 0, 0, 0, 0, 0, 0}, 0, 0x100201, 0}, // with bias
		{"const1u", []byte{opConst1u, 0xff}, 0, 255, 0},
		{"const1s", []byte{opConst1s, 0xff}, 0, minus1, 0},
		{"const2u", []byte{opConst2u, 0xfe, 0xff}, 0, 0xfffe, 0},
		{"const2s", []byte{opConst2s, 0xfe, 0xff}, 0, minus1 - 1, 0},
		{"const4u", []byte{opConst4u, 0, 0, 0, 0x80}, 0, 0x80000000, 0},
		{"const4s", []byte{opConst4s, 0, 0, 0, 0x80}, 0, 0xffffffff80000000, 0},
		{"const8u", []byte{opConst8u, 1, 2, 3, 4, 5, 6, 7, 8}, 0, 0x0807060504030201, 0},
		{"const8s in 32 bits", []byte{opConst8s, 1, 2, 3, 4, 5, 6, 7, 8}, 4, 0x04030201, 0},
		{"constu", []byte{opConstu, 0xe5, 0x8e, 0x26}, 0, 624485, 0},
		{"consts", []byte{opConsts, 0x80, 0x7f}, 0, minus1 - 127, 0},
		{"breg", []byte{opBreg0 + 7, 0x78}, 0, 0x6ff8, 0},
		{"bregx", []byte{opBregx, 6, 16}, 0, 0x1010, 0},
		{"unknown register", []byte{opBreg0 + 3, 0}, 0, 0, NoRegister},
		{"no such register", []byte{opBregx, 0x80, 1, 0}, 0, 0, NoRegister},
		{"dup", []byte{lit(3), opDup, opMul}, 0, 9, 0},
		{"drop", []byte{lit(3), lit(4), opDrop}, 0, 3, 0},
		{"over", []byte{lit(9), lit(4), opOver, opMinus, opPlus}, 0, 9 + 4 - 9, 0},
		{"pick", []byte{lit(7), lit(8), lit(9), opPick, 2}, 0, 7, 0},
		{"pick too deep", []byte{lit(7), opPick, 1}, 0, 0, BadUnwindInfo},
		{"swap", []byte{lit(2), lit(7), opSwap, opMinus}, 0, 5, 0},
		// rot: the first becomes the third, the second the first.
		{"rot", []byte{lit(1), lit(2), lit(3), opRot}, 0, 2, 0},
		{"rot second", []byte{lit(1), lit(2), lit(3), opRot, opDrop}, 0, 1, 0},
		{"rot third", []byte{lit(1), lit(2), lit(3), opRot, opDrop, opDrop}, 0, 3, 0},
		{"deref", []byte{opBreg0 + 6, 0, opDeref}, 0, 0x8877665544332211, 0},
		{"deref in 32 bits", []byte{opBreg0 + 6, 0, opDeref}, 4, 0x44332211, 0},
		{"deref unreadable", []byte{lit(8), opDeref}, 0, 0, MemoryUnreadable},
		{"deref_size 1", []byte{opBreg0 + 6, 7, opDerefSize, 1}, 0, 0x88, 0},
		{"deref_size 2 across words", []byte{opBreg0 + 6, 7, opDerefSize, 2}, 0, 0x9988, 0},
		{"deref_size 4 at the end", []byte{opBreg0 + 6, 12, opDerefSize, 4}, 0, 0x01ffeedd, 0},
		{"deref_size 8", []byte{opBreg0 + 6, 8, opDerefSize, 8}, 0, 0x01ffeeddccbbaa99, 0},
		{"deref_size 9", []byte{opBreg0 + 6, 0, opDerefSize, 9}, 0, 0, BadUnwindInfo},
		{"deref_size 0", []byte{opBreg0 + 6, 0, opDerefSize, 0}, 0, 0, BadUnwindInfo},
		{"plus_uconst", []byte{lit(1), opPlusUconst, 0x80, 1}, 0, 129, 0},
		{"abs", []byte{opConst1s, 0x80, opAbs}, 0, 128, 0},
		{"abs in 32 bits", []byte{opConst4u, 0xff, 0xff, 0xff, 0xff, opAbs}, 4, 1, 0},
		{"neg", []byte{lit(1), opNeg}, 0, minus1, 0},
		{"not", []byte{lit(0), opNot}, 4, 0xffffffff, 0},
		{"and", []byte{lit(12), lit(10), opAnd}, 0, 8, 0},
		{"or", []byte{lit(12), lit(10), opOr}, 0, 14, 0},
		{"xor", []byte{lit(12), lit(10), opXor}, 0, 6, 0},
		{"plus", []byte{opConst1s, 0xff, lit(3), opPlus}, 0, 2, 0},
		{"minus", []byte{lit(3), lit(5), opMinus}, 0, minus1 - 1, 0},
		{"mul", []byte{opConst1s, 0xfd, lit(5), opMul}, 0, minus1 - 14, 0},
		{"div is signed", []byte{opConst1s, 0xf8, lit(3), opDiv}, 0, minus1 - 1, 0},
		{"div by zero", []byte{lit(1), lit(0), opDiv}, 0, 0, BadUnwindInfo},
		{"div of the least by -1", []byte{opConst8u, 0, 0, 0, 0, 0, 0, 0, 0x80, opConst1s, 0xff, opDiv}, 0, 1 << 63, 0},
		{"mod", []byte{lit(17), lit(5), opMod}, 0, 2, 0},
		{"mod by zero", []byte{lit(1), lit(0), opMod}, 0, 0, BadUnwindInfo},
		{"shl", []byte{lit(1), lit(31), opShl}, 4, 1 << 31, 0},
		{"shl by 64", []byte{lit(1), opConst1u, 64, opShl}, 0, 0, 0},
		{"shr", []byte{opConst1s, 0xff, lit(4), opShr}, 4, 0x0fffffff, 0},
		{"shra", []byte{opConst1s, 0xf0, lit(2), opShra}, 0, minus1 - 3, 0},
		{"shra by 200", []byte{opConst1s, 0xf0, opConst1u, 200, opShra}, 0, minus1, 0},
		{"eq", []byte{lit(3), lit(3), opEq}, 0, 1, 0},
		{"ne", []byte{lit(3), lit(3), opNe}, 0, 0, 0},
		{"lt is signed", []byte{opConst1s, 0xff, lit(3), opLt}, 0, 1, 0},
		{"gt", []byte{lit(4), lit(3), opGt}, 0, 1, 0},
		{"ge", []byte{lit(3), lit(3), opGe}, 0, 1, 0},
		{"le", []byte{lit(4), lit(3), opLe}, 0, 0, 0},
		{"lt in 32 bits", []byte{opConst4u, 0xff, 0xff, 0xff, 0xff, lit(0), opLt}, 4, 1, 0},
		{"skip", []byte{lit(1), opSkip, 1, 0, 0xff, opNop}, 0, 1, 0},
		{"skip to the end", []byte{lit(1), opSkip, 1, 0, 0xff}, 0, 1, 0},
		{"skip past the end", []byte{lit(1), opSkip, 2, 0, 0xff}, 0, 0, BadUnwindInfo},
		{"skip before the start", []byte{lit(1), opSkip, 0, 0x80}, 0, 0, BadUnwindInfo},
		{"bra taken", []byte{lit(7), lit(1), opBra, 1, 0, opNeg}, 0, 7, 0},
		{"bra not taken", []byte{lit(7), lit(0), opBra, 1, 0, opNeg}, 0, minus1 - 6, 0},
		// n = 5; do r *= 2 while n != 0
		{"loop", []byte{lit(1), lit(5), opSwap, lit(2), opMul, opSwap, lit(1), opMinus, opDup, opBra, 0xf6, 0xff, opDrop}, 0, 32, 0},
		{"endless", []byte{opSkip, 0xfd, 0xff}, 0, 0, UnsupportedUnwind},
		{"stack too deep", []byte{lit(1), opSkip, 0xfc, 0xff}, 0, 0, UnsupportedUnwind},
		{"empty stack", []byte{opDrop}, 0, 0, BadUnwindInfo},
		{"no result", nil, 0, 0, BadUnwindInfo},
		{"truncated", []byte{opConst4u, 1, 2}, 0, 0, BadUnwindInfo},
		{"truncated LEB128", []byte{opConstu, 0x80}, 0, 0, BadUnwindInfo},
		{"call_frame_cfa", []byte{0x9c}, 0, 0, UnsupportedUnwind},
		{"reg0 is no value", []byte{lit(1), lit(2), opReg0}, 0, 0, UnsupportedUnwind},
	} {
		e := expression{regs: &regs, pc: 16, width: 8, bias: 0x100000}
		if tc.width != 0 {
			e.width = tc.width
		}
		e.mem = exprMemory{width: e.width}
		got, why := e.eval(string(tc.code), nil)
		if got != tc.want && why == ReasonNone || why != tc.why {
			t.Errorf("%s: %#x, %v; want %#x, %v", tc.name, got, why, tc.want, tc.why)
		}
	}
	cfa := uint64(0x5000)
	e := expression{regs: &regs, mem: exprMemory{width: 8}, width: 8}
	if got, why := e.eval(string([]byte{opPlusUconst, 8}), &cfa); got != 0x5008 || why != ReasonNone {
		t.Errorf("with a CFA: %#x, %v", got, why)
	}
}

func FuzzExpression(f *testing.F) {
	f.Add([]byte{opBreg0 + 7, 8, opBreg0 + 16, 0, opLit0 + 15, opAnd, opLit0 + 11, opGe, opLit0 + 3, opShl, opPlus}, false)
	f.Add([]byte{opBreg0 + 6, 0, opDerefSize, 3, opBra, 0xf0, 0xff}, true)
	f.Add([]byte{opLit0 + 1, opPick, 0, opRot, opShra, opDiv, opMod, opAbs}, false)
	f.Fuzz(func(t *testing.T, code []byte, narrow bool) {
		var regs procstate.Regs
		regs.Set(6, 0x1000)
		regs.Set(7, 0x7000)
		regs.Set(16, 0x40000b)
		e := expression{regs: &regs, pc: 16, width: 8}
		if narrow {
			e.width = 4
		}
		e.mem = exprMemory{width: e.width}
		v, why := e.eval(string(code), nil)
		if why != ReasonNone && v != 0 && why >= NumReasons {
			t.Errorf("%#x, %v", v, why)
		}
		if narrow && v>>32 != 0 {
			t.Errorf("%#x has more than 32 bits", v)
		}
	})
}
