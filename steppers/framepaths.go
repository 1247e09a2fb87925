package steppers

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// The way out of a function tells of its frame without any knowledge of where
// the function starts: from an instruction forward, each path to a return
// shows how far above SP, or above the frame pointer, the return address is,
// and whether the caller's frame pointer is still in its register or where it
// comes back from. Leaf functions that keep no frame, and those that set one
// up late, are known by it in files that are stripped.

// foundLayout is a layout as one way of looking at the code has it.
type foundLayout struct {
	layout FrameLayout
	ok     bool // there is one

	// passes tells that a call or a system call lies on the way, one that
	// may not return: then what follows may belong to another function.
	passes bool
}

// agreed chooses between the layout that follows from the start of a function
// before an instruction, and that from the code behind it.
func agreed(before, behind *foundLayout) FrameLayout {
	b, l := &before.layout, &behind.layout
	switch {
	case !before.ok || b.State == UnknownState:
		if behind.ok {
			return *l
		}
	case !behind.ok, !before.passes && behind.passes, sameFrame(b, l):
		return *b
	case before.passes && !behind.passes:
		return *l
	}
	return unknownLayout
}

// sameFrame reports whether two layouts can both be true.
func sameFrame(a, b *FrameLayout) bool {
	return (a.SP < 0 || b.SP < 0 || a.SP == b.SP) && (a.FP < 0 || b.FP < 0 || a.FP == b.FP) &&
		a.RA == b.RA && a.SavedFP == b.SavedFP
}

// Bounds of the paths that are followed from one instruction, in files, which have
// other information mostly, and in code that is in none.
const (
	maxPathInsts = 600
	maxPathCalls = 6

	maxMadeInsts = 4000
	maxMadeCalls = 60
)

// framePaths follows the paths from one instruction to returns.
type framePaths struct {
	arch *procstate.Arch
	code mcode.Windows
	seen mcode.AddrSet
	path mcode.PathState   // the one that is followed
	now  []mcode.PathState // paths that are still to be followed
	next []mcode.PathState // those that pass one more call, which may not return
	left int               // instructions that may still be looked at
	nops bool              // see dataflow.NopsBehindCalls; kept from one address to the next

	fragments *fragments // of the file; nil where code is of none

	ended func(*mcode.PathState) // called at returns
	made  *madeWays              // nil for code of files

	found  FrameLayout
	any    bool
	differ bool
	open   bool // a path ended at a jump that leads where a register tells
}

// madeWays is what tells of the ways out of code that is in no file. The last three may be nil.
type madeWays struct {
	// setsFrame tells whether a call is of a function that sets up its caller's frame, given
	// the registers that have been written since the path began. Such a call ends the path
	// like a return.
	setsFrame func(in *isa.Inst, written uint64) bool

	rowAt func(pc uint64) (row unwind.Row, end uint64, ok bool) // for code of a file, up to an end
	word  func(addr uint64) (v uint64, ok bool)                 // of memory as it is now

	regs *procstate.Regs // what registers hold where the paths begin; nil: nothing is known
}

// layoutBehind finds the layout at an instruction by the code from there on;
// returned tells that it is where a call returns to, which is under way. made is
// for code in no file, else nil. With direct,
// only ways without a call count. p is empty, or was used for that before.
func (p *framePaths) layoutBehind(a *procstate.Arch, read mcode.Reader, pc uint64, returned bool, made *madeWays, direct bool) foundLayout {
	p.begin(a, read, maxPathInsts)
	p.made = made
	p.ended = p.leave
	most := maxPathCalls
	if made != nil {
		p.code.Most = mcode.MaxMadeWindows
		p.left, most = maxMadeInsts, maxMadeCalls
	}
	if direct {
		most = 1
	}
	if returned && startsFunction(a, behindNop(p.nops, p.code.At(pc))) {
		return foundLayout{} // it does not return
	}
	if !returned && made != nil && p.lendsFrame(pc) {
		return foundLayout{} // FP is another's
	}
	first := mcode.FirstPathState(a, pc)
	if a.LR != procstate.NoReg && !returned {
		first.Regs[a.LR] = mcode.PathValue{Base: mcode.PathLR}
	}
	if made != nil && made.regs != nil {
		for r := range procstate.Reg(a.NumRegs) {
			if v, ok := made.regs.Value(r); ok && r != a.SP && r != a.PC {
				first.Knows(r, v, false)
			}
		}
	}
	p.now = append(p.now, first)
	calls := 0
	for ; calls < most; calls++ {
		for len(p.now) > 0 && !p.differ {
			p.followLast()
		}
		if p.any || p.differ {
			break
		}
		p.now, p.next = p.next, p.now
	}
	if !p.any || p.differ {
		return foundLayout{}
	}
	return foundLayout{p.found, true, calls > 0}
}

