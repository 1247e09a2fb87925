package mcode

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// PathBase is what an address or a value on a path is relative to.
type PathBase uint8

const (
	pathUnknown PathBase = iota
	PathSP               // SP at the instruction in question
	PathFP               // the frame pointer there
	PathLR               // the link register there
	PathAligned          // SP where it was last aligned since
)

// PathValue is what a register or a slot of the stack holds on a path: base +
// off, or with inMemory what the word there held when the path began.
type PathValue struct {
	Base     PathBase
	InMemory bool
	Off      int32
}

// Plus adds a constant.
func (v PathValue) Plus(n int64) PathValue {
	if sum := int64(v.Off) + n; v.Base != pathUnknown && !v.InMemory && sum == int64(int32(sum)) {
		v.Off = int32(sum)
		return v
	}
	if n == 0 {
		return v
	}
	return PathValue{}
}

// PathStore is a word that was stored on a path.
type PathStore struct{ At, Value PathValue }

// PathState is what is known before an instruction of a path.
type PathState struct {
	PC     uint64 // of the instruction
	Regs   [procstate.MaxRegs]PathValue
	Stores [12]PathStore
	N      int

	width   int32  // bytes of a word
	Written uint64 // the registers that have been, bit by bit

	// known is what the code has set registers to, 0 where that is not known; has has a bit for
	// each where it is. Where one of word is set, it is what is at that address.
	Known     [procstate.MaxRegs]uint64
	Has, Word uint64
}

// FirstPathState is what is known where a path begins.
func FirstPathState(a *procstate.Arch, pc uint64) PathState {
	s := PathState{PC: pc, width: int32(a.AddressWidth)}
	s.Regs[a.SP], s.Regs[a.FP] = PathValue{Base: PathSP}, PathValue{Base: PathFP}
	return s
}

// WordAt returns what the word at an address holds.
func (s *PathState) WordAt(at PathValue) PathValue {
	if at.Base == pathUnknown || at.InMemory {
		return PathValue{}
	}
	for i := range s.Stores[:s.N] {
		if t := &s.Stores[i]; t.At == at {
			return t.Value
		}
	}
	if at.Base == PathSP && at.Off < 0 {
		return PathValue{} // what calls leave there is nobody's
	}
	at.InMemory = true
	return at
}

// Store puts a value into a word of the stack.
func (s *PathState) Store(at, v PathValue, size int32) {
	if at.Base == pathUnknown || at.InMemory {
		return
	}
	for i := 0; i < s.N; i++ {
		if t := &s.Stores[i]; t.At.Base == at.Base && t.At.Off < at.Off+size && at.Off < t.At.Off+s.width {
			s.Stores[i].Value = PathValue{}
			if t.At == at {
				s.Stores[i].Value = v
				return
			}
		}
	}
	if (v.Base != pathUnknown || at.Off >= 0) && s.N < len(s.Stores) {
		s.Stores[s.N] = PathStore{at, v}
		s.N++
	}
}

// know notes what an instruction sets a register to.
func (s *PathState) know(op *isa.Op) {
	v, word := uint64(0), false
	switch src := s.Known[op.Src]; op.Kind {
	case isa.Const:
		v = uint64(op.Imm)
	case isa.Set:
		if word = s.Word>>op.Src&1 != 0; src != 0 && (!word || op.Imm == 0) {
			v = src + uint64(op.Imm)
		}
	case isa.Load:
		if word = true; src != 0 && s.Word>>op.Src&1 == 0 {
			v = src + uint64(op.Imm)
		}
	}
	s.Knows(op.Dst, v, word)
}

// Knows notes that a register is v, or what is there.
func (s *PathState) Knows(reg procstate.Reg, v uint64, word bool) {
	if s.width == 4 {
		v = uint64(uint32(v))
	}
	s.Known[reg] = v
	s.Has &^= 1 << reg
	s.Word &^= 1 << reg
	if v != 0 {
		s.Has |= 1 << reg
	}
	if word {
		s.Word |= 1 << reg
	}
}

// Apply executes an instruction.
func (s *PathState) Apply(a *procstate.Arch, in *isa.Inst) {
	for i := range in.Ops[:in.NumOps] {
		op := &in.Ops[i]
		if op.Dst >= procstate.MaxRegs || op.Src >= procstate.MaxRegs {
			continue
		}
		dst := &s.Regs[op.Dst]
		switch op.Kind {
		case isa.Store, isa.Scratch, isa.StoreIndexed, isa.Compare:
		case isa.Swap:
			s.Written |= 1<<op.Src | 1<<op.Dst
			v, word := s.Known[op.Src], s.Word>>op.Src&1 != 0
			s.Knows(op.Src, s.Known[op.Dst], s.Word>>op.Dst&1 != 0)
			s.Knows(op.Dst, v, word)
		default:
			s.Written |= 1 << op.Dst
			s.know(op)
		}
		switch op.Kind {
		case isa.Set:
			*dst = s.Regs[op.Src].Plus(op.Imm)
		case isa.Load:
			*dst = s.WordAt(s.Regs[op.Src].Plus(op.Imm))
		case isa.Store:
			s.Store(dst.Plus(op.Imm), s.Regs[op.Src], s.width)
		case isa.Scratch:
			s.Store(dst.Plus(op.Imm), PathValue{}, int32(op.Size))
		case isa.Swap:
			s.Regs[op.Dst], s.Regs[op.Src] = s.Regs[op.Src], s.Regs[op.Dst]
		case isa.Compare, isa.Sign, isa.StoreIndexed:
		default:
			*dst = PathValue{}
		}
	}
	if in.Flow == isa.Call || in.Flow == isa.IndirectCall {
		keep := a.CalleeSaved | 1<<a.SP
		for r := range a.NumRegs {
			if keep&(1<<r) == 0 {
				s.Regs[r] = PathValue{}
				s.Written |= 1 << r
				s.Knows(procstate.Reg(r), 0, false)
			}
		}
	}
}

// Restored returns what a register of the caller has by the rule of a row.
func (s *PathState) Restored(cfa PathValue, rule *unwind.RegRule, reg procstate.Reg) (v PathValue, ok bool) {
	switch rule.Kind {
	case unwind.AtOffset:
		return s.WordAt(cfa.Plus(rule.Offset)), true
	case unwind.Unspecified, unwind.SameValue:
		return s.Regs[min(reg, procstate.MaxRegs-1)], reg < procstate.MaxRegs
	}
	return v, false
}
