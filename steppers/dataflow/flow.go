package dataflow

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// Bounds on the analysis of one function.
const (
	maxChunks = 32
	maxRegion = 1 << 20 // bytes of a region that are looked at

	windowBefore = 2 << 10 // bytes around code elsewhere that are looked at
	windowAfter  = 16 << 10

	maxBlocks   = 60000
	openBytes   = 8       // bytes of a chunk that are as much work as an instruction
	maxSteps    = 4 << 20 // instructions carried out, all visits together
	maxRestarts = 12
	trialSteps  = 4000
	maxTried    = 4 << 20 // instructions carried out in trials
	triedByte   = 256     // and, for a small function, how many a byte
)

// chunk is a piece of code that a function's flow has reached: one region.
type chunk struct {
	lo, hi  uint64
	code    []byte
	blockAt []int32 // one more than the index of the block that starts at each byte
	leader  []bool  // targets of direct branches within the chunk
	covered []bool  // bytes of instructions that some path reaches
}

// block is a run of instructions with the state before its first one.
type block struct {
	addr   uint64
	state  state
	queued bool
}

// flow is the analysis of one function in progress.
type flow struct {
	c      *Code
	arch   *procstate.Arch
	chunks []*chunk
	blocks []block
	work   []int32

	pending  []pendingCall
	guesses  []uint64 // call sites taken to return, by state.weak - 1
	noRet    map[uint64]bool
	calls    []uint64 // calls met, by state.lastCall - 1
	callOf   map[uint64]uint16
	popped   map[uint64]int32 // what the functions called at vaddrs take off the stack; i386
	settled  bool             // no more starting over
	bases    *bases
	moving   map[uint8]bool  // bases of SP in loops that lower it
	movingAt map[uint64]bool // heads of such loops
	at       uint64          // the instruction being carried out
	steps    int
	tried    int // steps of them in trials
	limit    int // how many steps there may be
	restart  bool
	failed   bool

	bodies   []body          // states of the stack in the function's body: candidates
	dispatch []body          // states at jumps to an address in a register
	behind   map[uint64]body // the same of all functions, by where the code behind each begins
	roots    []uint64        // where guessed parts of the function begin
	lowered  []state         // states at such jumps with SP at a place that only FP tells
	trial    *verdict
	exits    []exit
	mayTry   int  // how many steps in trials there may be
	isOpen   bool // what was looked at alone goes on elsewhere
	followed int  // blocks behind which guessParts has looked
	part     bool // the trial is of what it has found
	certain  int  // blocks that a path from the entry reaches
}

// newFlow prepares an analysis; noRet and movingAt
// carry what earlier ones learned.
func newFlow(c *Code, noRet, movingAt map[uint64]bool) *flow {
	return &flow{movingAt: movingAt, moving: map[uint8]bool{}, limit: min(maxSteps, c.budget-c.spent), c: c, arch: c.arch, noRet: noRet, behind: map[uint64]body{}, callOf: map[uint64]uint16{}, popped: map[uint64]int32{}, bases: newBases()}
}

// chunkAt returns the chunk that holds vaddr, nil when there is none yet.
func (f *flow) chunkAt(vaddr uint64) *chunk {
	for _, ch := range f.chunks {
		if vaddr >= ch.lo && vaddr < ch.hi {
			return ch
		}
	}
	return nil
}