// begin makes p ready for paths of so many instructions.
func (p *framePaths) begin(a *procstate.Arch, read mcode.Reader, left int) {
	p.seen.Clear()
	p.code.Begin(read, mcode.MaxWindows)
	*p = framePaths{arch: a, nops: p.nops, code: p.code, seen: p.seen, now: p.now[:0], next: p.next[:0], left: left, fragments: p.fragments}
}

// lendsFrame reports whether an instruction is a call behind what may have set up the
// frame of the function that is called.
func (p *framePaths) lendsFrame(pc uint64) bool {
	if p.code.At(pc) == nil {
		return false
	}
	c := p.code.Last()
	return callsWithFrame(p.arch, c.Bytes, int(pc-c.Start))
}

// setsCallersFrame reports whether the function at an address sets up the frame of
// the one that calls it, as V8's BaselineOutOfLinePrologue does: it pushes the
// frame pointer where its return address was, has it point there, and returns. p is
// empty, or was used before.
func (p *framePaths) setsCallersFrame(a *procstate.Arch, read mcode.Reader, addr uint64) (sets bool) {
	const most = 128 // instructions
	if a.LR != procstate.NoReg {
		return false
	}
	own, fp := mcode.PathValue{Base: mcode.PathSP}, mcode.PathValue{Base: mcode.PathFP} // where the return address was, and what is to be there
	p.begin(a, read, most)
	p.ended = func(s *mcode.PathState) {
		if to := s.WordAt(s.Regs[a.SP]); to == (mcode.PathValue{Base: mcode.PathSP, InMemory: true}) {
			sets = s.Regs[a.FP] == own && s.WordAt(own) == fp
			p.differ = !sets
		}
	}
	p.now = append(p.now, mcode.FirstPathState(a, addr))
	for len(p.now) > 0 && !p.differ {
		p.followLast()
	}
	return sets
}

// lendsFP reports whether code that is in no file, at [from, end), leaves the
// frame pointer to the code that it goes back to, and that returns with it as it
// is now: so does instrumentation that was put into a function before that has
// a frame. It follows the code straight on.
func lendsFP(w *unwind.Walker, read mcode.Reader, pc, from, end uint64) bool {
	a := w.Arch()
	var code mcode.Windows
	code.Begin(read, mcode.MaxWindows)
	fp := mcode.PathValue{Base: mcode.PathFP}
	s := mcode.FirstPathState(a, pc)
	if before, _ := read(pc-1, pc-1, pc); a == procstate.AMD64 && string(before) == "\x55" {
		s.Store(s.Regs[a.SP], fp, 8) // it has just been pushed
	}
	back := false // in that code
	var in isa.Inst
	for range maxPathInsts {
		if !mcode.Decode(a, code.At(s.PC), s.PC, &in) {
			return false
		}
		to := in.Target
		switch {
		case in.Flow == isa.Jump:
		case in.Flow == isa.IndirectJump && in.Reg == procstate.NoReg && in.Target != 0:
			to, _ = w.ProcessState().ReadWord(in.Target)
		case in.Flow == isa.Return:
			return back && s.Regs[a.FP] == fp
		case in.Ends():
			return false
		default:
			s.Apply(a, &in)
			for _, op := range in.Ops[:in.NumOps] {
				if op.Kind == isa.Align && op.Dst == a.SP {
					s.Regs[a.SP] = mcode.PathValue{Base: mcode.PathAligned}
				}
			}
			to = s.PC + uint64(in.Len)
		}
		if !back && (to < from || to >= end) {
			if s.Regs[a.FP] != fp {
				return false
			}
			back = true
			s = mcode.FirstPathState(a, to)
		}
		s.PC = to
	}
	return false
}

// followLast follows the path that was put off last.
func (p *framePaths) followLast() {
	last := len(p.now) - 1
	p.path, p.now = p.now[last], p.now[:last]
	p.follow(&p.path)
}

