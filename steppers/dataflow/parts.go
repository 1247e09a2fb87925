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

// returnsFromPart reports whether all that jumps to vaddr from elsewhere are seldom
// executed parts of the function: straight-line code that only jumps of the home
// chunk lead to.
func (f *flow) returnsFromPart(vaddr uint64) bool {
	home, _ := f.c.region(vaddr)
	for _, j := range f.c.jumpsInto(span{vaddr, vaddr + 1}) {
		if !f.isPartOf(home, f.c.lo+uint64(j.source)) {
			return false
		}
	}
	return true
}

// isPartOf reports whether the last place before site that code of other regions
// jumps to is jumped to from home alone, and goes straight on to site.
func (f *flow) isPartOf(home span, site uint64) bool {
	const most = 128 // bytes of such a part
	r, _ := f.c.region(site)
	into := f.c.jumpsInto(span{max(r.lo+1, site-min(site, most)), site + 1})
	if len(into) == 0 {
		return false
	}
	start := into[len(into)-1].target
	for i := len(into) - 1; i >= 0 && into[i].target == start; i-- {
		if source := f.c.lo + uint64(into[i].source); source < home.lo || source >= home.hi {
			return false
		}
	}
	at := f.c.lo + uint64(start)
	code := f.c.read(at, min(site+16, r.hi))
	var in isa.Inst
	for at < site {
		if len(code) == 0 || !f.c.dec(code, at, &in) || in.Ends() {
			return false
		}
		at, code = at+uint64(in.Len), code[in.Len:]
	}
	return at == site
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
