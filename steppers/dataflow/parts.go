package dataflow

import "github.com/swbpf/swbpf/steppers/isa"

// The seldom executed parts of a function lie together, elsewhere: among them
// landing pads of exceptions, which no code leads to. What stands behind a part
// of a function, and nothing jumps to, is taken for another part of it.

// guessParts goes on, in code that the function's flow has reached outside of
// home, with what follows the parts that end without going on. It looks at each
// such place once: they are the function's whose bodies are known now.
func (f *flow) guessParts(home *chunk) {
	for i := 0; i < len(f.chunks); i++ {
		ch := f.chunks[i]
		if ch == f.chunks[0] || ch == home {
			continue
		}
		for o := 1; o < len(ch.code) && !f.stopped(); o++ {
			if at := ch.lo + uint64(o); ch.covered[o-1] && !ch.covered[o] && !f.behind[at] {
				f.behind[at] = true
				f.guessPart(ch, at)
			}
		}
	}
}

// guessPart tries the code at vaddr as a part of the function.
func (f *flow) guessPart(ch *chunk, vaddr uint64) {
	if ch.leader[vaddr-ch.lo] || f.c.isTaken(vaddr) || f.c.startsAt(vaddr) != 0 || !f.catches(ch, vaddr) {
		return
	}
	best, bestScore := -1, 0
	f.part = true
	for i := range f.bodies {
		s := f.bodies[i].state
		s.weak, s.guessed = 0, true
		if v := f.try(vaddr, &s, false); v.violations == 0 && (best < 0 || v.score() > bestScore) {
			best, bestScore = i, v.score()
		}
	}
	f.part = false
	if best < 0 {
		return
	}
	s := f.bodies[best].state
	s.weak, s.guessed = 0, true
	f.arrive(vaddr, &s)
	f.run()
}

// catches reports whether the code at vaddr reads the register that calls return
// values in before it writes it or calls: a landing pad has the exception there.
func (f *flow) catches(ch *chunk, vaddr uint64) bool {
	var in isa.Inst
	for at := vaddr; at < ch.hi && f.c.dec(ch.code[at-ch.lo:], at, &in); at += uint64(in.Len) {
		if lowersSP(f.arch, &in) {
			return false // the start of a function
		}
		for _, op := range in.Ops[:in.NumOps] {
			switch op.Kind {
			case isa.Set, isa.Store, isa.StoreIndexed, isa.Add, isa.Sub:
				if op.Src == result {
					return true
				}
			}
			if op.Dst == result && op.Kind != isa.Store && op.Kind != isa.Scratch && op.Kind != isa.StoreIndexed && op.Kind != isa.Compare {
				return false
			}
		}
		if in.Flow != isa.Next && in.Flow != isa.CondJump {
			return false
		}
	}
	return false
}

// keeps judges what a guessed part of a function does to registers that
// calls preserve: it writes none that the function has not saved.
func (v *verdict) keeps(f *flow, before, after *state) {
	for _, r := range SavedRegs(f.arch) {
		if before.place(f.arch, r).Kind != Unknown && after.place(f.arch, r).Kind == Unknown {
			v.bad(4)
		}
	}
}
