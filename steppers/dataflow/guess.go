package dataflow

import (
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// verdict judges a guess by what the code that it leads to does.
type verdict struct {
	firstBlock int // blocks from here on belong to the trial
	steps      int
	f          *flow
	violations int // weight of what cannot be
	support    int // weight of what speaks for the guess
	calls      int
	extra      int32    // bytes that an exit takes off the stack beyond the frame
	kept       uint64   // registers whose value of the entry was stored
	function   bool     // the guess is that a function begins, as its code does
	noRet      []uint64 // calls that must not return for the guess to be right
	returned   bool     // left the function as it should be left

	plain        bool // the guess has the stack as at a function's entry
	usesArgument bool // as an address, what its caller passed in a register
}

// bad counts something that cannot be.
func (v *verdict) bad(n int) {
	v.violations += n
}

// score is higher for better guesses.
func (v *verdict) score() int { return v.support - 8*v.violations }

// exit judges leaving the function: the frame must be gone and preserved
// registers must have their values back. A jump to an address in a register
// may stay within the function.
func (v *verdict) exit(a *procstate.Arch, s *state, in *isa.Inst) {
	want := int32(0)
	if a.LR == procstate.NoReg {
		want = -int32(a.AddressWidth)
	}
	isReturn := in.Flow == isa.Return
	h, ok := s.height(a)
	if ok && h > want {
		v.extra = h - want
	}
	switch {
	case v.f.dispatches(in, s):
		alike := func(b body) bool { return (b.jump != procstate.NoReg) == (in.Reg != procstate.NoReg) }
		if slices.ContainsFunc(v.f.dispatch, func(b body) bool { return alike(b) && sameStack(a, &b.state, s) }) {
			v.support += 2
			return
		}
		if !ok {
			v.bad(1)
		} else if h > want {
			v.bad(4)
		} else if s.guessed && len(v.f.dispatch) > 0 && h != want {
			v.bad(2) // a function has jumps of its own
		}
		if h == want && v.extra == 0 {
			v.support++
			v.returned = v.returned || in.Member && !s.guessed // to another function
			if in.Reg == procstate.NoReg && !slices.ContainsFunc(v.f.dispatch, alike) {
				v.support++ // a function in a table of them
			}
		}
		return
	case !ok && s.regs[a.SP].kind == anything:
		v.bad(1)
		return
	case !ok || h != want:
		if isReturn || in.Flow == isa.IndirectJump || v.f.c.startsAt(in.Target)&stub != 0 {
			v.bad(4)
		}
		return
	}
	lost := 0
	for _, r := range SavedRegs(a) {
		if s.regs[r] != (value{kind: entry, base: uint8(r)}) {
			lost++
		}
	}
	switch {
	case lost > 0:
		v.bad(min(2*lost, 4))
	case isReturn:
		v.support += 3
		v.returned = true
	default:
		v.support++
		v.returned = true
	}
}

// call judges the stack at a call: the ABI wants SP to be a multiple of 16
// there, as the CFA is.
func (v *verdict) call(a *procstate.Arch, s *state) {
	h, ok := s.height(a)
	if !ok || v.calls > 3 {
		return
	}
	v.calls++
	switch {
	case h%16 == 0:
		if v.calls == 1 {
			v.support++
		}
	case s.guessed:
		v.bad(1)
	default:
		v.bad(2)
	}
}

// reads judges what an instruction does with the registers that calls
// preserve: at the entry of a function they hold what its caller keeps there.
// A function saves it, but has no other use for it, as an address for one. What
// it was passed it uses so.
func (v *verdict) reads(a *procstate.Arch, s *state, in *isa.Inst) {
	for i := range in.Ops[:in.NumOps] {
		op := &in.Ops[i]
		base := op.Src
		switch op.Kind {
		case isa.Load, isa.LoadIndexed:
		case isa.Store, isa.StoreIndexed, isa.Scratch:
			base = op.Dst
		default:
			continue
		}
		if v.plain && !v.usesArgument && a == procstate.I386 && op.Kind == isa.Load && base < procstate.MaxRegs {
			if at := s.regs[base].plus(op.Imm); at.kind == stack && at.base == 0 && at.off >= 0 {
				v.usesArgument = true // passed on the stack
				v.support++
			}
		}
		if base < procstate.MaxRegs && a.CalleeSaved&(1<<base) != 0 && s.regs[base] == (value{kind: entry, base: uint8(base)}) {
			if s.guessed {
				v.bad(1)
			} else {
				v.bad(2)
			}
		}
	}
	if v.plain && !v.usesArgument && in.Base < procstate.MaxRegs {
		if val := s.regs[in.Base]; val.kind == entry && isArgument(a, procstate.Reg(val.base)) {
			v.usesArgument = true
			v.support++
		}
	}
}

// isArgument reports whether functions find an argument in a register.
func isArgument(a *procstate.Arch, r procstate.Reg) bool {
	if a == procstate.ARM64 {
		return r < 8
	}
	if a == procstate.I386 {
		return r < 3 // with regparm
	}
	const registers = 1<<5 | 1<<4 | 1<<1 | 1<<2 | 1<<8 | 1<<9 // rdi, rsi, rdx, rcx, r8, r9
	return registers>>r&1 != 0
}

// stores judges what is stored by code that may be a function: one keeps in
// its frame what it found in the registers that calls preserve, on AArch64
// the return address with them, or keeps its return address elsewhere, to go
// on with another stack.
func (v *verdict) stores(a *procstate.Arch, s *state, in *isa.Inst) {
	if s.guessed {
		return
	}
	for i := range in.Ops[:in.NumOps] {
		op := &in.Ops[i]
		if op.Kind != isa.Store || op.Dst >= procstate.MaxRegs || op.Src >= procstate.MaxRegs {
			continue
		}
		val, to := s.regs[op.Src], s.regs[op.Dst].plus(op.Imm)
		if val.kind != entry || v.kept>>val.base&1 != 0 {
			continue
		}
		inFrame := to.kind == stack && to.base == 0 && to.off < 0
		pushed := a.LR == procstate.NoReg // the return address, by the call
		switch {
		case inFrame && val.base == uint8(a.LR):
		case inFrame && a.CalleeSaved>>val.base&1 != 0 && (pushed || v.kept>>a.LR&1 != 0):
			v.support++
		case to.kind != stack && val.base == uint8(a.RA) && pushed:
			v.support += 2
		default:
			continue
		}
		v.kept |= 1 << val.base
	}
}

// join judges a path that leads into code analysed before.
func (v *verdict) join(a *procstate.Arch, have, s *state) {
	if have.regs[a.SP].kind != stack {
		return
	}
	if conflict(a, have, s) || have == &v.f.blocks[0].state && !sameStack(a, have, s) {
		v.bad(4)
		return
	}
	if !sameStack(a, have, s) {
		return
	}
	v.support += 2
	v.returned = v.returned || v.kept != 0 // what it kept, this code gives back
	for _, r := range SavedRegs(a) {
		if have.place(a, r).Kind != Unknown && s.place(a, r).Kind == Unknown {
			v.bad(1)
		}
	}
}

func (v *verdict) fellOut() { v.bad(1) }

// guessRest finds the code of the home chunk that no path has reached, and
// what it could be: the start of a function that nothing calls directly, or a
// part of the function before it that an indirect jump or an exception leads
// to. The best guess that breaks nothing is taken.
func (f *flow) guessRest(home *chunk) {
	var in isa.Inst
	f.mayTry = min(maxTried, 100_000+triedByte*len(home.code))
	f.guessParts(home)
	for at := home.lo; at < home.hi && !f.stopped() && f.tried < f.mayTry; {
		o := at - home.lo
		if !f.c.dec(home.code[o:], at, &in) {
			at += uint64(f.arch.PCAlign)
			continue
		}
		next := at + uint64(in.Len)
		if home.covered[o] || isPadding(home.code[o:next-home.lo], &in) && !f.c.isTaken(at) && !f.beginsWithNop(home, at) {
			at = next
			continue
		}
		if f.c.jumpedToByFunction(at) && !f.looksLikeEntry(home, at) {
			// A part of another function, and what follows is, too.
			f.bodies, f.dispatch = f.bodies[:0], f.dispatch[:0]
			at = f.skipDead(home, at)
		} else if !f.guess(home, at) {
			at = f.skipDead(home, at)
		}
	}
	f.lowerRoots()
}

// beginsWithNop reports whether a nop is no padding, as it stands where code is
// aligned and what follows is not: the functions of glibc for AArch64 that are
// written in assembly begin so.
func (f *flow) beginsWithNop(ch *chunk, vaddr uint64) bool {
	return f.arch.PCAlign > 1 && vaddr%16 == 0 && f.skipPadding(ch, vaddr)%16 != 0
}

// skipDead returns the next address where something could begin.
func (f *flow) skipDead(ch *chunk, at uint64) uint64 {
	var in isa.Inst
	for at < ch.hi {
		o := at - ch.lo
		if !f.c.dec(ch.code[o:], at, &in) {
			return at + uint64(f.arch.PCAlign)
		}
		if next := f.c.nextTaken(at + 1); next < at+uint64(in.Len) {
			return next // what was decoded is not what runs
		}
		padding := isPadding(ch.code[o:o+uint64(in.Len)], &in)
		at += uint64(in.Len)
		if padding && at%16 == 0 && at < ch.hi && f.looksLikeEntry(ch, at) {
			return at
		}
		if in.Ends() || f.neverReturns(&in) || at == f.c.nextTaken(at) || at < ch.hi && (ch.leader[at-ch.lo] || ch.covered[at-ch.lo]) {
			return at
		}
	}
	return at
}

// neverReturns reports whether an instruction is a call of a function that
// does not come back.
func (f *flow) neverReturns(in *isa.Inst) bool {
	if in.Flow == isa.IndirectCall {
		return in.Target != 0 && f.c.noReturn[in.Target]
	}
	if in.Flow != isa.Call {
		return false
	}
	_, ok := f.c.fileSpanOf(in.Target)
	return ok && !f.c.doesReturn(in.Target)
}

// guess tries what the code at vaddr could be and takes the best. It reports
// whether anything was good enough.
func (f *flow) guess(ch *chunk, vaddr uint64) bool {
	var candidates [2*maxBodies + 4]*state
	n := 0
	looksLikeEntry := f.looksLikeEntry(ch, vaddr)
	if looksLikeEntry {
		candidates[0], n = entryState(f.arch, 0), 1
	}
	bodies := [...][]body{f.dispatch, f.bodies}
	r, _ := f.c.region(vaddr)
	shared := f.c.isShared(r)
	var framed *state
	jump, isBehind := f.behind[vaddr]
	if isBehind {
		jump.state.weak, jump.state.guessed = 0, true
		candidates[n], n = &jump.state, n+1
	}
	if shared {
		bodies = [...][]body{nil, nil} // of which function, nothing tells
	} else if framed = f.framed(); framed != nil {
		candidates[n], n = framed, n+1
	}
	for _, list := range bodies {
		for i := range list {
			s := list[i].state
			s.weak, s.guessed = 0, true
			candidates[n] = &s
			n++
		}
	}
	// Where the function jumps with the stack like that, it jumps to here.
	jumpsWith := func(s *state) bool {
		return slices.ContainsFunc(f.dispatch, func(b body) bool { return sameStack(f.arch, &b.state, s) })
	}
	if s := entryState(f.arch, 0); !looksLikeEntry && !jumpsWith(s) {
		candidates[n], n = s, n+1
	}
	best, bestScore, doubt := -1, 0, 0
	fits := false // framed does
	var noRet []uint64
	for i := 0; i < n; i++ {
		s := candidates[i]
		if fits && s != framed && s.regs[f.arch.FP] == framed.regs[f.arch.FP] {
			continue // says more than is known
		}
		v := f.try(vaddr, s, !s.guessed && looksLikeEntry)
		if !s.guessed && v.extra > 0 && n < len(candidates) && v.extra <= maxExtra {
			if e := entryState(f.arch, v.extra); looksLikeEntry || !jumpsWith(e) {
				candidates[n], n = e, n+1
			}
		}
		score := v.score()
		if !s.guessed && !looksLikeEntry && (shared || !v.returned && (v.support < 2 || vaddr%16 != 0)) {
			doubt = max(doubt, score) // little speaks for a function here
			continue
		}
		fits = fits || s == framed && v.violations == 0 && f.pointsToFrame(s)
		if v.violations < 4 && (best < 0 || score > bestScore) {
			best, bestScore, noRet = i, score, v.noRet
		}
	}
	if best < 0 || bestScore < 0 && doubt > 0 {
		return false
	}
	for _, call := range noRet {
		f.noRet[call] = true
	}
	s := candidates[best]
	if !s.guessed {
		f.lowerRoots()
		f.bodies, f.dispatch = f.bodies[:0], f.dispatch[:0]
		f.roots, f.lowered = f.roots[:0], f.lowered[:0]
	}
	if s == &jump.state && !jumpsWith(s) { // of another function than the last one
		f.bodies, f.dispatch = f.bodies[:0], f.addBody(f.dispatch[:0], s, jump.jump)
		f.roots, f.lowered = f.roots[:0], f.lowered[:0]
	}
	if s.guessed {
		f.roots = append(f.roots, vaddr)
	}
	f.arrive(vaddr, s)
	f.run()
	f.guessParts(ch)
	return ch.covered[vaddr-ch.lo]
}

// pointsToFrame reports whether the frame pointer is where prologues leave it. At
// other places of the frame the register may hold the address of a variable.
func (f *flow) pointsToFrame(s *state) bool {
	return f.arch == procstate.ARM64 || s.regs[f.arch.FP] == (value{kind: stack, off: -2 * int32(f.arch.AddressWidth)})
}

// framed returns what the states of a body with a frame pointer have in
// common when SP is not always at the same place in it; else nil.
func (f *flow) framed() *state {
	var s *state
	n := 0
	for i := range f.bodies {
		b := f.bodies[i].state
		switch fp := b.regs[f.arch.FP]; {
		case fp.kind != stack:
		case s == nil:
			b.weak, b.guessed = 0, true
			s, n = &b, 1
		case s.regs[f.arch.FP] == fp:
			s.meet(&b)
			n++
		}
	}
	if n < 2 {
		return nil
	}
	return s
}

// looksLikeEntry reports whether the code at vaddr begins as functions do.
func (f *flow) looksLikeEntry(ch *chunk, vaddr uint64) bool {
	b := ch.code[vaddr-ch.lo:]
	at, marked := vaddr, false
	if len(b) >= 4 && (string(b[:4]) == f.endbr() || string(b[:4]) == paciasp) {
		b, at, marked = b[4:], at+4, true
	}
	var in isa.Inst
	if !f.c.dec(b, at, &in) {
		return false
	}
	if _, ok := f.c.pcThunk(in.Target); ok && in.Flow == isa.Call && vaddr%16 == 0 {
		return true // it finds its data first
	}
	if readsResult(f.arch, &in) {
		return false // a landing pad: it takes the exception from there
	}
	taken := f.c.isTaken(vaddr)
	switch r, _ := f.c.region(vaddr); {
	case lowersSP(f.arch, &in), takesCFA(f.arch, &in):
		return marked || taken || vaddr%16 == 0 || f.arch.PCAlign > 1
	case f.c.isShared(r):
		return false // rather a part of a function, that a table leads to
	}
	return marked || taken && len(f.dispatch) == 0
}

// lowersSP reports whether an instruction is one that begins a frame: push,
// sub sp, stp with write-back.
func lowersSP(a *procstate.Arch, in *isa.Inst) bool {
	for _, op := range in.Ops[:in.NumOps] {
		if op.Kind == isa.Set && op.Dst == a.SP && op.Src == a.SP && op.Imm < 0 {
			return true
		}
	}
	return false
}

// takesCFA reports whether an instruction is lea 8(%rsp),%r10, or with R13, and on i386 lea
// 4(%esp),%ecx, or with another register: it begins a function that aligns the stack.
func takesCFA(a *procstate.Arch, in *isa.Inst) bool {
	op := &in.Ops[0]
	if a.LR != procstate.NoReg || in.NumOps != 1 || op.Kind != isa.Set || op.Src != a.SP || op.Imm != int64(a.AddressWidth) {
		return false
	}
	if a == procstate.AMD64 {
		return op.Dst == 10 || op.Dst == 13
	}
	return op.Dst != a.SP
}

// Instructions that mark where an indirect branch may go.
const (
	endbr64 = "\xf3\x0f\x1e\xfa"
	endbr32 = "\xf3\x0f\x1e\xfb"
	paciasp = "\x3f\x23\x03\xd5"
)

// endbr returns what marks the start of a function on x86.
func (f *flow) endbr() string {
	if f.arch == procstate.I386 {
		return endbr32
	}
	return endbr64
}

// readsResult reports whether an instruction copies the register that calls
// return values in, which holds nothing of use at the entry of a function.
func readsResult(a *procstate.Arch, in *isa.Inst) bool {
	if a == procstate.ARM64 || in.NumOps != 1 {
		return false
	}
	op := in.Ops[0]
	return (op.Kind == isa.Set || op.Kind == isa.Store) && op.Src == 0
}

// try follows the code at vaddr with a state, and undoes it all. It learns
// which calls do not return; of a guess that a function begins there, the
// verdict tells of those that are none that come back if it is right.
func (f *flow) try(vaddr uint64, s *state, function bool) verdict {
	var noRet []uint64
	defer func() {
		for _, call := range noRet {
			delete(f.noRet, call)
		}
	}()
	for range maxRestarts {
		v := f.tryOnce(vaddr, s, function)
		noRet = append(noRet, v.noRet...)
		v.noRet = noRet
		if !f.restart {
			return v
		}
		f.restart = false
	}
	return verdict{violations: 4}
}

func (f *flow) tryOnce(vaddr uint64, s *state, function bool) verdict {
	defer func(before int) { f.tried += f.steps - before }(f.steps)
	v := verdict{firstBlock: len(f.blocks), f: f, function: function, plain: f.entryLike(s)}
	f.trial = &v
	f.arrive(vaddr, s)
	f.run()
	f.trial = nil
	f.work, f.pending = f.work[:0], f.pending[:0]
	for _, b := range f.blocks[v.firstBlock:] {
		if ch := f.chunkAt(b.addr); ch != nil {
			ch.blockAt[b.addr-ch.lo] = 0
		}
	}
	f.blocks = f.blocks[:v.firstBlock]
	return v
}
