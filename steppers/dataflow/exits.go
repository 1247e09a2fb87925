package dataflow

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// exit is where the function is left.
type exit struct {
	addr    uint64
	state   state
	returns bool // by a return; otherwise by a jump
}

// dispatches reports whether an instruction jumps to an address that is
// computed: a place in the same function, or a function. What the function's
// caller has passed to it, with the frame gone, is a function. On AArch64 compilers go
// to a function with the frame gone by X16 or X17, the only registers by which
// code with marked targets of branches may get there.
func (f *flow) dispatches(in *isa.Inst, s *state) bool {
	const x16, x17 = 16, 17
	if in.Flow != isa.IndirectJump || in.Reg == procstate.NoReg && in.Target != 0 {
		return false
	}
	if h, ok := s.height(f.arch); !ok || h != f.entryHeight() {
		return true
	}
	passed := in.Reg < procstate.MaxRegs && s.regs[in.Reg].kind == entry
	return !passed && (f.arch != procstate.ARM64 || in.Reg != x16 && in.Reg != x17)
}

// leave handles a return and an indirect jump: out of the function or, for
// the latter, to places within it that are not known here.
func (f *flow) leave(at uint64, in *isa.Inst, s *state) {
	if in.Flow == isa.Return && (f.trial == nil || f.trial.function) && f.leavesAnother(s) {
		return
	}
	if f.trial != nil {
		f.trial.exit(f.arch, s, in)
		return
	}
	if f.dispatches(in, s) {
		f.dispatch = f.addBody(f.dispatch, s, in.Reg)
		f.behind[at+uint64(in.Len)] = body{state: *s, jump: in.Reg}
		f.noteLowered(s)
	}
	f.exits = append(f.exits, exit{at, *s, in.Flow == isa.Return})
	if _, ev := f.c.region(at); ev&stub != 0 && in.Flow == isa.IndirectJump {
		// Until the function is looked up the jump goes to what follows it.
		f.arrive(at+uint64(in.Len), s)
	}
}

// leavesAnother reports whether a way out with the frame still there
// is one of another function: the last call did not come back, and what stands
// behind it does not belong to this one. The analysis starts over.
func (f *flow) leavesAnother(s *state) bool {
	h, ok := s.height(f.arch)
	if !ok || h == f.entryHeight() || s.lastCall == 0 || f.settled {
		return false
	}
	call := f.calls[s.lastCall-1]
	if f.trial != nil {
		if !f.mayEnd(call) {
			return false
		}
		f.trial.noRet = append(f.trial.noRet, call)
	}
	f.noRet[call] = true
	f.restart = true
	return true
}

// savesLost reports whether an instruction makes a frame and saves the return
// address where a call has overwritten that: the start of another function.
func (f *flow) savesLost(in *isa.Inst, s *state) bool {
	if f.arch.LR == procstate.NoReg || s.regs[f.arch.LR].kind != anything || !lowersSP(f.arch, in) {
		return false
	}
	for _, op := range in.Ops[:in.NumOps] {
		if op.Kind == isa.Store && op.Src == f.arch.LR {
			return true
		}
	}
	return false
}

// mayEnd reports whether a function may end with the call at vaddr: another
// could begin behind it.
func (f *flow) mayEnd(vaddr uint64) bool {
	var in isa.Inst
	ch := f.chunkAt(vaddr)
	if ch == nil || !f.c.dec(ch.code[vaddr-ch.lo:], vaddr, &in) {
		return false
	}
	next := vaddr + uint64(in.Len)
	return next < ch.hi && !ch.leader[next-ch.lo] && (f.arch.PCAlign > 1 || f.padsTo(ch, next))
}

// fallOut handles code that runs on past its region, into what is declared
// to be another function.
func (f *flow) fallOut(at uint64, s *state) {
	if f.trial != nil {
		f.trial.fellOut()
		return
	}
	f.isOpen = true
	if _, ok := f.c.spanOf(at); !ok || f.entryLike(s) {
		return
	}
	if f.c.startsAt(at)&called == 0 {
		f.arrive(at, s)
	}
}
