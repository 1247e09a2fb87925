package steppers

import (
	"github.com/swbpf/swbpf/procstate"
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
	read codeReader
	code []codeWindow
	seen addrSet
	path pathState   // the one that is followed
	now  []pathState // paths that are still to be followed
	next []pathState // those that pass one more call, which may not return
	left int         // instructions that may still be looked at
	nops bool        // see dataflow.NopsBehindCalls; kept from one address to the next

	ended func(*pathState) // called at returns
	made  *madeWays        // nil for code of files

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

// codeReader returns what there is of the code at [start, end), which holds addr,
// and where that begins.
type codeReader func(start, addr, end uint64) (code []byte, from uint64)

// codeWindow is a piece of code that was read.
type codeWindow struct {
	start uint64
	bytes []byte
	last  bool // nothing follows it
}

// The bytes that are read before and behind an address that is met, and how
// often.
const (
	pathBefore = 512
	pathBehind = 2 << 10
	maxWindows = 8

	maxMadeWindows = 32 // the same of code that is in no file
)

// layoutBehind finds the layout at an instruction by the code from there on;
// returned tells that it is where a call returns to, which is under way. made is
// for code in no file, else nil. With direct,
// only ways without a call count. p is empty, or was used for that before.
func (p *framePaths) layoutBehind(a *procstate.Arch, read codeReader, pc uint64, returned bool, made *madeWays, direct bool) foundLayout {
	p.begin(a, read, maxPathInsts)
	p.made = made
	p.ended = p.leave
	most := maxPathCalls
	if made != nil {
		p.left, most = maxMadeInsts, maxMadeCalls
	}
	if direct {
		most = 1
	}
	if returned && startsFunction(a, behindNop(p.nops, p.codeAt(pc))) {
		return foundLayout{} // it does not return
	}
	if !returned && made != nil && p.lendsFrame(pc) {
		return foundLayout{} // FP is another's
	}
	first := firstState(a, pc)
	if a.LR != procstate.NoReg && !returned {
		first.regs[a.LR] = pathValue{base: pathLR}
	}
	if made != nil && made.regs != nil {
		for r := range procstate.Reg(a.NumRegs) {
			if v, ok := made.regs.Value(r); ok && r != a.SP && r != a.PC {
				first.knows(r, v, false)
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
func (p *framePaths) begin(a *procstate.Arch, read codeReader, left int) {
	p.seen.clear()
	*p = framePaths{arch: a, read: read, nops: p.nops, code: p.code[:0], seen: p.seen, now: p.now[:0], next: p.next[:0], left: left}
}

// lendsFrame reports whether an instruction is a call behind what may have set up the
// frame of the function that is called.
func (p *framePaths) lendsFrame(pc uint64) bool {
	if p.codeAt(pc) == nil {
		return false
	}
	c := &p.code[len(p.code)-1]
	return callsWithFrame(p.arch, c.bytes, int(pc-c.start))
}

// setsCallersFrame reports whether the function at an address sets up the frame of
// the one that calls it, as V8's BaselineOutOfLinePrologue does: it pushes the
// frame pointer where its return address was, has it point there, and returns. p is
// empty, or was used before.
func (p *framePaths) setsCallersFrame(a *procstate.Arch, read codeReader, addr uint64) (sets bool) {
	const most = 128 // instructions
	if p.code = p.code[:0]; a.LR != procstate.NoReg {
		return false
	}
	own, fp := pathValue{base: pathSP}, pathValue{base: pathFP} // where the return address was, and what is to be there
	p.begin(a, read, most)
	p.ended = func(s *pathState) {
		if to := s.wordAt(s.regs[a.SP]); to == (pathValue{base: pathSP, inMemory: true}) {
			sets = s.regs[a.FP] == own && s.wordAt(own) == fp
			p.differ = !sets
		}
	}
	p.now = append(p.now, firstState(a, addr))
	for len(p.now) > 0 && !p.differ {
		p.followLast()
	}
	return sets
}

// lendsFP reports whether code that is in no file, at [from, end), leaves the
// frame pointer to the code that it goes back to, and that returns with it as it
// is now: so does instrumentation that was put into a function before that has
// a frame. It follows the code straight on.
func lendsFP(w *unwind.Walker, read codeReader, pc, from, end uint64) bool {
	a := w.Arch()
	p := framePaths{arch: a, read: read}
	fp := pathValue{base: pathFP}
	s := firstState(a, pc)
	if before, _ := read(pc-1, pc-1, pc); a == procstate.AMD64 && string(before) == "\x55" {
		s.store(s.regs[a.SP], fp, 8) // it has just been pushed
	}
	back := false // in that code
	var in isa.Inst
	for range maxPathInsts {
		if !decode(a, p.codeAt(s.pc), s.pc, &in) {
			return false
		}
		to := in.Target
		switch {
		case in.Flow == isa.Jump:
		case in.Flow == isa.IndirectJump && in.Reg == procstate.NoReg && in.Target != 0:
			to, _ = w.ProcessState().ReadWord(in.Target)
		case in.Flow == isa.Return:
			return back && s.regs[a.FP] == fp
		case in.Ends():
			return false
		default:
			s.apply(a, &in)
			for _, op := range in.Ops[:in.NumOps] {
				if op.Kind == isa.Align && op.Dst == a.SP {
					s.regs[a.SP] = pathValue{base: pathAligned}
				}
			}
			to = s.pc + uint64(in.Len)
		}
		if !back && (to < from || to >= end) {
			if s.regs[a.FP] != fp {
				return false
			}
			back = true
			s = firstState(a, to)
		}
		s.pc = to
	}
	return false
}

// codeAt returns the code at an address, nil when it cannot be read.
func (p *framePaths) codeAt(addr uint64) []byte {
	const longest = 16 // bytes of an instruction
	for i := range p.code {
		c := &p.code[i]
		if o := addr - c.start; addr >= c.start && o < uint64(len(c.bytes)) && (o+longest <= uint64(len(c.bytes)) || c.last) {
			return c.bytes[o:]
		}
	}
	if n := len(p.code); n >= maxMadeWindows || n >= maxWindows && p.made == nil {
		return nil
	}
	b, start := p.read(addr-min(addr, pathBefore), addr, addr+pathBehind)
	if addr < start || addr-start >= uint64(len(b)) {
		return nil
	}
	p.code = append(p.code, codeWindow{start, b, start+uint64(len(b)) < addr+pathBehind})
	return b[addr-start:]
}

// followLast follows the path that was put off last.
func (p *framePaths) followLast() {
	last := len(p.now) - 1
	p.path, p.now = p.now[last], p.now[:last]
	p.follow(&p.path)
}

// follow follows a path to its end or to a fork.
func (p *framePaths) follow(s *pathState) {
	var in isa.Inst
	for p.left > 0 && p.seen.add(p.place(s)) {
		p.left--
		if !decode(p.arch, p.codeAt(s.pc), s.pc, &in) {
			return
		}
		p.readFor(s, &in)
		if in.Flow == isa.IndirectJump {
			through := in.Target != 0 || in.Word && in.Base < procstate.MaxRegs && s.known[in.Base] != 0 && s.word>>in.Base&1 == 0
			to := p.jumpsTo(s, &in)
			switch {
			case to != 0:
				s.pc = to
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
		case p.made != nil && (in.Flow == isa.Call || in.Flow == isa.IndirectCall) && p.made.setsFrame(&in, s.written):
			p.ended(s) // the return address is where it would be at a return
			return
		case in.Ends() && in.Flow != isa.Jump:
			return
		}
		if fp := s.regs[p.arch.FP]; p.made != nil && (in.Flow == isa.Call || in.Flow == isa.IndirectCall) && fp.base == pathSP && !fp.inMemory {
			return // perhaps with the frame of the function that is called, see lentFrame
		}
		s.apply(p.arch, &in)
		s.pc += uint64(in.Len)
		switch in.Flow {
		case isa.Jump:
			s.pc = in.Target
			if p.inFile(s) {
				return
			}
		case isa.CondJump:
			taken := *s
			taken.pc = in.Target
			if !p.inFile(&taken) {
				p.now = append(p.now, taken)
			}
		case isa.Call, isa.IndirectCall, isa.Syscall:
			if p.arch == procstate.I386 && in.Flow != isa.Syscall && !in.Kernel {
				s.regs[p.arch.SP] = pathValue{} // the function may take its arguments off the stack
			}
			if code := p.codeAt(s.pc); len(code) > 0 && !startsFunction(p.arch, behindNop(p.nops, code)) {
				p.next = append(p.next, *s)
			}
			return
		}
	}
}

// place is what a path comes to once: an instruction or, where a jump may lead on by what a
// register holds that calls preserve, that with the registers that are known, and where SP is.
func (p *framePaths) place(s *pathState) uint64 {
	if p.made == nil {
		return s.pc
	}
	sp := s.regs[p.arch.SP]
	return s.pc + (s.has&p.arch.CalleeSaved+uint64(uint32(sp.off))<<32+uint64(sp.base))*0x9e3779b97f4a7c15
}

// jumpsTo returns where an indirect jump leads, 0 when that is not known.
func (p *framePaths) jumpsTo(s *pathState, in *isa.Inst) (to uint64) {
	if in.Target != 0 {
		return p.wordAt(in.Target)
	}
	s.apply(p.arch, in)
	reg := in.Reg
	if reg == procstate.NoReg && in.Word {
		reg = isa.Temp
	}
	if reg < procstate.MaxRegs {
		if to = s.known[reg]; to != 0 && s.word>>reg&1 != 0 {
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
func (p *framePaths) readFor(s *pathState, in *isa.Inst) {
	if p.made == nil || p.made.regs == nil {
		return
	}
	for i := range in.Ops[:in.NumOps] {
		if op := &in.Ops[i]; (op.Kind == isa.Load || op.Kind == isa.Set && op.Imm != 0) && op.Src < procstate.MaxRegs && s.word>>op.Src&1 != 0 {
			s.knows(op.Src, p.wordAt(s.known[op.Src]), false)
		}
	}
}

// inFile reports whether a path that has jumped goes on in a function of a file, in its
// frame, which its row tells. Where instructions that move SP have a single row, as those of
// an interpreter that is written in assembly, they are followed instead.
func (p *framePaths) inFile(s *pathState) bool {
	if p.made == nil || p.made.rowAt == nil {
		return false
	}
	_, end, ok := p.made.rowAt(s.pc)
	if !ok {
		return false
	}
	const most = 16 // instructions
	var in isa.Inst
	for pc, n := s.pc, 0; n < most && decode(p.arch, p.codeAt(pc), pc, &in) && in.Flow == isa.Next; n++ {
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
func (p *framePaths) byRow(s *pathState) bool {
	if p.made == nil || p.made.rowAt == nil {
		return false
	}
	row, _, ok := p.made.rowAt(s.pc)
	if !ok || row.CFA.Kind != unwind.InReg || row.CFA.Reg >= procstate.MaxRegs || row.Signal {
		return false
	}
	cfa := s.regs[row.CFA.Reg].plus(row.CFA.Offset)
	ra, ok1 := s.restored(cfa, &row.Regs[row.RA], procstate.Reg(row.RA))
	fp, ok2 := s.restored(cfa, &row.Regs[p.arch.FP], p.arch.FP)
	if ok1 && ok2 {
		p.leaveWith(cfa, ra, fp)
	}
	return ok1 && ok2
}

// leave takes the layout from the state at a return, or at a jump to another
// function in its place.
func (p *framePaths) leave(s *pathState) {
	a := p.arch
	cfa := s.regs[a.SP]
	ra, fp := pathValue{}, s.regs[a.FP]
	if a.LR == procstate.NoReg {
		ra = s.wordAt(cfa)
		cfa = cfa.plus(int64(a.AddressWidth))
	} else {
		ra = s.regs[a.LR]
	}
	p.leaveWith(cfa, ra, fp)
}

// leaveWith takes the layout from where the CFA is, and from the return address and the
// caller's frame pointer.
func (p *framePaths) leaveWith(cfa, ra, fp pathValue) {
	l := FrameLayout{SP: -1, FP: -1}
	var ok1, ok2 bool
	switch {
	case cfa.inMemory:
		return
	case cfa.base == pathSP && cfa.off >= 0:
		l.SP, l.Type, l.State = cfa.off, NoFrame, UnsetFrame
	case cfa.base == pathFP:
		l.FP, l.Type, l.State = cfa.off, StandardFrame, SetFrame
	default:
		return
	}
	l.RA, ok1 = savedBelow(cfa, ra, pathLR)
	l.SavedFP, ok2 = savedBelow(cfa, fp, pathFP)
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
func savedBelow(cfa, v pathValue, own pathBase) (int32, bool) {
	switch {
	case !v.inMemory:
		return 0, v.base == own && v.off == 0
	case v.base != cfa.base || v.off >= cfa.off:
		return 0, false
	}
	return cfa.off - v.off, true
}
