package steppers

import (
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// fpValue is what the frame pointer register holds.
type fpValue uint8

const (
	fpCaller fpValue = iota // the caller's frame pointer
	fpFrame                 // an address in the frame: fpDist below the CFA
	fpOther                 // something else
)

// frameState is the state of the analysis before an instruction. Distances
// are in bytes below the CFA.
type frameState struct {
	sp      int32 // negative: not known
	fp      fpValue
	fpDist  int32
	savedFP int32 // where the caller's frame pointer is stored, 0 nowhere
	ra      int32 // where the return address is stored, 0: in LR, negative: not known
	lrGone  bool  // LR holds something else than the return address

	raRead bool          // the return address was loaded from its place: it may be anywhere
	raReg  procstate.Reg // what it was loaded into, NoReg when that holds something else
	moved  bool          // it was put elsewhere, or given up
}

// entryState is the state at the first instruction of a function.
func entryState(a *procstate.Arch) frameState {
	if a.LR != procstate.NoReg {
		return frameState{raReg: procstate.NoReg}
	}
	return frameState{sp: int32(a.AddressWidth), ra: int32(a.AddressWidth), raReg: procstate.NoReg}
}

// known reports whether it is known where the return address is.
func (s *frameState) known() bool { return s.ra >= 0 && (s.fp == fpFrame || s.sp >= 0) }

// framedState is the state at the first instruction of a function that others
// jump to with their frames, for it to take them off.
func framedState(a *procstate.Arch) frameState {
	width := int32(a.AddressWidth)
	return frameState{sp: -1, fp: fpFrame, fpDist: 2 * width, savedFP: 2 * width, ra: width, raReg: procstate.NoReg}
}

// layout turns a state into its description.
func (s *frameState) layout(typ FrameType) FrameLayout {
	l := FrameLayout{Type: typ, SP: s.sp, FP: -1, RA: s.ra, SavedFP: s.savedFP}
	unknown := FrameLayout{Type: typ, SP: -1, FP: -1}
	switch {
	case s.ra < 0:
		return unknown
	case s.fp == fpFrame:
		l.State, l.FP = SetFrame, s.fpDist
	case s.sp < 0 || s.fp == fpOther && s.savedFP == 0 || s.ra == 0 && s.lrGone:
		return unknown
	case s.savedFP != 0 && s.fp == fpCaller:
		l.State = HalfSetFrame
	case typ == SaveFPOnlyFrame && s.savedFP != 0:
		l.State = HalfSetFrame
	default:
		l.State = UnsetFrame
	}
	if s.fp == fpFrame && s.savedFP == 0 || s.ra == 0 && s.lrGone {
		return unknown
	}
	return l
}

// apply executes an instruction.
func (s *frameState) apply(a *procstate.Arch, in *isa.Inst) {
	for _, op := range in.Ops[:in.NumOps] {
		switch op.Kind {
		case isa.Store:
			s.store(a, &op)
		case isa.Scratch:
			s.scratch(a, &op)
		case isa.Compare, isa.Sign, isa.StoreIndexed:
		case isa.Swap:
			s.set(a, op.Dst, procstate.NoReg, 0)
			s.set(a, op.Src, procstate.NoReg, 0)
		case isa.Set:
			s.set(a, op.Dst, op.Src, op.Imm)
		case isa.Load:
			s.load(a, &op)
		default:
			s.set(a, op.Dst, procstate.NoReg, 0)
		}
	}
	if in.Flow == isa.Call || in.Flow == isa.IndirectCall {
		s.lrGone = a.LR != procstate.NoReg
	}
}

// setsCaller reports whether an instruction pushes the return address again when the
// frame pointer has been pushed where that was, and points there.
func (s *frameState) setsCaller(a *procstate.Arch, in *isa.Inst) bool {
	width := int32(a.AddressWidth)
	return s.ra < 0 && s.fp == fpFrame && s.fpDist == width && s.savedFP == width && s.raReg != procstate.NoReg &&
		slices.ContainsFunc(in.Ops[:in.NumOps], func(op isa.Op) bool { return op.Kind == isa.Store && op.Dst == a.SP && op.Src == s.raReg })
}

// takesFrameOff reports whether an instruction sets SP from the frame pointer that
// the function began with.
func (s *frameState) takesFrameOff(a *procstate.Arch, in *isa.Inst) bool {
	return a.LR == procstate.NoReg && s.fp == fpCaller &&
		slices.ContainsFunc(in.Ops[:in.NumOps], func(op isa.Op) bool { return op.Kind == isa.Set && op.Dst == a.SP && op.Src == a.FP })
}

// dist returns how far below the CFA the value of a register plus imm is.
func (s *frameState) dist(a *procstate.Arch, reg procstate.Reg, imm int64) (int32, bool) {
	var d int32
	switch {
	case reg == a.SP && s.sp >= 0:
		d = s.sp
	case reg == a.FP && s.fp == fpFrame:
		d = s.fpDist
	default:
		return 0, false
	}
	if v := int64(d) - imm; v >= -1<<30 && v < 1<<30 {
		return int32(v), true
	}
	return 0, false
}

// set makes dst hold src + imm, or anything when src is NoReg.
func (s *frameState) set(a *procstate.Arch, dst, src procstate.Reg, imm int64) {
	d, ok := s.dist(a, src, imm)
	if dst == s.raReg {
		s.raReg = procstate.NoReg
	}
	switch dst {
	case a.SP:
		s.sp = -1
		if ok && d >= 0 {
			s.sp = d
		}
	case a.FP:
		s.fp = fpOther
		if ok {
			s.fp, s.fpDist = fpFrame, d
		}
	case a.LR:
		s.lrGone = a.LR != procstate.NoReg
	}
}

// store stores a register in the frame: its place is known for the frame
// pointer and the link register of the caller, the first time.
func (s *frameState) store(a *procstate.Arch, op *isa.Op) {
	if s.raReg != procstate.NoReg && op.Src == s.raReg && op.Dst == a.SP && op.Imm < 0 && (s.ra < 0 || s.sp < 0) {
		*s = entryState(a) // pushed again: as if it had been called just now
		s.sp -= int32(a.AddressWidth)
		s.moved = true
		return
	}
	d, ok := s.dist(a, op.Dst, op.Imm)
	if !ok || d <= 0 {
		return
	}
	d = s.overwrite(a, d)
	switch {
	case op.Src == a.FP && s.fp == fpCaller && s.savedFP == 0:
		s.savedFP = d
	case op.Src == a.LR && a.LR != procstate.NoReg && !s.lrGone && s.ra == 0:
		s.ra = d
	case d == s.savedFP:
		s.savedFP = 0
	}
}

// overwrite follows a write so far below the CFA, and returns how far below the CFA
// it is then. A function that has taken its return address off the stack, and
// overwrites it without having read it, goes on in place of its caller, which has
// no frame: the CFA is the caller's from there on.
func (s *frameState) overwrite(a *procstate.Arch, d int32) int32 {
	width := int32(a.AddressWidth)
	switch {
	case a.LR != procstate.NoReg || d != s.ra || s.sp < 0 || s.sp >= s.ra:
		return d
	case s.raRead:
		s.ra = -1 // in a register, if anywhere
		return d
	}
	s.moved = true
	s.sp += width
	if s.fp == fpFrame {
		s.fpDist += width
	}
	if s.savedFP != 0 {
		s.savedFP += width
	}
	return d + width
}

// scratch writes anything into the frame.
func (s *frameState) scratch(a *procstate.Arch, op *isa.Op) {
	d, ok := s.dist(a, op.Dst, op.Imm)
	if ok {
		d = s.overwrite(a, d)
	}
	if ok && s.savedFP != 0 && s.savedFP <= d && s.savedFP > d-int32(op.Size) {
		s.savedFP = 0
	}
}

// load loads a register: what was saved comes back.
func (s *frameState) load(a *procstate.Arch, op *isa.Op) {
	d, ok := s.dist(a, op.Src, op.Imm)
	switch {
	case ok && op.Dst == a.FP && d == s.savedFP && d != 0:
		s.fp, s.savedFP = fpCaller, 0
	case ok && op.Dst == a.LR && a.LR != procstate.NoReg && d == s.ra && d != 0:
		s.lrGone, s.ra = false, 0
	default:
		s.set(a, op.Dst, procstate.NoReg, 0)
	}
	if ok && d == s.ra && a.LR == procstate.NoReg {
		s.raRead, s.raReg = true, op.Dst
	}
}