// follow follows a path to its end or to a fork.
func (p *framePaths) follow(s *mcode.PathState) {
	var in isa.Inst
	for p.left > 0 && p.seen.Add(p.place(s)) {
		p.left--
		if !mcode.Decode(p.arch, p.code.At(s.PC), s.PC, &in) {
			return
		}
		p.readFor(s, &in)
		if in.Flow == isa.IndirectJump {
			through := in.Target != 0 || in.Word && in.Base < procstate.MaxRegs && s.Known[in.Base] != 0 && s.Word>>in.Base&1 == 0
			to := p.jumpsTo(s, &in)
			switch {
			case to != 0:
				s.PC = to
				if p.inFile(s) {
					return
				}
				continue
			case through && (p.made == nil || p.made.regs == nil): // a tail call
				p.ended(s)
			default:
				p.open = p.open || in.Reg != procstate.NoReg || in.Word
				p.byRow(s)
			}
			return
		}
		switch {
		case in.Flow == isa.Return:
			p.ended(s)
			return
		case p.made != nil && (in.Flow == isa.Call || in.Flow == isa.IndirectCall) && p.made.setsFrame(&in, s.Written):
			p.ended(s) // the return address is where it would be at a return
			return
		case in.Ends() && in.Flow != isa.Jump:
			return
		}
		if fp := s.Regs[p.arch.FP]; p.made != nil && (in.Flow == isa.Call || in.Flow == isa.IndirectCall) && fp.Base == mcode.PathSP && !fp.InMemory {
			return // perhaps with the frame of the function that is called, see lentFrame
		}
		s.Apply(p.arch, &in)
		s.PC += uint64(in.Len)
		switch in.Flow {
		case isa.Jump:
			s.PC = in.Target
			if p.inFile(s) {
				return
			}
		case isa.CondJump:
			taken := *s
			taken.PC = in.Target
			if !p.inFile(&taken) && !isEntered(p.arch, p.code.Near(in.Target)) {
				p.now = append(p.now, taken)
			}
		case isa.Call, isa.IndirectCall, isa.Syscall:
			if code := p.fragments.at(&in); len(code) > 0 {
				for ; len(code) > 0; code = code[in.Len:] {
					mcode.Decode(p.arch, code, 0, &in)
					s.Apply(p.arch, &in)
				}
				continue
			}
			if p.arch == procstate.I386 && in.Flow != isa.Syscall && !in.Kernel {
				s.Regs[p.arch.SP] = mcode.PathValue{} // the function may take its arguments off the stack
			}
			if code := p.code.At(s.PC); len(code) > 0 && !startsFunction(p.arch, behindNop(p.nops, code)) {
				p.next = append(p.next, *s)
			}
			return
		}
	}
}

// isEntered reports whether a function begins with code that may be called by way of a register (bti c of AArch64). A
// conditional jump there is never taken: clang leaves such where a value is said to be one of a few.
func isEntered(a *procstate.Arch, code []byte) bool {
	const btiC = 0xd503245f
	return a == procstate.ARM64 && len(code) >= 4 && binary.LittleEndian.Uint32(code) == btiC
}

// place is what a path comes to once: an instruction or, where a jump may lead on by what a
// register holds that calls preserve, that with the registers that are known, and where SP is.
func (p *framePaths) place(s *mcode.PathState) uint64 {
	if p.made == nil {
		return s.PC
	}
	sp := s.Regs[p.arch.SP]
	return s.PC + (s.Has&p.arch.CalleeSaved+uint64(uint32(sp.Off))<<32+uint64(sp.Base))*0x9e3779b97f4a7c15
}

// jumpsTo returns where an indirect jump leads, 0 when that is not known.
func (p *framePaths) jumpsTo(s *mcode.PathState, in *isa.Inst) (to uint64) {
	if in.Target != 0 {
		return p.wordAt(in.Target)
	}
	s.Apply(p.arch, in)
	reg := in.Reg
	if reg == procstate.NoReg && in.Word {
		reg = isa.Temp
	}
	if reg < procstate.MaxRegs {
		if to = s.Known[reg]; to != 0 && s.Word>>reg&1 != 0 {
			to = p.wordAt(to)
		}
	}
	return to
}

// wordAt returns a word of memory as it is now, 0 where that is not known.
func (p *framePaths) wordAt(addr uint64) (v uint64) {
	if p.made != nil && p.made.word != nil {
		v, _ = p.made.word(addr)
	}
	return v
}

