package oracle

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// stepARM64 follows one instruction of AArch64, from the registers before it to
// those after. A call leaves the return address in X30 and SP as it is: the CFA
// of the called function is where SP is at its entry. regs are the registers
// before the instruction.
func (s *Shadow) stepARM64(in *isa.Inst, from, to moment, regs *procstate.Regs, word wordReader) {
	s.landed = false
	s.linked, s.link = true, regs.Raw(procstate.ARM64.LR)&procstate.ARM64.CodeMask
	top := s.top()
	switch in.Flow {
	case isa.Call, isa.IndirectCall:
		if s.lost && !s.switched {
			s.settle(from, word)
		}
		s.recs = append(s.recs, record{pc: from.pc + 4, sp: from.sp, switched: s.switched})
		s.lost, s.switched = false, false
	case isa.Return, isa.IndirectJump:
		switch {
		case top != nil && !top.signal && to.pc == top.pc && to.sp == top.sp:
			s.recs = s.recs[:len(s.recs)-1]
			s.lost = false
		case in.Flow == isa.Return && !s.lost && top != nil && !top.signal && to.pc == top.pc && to.sp < top.sp && !far(to.sp, top.sp):
			s.recs = s.recs[:len(s.recs)-1] // it leaves a frame to who has called it
		case s.lost || in.Flow == isa.Return, top != nil && !top.signal && from.sp > top.sp && !far(from.sp, top.sp):
			s.settle(to, word)
		}
	default:
		if to.sp != from.sp {
			s.move(in, procstate.ARM64, from, to)
		}
		s.noteSaved(in, from, regs)
	}
}

// noteSaved remembers where the running function stores its return address.
func (s *Shadow) noteSaved(in *isa.Inst, from moment, regs *procstate.Regs) {
	top := s.top()
	if top == nil || top.signal || regs.Raw(procstate.ARM64.LR)&procstate.ARM64.CodeMask != top.pc {
		return
	}
	for _, op := range in.Ops[:in.NumOps] {
		if op.Kind == isa.Store && op.Src == procstate.ARM64.LR {
			if at := regs.Raw(op.Dst) + uint64(op.Imm); at < top.sp && at >= from.sp-4096 {
				top.saved = at
			}
		}
	}
}

// intactARM64 is intact where return addresses are stored by the called
// function: it looks at those whose place is known and below which SP has not
// risen. Where it has, in the function that runs, the register has the address
// again.
func (s *Shadow) intactARM64(regs *procstate.Regs, word wordReader) bool {
	a := procstate.ARM64
	sp := regs.Raw(a.SP)
	if top := s.top(); top != nil && !top.signal && top.saved != 0 && top.saved < sp && regs.Raw(a.LR)&a.CodeMask != top.pc {
		return false
	}
	for n, i := 0, len(s.recs)-1; i >= 0 && n < 3; n, i = n+1, i-1 {
		r := &s.recs[i]
		if r.saved < sp {
			continue
		}
		if ra, ok := word(r.saved); ok && ra&a.CodeMask != r.pc {
			return false
		}
	}
	return true
}
