package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// Some code that is made at run time has no prologue: it is jumped to by code that has set up
// the frame for all of it, and goes on where a function that it calls tells it to. So are the
// stubs of YJIT, by which ruby compiles what is first about to run. They stand side by side, and among
// them the ways out of the code, which take the frame off.

// beside finds the layout at pc, where code begins, if that ends with a jump to where is not
// known: that of the code that stands behind it, if the first two returns in that take the
// same off the stack, more than the return address that is all that functions leave. returned
// tells that pc is where a call returns to.
func beside(a *procstate.Arch, code []byte, pc uint64, returned bool) FrameLayout {
	const returns, most = 2, 1 << 10 // how many, and bytes of code
	if a.LR != procstate.NoReg || returned && startsFunction(a, code) {
		return unknownLayout
	}
	p := framePaths{arch: a}
	first := firstState(a, pc)
	s, found := first, 0
	var in isa.Inst
	for own := true; s.pc-pc < most; {
		if !decode(a, code, s.pc, &in) || own && in.Ends() && in.Flow != isa.IndirectJump {
			break
		}
		if in.Flow == isa.Return {
			if p.leave(&s); p.differ || !p.any || p.found.SP <= int32(a.AddressWidth) {
				break
			}
			if found++; found == returns {
				return p.found
			}
		}
		s.apply(a, &in)
		s.pc, code = s.pc+uint64(in.Len), code[in.Len:]
		if in.Ends() {
			first.pc, own = s.pc, false
			s = first
		}
	}
	return unknownLayout
}
