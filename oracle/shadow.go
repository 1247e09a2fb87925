package oracle

import (
	"encoding/binary"
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// record is one frame below the running one, as a walk should find it: pc is
// the return address and sp the CFA of the callee or, for a frame that a
// signal interrupted, both are as they were then.
type record struct {
	pc, sp uint64
	signal bool // interrupted by a signal, not in a call
	seeded bool // not seen being made

	point bool // instrumented code that a tramp was put into, not in a call

	// switched tells that the function that called had changed to another
	// stack: its own caller's frames are on the one that it came from.
	switched bool

	// read tells that the return address was loaded from the stack, dropped that it
	// was taken off without: then it is gone when it is overwritten. leftOut tells that a walk
	// was right without it before.
	read, dropped, leftOut bool

	context uint64 // signal: where the kernel's frame is
	saved   uint64 // on AArch64, where the return address is stored; 0: not known

	gap gap // signal: what the interrupted function was in the middle of
}

// gap is what a function is in the middle of when it leaves its frame.
type gap struct {
	// lost tells that no chain is the truth now: SP has left the frame, and
	// what comes of it is still to be seen. switched tells that SP went to
	// another stack meanwhile.
	lost, switched bool
	leftSP         uint64 // SP before the switch

	// landed tells that a jump out of frames has just ended.
	landed bool
}

// moment is the part of a thread's registers that a Shadow follows.
type moment struct{ pc, sp uint64 }

// wordReader reads a word of the stopped thread's memory.
type wordReader func(addr uint64) (uint64, bool)

// Shadow is a call stack kept from executed instructions.
type Shadow struct {
	recs   []record // the running function's caller last
	parked []parkedStack

	// partial tells that the stack was met while it was in use: there are
	// frames below the last record, but which is not known.
	partial bool

	gap // of the running function

	// linked tells that calls leave the return address in a register, as on
	// AArch64; link is what it holds.
	linked bool
	link   uint64

	// trampoline, when not 0, is an address that the kernel may put in place of
	// a return address: code there returns to the original one.
	trampoline uint64

	tramps []Tramp // instrumentation of the program, if there is

	gone []record // given up, see forget, and above SP still

	// SeedErrors counts seeded frames that the processor returned through
	// in another way than the seed said, and returns to frames given up.
	SeedErrors int
}

// parkedStack is a stack that the thread has switched away from.
type parkedStack struct {
	recs    []record
	sp      uint64
	partial bool
}

// farAway is a distance of SP that no frame has: a switch of the stack.
const farAway = 1 << 20

func far(a, b uint64) bool { return a-b > farAway && b-a > farAway }

// top returns the last record, nil when there is none.
func (s *Shadow) top() *record {
	if n := len(s.recs); n > 0 {
		return &s.recs[n-1]
	}
	return nil
}

// unsettled reports whether no chain is the truth now: not of the running
// function, or not of one that a signal has interrupted.
func (s *Shadow) unsettled() bool {
	return s.lost || slices.ContainsFunc(s.recs, func(r record) bool { return r.gap.lost })
}

// intact reports whether the nearest return addresses are still where the
// calls put them. Code that is about to resume somewhere else, as the
// unwinder of exceptions does, overwrites it.
func (s *Shadow) intact(word wordReader) bool {
	for n, i := 0, len(s.recs)-1; i >= 0 && n < 3; n, i = n+1, i-1 {
		r := &s.recs[i]
		if ra, ok := word(r.sp - 8); !r.signal && !r.point && ok && ra != r.pc && (s.trampoline == 0 || ra != s.trampoline) {
			return false
		}
	}
	return true
}

// resuming returns what else may be the truth where return addresses are overwritten:
// the function that one of them leads to goes on there, and its callees are left.
func (s *Shadow) resuming(word wordReader) []*Shadow {
	var others []*Shadow
	for i := range s.recs {
		r := &s.recs[i]
		ra, ok := word(r.sp - 8)
		if r.signal || r.point || !ok || ra == r.pc {
			continue
		}
		other := *s
		// A copy of another function's return address leads there.
		if j := slices.IndexFunc(s.recs[:i], func(r record) bool { return r.pc == ra }); j >= 0 {
			other.recs = s.recs[:j+1]
		} else {
			other.recs = slices.Clone(s.recs[:i+1])
			other.recs[i].pc = ra
		}
		others = append(others, &other)
	}
	return others
}

// step follows one instruction, from the registers before it to those after.
func (s *Shadow) step(in *isa.Inst, from, to moment, word wordReader) {
	next := from.pc + uint64(in.Len)
	landed := s.landed
	s.landed = false
	if landed && pushesMemory(in) {
		// musl's sigsetjmp keeps its return address in the jump buffer while
		// it calls setjmp, and puts it back each time that returns.
		if ra, ok := word(to.sp); ok {
			s.recs = append(s.recs, record{pc: ra, sp: from.sp})
		}
		return
	}
	switch in.Flow {
	case isa.Call, isa.IndirectCall:
		if to.sp != from.sp-8 {
			break
		}
		if s.lost && !s.switched {
			s.settle(from, word)
		}
		// A call on a stack that the function has just switched to leaves
		// the chain as it is: the function is still the same.
		s.recs = append(s.recs, record{pc: next, sp: from.sp, switched: s.switched})
		s.lost, s.switched = false, false
		return
	case isa.Return:
		if top := s.top(); top == nil || top.pc != to.pc {
			s.checkGone(to)
		} else if top.leftOut {
			s.SeedErrors++ // it was not gone
		}
		s.ret(from, to, word)
		return
	case isa.Jump, isa.CondJump, isa.IndirectJump:
		if s.jump(from, to) {
			return
		}
		top := s.top()
		released := top != nil && !top.signal && from.sp >= top.sp && !far(from.sp, top.sp)
		within := released && !s.lost && top.read && in.Flow == isa.Jump // with the return address in a register
		if (s.lost || released) && to.pc != next && in.Flow != isa.CondJump && !s.raised(to, word) && !within {
			s.settle(to, word)
		}
		return
	}
	if to.sp != from.sp {
		if top := s.top(); top != nil && !top.signal && !top.point && !top.read && from.sp < top.sp && to.sp == top.sp {
			top.dropped = true
		}
		s.move(in, procstate.AMD64, from, to)
	}
}

// move follows a change of SP that is no call or return.
func (s *Shadow) move(in *isa.Inst, a *procstate.Arch, from, to moment) {
	top := s.top()
	other := far(to.sp, from.sp) || setsSP(in, a) && (to.sp+4096 < from.sp ||
		len(s.recs) > 0 && from.sp <= s.recs[0].sp && to.sp > s.recs[0].sp)
	switch {
	case other && s.switched && to.sp <= s.leftSP && !far(to.sp, s.leftSP):
		s.switched = false // back again
		s.lost = top != nil && to.sp > top.sp
	case other && !s.switched && top != nil && !top.signal && far(from.sp, top.sp) && !far(to.sp, top.sp):
		s.lost = to.sp > top.sp // back from a call on the other stack
	case other:
		if !s.switched {
			s.leftSP = from.sp
		}
		s.lost, s.switched = true, true
	case top != nil && !far(to.sp, top.sp) && (to.sp > top.sp || to.sp == top.sp && loadsSP(in, a)):
		s.lost = true
	}
}

// watch notes whether an instruction is about to load the running function's return
// address from the stack. regs are those before it.
func (s *Shadow) watch(in *isa.Inst, regs *procstate.Regs) {
	top := s.top()
	if top == nil || top.signal {
		return
	}
	moved := uint64(0) // SP, by the operations before
	for _, op := range in.Ops[:in.NumOps] {
		at := regs.Raw(op.Src) + uint64(op.Imm)
		if op.Src == procstate.AMD64.SP {
			at += moved
		}
		switch {
		case op.Kind == isa.Set && op.Dst == procstate.AMD64.SP && op.Src == op.Dst:
			moved += uint64(op.Imm)
		case op.Kind == isa.LoadIndexed:
			at += regs.Raw(op.Index) * uint64(op.Scale)
			fallthrough
		case op.Kind == isa.Load:
			top.read = top.read || at == top.sp-8
		}
	}
}

// forget gives up frames whose return address was dropped, and is overwritten: it is
// nowhere, and the processor cannot return to it. Their functions were left as if by
// a jump. Whether a frame is returned to after all is looked at. forget is called
// after each instruction of x86-64.
func (s *Shadow) forget(sp uint64, word wordReader) {
	for len(s.gone) > 0 && sp > s.gone[len(s.gone)-1].sp {
		s.gone = s.gone[:len(s.gone)-1]
	}
	for i := len(s.recs) - 1; i >= max(0, len(s.recs)-2); i-- { // one may have been called just now
		r := s.recs[i]
		if !r.dropped {
			continue
		}
		if ra, ok := word(r.sp - 8); ok && ra != r.pc {
			s.recs = slices.Delete(s.recs, i, i+1)
			s.gone = append(s.gone, r)
		}
	}
}

// withoutDropped returns what else may be the truth where a return address was dropped, and is not
// overwritten yet: that the processor does not return to it. nil says that none was. If that is what a
// walk has found, the caller says so by leftOut of the last record: should it be returned to after all, it is an
// error.
func (s *Shadow) withoutDropped() *Shadow {
	if top := s.top(); top == nil || !top.dropped {
		return nil
	}
	other := *s
	other.recs = s.recs[:len(s.recs)-1]
	return &other
}

// checkGone counts an error where a return comes to a frame that was given up.
func (s *Shadow) checkGone(to moment) {
	if slices.ContainsFunc(s.gone, func(r record) bool { return r.pc == to.pc && r.sp == to.sp }) {
		s.SeedErrors++
	}
}

// pushesMemory reports whether an instruction pushes a word of memory.
func pushesMemory(in *isa.Inst) bool {
	return in.NumOps > 1 && in.Ops[0].Kind == isa.Load && in.Ops[0].Dst == isa.Temp
}

// setsSP reports whether an instruction gives SP a value that has nothing to
// do with the frame: from memory, or from a register other than the frame
// pointer.
func setsSP(in *isa.Inst, a *procstate.Arch) bool {
	for _, op := range in.Ops[:in.NumOps] {
		switch {
		case op.Kind == isa.Swap && (op.Dst == a.SP || op.Src == a.SP):
			return true
		case op.Dst != a.SP:
		case op.Kind == isa.Load, op.Kind == isa.Clobber, op.Kind == isa.SetIndexed, op.Kind == isa.Set && op.Src != a.SP && op.Src != a.FP:
			return true
		}
	}
	return false
}

// loadsSP reports whether an instruction gives SP a value from memory alone, as OCaml does
// to raise an exception: where that is the caller's SP, the frame is left.
func loadsSP(in *isa.Inst, a *procstate.Arch) bool {
	return in.NumOps == 1 && in.Ops[0].Kind == isa.Load && in.Ops[0].Dst == a.SP
}

// raised follows a jump out of a frame whose function has put its return address further
// up, over arguments: what it jumps to is called with the others. V8's code does that.
func (s *Shadow) raised(to moment, word wordReader) bool {
	top := s.top()
	if top == nil || top.signal || !top.read || s.switched {
		return false
	}
	if ra, ok := word(to.sp); !ok || ra != top.pc {
		return false
	}
	top.sp, top.read = to.sp+8, false
	s.lost = false
	return true
}

// ret follows a return: out of the running function, to what was pushed in
// it, or out of several frames at once.
func (s *Shadow) ret(from, to moment, word wordReader) {
	if top := s.top(); top != nil && s.lost && !s.switched && !top.signal && top.pc == to.pc {
		s.recs = s.recs[:len(s.recs)-1] // with arguments taken off the stack
		s.lost = false
		return
	}
	if top := s.top(); top != nil && !s.lost {
		switch {
		case s.trampoline != 0 && to.pc == s.trampoline && !top.signal && from.sp+8 == top.sp:
			return // to code that runs in place of the caller, and returns there
		case !top.signal && from.sp+8 == top.sp:
			if top.seeded && top.pc != to.pc {
				s.SeedErrors++
			}
			s.recs = s.recs[:len(s.recs)-1]
			return
		case !top.signal && to.pc == top.pc && from.sp+8 < top.sp:
			s.recs = s.recs[:len(s.recs)-1] // by a copy of the return address
			return
		case from.sp+8 < top.sp && !far(from.sp, top.sp):
			return // a jump by way of the stack
		}
	}
	s.settle(to, word)
}

// settle ends a jump out of frames: those above the new SP are gone.
func (s *Shadow) settle(to moment, word wordReader) {
	if s.switched && !s.within(to.sp) {
		s.park(to, word)
	}
	s.lost, s.switched, s.landed = false, false, true
	for top := s.top(); top != nil; top = s.top() {
		if f := far(top.sp, to.sp); f && !s.within(to.sp) || !f && top.sp > to.sp {
			break
		}
		returns := s.linked && !top.signal && top.sp == to.sp && top.pc == to.pc
		s.recs = s.recs[:len(s.recs)-1]
		if returns { // what called the running function had no frame then
			break
		}
	}
}

// within reports whether SP is in a frame of a stack that the current chain
// passes through further down: that of a frame which a signal on another stack
// interrupted, or that a function has switched away from. A stack close by,
// as goroutines have, is another: there SP is below all frames.
func (s *Shadow) within(sp uint64) bool {
	other := false
	for i := len(s.recs) - 2; i >= 0; i-- {
		r, callee := &s.recs[i], &s.recs[i+1]
		if r.sp < callee.sp || far(r.sp, callee.sp) {
			other = true
			if r.signal && r.sp > sp && r.sp-sp < 256 {
				return true // the interrupted frame was larger before
			}
			if r.sp == sp {
				return true // as if the call that led away had returned
			}
			continue
		}
		if other && r.sp > sp && callee.sp <= sp {
			return true
		}
	}
	return false
}

// park changes to another stack: one that was left before, as far as it is
// still the same, or a new one. There the function that starts, or goes on,
// has its return address on top, if a call has left it: what a stack is made to
// begin with is no caller.
func (s *Shadow) park(to moment, word wordReader) {
	unknown := s.partial && len(s.recs) == 0 // what it returns to
	old := parkedStack{s.recs, s.leftSP, s.partial}
	s.recs, s.partial = nil, true
	for i, p := range s.parked {
		if n := len(p.recs); n == 0 || to.sp+256 < p.sp || to.sp > p.recs[0].sp {
			continue
		}
		s.parked[i] = old
		s.recs, s.partial = p.recs, p.partial
		for k := range s.recs { // from the bottom up, as long as it is there
			if !s.isThere(&s.recs[k], word) {
				s.recs = s.recs[:k]
				s.partial = true
				break
			}
		}
		return
	}
	if len(s.parked) < 64 {
		s.parked = append(s.parked, old)
	}
	if s.linked {
		if s.link != 0 && !unknown {
			s.recs = append(s.recs, record{pc: s.link, sp: to.sp})
		}
	} else if ra, ok := word(to.sp); ok && !unknown && behindCall(ra, word) {
		s.recs = append(s.recs, record{pc: ra, sp: to.sp + 8})
	}
}

// behindCall reports whether the instruction before an address of x86-64 is a call.
func behindCall(addr uint64, word wordReader) bool {
	const longest = 8
	before, ok := word(addr - longest)
	var code [longest]byte
	binary.LittleEndian.PutUint64(code[:], before)
	var in isa.Inst
	for n := uint64(2); ok && n < longest; n++ {
		if isa.DecodeAMD64(code[longest-n:], addr-n, &in) && uint64(in.Len) == n && (in.Flow == isa.Call || in.Flow == isa.IndirectCall) {
			return true
		}
	}
	return false
}

// isThere reports whether the return address of a record is still where it was
// stored, as far as that is known.
func (s *Shadow) isThere(r *record, word wordReader) bool { return s.isThereMoved(r, 0, word) }

// isThereMoved is isThere for a stack that was moved by so many bytes.
func (s *Shadow) isThereMoved(r *record, by uint64, word wordReader) bool {
	at := r.sp - 8
	if s.linked {
		at = r.saved
	}
	if r.signal || at == 0 {
		return true
	}
	ra, ok := word(at + by)
	return ok && (ra == r.pc || s.linked && ra&procstate.ARM64.CodeMask == r.pc)
}

// signal follows the delivery of a signal to a handler: at stands where the
// handler starts, interrupted where the thread was. The call of the handler has
// pushed so many bytes.
func (s *Shadow) signal(interrupted, at moment, restorer, pushed uint64) {
	s.recs = append(s.recs,
		record{pc: interrupted.pc, sp: interrupted.sp, signal: true, context: at.sp, gap: s.gap},
		record{pc: restorer, sp: at.sp + pushed})
	s.gap = gap{}
}

// Offsets in the kernel's struct rt_sigframe of x86-64, from where SP points
// when the handler starts: the restorer's address, then struct ucontext with
// the registers at 40 in it, RSP as the 16th and RIP as the 17th.
const (
	sigframeRSP = 8 + 40 + 15*8
	sigframeRIP = 8 + 40 + 16*8
)

// resumed follows what handlers change of the registers that they return to:
// Go's have the interrupted code go on elsewhere, often as if it had made a
// call. It reports whether a handler is in the middle of that: no chain is the
// truth then.
func (s *Shadow) resumed(word wordReader) (between bool) {
	for i := 0; i < len(s.recs); i++ {
		r := &s.recs[i]
		if !r.signal {
			continue
		}
		pc, ok1 := word(r.context + sigframeRIP)
		sp, ok2 := word(r.context + sigframeRSP)
		pushed, _ := word(sp)
		switch {
		case !ok1 || !ok2 || pc == r.pc && sp == r.sp:
		case sp == r.sp:
			r.pc = pc
		case sp == r.sp-8 && pushed == r.pc && pc != r.pc:
			call := record{pc: r.pc, sp: r.sp}
			r.pc, r.sp = pc, sp
			s.recs = slices.Insert(s.recs, i, call)
			i++
		default:
			between = true
		}
	}
	return between
}

// sigreturn follows the system call that ends a handler. The handler may have
// changed what is returned to, as if the interrupted code had made a call.
func (s *Shadow) sigreturn(to moment, word wordReader) {
	for n := len(s.recs); n > 0; n-- {
		r := s.recs[n-1]
		if !r.signal || r.sp != to.sp && r.sp-8 != to.sp {
			continue
		}
		s.recs, s.gap = s.recs[:n-1], r.gap
		if ra, ok := word(to.sp); r.sp != to.sp && ok && ra == r.pc {
			s.recs = append(s.recs, record{pc: r.pc, sp: r.sp})
		}
		return
	}
	s.lost = true
}
