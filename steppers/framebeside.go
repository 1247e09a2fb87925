package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Some code that is made at run time has no prologue: it is jumped to by code that has set up
// the frame for all of it, and goes on where a function that it calls tells it to. So are the
// stubs of YJIT, by which ruby compiles what is first about to run. They stand side by side, and among
// them the ways out of the code, which take the frame off.

// beside finds the layout of a frame whose code ends with a jump to where is not known: that
// of the code that stands behind it, if the first two returns in that take the same off the
// stack, more than the return address that is all that functions leave.
func (k *madeFrames) beside(w *unwind.Walker, m *procstate.Mapping, f *unwind.Frame) (l FrameLayout, ok bool) {
	const returns, most = 2, 1 << 10 // how many, and bytes of code
	a := w.Arch()
	if a.LR != procstate.NoReg {
		return unknownLayout, false
	}
	code := k.readWindow(w, m, f.PC(), min(m.End-f.PC(), most+16))
	p := framePaths{arch: a}
	first := firstState(a, f.PC())
	s, found := first, 0
	if f.Flags&unwind.Interrupted == 0 && startsFunction(a, code) {
		return unknownLayout, false // the call does not return
	}
	var in isa.Inst
	for own := true; s.pc-f.PC() < most; {
		if !decode(a, code, s.pc, &in) || own && in.Ends() && in.Flow != isa.IndirectJump {
			break
		}
		if in.Flow == isa.Return {
			if p.leave(&s); p.differ || !p.any || p.found.SP <= int32(a.AddressWidth) {
				break
			}
			if found++; found == returns {
				return p.found, true
			}
		}
		s.apply(a, &in)
		s.pc, code = s.pc+uint64(in.Len), code[in.Len:]
		if in.Ends() {
			first.pc, own = s.pc, false
			s = first
		}
	}
	return unknownLayout, false
}
