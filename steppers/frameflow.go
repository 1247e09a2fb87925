package steppers

import (
	"slices"
	"sort"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
)

// funcFrames is the result of the analysis of one function: the layout before
// each instruction that a path from the start reaches. Instructions that follow
// each other and have the same layout are one run.
type funcFrames struct {
	start   uint64
	offs    []uint32     // of the first instructions of runs, sorted
	is      []uint16     // what is known of each: 0 nothing, or the number of a layout and passesCall
	layouts *layoutSet   // that has the layouts
	exits   []frameVisit // branches out of the function, where they are needed
	takesRA bool         // see frameFlow
	strays  bool         // see frameFlow
}

// passesCall marks a run to which the path from the start passes a call, see
// foundLayout.
const passesCall = 1 << 15

// at returns the layout before the instruction that holds addr.
func (f *funcFrames) at(addr uint64) foundLayout {
	off := addr - f.start
	if addr < f.start || off > 1<<31 {
		return foundLayout{}
	}
	i := sort.Search(len(f.offs), func(i int) bool { return uint64(f.offs[i]) > off }) - 1
	if i < 0 || f.is[i] == 0 {
		return foundLayout{}
	}
	return foundLayout{f.layouts.of[f.is[i]&^passesCall], true, f.is[i]&passesCall != 0}
}

// guessedAt is at where nothing says that a function begins at the start: what stands before
// may run on into it. Then it is no start, and what looks like the return address is taken off
// the stack.
func (f *funcFrames) guessedAt(addr uint64) foundLayout {
	l := f.at(addr)
	if f.takesRA || l.passes && f.strays {
		return foundLayout{}
	}
	return l
}

// layoutSet numbers layouts, of which a program has few that differ.
type layoutSet struct {
	index map[FrameLayout]uint16
	of    []FrameLayout // by number; 0 is none
}

// add returns the number of a layout, 0 when there are too many.
func (s *layoutSet) add(l *FrameLayout) uint16 {
	n, ok := s.index[*l]
	if !ok && len(s.of) < passesCall {
		n = uint16(len(s.of))
		s.index[*l], s.of = n, append(s.of, *l)
	}
	return n
}

// frameVisit is a path that is still to be followed.
type frameVisit struct {
	off    uint64
	state  frameState
	passes bool // a call lies behind
}

// frameInsn is an instruction that was reached.
type frameInsn struct {
	off, end uint32
	state    frameState
	passes   bool
}

// frameFlow is the analysis of one function. It can be used again for another.
type frameFlow struct {
	arch  *procstate.Arch
	code  flowCode
	start uint64

	fragments *fragments // of the file; nil where code is of none

	whole bool // code is the function and nothing else

	layouts    *layoutSet
	runs       []uint32 // see funcFrames
	runLayouts []uint16
	insns      []frameInsn // in the order in which they were reached
	insnAt     []uint32    // 1 + the index of the instruction that begins at an offset
	work       []frameVisit
	afterCalls []frameVisit // followed later: the call may never return
	tables     []frameVisit // at indirect jumps within the frame
	exits      []frameVisit // branches out of the code
	takesRA    bool         // a path takes the return address off the stack and goes on, or returns with another before any call
	strays     bool         // a path returns with the stack as the function was not entered: behind a call that does not come back it is in another
	high       uint64       // end of the last instruction that was reached
	standard   bool         // the frame pointer pointed into the frame somewhere
	saves      bool         // it was saved somewhere
	setsCaller bool         // the caller's frame is set up: see setsCallersFrame
	nops       bool         // see dataflow.NopsBehindCalls; kept from one function to the next
	framed     bool         // SP is set from the frame pointer that the function began with
}

// analyze analyses w.code, the code of the function at address start, or of a
// part of one that is entered with a given state. Each instruction is visited
// once, and again where a path that comes later knows its return address
// and none before did.
// whole says that code is the function and nothing else: then its end is known.
func (w *frameFlow) analyze(a *procstate.Arch, start uint64, entry frameState, whole bool) *funcFrames {
	w.arch, w.start, w.whole = a, start, whole
	for i := range w.insns {
		w.insnAt[w.insns[i].off] = 0
	}
	w.high, w.standard, w.saves, w.takesRA, w.strays, w.setsCaller, w.framed = 0, false, false, false, false, false, false
	w.insns, w.tables, w.exits = w.insns[:0], w.tables[:0], w.exits[:0]
	w.work = append(w.work[:0], frameVisit{state: entry})
	w.follow()
	if w.framed && !w.standard && !w.saves {
		return w.analyze(a, start, framedState(a), whole)
	}
	// The targets of jump tables have the state of the jump. They are what no
	// path has reached, from the instruction behind the jump on.
	for i := 0; i < len(w.tables); i++ {
		if t := w.tables[i]; whole || !startsFunction(a, w.code.at(t.off)) {
			w.work = append(w.work, frameVisit{t.off, t.state, true})
			w.follow()
		}
	}
	for off := uint64(0); len(w.tables) > 0 && (off < w.high || w.goesOn(off)); {
		switch i := w.insn(off); {
		case i != nil:
			off = uint64(i.end)
			continue
		case !whole && isEntered(a, w.code.at(off)):
			off = max(off, w.high) // the rest is of other functions
			continue
		case !whole && isFill(a, w.code.at(off)): // up to the next function
			for off++; off < w.high && w.insn(off) == nil; off++ {
			}
			continue
		}
		w.work = append(w.work, frameVisit{off, w.tables[0].state, true})
		w.follow()
		if i := w.insn(off); i != nil {
			off = uint64(i.end)
		} else {
			off += a.PCAlign
		}
	}
	f := w.result()
	for i := range w.insns {
		w.insnAt[w.insns[i].off] = 0
	}
	w.insns = w.insns[:0]
	return f
}