// open adds a chunk that holds vaddr: the region that starts there or, for
// code elsewhere that the function jumps to, the part of a region around it.
func (f *flow) open(vaddr uint64) *chunk {
	if _, ok := f.c.spanOf(vaddr); !ok || len(f.chunks) >= maxChunks {
		return nil
	}
	r, _ := f.c.region(vaddr)
	if len(f.chunks) > 0 {
		r.lo = max(r.lo, vaddr-min(vaddr, windowBefore))
		r.hi = min(r.hi, vaddr+windowAfter)
	}
	r.hi = min(r.hi, r.lo+maxRegion)
	for _, ch := range f.chunks { // chunks do not overlap
		if ch.hi <= vaddr {
			r.lo = max(r.lo, ch.hi)
		} else if ch.lo > vaddr {
			r.hi = min(r.hi, ch.lo)
		}
	}
	if vaddr >= r.hi {
		return nil
	}
	ch := &chunk{lo: r.lo, hi: r.hi, code: f.c.read(r.lo, r.hi)}
	if ch.code == nil {
		return nil
	}
	n := len(ch.code)
	ch.blockAt, ch.leader, ch.covered = make([]int32, n), make([]bool, n), make([]bool, n)
	f.chunks = append(f.chunks, ch)
	f.steps += n / openBytes
	for _, j := range f.c.jumpsInto(span{ch.lo, ch.hi}) {
		ch.leader[f.c.lo+uint64(j.target)-ch.lo] = true
	}
	var in isa.Inst
	for i := uint64(0); i < uint64(n); {
		if !f.c.dec(ch.code[i:], ch.lo+i, &in) {
			i += uint64(f.arch.PCAlign)
			continue
		}
		if in.Flow == isa.Jump || in.Flow == isa.CondJump {
			if in.Target >= ch.lo && in.Target < ch.hi {
				ch.leader[in.Target-ch.lo] = true
			}
		}
		i += uint64(in.Len)
	}
	return ch
}

// run carries flows to their ends until nothing changes: first the certain
// ones, then, one at a time, calls that may or may not return.
func (f *flow) run() {
	for !f.stopped() {
		if n := len(f.work); n > 0 {
			i := f.work[n-1]
			f.work = f.work[:n-1]
			f.blocks[i].queued = false
			f.runBlock(i)
			continue
		}
		if !f.resolvePending() {
			return
		}
	}
}

func (f *flow) stopped() bool {
	return f.failed || f.restart || f.trial != nil && f.trial.steps > trialSteps
}

// conflict reports whether two states of one frame cannot both be: SP at two
// known places. With a frame pointer SP may differ, where it was lowered by
// what only run time knows.
func conflict(a *procstate.Arch, s, o *state) bool {
	h1, ok1 := s.height(a)
	h2, ok2 := o.height(a)
	fp := s.regs[a.FP]
	return ok1 && ok2 && h1 != h2 && (fp.kind != stack || fp != o.regs[a.FP])
}

// sameStack reports whether two states have the stack pointer at the same
// place.
func sameStack(a *procstate.Arch, s, o *state) bool { return s.regs[a.SP] == o.regs[a.SP] }

func (f *flow) blockStarting(vaddr uint64) *block {
	ch := f.chunkAt(vaddr)
	if ch == nil || ch.blockAt[vaddr-ch.lo] == 0 {
		return nil
	}
	return &f.blocks[ch.blockAt[vaddr-ch.lo]-1]
}

// runBlock carries out a block's instructions and passes the state on.
func (f *flow) runBlock(i int32) {
	b := &f.blocks[i]
	ch := f.chunkAt(b.addr)
	s := b.state
	at := b.addr
	var in isa.Inst
	compared := isa.Op{Dst: procstate.NoReg}
	for {
		if at >= ch.hi {
			f.fallOut(at, &s)
			return
		}
		o := at - ch.lo
		if at != f.blocks[i].addr && (ch.leader[o] || ch.blockAt[o] != 0) {
			f.arrive(at, &s)
			return
		}
		f.at = at
		if f.steps++; f.steps > f.limit {
			f.failed = true
			return
		}
		if !f.c.dec(ch.code[o:], at, &in) { // these bytes are no instruction
			if f.trial != nil {
				f.trial.bad(4)
			}
			return
		}
		if f.trial == nil {
			for k := range uint64(in.Len) {
				ch.covered[o+k] = true
			}
		} else if f.trial.steps++; f.trial.steps > trialSteps {
			return
		}
		if f.trial != nil {
			f.trial.reads(f.arch, &s, &in)
		}
		next := at + uint64(in.Len)
		if in.Table != 0 && f.dispatchBy(in.Table, &s) {
			return
		}
		if in.Flow == isa.Return || in.Flow == isa.IndirectJump {
			s.apply(f.arch, &in, at, f.bases) // it may take its address off the stack
			f.leave(at, &in, &s)
			return
		}
		ends := f.endsThread(&in, &s)
		if f.savesLost(&in, &s) && f.leavesAnother(&s) {
			return
		}
		if f.trial != nil {
			f.trial.stores(f.arch, &s, &in)
		}
		if f.trial != nil && f.part {
			before := s
			s.apply(f.arch, &in, at, f.bases)
			f.trial.keeps(f, &before, &s)
		} else {
			s.apply(f.arch, &in, at, f.bases)
		}
		if ends {
			return
		}
		switch in.Flow {
		case isa.Jump:
			f.arrive(in.Target, &s)
			return
		case isa.Trap:
			return
		case isa.CondJump:
			taken := s
			if in.Equal && compared.Dst != procstate.NoReg {
				equate(&s, compared)
			}
			f.arrive(in.Target, &taken)
		case isa.Call, isa.IndirectCall:
			if !f.throughCall(ch, at, &in, &s) {
				return
			}
		}
		compared.Dst = procstate.NoReg
		if n := in.NumOps; n > 0 && in.Ops[n-1].Kind == isa.Compare {
			compared = in.Ops[n-1]
		}
		at = next
	}
}

