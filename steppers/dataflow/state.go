package dataflow

import (
	"math"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// valueKind is what is known of a value.
type valueKind uint8

const (
	anything valueKind = iota // nothing
	stack                     // base + off; base 0 is the CFA
	entry                     // what register base held at the function's entry
	constant                  // off
)

// value is an abstract value of a register or a stack slot. Entry of the
// architecture's RA register stands for the return address.
type value struct {
	kind valueKind
	base uint8
	off  int32
}

// plus adds a constant.
func (v value) plus(n int64) value {
	if n == 0 {
		return v
	}
	switch v.kind {
	case stack, constant:
		if sum := int64(v.off) + n; sum == int64(int32(sum)) {
			v.off = int32(sum)
			return v
		}
	}
	return value{}
}

// slot is a word of the stack at base + off that holds something known.
type slot struct {
	base uint8
	off  int32
	val  value
}

// maxSlots bounds the slots that are followed; more are forgotten.
const maxSlots = 28

// state is what is known before an instruction.
type state struct {
	regs   [procstate.MaxRegs]value
	slots  [maxSlots]slot
	nslots uint8
	width  uint8 // bytes of a word

	// weak is one more than the index of the last guess on the path to here:
	// a call that may not return. 0 is none.
	weak uint16

	// lastCall is one more than the index of the last call on all paths to
	// here, 0 when they differ in it.
	lastCall uint16

	// guessed tells that all paths to here start from a guess of guessRest.
	guessed bool
}

// entryState is the state at a function's first instruction, with extra
// bytes between the return address and where SP points.
func entryState(a *procstate.Arch, extra int32) *state {
	s := &state{width: uint8(a.AddressWidth)}
	for r := range a.NumRegs {
		s.regs[r] = value{kind: entry, base: uint8(r)}
	}
	if a.LR == procstate.NoReg {
		w := int32(a.AddressWidth)
		s.regs[a.SP] = value{kind: stack, off: -w - extra}
		s.setSlot(0, -w, value{kind: entry, base: uint8(a.RA)})
	} else {
		s.regs[a.SP] = value{kind: stack, off: -extra}
		if extra > 0 { // what pushed them, the linkage table, pushed X30 too
			s.setSlot(0, -int32(a.AddressWidth), value{kind: entry, base: uint8(a.RA)})
		}
	}
	s.regs[a.PC] = value{}
	return s
}

// height is SP relative to the CFA, when it is known.
func (s *state) height(a *procstate.Arch) (off int32, ok bool) {
	v := s.regs[a.SP]
	return v.off, v.kind == stack && v.base == 0
}

// setSlot stores a value in the word at base + off.
func (s *state) setSlot(base uint8, off int32, v value) {
	s.killSlots(base, off, int32(s.width))
	if v.kind != stack && v.kind != entry {
		return
	}
	if s.nslots < maxSlots {
		s.slots[s.nslots] = slot{base, off, v}
		s.nslots++
	}
}

// killSlots forgets the words that overlap size bytes at base + off.
func (s *state) killSlots(base uint8, off, size int32) {
	for i := 0; i < int(s.nslots); i++ {
		if t := &s.slots[i]; t.base == base && t.off < off+size && off < t.off+int32(s.width) {
			s.dropSlot(i)
			i--
		}
	}
}

func (s *state) dropSlot(i int) {
	s.nslots--
	copy(s.slots[i:s.nslots], s.slots[i+1:s.nslots+1])
	s.slots[s.nslots] = slot{}
}

// dropStale forgets words below SP that hold what their registers hold again:
// another function that is jumped to has its own frame there.
func (s *state) dropStale(a *procstate.Arch) {
	sp := s.regs[a.SP]
	for i := 0; sp.kind == stack && i < int(s.nslots); i++ {
		if t := &s.slots[i]; t.base == sp.base && t.off < sp.off && t.val.kind == entry && s.regs[t.val.base] == t.val {
			s.dropSlot(i)
			i--
		}
	}
}

// slotAt returns what the word at base + off holds.
func (s *state) slotAt(base uint8, off int32) value {
	for i := range s.slots[:s.nslots] {
		if t := &s.slots[i]; t.base == base && t.off == off {
			return t.val
		}
	}
	return value{}
}

// apply carries out the operations of the instruction at vaddr at.
func (s *state) apply(a *procstate.Arch, in *isa.Inst, at uint64, bs *bases) {
	for i := range in.Ops[:in.NumOps] {
		op := &in.Ops[i]
		if op.Dst >= procstate.MaxRegs || op.Src >= procstate.MaxRegs {
			continue
		}
		dst := &s.regs[op.Dst]
		switch op.Kind {
		case isa.Set:
			*dst = s.regs[op.Src].plus(op.Imm)
		case isa.Const:
			*dst = value{}
			if op.Imm == int64(int32(op.Imm)) || s.width == 4 {
				*dst = value{kind: constant, off: int32(op.Imm)}
			}
		case isa.Load:
			*dst = s.load(s.regs[op.Src].plus(op.Imm))
		case isa.Store:
			// The return address itself is stored where something else
			// points to only by code that takes it off the stack meanwhile.
			if op.Dst != a.SP && dst.kind != stack && s.regs[op.Src] == (value{kind: entry, base: uint8(a.RA)}) && a.LR == procstate.NoReg {
				s.define(op.Dst, at, bs)
			}
			if p := dst.plus(op.Imm); p.kind == stack && !s.replacesReturn(a, p, s.regs[op.Src]) {
				s.setSlot(p.base, p.off, s.regs[op.Src])
			}
		case isa.Scratch:
			if p := dst.plus(op.Imm); p.kind == stack {
				s.killSlots(p.base, p.off, int32(op.Size))
			}
		case isa.Add, isa.Sub:
			s.addReg(a, op, at, bs)
		case isa.Align:
			switch {
			case dst.kind == stack && op.Imm >= math.MinInt32:
				s.define(op.Dst, at, bs)
			case dst.kind == constant:
				dst.off &= int32(op.Imm)
			default:
				*dst = value{}
			}
		case isa.SetIndexed:
			v := s.indexed(op, op.Src, bs)
			if op.Dst == a.SP && (v.kind != stack || bs.isSum(v.base)) {
				s.define(op.Dst, at, bs)
				continue
			}
			*dst = v
		case isa.LoadIndexed:
			*dst = s.load(s.indexed(op, op.Src, bs))
		case isa.StoreIndexed:
			if v := s.regs[op.Src]; v.kind == stack && v.base == 0 && s.regs[op.Index].kind == anything {
				s.define(op.Index, at, bs)
			}
			if p := s.indexed(op, op.Dst, bs); p.kind == stack {
				s.setSlot(p.base, p.off, s.regs[op.Src])
			}
		case isa.Swap:
			s.regs[op.Dst], s.regs[op.Src] = s.regs[op.Src], s.regs[op.Dst]
		case isa.Clobber:
			*dst = value{}
		}
	}
}

// replacesReturn reports whether storing v at p gives the function another
// place to return to: where an exception is handled. From then on that is the
// return address.
func (s *state) replacesReturn(a *procstate.Arch, p, v value) bool {
	ra := value{kind: entry, base: uint8(a.RA)}
	if v.kind != anything || s.slotAt(p.base, p.off) != ra {
		return false
	}
	for _, r := range s.regs {
		if r == ra {
			return false
		}
	}
	return true
}

func (s *state) load(at value) value {
	if at.kind == stack {
		return s.slotAt(at.base, at.off)
	}
	return value{}
}

func (s *state) addReg(a *procstate.Arch, op *isa.Op, at uint64, bs *bases) {
	dst, src := &s.regs[op.Dst], s.regs[op.Src]
	switch {
	case src.kind == constant && op.Kind == isa.Add:
		*dst = dst.plus(int64(src.off))
	case src.kind == constant:
		*dst = dst.plus(-int64(src.off))
	case dst.kind == constant && op.Kind == isa.Add:
		*dst = src.plus(int64(dst.off))
	case op.Dst == a.SP && op.Kind == isa.Add && a.LR != procstate.NoReg && *dst == value{kind: stack}:
		// The frame is gone, and SP goes up to that of the function where an
		// exception is handled, or by 0 when there is none: what X30 returns to
		// has it.
	case op.Dst == a.SP:
		s.define(op.Dst, at, bs)
	default:
		*dst = value{}
	}
}

// call forgets what a called function may change: the registers that a call
// does not preserve, and memory below SP.
func (s *state) call(a *procstate.Arch) {
	keep := a.CalleeSaved | 1<<a.SP
	for r := range a.NumRegs {
		if keep&(1<<r) == 0 {
			s.regs[r] = value{}
		}
	}
	sp := s.regs[a.SP]
	for i := 0; i < int(s.nslots); i++ {
		if t := &s.slots[i]; sp.kind == stack && t.base == sp.base && t.off < sp.off {
			s.dropSlot(i)
			i--
		}
	}
}

// meet keeps in s what it has in common with o, and reports a change.
func (s *state) meet(o *state) (changed bool) {
	for r := range s.regs {
		if s.regs[r].kind != anything && s.regs[r] != o.regs[r] {
			s.regs[r] = value{}
			changed = true
		}
	}
	for i := 0; i < int(s.nslots); i++ {
		if t := s.slots[i]; o.slotAt(t.base, t.off) != t.val {
			s.dropSlot(i)
			i--
			changed = true
		}
	}
	return changed
}
