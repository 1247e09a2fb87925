package dataflow

import "github.com/swbpf/swbpf/steppers/isa"

// The seldom executed parts of a function lie together, elsewhere: among them
// landing pads of exceptions, which no code leads to. What stands behind a part
// of a function, and nothing jumps to, is taken for another part of it.

// guessParts goes on, in code that the function's flow has reached outside of
// home, with what follows the parts that end without going on. It looks at each
// such place once: they are the function's whose bodies are known now.
func (f *flow) guessParts(home *chunk) {
	for ; f.followed < len(f.blocks) && !f.stopped() && f.tried < f.mayTry; f.followed++ {
		addr := f.blocks[f.followed].addr
		ch := f.chunkAt(addr)
		if ch == f.chunks[0] || ch == home {
			continue
		}
		o := addr - ch.lo
		for o++; o < uint64(len(ch.code)) && ch.covered[o] && ch.blockAt[o] == 0; o++ {
		}
		if o < uint64(len(ch.code)) && !ch.covered[o] {
			f.guessPart(ch, ch.lo+o)
		}
	}
}

// guessPart tries the code at vaddr as a part of the function.
func (f *flow) guessPart(ch *chunk, vaddr uint64) {
	if ch.leader[vaddr-ch.lo] || f.c.isTaken(vaddr) || f.c.startsAt(vaddr) != 0 || !f.catches(ch, vaddr) {
		return
	}
	var best *state
	bestScore := 0
	judge := func(s *state) {
		s.weak, s.guessed = 0, true
		if v := f.try(vaddr, s, false); v.violations == 0 && (best == nil || v.score() > bestScore) {
			best, bestScore = s, v.score()
		}
	}
	f.part = true
	if s := f.framed(); s != nil {
		judge(s)
	}
	for i := range f.bodies {
		s := f.bodies[i].state
		judge(&s)
	}
	f.part = false
	if best != nil {
		f.arrive(vaddr, best)
		f.run()
	}
}

// catches reports whether the code at vaddr reads the register that calls return
// values in before it writes it or calls: a landing pad has the exception there.
func (f *flow) catches(ch *chunk, vaddr uint64) bool {
	var in isa.Inst
	const most = 16 // instructions
	for n, at := 0, vaddr; n < most && at < ch.hi && f.c.dec(ch.code[at-ch.lo:], at, &in); n, at = n+1, at+uint64(in.Len) {
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