// equate uses that two registers were found equal: where one is known, so is
// the other. It is how loops that touch each page of a large frame end.
func equate(s *state, op isa.Op) {
	a, b := &s.regs[op.Dst], &s.regs[op.Src]
	switch {
	case a.kind == stack && b.kind != stack:
		*b = *a
	case b.kind == stack && a.kind != stack:
		*a = *b
	}
}

// note remembers the state at a call as one that the function's body has.
func (f *flow) note(in *isa.Inst, s *state) {
	if f.trial != nil {
		if !f.leavesStack(in) {
			f.trial.call(f.arch, s)
		}
		return
	}
	if _, ok := f.c.pcThunk(in.Target); ok || in.Kernel {
		return // it may come before the frame is there
	}
	c := *s
	c.call(f.arch)
	f.bodies = f.addBody(f.bodies, &c, procstate.NoReg)
}

// body is a state of the stack that a function has at some of its calls or
// indirect jumps.
type body struct {
	state state
	jump  procstate.Reg // that the jump is to; NoReg when it is through memory
	count int           // how many of them
}

const maxBodies = 6

// addBody counts a state; the most frequent ones come first.
func (f *flow) addBody(list []body, s *state, jump procstate.Reg) []body {
	i := 0
	for ; i < len(list); i++ {
		if b := &list[i].state; (list[i].jump == procstate.NoReg) == (jump == procstate.NoReg) && sameStack(f.arch, b, s) && b.regs[f.arch.FP] == s.regs[f.arch.FP] {
			b.meet(s)
			break
		}
	}
	if i == len(list) {
		if s.regs[f.arch.SP].kind != stack && s.regs[f.arch.FP].kind != stack || len(list) >= maxBodies {
			return list
		}
		list = append(list, body{state: *s, jump: jump})
	}
	list[i].count++
	for ; i > 0 && list[i].count > list[i-1].count; i-- {
		list[i], list[i-1] = list[i-1], list[i]
	}
	return list
}

// noteLowered remembers the state at a jump to a computed address where paths
// come with SP at different places: the guesses that were made of where it leads
// before that was seen have one of them.
func (f *flow) noteLowered(s *state) {
	if fp := s.regs[f.arch.FP]; s.regs[f.arch.SP].kind == stack || fp.kind != stack || fp.base != 0 {
		return
	}
	for i := range f.lowered {
		if f.lowered[i].regs[f.arch.FP] == s.regs[f.arch.FP] {
			f.lowered[i].meet(s)
			return
		}
	}
	if len(f.lowered) < maxBodies {
		f.lowered = append(f.lowered, *s)
	}
}

// lowerRoots takes from guessed parts of the function the place of SP that such
// jumps do not have, and leaves them the frame pointer.
func (f *flow) lowerRoots() {
	for i := 0; i < len(f.lowered); i++ { // it may grow
		s := f.lowered[i]
		s.weak, s.guessed = 0, true
		for _, root := range f.roots {
			if b := f.blockStarting(root); b != nil && b.state.regs[f.arch.FP] == s.regs[f.arch.FP] {
				f.arrive(root, &s)
			}
		}
		f.run()
	}
}

