package pe

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
)

// maxPath is how many instructions are followed to where a function returns.
const maxPath = 256

// toReturn returns how far above SP the return address is, by a path from a PC to where its function returns: functions without an entry
// may have pushed something, as what touches the pages of a large frame, and what few instructions push is not told.
func (u *unwinder) toReturn(pc uint64) (above uint64, ok bool) {
	var inst isa.Inst
	seen := map[uint64]bool{}
	for n := 0; n < maxPath; n++ {
		code := u.vm.code[:16]
		if !u.vm.ReadNow(pc, code) || !mcode.Decode(procstate.AMD64, code, pc, &inst) {
			return 0, false
		}
		next := pc + uint64(inst.Len)
		switch inst.Flow {
		case isa.Return:
			return above, true
		case isa.Jump:
			next = inst.Target
		case isa.CondJump:
			if seen[next] {
				next = inst.Target
			}
		case isa.Next, isa.Call, isa.IndirectCall:
			for _, op := range inst.Ops[:inst.NumOps] {
				switch {
				case op.Kind == isa.Load && op.Dst != rsp:
					u.regs.Forget(op.Dst) // what it is for the caller is not looked for
				case op.Dst != rsp || op.Kind == isa.Store || op.Kind == isa.Compare:
				case op.Kind == isa.Set && op.Src == rsp:
					above += uint64(op.Imm)
				default:
					return 0, false
				}
			}
		default:
			return 0, false
		}
		if seen[next] {
			return 0, false
		}
		seen[pc] = true
		pc = next
	}
	return 0, false
}
