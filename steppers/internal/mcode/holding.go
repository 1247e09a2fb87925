package mcode

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Holding is where a function has a value: in registers, a bit each by their number, and in words of its frame, a bit
// each by how many words they are below the CFA.
type Holding struct{ Regs, Words uint64 }

// HoldingWords is how many words of a frame are told of.
const HoldingWords = 64

// WordBit returns the bit of the word of a frame that is so many bytes from the CFA, 0 where that is none.
func WordBit(offset int64) uint64 {
	if n := -offset / 8; offset < 0 && offset%8 == 0 && n <= HoldingWords {
		return 1 << (n - 1)
	}
	return 0
}

// WordOffset returns how far from the CFA the word of a bit is, in bytes.
func WordOffset(bit int) int64 { return -8 * int64(bit+1) }

// Apply tells where the value is after an instruction of a function whose CFA is, before it, by a rule. Words that are
// stored to by way of another register or of an index are taken for others.
func (h *Holding) Apply(a *procstate.Arch, in *isa.Inst, cfa unwind.RegRule) {
	word := func(base procstate.Reg, imm int64) uint64 {
		if cfa.Kind != unwind.InReg || base != cfa.Reg {
			return 0
		}
		return WordBit(imm - cfa.Offset)
	}
	for i := range in.Ops[:in.NumOps] {
		op := &in.Ops[i]
		src, dst := uint64(1)<<(op.Src&63), uint64(1)<<(op.Dst&63)
		if op.Src >= 64 {
			src = 0
		}
		if op.Dst >= 64 {
			dst = 0
		}
		switch op.Kind {
		case isa.StoreIndexed, isa.Compare:
		case isa.Store:
			w := word(op.Dst, op.Imm)
			if h.Words &^= w; h.Regs&src != 0 {
				h.Words |= w
			}
		case isa.Scratch:
			for n := int64(0); n < int64(op.Size); n++ {
				h.Words &^= word(op.Dst, (op.Imm+n-cfa.Offset)&^7+cfa.Offset)
			}
		case isa.Swap:
			had := h.Regs
			if h.Regs &^= src | dst; had&src != 0 {
				h.Regs |= dst
			}
			if had&dst != 0 {
				h.Regs |= src
			}
		case isa.Set:
			has := op.Imm == 0 && h.Regs&src != 0
			if h.Regs &^= dst; has {
				h.Regs |= dst
			}
		case isa.Load:
			if h.Regs &^= dst; h.Words&word(op.Src, op.Imm) != 0 {
				h.Regs |= dst
			}
		default:
			h.Regs &^= dst
		}
	}
	if in.Flow == isa.Call || in.Flow == isa.IndirectCall {
		h.Regs &= a.CalleeSaved
	}
}
