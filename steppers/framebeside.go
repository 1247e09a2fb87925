package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
)

// Some code that is made at run time has no prologue: it is jumped to by code that has set up
// the frame for all of it, and goes on where a function that it calls tells it to. So are the
// stubs of YJIT, by which ruby compiles what is first about to run. They stand side by side, and among
// them the ways out of the code, which take the frame off.

// beside finds the layout at pc, which is in code from from on, if that ends with a jump to
// where is not known: that of the code that stands behind it or, where that tells nothing,
// before it. returned tells that pc is where a call returns to.
func beside(a *procstate.Arch, code []byte, from, pc uint64, returned bool) FrameLayout {
	const most, aligned = 1 << 10, 64 // bytes of code, and those by which instructions are in step
	if pc-from >= uint64(len(code)) || a.LR != procstate.NoReg {
		return unknownLayout
	}
	before, behind := code[:pc-from], code[pc-from:]
	if returned && startsFunction(a, behind) {
		return unknownLayout
	}
	b := besideCode{arch: a}
	var in isa.Inst
	for at := uint64(0); ; at += uint64(in.Len) {
		if !mcode.Decode(a, behind[at:], pc+at, &in) || in.Ends() && in.Flow != isa.IndirectJump {
			return unknownLayout
		}
		if in.Ends() {
			break
		}
	}
	b.follow(behind[:min(most, uint64(len(behind)))], 0)
	if b.returns < 2 && !b.differ && len(before) > most {
		before = before[len(before)-most:]
		for range 16 { // where an instruction may begin
			b = besideCode{arch: a}
			if b.follow(before, aligned) {
				break
			}
			before = before[1:]
		}
	}
	if b.returns < 2 || b.differ {
		return unknownLayout
	}
	return b.layout
}

// jumpsOnTo returns where the code at pc jumps to, if it comes there by one way and leaves SP as it is.
func jumpsOnTo(a *procstate.Arch, code []byte, pc uint64) (target uint64, ok bool) {
	var in isa.Inst
	for len(code) > 0 && mcode.Decode(a, code, pc, &in) {
		for _, op := range in.Ops[:in.NumOps] {
			switch op.Kind {
			case isa.Store, isa.StoreIndexed, isa.Scratch, isa.Compare:
			default:
				if op.Dst == a.SP {
					return 0, false
				}
			}
		}
		if in.Flow != isa.Next {
			return in.Target, in.Flow == isa.Jump
		}
		pc, code = pc+uint64(in.Len), code[in.Len:]
	}
	return 0, false
}

// besideCode is what the returns in code that stands beside a frame's own have to say.
type besideCode struct {
	arch    *procstate.Arch
	layout  FrameLayout
	returns int  // that take layout off the stack, more than the return address that is all that functions leave
	differ  bool // another does not
}

// follow looks at the returns in code, but for those in so many bytes at its start, up to the
// second. It reports whether it has come to the end.
func (b *besideCode) follow(code []byte, skip int) (whole bool) {
	a, size := b.arch, len(code)
	first := mcode.FirstPathState(a, 0)
	s := first
	var in isa.Inst
	for len(code) > 0 {
		if !mcode.Decode(a, code, s.PC, &in) {
			return false
		}
		if in.Flow == isa.Return && size-len(code) >= skip && (skip > 0 || b.returns < 2) {
			p := framePaths{arch: a}
			p.leave(&s)
			if !p.any || p.found.SP <= int32(a.AddressWidth) || b.returns > 0 && p.found != b.layout {
				b.differ = true
			}
			b.layout = p.found
			b.returns++
		}
		s.Apply(a, &in)
		s.PC, code = s.PC+uint64(in.Len), code[in.Len:]
		if in.Ends() {
			first.PC = s.PC
			s = first
		}
	}
	return true
}