// insn returns the instruction that was reached at an offset, nil when none was.
func (w *frameFlow) insn(off uint64) *frameInsn {
	if off >= uint64(len(w.insnAt)) || w.insnAt[off] == 0 {
		return nil
	}
	return &w.insns[w.insnAt[off]-1]
}

// reach notes that an instruction was reached.
func (w *frameFlow) reach(i frameInsn) {
	if n := int(i.off) + 1; n > len(w.insnAt) {
		w.insnAt = append(w.insnAt, make([]uint32, n-len(w.insnAt))...)
	}
	if at := w.insnAt[i.off]; at != 0 {
		w.insns[at-1] = i
		return
	}
	w.insns = append(w.insns, i)
	w.insnAt[i.off] = uint32(len(w.insns))
}

// follow follows all paths to their ends.
func (w *frameFlow) follow() {
	for {
		n := len(w.work)
		if n == 0 {
			if len(w.afterCalls) == 0 {
				return
			}
			w.work = append(w.work, w.afterCalls[0])
			w.afterCalls = w.afterCalls[1:]
			n = 1
		}
		v := w.work[n-1]
		w.work = w.work[:n-1]
		for w.visit(&v) {
		}
	}
}

// visit executes the instruction at v and moves v behind it. It returns false
// where the path ends.
func (w *frameFlow) visit(v *frameVisit) bool {
	if i := w.insn(v.off); i != nil && (i.state.known() || !v.state.known() || v.passes && !i.passes) {
		return false
	}
	var in isa.Inst
	if !mcode.Decode(w.arch, w.code.at(v.off), w.start+v.off, &in) {
		return false
	}
	end := v.off + uint64(in.Len)
	if in.IsThunk() { // what its call leads to has a frame of its own
		w.reach(frameInsn{uint32(v.off), uint32(v.off + isa.ThunkEntry), v.state, v.passes})
		w.reach(frameInsn{uint32(v.off + in.ThunkCall()), uint32(end), v.state, v.passes})
	} else {
		w.reach(frameInsn{uint32(v.off), uint32(end), v.state, v.passes})
	}
	w.high = max(w.high, end)
	w.setsCaller = w.setsCaller || v.state.setsCaller(w.arch, &in)
	w.framed = w.framed || !v.passes && v.state.takesFrameOff(w.arch, &in)
	if in.Flow == isa.Return && v.state.sp >= 0 && v.state.sp != entryState(w.arch).sp {
		w.strays, w.takesRA = w.strays || v.passes, w.takesRA || !v.passes
	}
	v.state.apply(w.arch, &in)
	w.takesRA = w.takesRA || v.state.sp >= 0 && v.state.sp < entryState(w.arch).sp && in.Flow == isa.Next
	w.standard = w.standard || v.state.fp == fpFrame
	w.saves = w.saves || v.state.savedFP != 0
	v.off = end
	switch in.Flow {
	case isa.Jump, isa.CondJump:
		to := frameVisit{in.Target - w.start, v.state, v.passes}
		switch {
		case in.Flow == isa.CondJump && isEntered(w.arch, w.code.at(to.off)):
		case to.off < w.code.size:
			w.work = append(w.work, to)
		default:
			w.exits = append(w.exits, to)
		}
	case isa.IndirectJump:
		if v.state.sp != entryState(w.arch).sp || v.state.fp == fpFrame { // else a tail call
			w.tables = append(w.tables, *v)
		}
	case isa.Call, isa.IndirectCall:
		if code := w.fragments.at(&in); len(code) > 0 {
			for ; len(code) > 0; code = code[in.Len:] {
				mcode.Decode(w.arch, code, 0, &in)
				v.state.apply(w.arch, &in)
			}
			w.standard = w.standard || v.state.fp == fpFrame
			return true
		}
		if w.arch == procstate.I386 && !in.Kernel {
			v.state.sp = -1 // the function may take its arguments off the stack
		}
		if w.whole || !startsFunction(w.arch, behindNop(w.nops, w.code.at(end))) {
			v.passes = true
			w.afterCalls = append(w.afterCalls, *v)
		}
		return false
	case isa.Syscall:
		v.passes = true
	}
	return !in.Ends()
}

