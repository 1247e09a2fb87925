package dataflow

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// pendingCall is a call that is followed by code which something else may
// lead to: whether the call returns there is decided late.
type pendingCall struct {
	site, next uint64
	state      state
}

// resolvePending lets the pending call at the lowest address return, unless
// other paths lead to what follows it with another height.
func (f *flow) resolvePending() bool {
	best := -1
	for i := range f.pending {
		if best < 0 || f.pending[i].site < f.pending[best].site {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	p := f.pending[best]
	f.pending = append(f.pending[:best], f.pending[best+1:]...)
	switch b := f.blockStarting(p.next); {
	case b != nil && conflict(f.arch, &b.state, &p.state):
		return true // it does not return
	case b == nil && f.c.jumpedTo(p.next) && !f.returnsFromPart(p.next):
		return true // what follows belongs to another function
	case b == nil && f.beginsAnother(&p):
		return true
	}
	if len(f.guesses) < 1<<15 {
		f.guesses = append(f.guesses, p.site)
		p.state.weak = uint16(len(f.guesses))
	}
	f.arrive(p.next, &p.state)
	return true
}

// beginsAnother reports whether the code behind a call makes sense as the
// start of a function, and none as what the call returns to.
func (f *flow) beginsAnother(p *pendingCall) bool {
	ch := f.chunkAt(p.next)
	if ch == nil || !f.padsTo(ch, p.next) {
		return false
	}
	at := f.skipPadding(ch, p.next)
	if at >= ch.hi || f.trial != nil {
		return true
	}
	pending := f.pending
	f.pending = nil
	here, there := f.try(at, &p.state, false), f.try(at, entryState(f.arch, 0), false)
	f.pending = pending
	return here.score() < there.score() && (here.violations >= 4 || f.looksLikeEntry(ch, at))
}

// throughCall handles a call and reports whether the flow goes on behind it.
func (f *flow) throughCall(ch *chunk, at uint64, in *isa.Inst, s *state) bool {
	next := at + uint64(in.Len)
	if in.Flow == isa.Call {
		if f.arch.LR == procstate.NoReg && f.isPush(ch, next, in.Target) {
			s.regs[f.arch.SP] = s.regs[f.arch.SP].plus(-int64(f.arch.AddressWidth))
			if sp := s.regs[f.arch.SP]; sp.kind == stack {
				s.killSlots(sp.base, sp.off, int32(f.arch.AddressWidth))
			}
			f.arrive(in.Target, s)
			return false
		}
	}
	f.note(in, s)
	if f.neverReturns(in) {
		return false
	}
	f.carryOutCall(ch, at, in, s)
	if f.noRet[at] {
		return false
	}
	s.lastCall = f.callIndex(at)
	if next >= ch.hi {
		return false // nothing of this function follows
	}
	if o := next - ch.lo; ch.leader[o] || ch.blockAt[o] != 0 || f.padsTo(ch, next) {
		f.pending = append(f.pending, pendingCall{at, next, *s})
		return false
	}
	return true
}

// carryOutCall makes s the state behind the call at vaddr at.
func (f *flow) carryOutCall(ch *chunk, at uint64, in *isa.Inst, s *state) {
	pops := f.takesOff(ch, at, in, s)
	switch {
	case in.Kernel:
		s.regs[result] = value{}
	case in.Flow == isa.Call:
		f.afterCall(s, in.Target)
	default:
		s.call(f.arch)
	}
	s.regs[f.arch.SP] = s.regs[f.arch.SP].plus(int64(pops))
}

// callIndex returns one more than the index of a call in calls.
func (f *flow) callIndex(at uint64) uint16 {
	i, ok := f.callOf[at]
	if !ok && len(f.calls) < 1<<15 {
		f.calls = append(f.calls, at)
		i = uint16(len(f.calls))
		f.callOf[at] = i
	}
	return i
}

// isPush reports whether a call only pushes an address: to the next
// instruction.
func (f *flow) isPush(ch *chunk, next, target uint64) bool {
	return target == next && target < ch.hi && f.c.startsAt(target)&called == 0
}

// padsTo reports whether vaddr, behind a call, or the end of the padding there, is where a
// function could begin: at a multiple of 16 or, on AArch64 where functions need
// not be aligned, with the first instruction of one.
func (f *flow) padsTo(ch *chunk, vaddr uint64) bool {
	at := f.skipPadding(ch, vaddr)
	if f.c.nops && at == vaddr+1 && f.c.startsAt(at) == 0 {
		return false
	}
	var in isa.Inst
	switch {
	case at >= ch.hi:
		return true
	case f.arch.PCAlign == 1 || at != vaddr:
		return at%16 == 0
	}
	return f.c.dec(ch.code[at-ch.lo:], at, &in) && (lowersSP(f.arch, &in) || string(ch.code[at-ch.lo:at-ch.lo+4]) == paciasp)
}

// skipPadding returns the address behind the padding at vaddr.
func (f *flow) skipPadding(ch *chunk, vaddr uint64) uint64 {
	var in isa.Inst
	at := vaddr
	for at < ch.hi && f.c.dec(ch.code[at-ch.lo:], at, &in) && isPadding(ch.code[at-ch.lo:at-ch.lo+uint64(in.Len)], &in) {
		at += uint64(in.Len)
	}
	return at
}

// endsThread reports whether an instruction in state s is a system call that does not
// return: exit, exit_group, rt_sigreturn or sigreturn.
func (f *flow) endsThread(in *isa.Inst, s *state) bool {
	if in.Flow != isa.Syscall {
		return false
	}
	nr := s.regs[result]
	if f.arch == procstate.ARM64 {
		nr = s.regs[8]
	}
	if nr.kind != constant {
		return false
	}
	switch f.arch {
	case procstate.AMD64:
		return nr.off == 60 || nr.off == 231 || nr.off == 15
	case procstate.I386:
		return nr.off == 1 || nr.off == 252 || nr.off == 173 || nr.off == 119
	case procstate.ARM64:
		return nr.off == 93 || nr.off == 94 || nr.off == 139
	}
	return false
}
