package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// goesOnAt returns where code that is in no file is about to jump to by a
// register, with the stack as it is: on the stack itself, GCC makes such code for
// the address of a nested function. m maps the code of the top frame f.
func goesOnAt(w *unwind.Walker, m *procstate.Mapping, f *unwind.Frame) (to uint64, ok bool) {
	const most = 4 // instructions
	var buf [16 * most]byte
	code := readCode(w, m, f.PC(), buf[:])
	at, regs := f.PC(), f.Regs
	var in isa.Inst
	for range most {
		switch {
		case !decode(w.Arch(), code, at, &in):
			return 0, false
		case in.Flow == isa.IndirectJump:
			return regs.Value(in.Reg)
		case in.Flow != isa.Next:
			return 0, false
		}
		for _, op := range in.Ops[:in.NumOps] {
			if op.Kind != isa.Const || op.Dst == w.Arch().FP {
				return 0, false
			}
			regs.Set(op.Dst, uint64(op.Imm))
		}
		at, code = at+uint64(in.Len), code[in.Len:]
	}
	return 0, false
}

// maxLed bounds the instructions looked at to find where a call leads.
const maxLed = 256

// led knows where direct calls lead by jumps alone.
type led struct {
	open vaddrCache // whether code jumps to where is not known
	seen map[uint64]bool
	work []uint64
	buf  [16]byte
}

// mayLead reports whether the call in a file that returns to ra may have led to
// pc: only a direct one, of code whose jumps are all known, may not.
func (l *led) mayLead(w *unwind.Walker, ra, pc uint64) bool {
	m := w.MappingAt(ra - 1)
	if m == nil || m.Image == nil {
		return true // a call that is made at run time may be changed when it has been made
	}
	n := min(maxCallLen, ra-m.Start)
	before := readCode(w, m, ra-n, l.buf[:n])
	if uint64(len(before)) < n {
		return true
	}
	target, direct, ok := callBefore(w.Arch(), before, ra)
	if !ok || !direct {
		return true
	}
	const open = 1
	if m = w.MappingAt(target); m == nil || m.Image == nil {
		return true
	}
	if fact, ok := l.open.get(m.Image, target-m.Bias); ok && fact == open {
		return true
	}
	known, met := l.follow(w, target, pc)
	if !known {
		l.open.put(m.Image, target-m.Bias, open)
	}
	return !known || met
}

// follow reports whether jumps lead from one place in code to another, if that is
// known.
func (l *led) follow(w *unwind.Walker, from, to uint64) (known, met bool) {
	if l.seen == nil {
		l.seen = map[uint64]bool{}
	}
	clear(l.seen)
	var in isa.Inst
	for l.work = append(l.work[:0], from); len(l.work) > 0; {
		at := l.work[len(l.work)-1]
		l.work = l.work[:len(l.work)-1]
		for !l.seen[at] {
			m := w.MappingAt(at)
			if at == to {
				return true, true
			}
			if m == nil || len(l.seen) == maxLed {
				return false, false
			}
			l.seen[at] = true
			if code := readCode(w, m, at, l.buf[:]); !decode(w.Arch(), code, at, &in) {
				return false, false
			}
			at += uint64(in.Len)
			switch in.Flow {
			case isa.CondJump:
				l.work = append(l.work, in.Target)
			case isa.Jump:
				at = in.Target
			case isa.IndirectJump:
				if in.Target == 0 {
					return false, false
				}
				var ok bool
				if at, ok = w.ProcessState().ReadWord(in.Target); !ok {
					return false, false
				}
			}
			if in.Flow == isa.Return || in.Flow == isa.Trap {
				break
			}
		}
	}
	return true, false
}