// startsFunction reports whether the code behind a call rather belongs to
// another function: the call does not return, and padding follows it or the
// first instruction of a function.
func startsFunction(a *procstate.Arch, code []byte) bool {
	if !x86Prologues(a) || len(code) < 4 {
		return len(code) == 0 || isEntered(a, code)
	}
	switch {
	case code[0] == 0xcc, code[0] == 0x55 && (a == procstate.AMD64 || beginsFrame(a, code[1:])), code[0] == mcode.NopAMD64,
		code[0] == 0x66 && (code[1] == 0x90 || code[1] == 0x66 || code[1] == 0x2e || code[1] == 0x0f && code[2] == 0x1f),
		code[0] == 0x0f && code[1] == 0x1f,
		isEndbr(a, code):
		return true
	}
	return a == procstate.I386 && isLongNop(code)
}

// behindNop returns the code behind the nop that code begins with where compilers put one behind
// each call, as nops tells, and else code.
func behindNop(nops bool, code []byte) []byte {
	if nops && len(code) > 0 && code[0] == mcode.NopAMD64 {
		return code[1:]
	}
	return code
}

// isEndbr reports whether code begins with endbr64, or endbr32 on i386.
func isEndbr(a *procstate.Arch, code []byte) bool {
	last := byte(0xfa)
	if a == procstate.I386 {
		last = 0xfb
	}
	return len(code) > 3 && code[0] == 0xf3 && code[1] == 0x0f && code[2] == 0x1e && code[3] == last
}

// isLongNop reports whether code of i386 begins with lea 0(%esi),%esi, with and without
// an index and with any size of that 0, by which GNU as fills gaps.
func isLongNop(code []byte) bool {
	var in isa.Inst
	if code[0] == 0x2e {
		code = code[1:]
	}
	if code[0] != 0x8d || !isa.DecodeI386(code, 0, &in) || in.NumOps != 1 {
		return false
	}
	op := &in.Ops[0]
	return op.Kind == isa.Set && op.Dst == op.Src && op.Imm == 0
}

// goesOn reports whether the function goes on at an offset behind all that was
// reached: where the code does not begin as a function does, which may stand right
// behind another where it is aligned.
func (w *frameFlow) goesOn(off uint64) bool {
	if w.whole {
		return off < w.code.size
	}
	var in isa.Inst
	code := w.code.at(off)
	return (w.start+off)%16 != 0 && !startsFunction(w.arch, code) &&
		mcode.Decode(w.arch, code, w.start+off, &in) && !lowersSP(w.arch, &in)
}

// lowersSP reports whether an instruction begins a frame.
func lowersSP(a *procstate.Arch, in *isa.Inst) bool {
	return slices.ContainsFunc(in.Ops[:in.NumOps], func(op isa.Op) bool {
		return op.Kind == isa.Set && op.Dst == a.SP && op.Src == a.SP && op.Imm < 0
	})
}

// isFill reports whether code is what linkers fill the room between functions with:
// int3, more than once.
func isFill(a *procstate.Arch, code []byte) bool {
	return x86Prologues(a) && len(code) > 1 && code[0] == mcode.BreakpointAMD64 && code[1] == mcode.BreakpointAMD64
}

// result sorts what was found.
func (w *frameFlow) result() *funcFrames {
	typ := NoFrame
	switch {
	case w.standard:
		typ = StandardFrame
	case w.saves:
		typ = SaveFPOnlyFrame
	}
	if w.layouts == nil {
		w.layouts = &layoutSet{index: map[FrameLayout]uint16{}, of: make([]FrameLayout, 1)}
	}
	w.runs, w.runLayouts = w.runs[:0], w.runLayouts[:0]
	end := uint32(0) // of the last instruction
	var last *frameState
	l := uint16(0) // its layout
	for off := uint32(0); uint64(off) < w.high; off++ {
		i := w.insn(uint64(off))
		if i == nil {
			continue
		}
		if end < off {
			w.run(end, 0)
		}
		if last == nil || *last != i.state {
			layout := i.state.layout(typ)
			layout.CallerUnset = w.setsCaller && !i.state.moved
			l = w.layouts.add(&layout)
		}
		if i.passes && l != 0 {
			w.run(off, l|passesCall)
		} else {
			w.run(off, l)
		}
		last, end = &i.state, i.end
	}
	w.run(end, 0)
	return &funcFrames{start: w.start, offs: slices.Clone(w.runs), is: slices.Clone(w.runLayouts), layouts: w.layouts, takesRA: w.takesRA, strays: w.strays}
}

// run begins a run of code at an offset, if what is known of it is new.
func (w *frameFlow) run(off uint32, layout uint16) {
	switch n := len(w.runs) - 1; {
	case n >= 0 && w.runs[n] == off:
		w.runLayouts[n] = layout
	case n < 0 || w.runLayouts[n] != layout:
		w.runs, w.runLayouts = append(w.runs, off), append(w.runLayouts, layout)
	}
}
