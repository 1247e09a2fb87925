package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// pathBase is what an address or a value on a path is relative to.
type pathBase uint8

const (
	pathUnknown pathBase = iota
	pathSP               // SP at the instruction in question
	pathFP               // the frame pointer there
	pathLR               // the link register there
	pathAligned          // SP where it was last aligned since
)

// pathValue is what a register or a slot of the stack holds on a path: base +
// off, or with inMemory what the word there held when the path began.
type pathValue struct {
	base     pathBase
	inMemory bool
	off      int32
}

// plus adds a constant.
func (v pathValue) plus(n int64) pathValue {
	if sum := int64(v.off) + n; v.base != pathUnknown && !v.inMemory && sum == int64(int32(sum)) {
		v.off = int32(sum)
		return v
	}
	if n == 0 {
		return v
	}
	return pathValue{}
}

// pathStore is a word that was stored on a path.
type pathStore struct{ at, value pathValue }

// pathState is what is known before an instruction of a path.
type pathState struct {
	pc     uint64 // of the instruction
	regs   [procstate.MaxRegs]pathValue
	stores [12]pathStore
	n      int

	width   int32  // bytes of a word
	written uint64 // the registers that have been, bit by bit

	// known is what the code has set registers to, 0 where that is not known; has has a bit for
	// each where it is. Where one of word is set, it is what is at that address.
	known     [procstate.MaxRegs]uint64
	has, word uint64
}

// firstState is what is known where a path begins.
func firstState(a *procstate.Arch, pc uint64) pathState {
	s := pathState{pc: pc, width: int32(a.AddressWidth)}
	s.regs[a.SP], s.regs[a.FP] = pathValue{base: pathSP}, pathValue{base: pathFP}
	return s
}

// wordAt returns what the word at an address holds.
func (s *pathState) wordAt(at pathValue) pathValue {
	if at.base == pathUnknown || at.inMemory {
		return pathValue{}
	}
	for i := range s.stores[:s.n] {
		if t := &s.stores[i]; t.at == at {
			return t.value
		}
	}
	if at.base == pathSP && at.off < 0 {
		return pathValue{} // what calls leave there is nobody's
	}
	at.inMemory = true
	return at
}

// store puts a value into a word of the stack.
func (s *pathState) store(at, v pathValue, size int32) {
	if at.base == pathUnknown || at.inMemory {
		return
	}
	for i := 0; i < s.n; i++ {
		if t := &s.stores[i]; t.at.base == at.base && t.at.off < at.off+size && at.off < t.at.off+s.width {
			s.stores[i].value = pathValue{}
			if t.at == at {
				s.stores[i].value = v
				return
			}
		}
	}
	if (v.base != pathUnknown || at.off >= 0) && s.n < len(s.stores) {
		s.stores[s.n] = pathStore{at, v}
		s.n++
	}
}

// know notes what an instruction sets a register to.
func (s *pathState) know(op *isa.Op) {
	v, word := uint64(0), false
	switch src := s.known[op.Src]; op.Kind {
	case isa.Const:
		v = uint64(op.Imm)
	case isa.Set:
		if word = s.word>>op.Src&1 != 0; src != 0 && (!word || op.Imm == 0) {
			v = src + uint64(op.Imm)
		}
	case isa.Load:
		if word = true; src != 0 && s.word>>op.Src&1 == 0 {
			v = src + uint64(op.Imm)
		}
	}
	s.knows(op.Dst, v, word)
}

// knows notes that a register is v, or what is there.
func (s *pathState) knows(reg procstate.Reg, v uint64, word bool) {
	if s.width == 4 {
		v = uint64(uint32(v))
	}
	s.known[reg] = v
	s.has &^= 1 << reg
	s.word &^= 1 << reg
	if v != 0 {
		s.has |= 1 << reg
	}
	if word {
		s.word |= 1 << reg
	}
}

// apply executes an instruction.
func (s *pathState) apply(a *procstate.Arch, in *isa.Inst) {
	for i := range in.Ops[:in.NumOps] {
		op := &in.Ops[i]
		if op.Dst >= procstate.MaxRegs || op.Src >= procstate.MaxRegs {
			continue
		}
		dst := &s.regs[op.Dst]
		switch op.Kind {
		case isa.Store, isa.Scratch, isa.StoreIndexed, isa.Compare:
		case isa.Swap:
			s.written |= 1<<op.Src | 1<<op.Dst
			v, word := s.known[op.Src], s.word>>op.Src&1 != 0
			s.knows(op.Src, s.known[op.Dst], s.word>>op.Dst&1 != 0)
			s.knows(op.Dst, v, word)
		default:
			s.written |= 1 << op.Dst
			s.know(op)
		}
		switch op.Kind {
		case isa.Set:
			*dst = s.regs[op.Src].plus(op.Imm)
		case isa.Load:
			*dst = s.wordAt(s.regs[op.Src].plus(op.Imm))
		case isa.Store:
			s.store(dst.plus(op.Imm), s.regs[op.Src], s.width)
		case isa.Scratch:
			s.store(dst.plus(op.Imm), pathValue{}, int32(op.Size))
		case isa.Swap:
			s.regs[op.Dst], s.regs[op.Src] = s.regs[op.Src], s.regs[op.Dst]
		case isa.Compare, isa.Sign, isa.StoreIndexed:
		default:
			*dst = pathValue{}
		}
	}
	if in.Flow == isa.Call || in.Flow == isa.IndirectCall {
		keep := a.CalleeSaved | 1<<a.SP
		for r := range a.NumRegs {
			if keep&(1<<r) == 0 {
				s.regs[r] = pathValue{}
				s.written |= 1 << r
				s.knows(procstate.Reg(r), 0, false)
			}
		}
	}
}

// restored returns what a register of the caller has by the rule of a row.
func (s *pathState) restored(cfa pathValue, rule *unwind.RegRule, reg procstate.Reg) (v pathValue, ok bool) {
	switch rule.Kind {
	case unwind.AtOffset:
		return s.wordAt(cfa.plus(rule.Offset)), true
	case unwind.Unspecified, unwind.SameValue:
		return s.regs[min(reg, procstate.MaxRegs-1)], reg < procstate.MaxRegs
	}
	return v, false
}
