package dataflow

import "github.com/swbpf/swbpf/procstate"

// Hand-written code may lower SP in a loop and move the word that holds the
// CFA, or the SP of the entry, along with it. At the head of such a loop SP is
// at no known distance from the CFA, but that word is at a known distance
// from SP.

// atBlock marks a base that is defined at the start of a block, where paths
// meet, and not by the instruction there. Link-time addresses of user code do
// not reach it.
const atBlock = 1 << 63

// onMovingStack returns what a state that arrives at a block is to be met
// with when SP is at different places on the paths. Where a word at one
// distance from SP leads to the CFA on all of them, the block is the head of
// such a loop, and the analysis starts over with a base of its own for SP
// there. A state that comes out of the loop and has lost the way to the CFA is
// dropped, and nil returned: what other paths know of a block, whose code is
// the same for all, holds for it too.
func (f *flow) onMovingStack(b *block, s *state) *state {
	have, come := b.state.regs[f.arch.SP], s.regs[f.arch.SP]
	switch {
	case have.kind != stack || come.kind != stack:
	case f.movingAt[b.addr]:
		moved := *s
		f.moveStack(&moved, b.addr)
		return &moved
	case leadsToCFA(&b.state, have, s, come), have.base != 0 && come.base != 0 && cfaInScratch(f.arch, &b.state, s):
		if !f.settled {
			f.movingAt[b.addr] = true
			f.restart = true
		}
	case f.moving[come.base] && !f.moving[have.base]:
		return nil
	}
	return s
}

// moveStack gives SP the base of the loop whose head is at addr.
func (f *flow) moveStack(s *state, addr uint64) {
	sp := s.regs[f.arch.SP]
	if sp.kind != stack {
		return
	}
	if base := f.bases.definedAt(addr | atBlock); base != 0 {
		f.moving[base] = true
		s.rebase(sp, base, f.bases)
	}
}

// leadsToCFA reports whether a word at one distance from SP holds the same
// address in the frame in both states.
func leadsToCFA(a *state, spA value, b *state, spB value) bool {
	for _, t := range a.slots[:a.nslots] {
		if t.base == spA.base && t.val.kind == stack && t.val.base == 0 && b.slotAt(spB.base, t.off-spA.off+spB.off) == t.val {
			return true
		}
	}
	return false
}

// cfaInScratch reports whether a register that calls do not preserve holds
// the same address in the frame in both states, and none that they do: the
// next thing to come is that it is stored.
func cfaInScratch(arch *procstate.Arch, a, b *state) bool {
	found := false
	for r, v := range a.regs {
		if v.kind == stack && v.base == 0 && v == b.regs[r] {
			if arch.CalleeSaved&(1<<r) != 0 {
				return false
			}
			found = true
		}
	}
	return found
}

// rebase names the place that SP is at anew: base, with SP at its offset 0.
// What was relative to the old name follows, or where that is the CFA, words
// that hold addresses in the frame get a second name.
func (s *state) rebase(sp value, base uint8, bs *bases) {
	if sp.base != base {
		s.killBase(base, bs)
	} else if sp.off == 0 {
		return
	}
	for r := range s.regs {
		if v := &s.regs[r]; v.kind == stack && v.base == sp.base && (sp.base != 0 || *v == sp) {
			*v = value{kind: stack, base: base, off: v.off - sp.off}
		}
	}
	for i := range s.slots[:s.nslots] {
		t := &s.slots[i]
		if sp.base != 0 && t.val.kind == stack && t.val.base == sp.base {
			t.val = value{kind: stack, base: base, off: t.val.off - sp.off}
		}
		switch {
		case t.base != sp.base:
		case sp.base != 0:
			t.base, t.off = base, t.off-sp.off
		case t.val.kind == stack && t.val.base == 0 && s.nslots < maxSlots:
			s.slots[s.nslots] = slot{base, t.off - sp.off, t.val}
			s.nslots++
		}
	}
}