// entryHeight is SP relative to the CFA at the entry and at a return.
func (f *flow) entryHeight() int32 {
	if f.arch.LR == procstate.NoReg {
		return -int32(f.arch.AddressWidth)
	}
	return 0
}

// entryLike reports whether the stack is as at the entry of a function that
// returns to this one's caller.
func (f *flow) entryLike(s *state) bool {
	return sameStack(f.arch, s, entryState(f.arch, 0))
}

// arrive passes a state to a branch target, which may lie elsewhere.
func (f *flow) arrive(vaddr uint64, s *state) {
	if h, ok := s.height(f.arch); ok && f.trial != nil && s.guessed && h > f.entryHeight() {
		f.trial.bad(4) // nothing goes on with SP above its frame
		return
	}
	ch := f.chunkAt(vaddr)
	if ch == nil && f.c.alone != nil {
		if f.trial == nil {
			f.exits = append(f.exits, exit{f.at, *s, false})
		}
		return
	}
	if ch == nil {
		ev := f.c.startsAt(vaddr)
		if f.entryLike(s) && (ev != 0 || f.trial != nil && (s.guessed || vaddr%16 == 0)) || ev&called != 0 {
			if f.trial != nil {
				f.trial.exit(f.arch, s, &isa.Inst{Flow: isa.Jump, Target: vaddr})
			} else if ev&stub == 0 || !f.leavesAnother(s) {
				f.exits = append(f.exits, exit{f.at, *s, false})
			}
			return
		}
		if s.regs[f.arch.SP].kind != stack || !f.mayEnter(vaddr) || f.trial != nil && len(f.chunks) >= maxChunks/2 {
			return
		}
		if ch = f.open(vaddr); ch == nil {
			return
		}
	}
	s.dropStale(f.arch)
	o := vaddr - ch.lo
	idx := ch.blockAt[o]
	if idx == 0 {
		if len(f.blocks) >= maxBlocks {
			f.failed = true
			return
		}
		f.blocks = append(f.blocks, block{addr: vaddr, state: *s, queued: true})
		ch.blockAt[o] = int32(len(f.blocks))
		if f.trial == nil && f.movingAt[vaddr] {
			f.moveStack(&f.blocks[len(f.blocks)-1].state, vaddr)
		}
		f.work = append(f.work, int32(len(f.blocks)-1))
		return
	}
	b := &f.blocks[idx-1]
	if f.trial != nil && int(idx) <= f.trial.firstBlock {
		f.trial.join(f.arch, &b.state, s)
		return
	}
	if conflict(f.arch, &b.state, s) && f.disagree(b, s) {
		return
	}
	b.state.weak = min(b.state.weak, s.weak)
	if b.state.lastCall != s.lastCall {
		b.state.lastCall = 0
	}
	b.state.guessed = b.state.guessed && s.guessed
	if f.trial == nil && (f.movingAt[vaddr] || b.state.regs[f.arch.SP] != s.regs[f.arch.SP]) {
		if s = f.onMovingStack(b, s); s == nil {
			return
		}
	}
	if b.state.meet(s) && !b.queued {
		b.queued = true
		f.work = append(f.work, idx-1)
	}
}

// mayEnter reports whether the flow may go on in a region where it was not
// before. From its own region it goes to parts of the function that were moved
// away; from there only back. Where parts of many functions lie together, it
// goes nowhere else.
func (f *flow) mayEnter(vaddr uint64) bool {
	here, _ := f.c.region(f.at)
	there, _ := f.c.region(vaddr)
	home := f.chunks[0]
	return here == there || f.at >= home.lo && f.at < home.hi && !f.c.isShared(here)
}

// disagree handles two paths that meet with SP at different places. Where one
// of them rests on the guess that a call returns, the guess was wrong: the
// analysis starts over without it. It reports whether s is to be dropped.
func (f *flow) disagree(b *block, s *state) bool {
	if b.state.weak != s.weak && !f.settled {
		f.noRet[f.guesses[max(b.state.weak, s.weak)-1]] = true
		f.restart = true
		return true
	}
	if f.trial != nil {
		f.trial.bad(4)
	}
	return s.guessed && !b.state.guessed
}
