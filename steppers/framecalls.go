package steppers

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/javacode"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// A stub is code that is in no file and goes straight on to a jump by a register or
// through memory, with the stack and the frame pointer as they are. GCC makes one, on the stack
// itself, for the address of a nested function; Mono makes them for delegates and for
// calls by an interface.
type stub struct {
	to     uint64 // where it is about to jump to; 0 where that is not known
	loaded bool   // it has that, or something that leads to it, from memory
}

// stubAt executes what the top frame f has before it, with the registers that it has. ok
// is false where that is no stub. m maps its code.
func stubAt(w *unwind.Walker, m *procstate.Mapping, f *unwind.Frame) (s stub, ok bool) {
	const most = 6 // instructions
	var buf [16 * most]byte
	a, code, at, regs := w.Arch(), mcode.Read(w, m, f.PC(), buf[:]), f.PC(), f.Regs
	var in isa.Inst
	for range most {
		if !mcode.Decode(a, code, at, &in) || in.Flow != isa.Next && in.Flow != isa.IndirectJump {
			return stub{}, false
		}
		for _, op := range in.Ops[:in.NumOps] {
			value, known := uint64(op.Imm), true
			switch op.Kind {
			case isa.Compare:
				continue
			case isa.Const:
			case isa.Set:
				value, known = regs.Value(op.Src)
				value += uint64(op.Imm)
			case isa.Load:
				s.loaded = true
				if value, known = regs.Value(op.Src); known {
					value, known = wordNow(w, value+uint64(op.Imm))
				}
			case isa.Store, isa.StoreIndexed, isa.Scratch, isa.Swap:
				return stub{}, false
			default:
				known = false
			}
			if op.Dst == a.SP || op.Dst == a.FP {
				return stub{}, false
			}
			if regs.Forget(op.Dst); known {
				regs.Set(op.Dst, value)
			}
		}
		if in.Flow == isa.IndirectJump {
			reg := in.Reg
			if reg == procstate.NoReg && in.Word {
				reg = isa.Temp
			}
			s.to = regs.Raw(reg)
			return s, true
		}
		at, code = at+uint64(in.Len), code[in.Len:]
	}
	return stub{}, false
}

// behindStub returns the layout of the top frame f by where it is about to jump to, if it
// is a stub. It has been called, and unknown is true, where nothing tells more than that a
// return address is at SP.
func (s *FrameFunc) behindStub(w *unwind.Walker, m *procstate.Mapping, f *unwind.Frame) (l FrameLayout, unknown bool) {
	st, ok := stubAt(w, m, f)
	if !ok {
		return unknownLayout, false
	}
	a := w.Arch()
	if st.to != 0 {
		there := *f
		there.SetPC(a, st.to)
		l = s.helper.AllocatesFrame(w, &there)
		entry := l.State == UnsetFrame && l.SP == l.RA && l.SavedFP == 0
		if l.State != UnknownState && (entry || !st.loaded) { // else it may have been another
			return l, false
		}
	}
	if a.LR != procstate.NoReg {
		return unknownLayout, false
	}
	ra, ok := w.ProcessState().ReadWord(f.SP())
	return unknownLayout, ok && ra != 0 && javacode.MayReturnTo(w, ra, s.buf[:])
}

// wordNow reads a word of memory, of a process that runs on as it is now where the
// moment looked at lacks it.
func wordNow(w *unwind.Walker, addr uint64) (v uint64, ok bool) {
	if v, ok = w.ProcessState().ReadWord(addr); ok {
		return v, true
	}
	var b [8]byte
	live, runs := w.ProcessState().(procstate.LiveMemory)
	n := w.Arch().AddressWidth
	if !runs || live.ReadLive(addr, b[:n]) != n {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[:]), true
}

// maxLed bounds the instructions looked at to find where a call leads.
const maxLed = 256

// led knows where direct calls lead by jumps alone.
type led struct {
	open mcode.VaddrCache // whether code jumps to where is not known
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
	n := min(mcode.MaxCallLen, ra-m.Start)
	before := mcode.Read(w, m, ra-n, l.buf[:n])
	if uint64(len(before)) < n {
		return true
	}
	target, direct, ok := mcode.CallBefore(w.Arch(), before, ra)
	if !ok || !direct {
		return true
	}
	const open = 1
	if m = w.MappingAt(target); m == nil || m.Image == nil {
		return true
	}
	if fact, ok := l.open.Get(m.Image, target-m.Bias); ok && fact == open {
		return true
	}
	known, met := l.follow(w, target, pc)
	if !known {
		l.open.Put(m.Image, target-m.Bias, open)
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
			if code := mcode.Read(w, m, at, l.buf[:]); !mcode.Decode(w.Arch(), code, at, &in) {
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
