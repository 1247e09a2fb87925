package dataflow

import (
	"slices"
	"sort"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// function is a finished analysis: rules by address, as a CFI table has
// them. A row holds from its address up to the next row's.
type function struct {
	at   []uint32 // offsets, sorted
	rule []uint16 // 0: no rule; with guessedRule where it rests on a guess

	returns bool // by a return; looked for in functions that stand alone
}

// guessedRule marks the index of a rule for code that no path was found to.
const guessedRule = 1 << 15

// ruleAt returns the index of the rule for an offset, 0 when there is none.
func (f *function) ruleAt(off uint32) (rule uint16, isGuess bool) {
	i := sort.Search(len(f.at), func(i int) bool { return f.at[i] > off })
	if i == 0 {
		return 0, false
	}
	r := f.rule[i-1]
	return r &^ guessedRule, r&guessedRule != 0
}

// analyse analyses the function that starts at vaddr; nil when it is too
// much or makes no sense.
func (c *Code) analyse(vaddr uint64) *function {
	if c.spent > c.budget {
		return nil
	}
	noRet, movingAt := map[uint64]bool{}, map[uint64]bool{}
	extra := int32(0)
	var f *flow
	defer func() {
		if f != nil {
			c.spent += f.steps
		}
	}()
	for i := 0; ; i++ {
		steps, tried := 0, 0
		if f != nil {
			steps, tried = f.steps, f.tried
		}
		f = newFlow(c, noRet, movingAt)
		f.steps, f.tried = steps, tried
		f.settled = i >= maxRestarts
		home := f.open(vaddr)
		if home == nil {
			return nil
		}
		f.arrive(vaddr, entryState(c.arch, extra))
		f.run()
		if !f.restart && extra == 0 {
			if extra = f.extraAtEntry(); extra != 0 {
				continue
			}
		}
		if !f.restart {
			f.certain = len(f.blocks)
			if c.alone == nil {
				f.guessRest(home)
			} else if f.failed || !f.isClosed(home) {
				return nil
			}
		}
		if f.failed {
			return nil
		}
		if !f.restart {
			fn := f.rows()
			fn.returns = slices.ContainsFunc(f.exits, func(e exit) bool { return e.returns })
			return fn
		}
	}
}

// maxExtra bounds what a function may take off the stack beyond its frame.
const maxExtra = 64

// extraAtEntry returns how many bytes the function takes off the stack
// beyond its own: code that is entered by a jump with arguments pushed, as
// the dynamic loader's resolver is, leaves by a jump with SP higher than it
// came. All exits must agree.
func (f *flow) extraAtEntry() int32 {
	extra := int32(0)
	base := int32(0)
	if f.arch.LR == procstate.NoReg {
		base = -int32(f.arch.AddressWidth)
	}
	for i, e := range f.exits {
		h, ok := e.state.height(f.arch)
		if !ok || i > 0 && h-base != extra {
			return 0
		}
		extra = h - base
	}
	if extra < 0 || extra%int32(f.arch.AddressWidth) != 0 || extra > maxExtra {
		return 0
	}
	return extra
}

// rows turns the states of all reached instructions into rules.
func (f *flow) rows() *function {
	type row struct {
		at, end uint32
		rule    uint16
	}
	var rows []row
	var in isa.Inst
	for i := range f.blocks {
		b := &f.blocks[i]
		ch := f.chunkAt(b.addr)
		s := b.state
		var r Rule
		for at := b.addr; at < ch.hi; {
			o := at - ch.lo
			if at != b.addr && (ch.leader[o] || ch.blockAt[o] != 0) || !f.c.dec(ch.code[o:], at, &in) {
				break
			}
			idx := uint16(0)
			if s.rule(f.arch, f.bases, &r) {
				if idx = f.c.internRule(&r); idx != 0 && i >= f.certain {
					idx |= guessedRule
				}
			}
			end := at + uint64(in.Len)
			rows = append(rows, row{f.c.off(at), f.c.off(end), idx})
			if in.IsThunk() {
				for _, p := range [...]struct {
					at   uint64
					rule uint16
				}{{isa.ThunkEntry, f.pushedRule(0)}, {isa.ThunkStore, f.pushedRule(8)}, {in.ThunkCall(), idx}} {
					rows[len(rows)-1].end = f.c.off(at + p.at)
					rows = append(rows, row{f.c.off(at + p.at), f.c.off(end), p.rule})
				}
			}
			if in.Ends() || f.endsThread(&in, &s) {
				break
			}
			f.at = at
			if f.popsFrame(ch, at, &in, &s) {
				s.regs[f.arch.SP] = s.regs[f.arch.FP]
			}
			s.apply(f.arch, &in, at, f.bases)
			switch in.Flow {
			case isa.Call, isa.IndirectCall:
				f.carryOutCall(ch, at, &in, &s)
			}
			if in.Flow == isa.Call || in.Flow == isa.IndirectCall {
				if ch.blockAt[min(end, ch.hi-1)-ch.lo] == 0 && !ch.covered[min(end, ch.hi-1)-ch.lo] {
					break
				}
			}
			at = end
		}
	}
	slices.SortFunc(rows, func(a, b row) int { return int(int64(a.at) - int64(b.at)) })
	out := &function{}
	add := func(at uint32, rule uint16) {
		switch n := len(out.at); {
		case n > 0 && out.at[n-1] == at:
			out.rule[n-1] = rule
		case n > 0 && out.rule[n-1] == rule:
		default:
			out.at, out.rule = append(out.at, at), append(out.rule, rule)
		}
	}
	for i, r := range rows {
		add(r.at, r.rule)
		if i+1 == len(rows) || rows[i+1].at > r.end {
			add(r.end, 0)
		}
	}
	out.at, out.rule = slices.Clip(out.at), slices.Clip(out.rule)
	return out
}

// pushedRule returns the number of the rule of a function that has pushed so many
// bytes and done nothing else.
func (f *flow) pushedRule(bytes int32) uint16 {
	var r Rule
	if !entryState(f.arch, bytes).rule(f.arch, f.bases, &r) {
		return 0
	}
	return f.c.internRule(&r)
}

// popsFrame reports whether the instruction at vaddr takes the caller's frame
// pointer off the stack, right before a return, with SP at a place that nothing
// else tells: it is where the frame pointer points.
func (f *flow) popsFrame(ch *chunk, vaddr uint64, in *isa.Inst, s *state) bool {
	a, next := f.arch, vaddr+uint64(in.Len)
	fp := s.regs[a.FP]
	if s.regs[a.SP].kind != anything || fp.kind != stack || a.LR != procstate.NoReg || in.NumOps != 2 || next >= ch.hi ||
		in.Ops[1].Kind != isa.Load || in.Ops[1].Dst != a.FP || in.Ops[1].Src != a.SP ||
		s.slotAt(fp.base, fp.off) != (value{kind: entry, base: uint8(a.FP)}) {
		return false
	}
	var after isa.Inst
	return f.c.dec(ch.code[next-ch.lo:], next, &after) && after.Flow == isa.Return
}

// rule makes the rule for a state, and reports whether there is one.
func (s *state) rule(a *procstate.Arch, bs *bases, r *Rule) bool {
	*r = Rule{}
	if !s.cfa(a, bs, r) {
		return false
	}
	r.RA = s.place(a, a.RA)
	if r.RA.Kind == Unknown {
		return false
	}
	for i, reg := range SavedRegs(a) {
		r.Saved[i] = s.place(a, reg)
	}
	second := result + 1
	if a == procstate.I386 {
		second = 2
	}
	r.Results = s.place(a, result).Kind == AtCFA && s.place(a, second).Kind == AtCFA
	return true
}

// result is the register that calls return their result in: RAX, X0, EAX. RDX, X1 or
// EDX has the second word of large results.
const result procstate.Reg = 0

// cfa finds a way to the CFA, by what is known longest first: SP and
// registers that calls preserve, memory, other registers.
func (s *state) cfa(a *procstate.Arch, bs *bases, r *Rule) bool {
	if reg, off, ok := s.holder(a, 0, a.CalleeSaved|1<<a.SP); ok {
		r.Reg, r.Off = reg, -off
		return true
	}
	if s.cfaInMemory(a, r) {
		return true
	}
	if reg, off, ok := s.holder(a, 0, ^uint64(0)); ok {
		r.Reg, r.Off = reg, -off
		return true
	}
	return s.cfaIndexed(a, bs, r)
}

// cfaInMemory finds a word that leads to the CFA and is at a known distance
// from a register that calls preserve.
func (s *state) cfaInMemory(a *procstate.Arch, r *Rule) bool {
	for i := range s.slots[:s.nslots] {
		t := &s.slots[i]
		if t.val.kind != stack || t.val.base != 0 || t.base == 0 {
			continue
		}
		if reg, off, ok := s.holder(a, t.base, a.CalleeSaved|1<<a.SP); ok {
			*r = Rule{Reg: reg, Deref: true, Off: t.off - off, Add: -t.val.off}
			return true
		}
	}
	return false
}

// holder returns a register, of those in mask, that holds base + off; SP is
// preferred, then the frame pointer. On i386 it is the other way around: where SP is
// behind a call rests on what the function that was called takes off the stack.
func (s *state) holder(a *procstate.Arch, base uint8, mask uint64) (reg procstate.Reg, off int32, ok bool) {
	holds := func(r procstate.Reg) bool {
		return mask&(1<<r) != 0 && s.regs[r].kind == stack && s.regs[r].base == base
	}
	first := [...]procstate.Reg{a.SP, a.FP}
	if a == procstate.I386 {
		first = [...]procstate.Reg{a.FP, a.SP}
	}
	for _, r := range first {
		if holds(r) {
			return r, s.regs[r].off, true
		}
	}
	for r := range procstate.Reg(a.NumRegs) {
		if holds(r) {
			return r, s.regs[r].off, true
		}
	}
	return 0, 0, false
}

// place finds where the entry value of a register is.
func (s *state) place(a *procstate.Arch, reg procstate.Reg) Place {
	want := value{kind: entry, base: uint8(reg)}
	// Memory comes first. Where the rule serves a frame that is in a call, the
	// register may have changed: those that a call does not preserve, and the
	// others too in subroutines of hand-written code, which leave it to their
	// callers to save them.
	below := Place{}
	sp := s.regs[a.SP]
	for i := range s.slots[:s.nslots] {
		t := &s.slots[i]
		if t.val != want {
			continue
		}
		p := Place{Kind: AtCFA, Off: t.off}
		if t.base != 0 {
			r, off, ok := s.holder(a, t.base, ^uint64(0))
			if !ok {
				continue
			}
			p = Place{Kind: AtRegister, Reg: r, Off: t.off - off}
		}
		if sp.kind == stack && sp.base == t.base && t.off < sp.off {
			below = p // still there, but nothing protects it for long
			continue
		}
		return p
	}
	for r := range procstate.Reg(a.NumRegs) {
		switch {
		case s.regs[r] != want:
		case r == reg:
			return Place{Kind: Same}
		default:
			return Place{Kind: InRegister, Reg: r}
		}
	}
	return below
}
