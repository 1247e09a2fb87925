package hotspot

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/javacode"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// What a compiled method does with strings has the stack pointer lower than its frame
// tells for a while: it compares them with a word pushed, and where it looks for one in
// another it keeps copies of their ends on the stack, below them some registers, and last
// where SP was, which it pops into SP. Stubs for digests align SP and keep in their frame
// where it was. How far down they are the way out tells.

// wayOut is how the way out from an instruction gives SP its place: the CFA is off
// beyond SP or, with held, beyond the word at such a distance from SP.
type wayOut struct {
	pc, begin uint64 // of the instruction, and of the code around it
	at, off   int32
	held, ok  bool
	fpSaved   bool // right below the return address
}

// waysOut finds such ways, and keeps some.
type waysOut struct {
	code mcode.Windows
	seen mcode.AddrSet
	now  []mcode.PathState // paths that are still to be followed
	left int               // instructions that may still be looked at
	buf  []byte            // of code
	kept [256]wayOut
}

// maxWayInsts bounds the instructions that are followed: a digest takes two thousand.
const maxWayInsts = 4000

// cfa finds the CFA of an interrupted frame in code of the virtual machine, and whether
// the frame pointer is saved below it. The first place that a call may return to is it.
func (h *waysOut) cfa(w *unwind.Walker, m *procstate.Mapping, f *unwind.Frame, b *codeBlob) (cfa uint64, fpSaved, ok bool) {
	way := &h.kept[f.PC()*0x9e3779b97f4a7c15>>(64-8)]
	if way.pc == f.PC() && way.begin == b.begin {
		if cfa, ok = h.take(w, f, way); ok || !way.ok {
			return cfa, way.fpSaved, ok
		}
	}
	*way = wayOut{pc: f.PC(), begin: b.begin}
	h.follow(w, m, f, b, way)
	cfa, ok = h.take(w, f, way)
	return cfa, way.fpSaved, ok
}

// take finds the CFA by a way, if there is what a call may return to.
func (h *waysOut) take(w *unwind.Walker, f *unwind.Frame, way *wayOut) (cfa uint64, ok bool) {
	const most = 4 << 10 // bytes that SP is moved by
	from := f.SP()
	if !way.ok {
		return 0, false
	}
	if way.held {
		if from, ok = w.ProcessState().ReadWord(from + uint64(int64(way.at))); !ok || from-f.SP() > most || from%8 != 0 {
			return 0, false
		}
	}
	var buf [mcode.MaxInstLen]byte
	cfa = from + uint64(int64(way.off))
	ra, _, ok := returnOf(w, f, cfa, way.fpSaved)
	return cfa, ok && cfa >= f.SP()+uint64(returnBytes(w.Arch())) && javacode.MayReturnTo(w, ra, buf[:])
}

// follow looks for a way out that take is content with.
func (h *waysOut) follow(w *unwind.Walker, m *procstate.Mapping, f *unwind.Frame, b *codeBlob, way *wayOut) {
	a := w.Arch()
	h.buf, h.now, h.left = h.buf[:0], h.now[:0], maxWayInsts
	h.seen.Clear()
	h.code.Begin(func(start, addr, end uint64) ([]byte, uint64) {
		start, end = max(start, b.begin), min(end, b.end)
		n := len(h.buf)
		if addr < start || addr >= end {
			return nil, 0
		}
		h.buf = append(h.buf, make([]byte, end-start)...)
		return mcode.Read(w, m, start, h.buf[n:]), start
	}, mcode.MaxMadeWindows)
	first := firstPathState(a, f.PC())
	const most = 64
	for r := range procstate.Reg(a.NumRegs) {
		// Where SP was may still be in a register.
		if v, ok := f.Regs.Value(r); ok && v-f.SP() <= most && r != a.SP && r != a.FP && r != a.LR && r != a.PC {
			first.Regs[r] = mcode.PathValue{Base: mcode.PathSP, Off: int32(v - f.SP())}
		}
	}
	h.now = append(h.now, first)
	for len(h.now) > 0 && h.left > 0 {
		path := h.now[len(h.now)-1]
		h.now = h.now[:len(h.now)-1]
		*way = wayOut{pc: way.pc, begin: way.begin}
		if h.followOne(w, f, b, way, &path) {
			return
		}
	}
	*way = wayOut{pc: way.pc, begin: way.begin}
}

// followOne follows a path to its end or to a fork. It reports whether it has come to
// where the way is known.
func (h *waysOut) followOne(w *unwind.Walker, f *unwind.Frame, b *codeBlob, way *wayOut, s *mcode.PathState) bool {
	a := w.Arch()
	isMethod := b.fixed && b.frame >= 16 && b.complete >= 0 // its calls have the whole frame
	var in isa.Inst
	for h.left > 0 && h.seen.Add(s.PC) {
		h.left--
		if s.PC-b.begin >= b.end-b.begin || !mcode.Decode(a, h.code.At(s.PC), s.PC, &in) {
			return false
		}
		sp := s.Regs[a.SP]
		isCall := in.Flow == isa.Call || in.Flow == isa.IndirectCall
		switch {
		case in.Flow == isa.Return:
			fp, ret := s.Regs[a.FP], returnBytes(a)
			saved := fp == mcode.PathValue{Base: sp.Base, InMemory: true, Off: sp.Off + ret - 16}
			linked := a.LR == procstate.NoReg || saved || s.Regs[a.LR] == mcode.PathValue{Base: mcode.PathLR}
			return linked && (saved || fp == mcode.PathValue{Base: mcode.PathFP}) && h.found(w, f, way, sp.Plus(int64(ret)), saved)
		case isCall && isMethod && h.found(w, f, way, sp.Plus(int64(b.frame)), true):
			return true
		case in.Ends() && in.Flow != isa.Jump:
			return false
		}
		held := mcode.PathValue{Base: mcode.PathAligned}
		for i := range in.Ops[:in.NumOps] {
			if op := &in.Ops[i]; op.Kind == isa.Set && op.Dst == a.SP && isHeld(s.Regs[op.Src]) {
				way.at, way.held = s.Regs[op.Src].Off, true
				s.Regs[op.Src] = held
			}
		}
		s.Apply(a, &in)
		if sp := s.Regs[a.SP]; isHeld(sp) {
			way.at, way.held = sp.Off, true
			s.Regs[a.SP] = held
		}
		if isMethod && sp.Base == mcode.PathSP && s.Regs[a.SP] == held {
			return h.found(w, f, way, held.Plus(int64(b.frame)), true)
		}
		s.PC += uint64(in.Len)
		switch in.Flow {
		case isa.Jump:
			s.PC = in.Target
		case isa.CondJump:
			taken := *s
			taken.PC = in.Target
			h.now = append(h.now, taken)
		}
	}
	return false
}

// isHeld reports whether a value is what a word of the stack held when the path began.
func isHeld(v mcode.PathValue) bool { return v.Base == mcode.PathSP && v.InMemory }

// found completes a way to the CFA. It reports whether take is content with it.
func (h *waysOut) found(w *unwind.Walker, f *unwind.Frame, way *wayOut, cfa mcode.PathValue, fpSaved bool) bool {
	if cfa.InMemory || cfa.Base != mcode.PathSP && (cfa.Base != mcode.PathAligned || !way.held) {
		return false
	}
	way.off, way.fpSaved, way.ok = cfa.Off, fpSaved, true
	if cfa.Base == mcode.PathSP {
		way.held = false
	}
	_, ok := h.take(w, f, way)
	return ok
}