// readFor reads the words that an instruction loads from or adds to, where registers are
// known.
func (p *framePaths) readFor(s *mcode.PathState, in *isa.Inst) {
	if p.made == nil || p.made.regs == nil {
		return
	}
	for i := range in.Ops[:in.NumOps] {
		if op := &in.Ops[i]; (op.Kind == isa.Load || op.Kind == isa.Set && op.Imm != 0) && op.Src < procstate.MaxRegs && s.Word>>op.Src&1 != 0 {
			s.Knows(op.Src, p.wordAt(s.Known[op.Src]), false)
		}
	}
}

// inFile reports whether a path that has jumped goes on in a function of a file, in its
// frame, which its row tells. Where instructions that move SP have a single row, as those of
// an interpreter that is written in assembly, they are followed instead.
func (p *framePaths) inFile(s *mcode.PathState) bool {
	if p.made == nil || p.made.rowAt == nil {
		return false
	}
	_, end, ok := p.made.rowAt(s.PC)
	if !ok {
		return false
	}
	const most = 16 // instructions
	var in isa.Inst
	for pc, n := s.PC, 0; n < most && mcode.Decode(p.arch, p.code.At(pc), pc, &in) && in.Flow == isa.Next; n++ {
		if pc += uint64(in.Len); pc >= end {
			break
		}
		for _, op := range in.Ops[:in.NumOps] {
			if op.Dst == p.arch.SP && op.Kind != isa.Store && op.Kind != isa.Scratch && op.Kind != isa.StoreIndexed && op.Kind != isa.Compare {
				return false
			}
		}
	}
	return p.byRow(s)
}

// byRow reports whether a path is in a function of a file, whose row tells of its frame.
func (p *framePaths) byRow(s *mcode.PathState) bool {
	if p.made == nil || p.made.rowAt == nil {
		return false
	}
	row, _, ok := p.made.rowAt(s.PC)
	if !ok || row.CFA.Kind != unwind.InReg || row.CFA.Reg >= procstate.MaxRegs || row.Signal {
		return false
	}
	cfa := s.Regs[row.CFA.Reg].Plus(row.CFA.Offset)
	ra, ok1 := s.Restored(cfa, &row.Regs[row.RA], procstate.Reg(row.RA))
	fp, ok2 := s.Restored(cfa, &row.Regs[p.arch.FP], p.arch.FP)
	if ok1 && ok2 {
		p.leaveWith(cfa, ra, fp)
	}
	return ok1 && ok2
}

// leave takes the layout from the state at a return, or at a jump to another
// function in its place.
func (p *framePaths) leave(s *mcode.PathState) {
	a := p.arch
	cfa := s.Regs[a.SP]
	ra, fp := mcode.PathValue{}, s.Regs[a.FP]
	if a.LR == procstate.NoReg {
		ra = s.WordAt(cfa)
		cfa = cfa.Plus(int64(a.AddressWidth))
	} else {
		ra = s.Regs[a.LR]
	}
	p.leaveWith(cfa, ra, fp)
}

// leaveWith takes the layout from where the CFA is, and from the return address and the
// caller's frame pointer.
func (p *framePaths) leaveWith(cfa, ra, fp mcode.PathValue) {
	l := FrameLayout{SP: -1, FP: -1}
	var ok1, ok2 bool
	switch {
	case cfa.InMemory:
		return
	case cfa.Base == mcode.PathSP && cfa.Off >= 0:
		l.SP, l.Type, l.State = cfa.Off, NoFrame, UnsetFrame
	case cfa.Base == mcode.PathFP:
		l.FP, l.Type, l.State = cfa.Off, StandardFrame, SetFrame
	default:
		return
	}
	l.RA, ok1 = savedBelow(cfa, ra, mcode.PathLR)
	l.SavedFP, ok2 = savedBelow(cfa, fp, mcode.PathFP)
	switch {
	case !ok1, !ok2, l.State == SetFrame && l.SavedFP == 0:
		return
	case l.State == UnsetFrame && l.SavedFP != 0:
		l.Type, l.State = SaveFPOnlyFrame, HalfSetFrame
	}
	if p.any && l != p.found {
		p.differ = true
	}
	p.found, p.any = l, true
}

// savedBelow returns how far below the CFA the place of a value is, 0 when it
// is in its own register.
func savedBelow(cfa, v mcode.PathValue, own mcode.PathBase) (int32, bool) {
	switch {
	case !v.InMemory:
		return 0, v.Base == own && v.Off == 0
	case v.Base != cfa.Base || v.Off >= cfa.Off:
		return 0, false
	}
	return cfa.Off - v.Off, true
}
