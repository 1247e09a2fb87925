package dataflow

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// Hand-written code keeps values in registers that calls do not preserve, over
// calls of its own subroutines, which leave them alone. Only the code of the
// subroutine tells.

// Callee is what the code of a subroutine does to registers, with that of others that it
// calls.
type Callee struct {
	Writes uint64 // registers that it may write: bit r is register r
	insns  map[uint64]bool
	steps  int // instructions looked at
}

// Covers reports whether vaddr is one of the subroutine's instructions, or of one that it
// calls. Nothing is told of one that may write any register.
func (c *Callee) Covers(vaddr uint64) bool { return c.insns[vaddr] }

// maxCallee bounds the instructions of a subroutine.
const maxCallee = 4000

// NewCallee looks at all code that can be reached from link-time address vaddr, also by
// direct calls. A subroutine that goes where cannot be told may write any register.
func NewCallee(im *procstate.Image, vaddr uint64) *Callee {
	c := &Callee{Writes: ^uint64(0)}
	insns := map[uint64]bool{}
	arch := im.Arch()
	dec := isa.DecoderFor(arch)
	if dec == nil {
		return c
	}
	var in isa.Inst
	var buf [16]byte
	var writes uint64
	for work := []uint64{vaddr}; len(work) > 0; {
		at := work[len(work)-1]
		work = work[:len(work)-1]
		for !insns[at] {
			b := buf[:]
			for len(b) > 0 && im.ReadVaddr(b, at) != nil {
				b = b[:len(b)-1] // near the end of the code
			}
			if c.steps >= maxCallee || !dec(b, at, &in) {
				return c
			}
			c.steps++
			insns[at] = true
			for _, op := range in.Ops[:in.NumOps] {
				switch op.Kind {
				case isa.Store, isa.Scratch, isa.Compare, isa.Sign, isa.StoreIndexed:
				case isa.Swap:
					writes |= 1 << op.Src
					fallthrough
				default:
					writes |= 1 << op.Dst
				}
			}
			at += uint64(in.Len)
			switch in.Flow {
			case isa.Jump, isa.CondJump:
				work = append(work, in.Target)
			case isa.Call:
				work = append(work, in.Target)
				if arch.LR != procstate.NoReg {
					writes |= 1 << arch.LR
				}
			case isa.IndirectCall, isa.IndirectJump, isa.Syscall:
				return c
			}
			if in.Ends() {
				break
			}
		}
	}
	c.Writes, c.insns = writes, insns
	return c
}

// callee is NewCallee for code of this file, remembered.
func (c *Code) callee(vaddr uint64) *Callee {
	e, ok := c.callees[vaddr]
	if !ok {
		e = NewCallee(c.im, vaddr)
		c.spent += e.steps
		c.callees[vaddr] = e
	}
	return e
}

// leavesStack reports whether a call is one of code of this file that does not move SP,
// nor does what that calls: where SP is does not matter to it, and hand-written callers
// leave it as they found it.
func (f *flow) leavesStack(in *isa.Inst) bool {
	if in.Kernel {
		return true
	}
	if in.Flow != isa.Call {
		return false
	}
	_, ok := f.c.fileSpanOf(in.Target)
	return ok && f.c.callee(in.Target).Writes>>f.arch.SP&1 == 0
}

// afterCall is state.call for a direct call of target. Where the way to the
// CFA would be lost, registers that the subroutine does not write are kept.
func (f *flow) afterCall(s *state, target uint64) {
	before := *s
	if reg, ok := f.c.pcThunk(target); ok {
		s.regs[reg] = value{} // and no other
		return
	}
	s.call(f.arch)
	var r Rule
	if s.cfa(f.arch, f.bases, &r) || !before.cfa(f.arch, f.bases, &r) {
		return
	}
	if _, ok := f.c.fileSpanOf(target); !ok {
		return
	}
	writes := f.c.callee(target).Writes
	for reg := range f.arch.NumRegs {
		if writes>>reg&1 == 0 {
			s.regs[reg] = before.regs[reg]
		}
	}
}
