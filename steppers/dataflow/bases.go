package dataflow

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// bases numbers the values of a function that only run time knows and that
// others are relative to.
type bases struct {
	at   map[uint64]uint8  // by the instruction that defines them
	of   map[indexed]uint8 // those that are sums of two others
	sums [256]indexed      // the same, by number
}

// indexed is the sum of a base and of a multiple of another one.
type indexed struct{ base, index, scale uint8 }

func newBases() *bases {
	return &bases{at: map[uint64]uint8{}, of: map[indexed]uint8{}}
}

func (bs *bases) next() uint8 { return uint8(min(len(bs.at)+len(bs.of)+1, 256)) }

// definedAt returns the base that the instruction at vaddr defines, 0 when
// there are too many.
func (bs *bases) definedAt(vaddr uint64) uint8 {
	b, ok := bs.at[vaddr]
	if !ok {
		if b = bs.next(); b != 0 {
			bs.at[vaddr] = b
		}
	}
	return b
}

// sum returns the base that is a sum, 0 when there are too many.
func (bs *bases) sum(x indexed) uint8 {
	b, ok := bs.of[x]
	if !ok {
		if b = bs.next(); b != 0 {
			bs.of[x], bs.sums[b] = b, x
		}
	}
	return b
}

func (bs *bases) isSum(b uint8) bool { return bs.sums[b].scale != 0 }

// dependsOn reports whether a base is another one, or a sum with that one in
// it.
func (bs *bases) dependsOn(b, on uint8) bool {
	x := bs.sums[b]
	return b == on || bs.isSum(b) && (x.base == on || x.index == on)
}

// define makes reg hold a value that only run time knows.
func (s *state) define(reg procstate.Reg, at uint64, bs *bases) {
	b := bs.definedAt(at)
	if b == 0 {
		s.regs[reg] = value{}
		return
	}
	s.killBase(b, bs)
	s.regs[reg] = value{kind: stack, base: b}
}

// killBase forgets every value that depends on a base that is about to be
// defined anew.
func (s *state) killBase(base uint8, bs *bases) {
	for r := range s.regs {
		if v := &s.regs[r]; v.kind == stack && bs.dependsOn(v.base, base) {
			*v = value{}
		}
	}
	for i := 0; i < int(s.nslots); i++ {
		t := &s.slots[i]
		if bs.dependsOn(t.base, base) || t.val.kind == stack && bs.dependsOn(t.val.base, base) {
			s.dropSlot(i)
			i--
		}
	}
}

// indexed is the value of reg + Index*Scale + Imm of an operation.
func (s *state) indexed(op *isa.Op, reg procstate.Reg, bs *bases) value {
	b, i := s.regs[reg], s.regs[op.Index]
	switch {
	case i.kind == constant:
		return b.plus(int64(i.off)*int64(op.Scale) + op.Imm)
	case b.kind == constant && op.Scale == 1:
		return i.plus(int64(b.off) + op.Imm)
	case b.kind != stack || i.kind != stack || i.base == 0 || bs.isSum(b.base) || bs.isSum(i.base):
		return value{}
	}
	sum := bs.sum(indexed{b.base, i.base, op.Scale})
	if sum == 0 {
		return value{}
	}
	return value{kind: stack, base: sum, off: b.off}.plus(int64(i.off)*int64(op.Scale) + op.Imm)
}

// cfaIndexed finds a word that leads to the CFA and is at the sum of two
// registers.
func (s *state) cfaIndexed(a *procstate.Arch, bs *bases, r *Rule) bool {
	for i := range s.slots[:s.nslots] {
		t := &s.slots[i]
		x := bs.sums[t.base]
		if !bs.isSum(t.base) || t.val.kind != stack || t.val.base != 0 {
			continue
		}
		reg, off, ok1 := s.holder(a, x.base, ^uint64(0))
		index, ioff, ok2 := s.holder(a, x.index, ^uint64(0))
		if ok1 && ok2 {
			*r = Rule{Reg: reg, Deref: true, Index: index, Scale: x.scale, Off: t.off - off - ioff*int32(x.scale), Add: -t.val.off}
			return true
		}
	}
	return false
}
