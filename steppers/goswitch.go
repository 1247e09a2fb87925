package steppers

import (
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// goStacks are the stacks of a thread of a Go program, as its m has them.
type goStacks struct {
	m, g0, curg uint64

	lo, hi         uint64 // bounds of curg's stack
	sp, pc, lr, bp uint64 // curg.sched
}

// onGoroutine reports whether sp lies in the goroutine's stack.
func (s *goStacks) onGoroutine(sp uint64) bool { return s.lo < s.hi && sp-s.lo < s.hi-s.lo }

// stacks reads the stacks of the thread. The error is nil also when the
// thread has no goroutine now; then curg is 0.
func (f *goFrame) stacks() (s goStacks, err error) {
	rt := f.rt
	if rt == nil {
		return s, unwind.UnsupportedUnwind
	}
	var ok bool
	read := func(addr uint64) (v uint64) {
		if ok {
			v, ok = f.mem.ReadWord(addr)
		}
		return v
	}
	g, err := f.currentG()
	if err != nil {
		return s, err
	}
	ok = true
	s.m = read(g + uint64(rt.M))
	if !ok || s.m == 0 {
		return s, unwind.MemoryUnreadable
	}
	s.g0 = read(s.m + uint64(rt.G0))
	s.curg = read(s.m + uint64(rt.CurG))
	if !ok {
		return s, unwind.MemoryUnreadable
	}
	if s.curg == 0 {
		return s, nil
	}
	gm := read(s.curg + uint64(rt.M))
	s.lo, s.hi = read(s.curg+uint64(rt.StackLo)), read(s.curg+uint64(rt.StackHi))
	s.sp, s.pc = read(s.curg+uint64(rt.SchedSP)), read(s.curg+uint64(rt.SchedPC))
	s.lr, s.bp = read(s.curg+uint64(rt.SchedLR)), read(s.curg+uint64(rt.SchedBP))
	if !ok {
		return s, unwind.MemoryUnreadable
	}
	if gm != s.m { // it is being handed on
		s.curg, s.lo, s.hi = 0, 0, 0
	}
	return s, nil
}

// currentG finds the g of the thread. It is in the thread's word for it sooner
// than in the register, which C may have used.
func (f *goFrame) currentG() (uint64, error) {
	if at, ok := f.rt.GAddr(f.mem, f.m.Bias, f.in.Regs.ThreadPointer); ok {
		if g, ok := f.mem.ReadWord(at); ok && g != 0 {
			return g, nil
		}
	}
	if f.rt.GReg != procstate.NoReg {
		if g, ok := f.in.Regs.Value(f.rt.GReg); ok && g != 0 {
			return g, nil
		}
	}
	// Not NoRegister: then the Debug stepper would be asked, which knows
	// of no switch, and walk on over what is on the other stack.
	return 0, unwind.MemoryUnreadable
}

// systemstack walks from a function that runs on g0 to the goroutine that
// asked for it. Where the stacks cannot be told, the frame pointer, which
// systemstack leaves alone, leads there.
func (f *goFrame) systemstack() (unwind.Verdict, error) {
	s, err := f.stacks()
	if err != nil {
		return f.byFramePointer(err)
	}
	if !s.onGoroutine(s.sp) {
		return f.byFramePointer(unwind.BadPC)
	}
	return f.toSched(&s)
}

// toSched walks through a frame that left its SP in curg.sched, as
// systemstack and asmcgocall do.
func (f *goFrame) toSched(s *goStacks) (unwind.Verdict, error) {
	v, err := f.plain(s.sp, s.bp)
	if v != unwind.Success {
		return v, err
	}
	if f.rule.delta < 8 {
		f.out.SetFP(f.arch, s.bp)
	} else if f.arch.LR != procstate.NoReg {
		f.loadFP(s.sp - 8)
	} else {
		f.loadFP(f.out.SP() - 16)
	}
	f.out.Flags |= unwind.StackSwitched
	f.setG(s.curg)
	return v, nil
}

// setG sets the register that holds g for the frames to come.
func (f *goFrame) setG(g uint64) {
	if f.rt.GReg != procstate.NoReg {
		f.out.Regs.Set(f.rt.GReg, g)
	}
}

// byFramePointer crosses to the goroutine's stack by the frame pointer of a
// function that has saved one there. why is returned when that is not so.
func (f *goFrame) byFramePointer(why error) (unwind.Verdict, error) {
	fp, ok := f.in.Regs.Value(f.arch.FP)
	if !ok || f.rule.delta < 8 || f.arch.LR != procstate.NoReg || f.in.Flags&unwind.Interrupted != 0 {
		return unwind.Failed, why
	}
	pc, ok := f.mem.ReadWord(fp + 8)
	if !ok || !f.isGo(pc) {
		return unwind.Failed, why
	}
	f.finish(pc, fp+16)
	f.out.PCLocation = unwind.InMemory(fp + 8)
	f.loadFP(fp)
	f.out.Flags |= unwind.StackSwitched
	return unwind.Success, nil
}

// isGo reports whether a return address lies in Go code of the same file.
func (f *goFrame) isGo(pc uint64) bool {
	if !f.m.Contains(pc - 1) {
		return false
	}
	vaddr := pc - 1 - f.m.Bias
	// Not rule: it might make its place that of f.rule.
	if r := f.s.slot(f.m.Image, vaddr); r.isOf(f.m.Image, vaddr) && r.kind != goForeign {
		return true
	}
	_, ok := f.s.image(f.m.Image).table.Func(vaddr)
	return ok
}

// neverReturns walks from mcall and morestack, which never return to, to the
// goroutine that entered them, as long as the m still has it. Afterwards they
// are the bottom of the scheduler's stack.
func (f *goFrame) neverReturns(scheduling bool) (unwind.Verdict, error) {
	if scheduling && f.arch != procstate.ARM64 { // the rule knows that it is on g0
		return unwind.StackBottom, nil
	}
	if f.arch == procstate.I386 {
		return unwind.Failed, unwind.UnsupportedUnwind
	}
	s, err := f.stacks()
	if err != nil {
		if f.in.Flags&unwind.Interrupted != 0 {
			return unwind.Failed, err
		}
		return unwind.StackBottom, nil
	}
	home := s.curg != 0 && s.onGoroutine(f.in.SP())
	if home && f.arch.LR == procstate.NoReg {
		return f.plain(f.in.SP(), f.in.FP())
	}
	if s.curg == 0 || scheduling && !home || !s.onGoroutine(s.sp) {
		return unwind.StackBottom, nil
	}
	if f.rule.kind == goMcall && !f.isBehindCall(s.pc) {
		return unwind.StackBottom, nil // recovery from a panic has it go on elsewhere, and so does Goexit
	}
	if f.rule.kind == goMcall && f.arch == procstate.AMD64 {
		if ra, ok := f.mem.ReadWord(s.sp - 8); ok && ra != s.pc {
			return unwind.StackBottom, nil // it is being changed
		}
		// mcall pushes the goroutine for the function that it calls.
		if g, ok := f.mem.ReadWord(f.in.SP()); ok && g != s.curg && f.in.Flags&unwind.Interrupted == 0 {
			return unwind.StackBottom, nil // a coroutine has made the m change over to another
		}
	}
	f.finish(s.pc, s.sp)
	f.out.SetFP(f.arch, s.bp)
	if f.arch.LR != procstate.NoReg {
		f.out.Regs.Set(f.arch.LR, s.lr)
	}
	f.setG(s.curg)
	f.out.Flags |= unwind.StackSwitched
	if f.arch.LR != procstate.NoReg {
		// sched.pc may lie in a prologue, where LR still counts.
		f.out.Flags |= unwind.Interrupted
	}
	return unwind.Success, nil
}

// isBehindCall reports whether a return address is behind a call of the function that the frame runs, where the
// code is at hand. The compiler calls what is in the same file directly.
func (f *goFrame) isBehindCall(pc uint64) bool {
	code, vaddr := f.s.code[:], pc-f.m.Bias
	fn, known := f.s.image(f.m.Image).table.Func(f.in.LookupPC() - f.m.Bias)
	if !known || f.m.Image.ReadVaddr(code, vaddr-uint64(len(code))) != nil {
		return !known
	}
	target, direct, ok := mcode.CallBefore(f.arch, code, vaddr)
	return ok && direct && target == fn.Entry
}

// leaving walks from mcall and morestack where they have changed nothing yet. The
// register r.reg, if any, is the link register of the caller, which has not saved
// it.
func (f *goFrame) leaving() (unwind.Verdict, error) {
	v, err := f.plain(f.in.SP(), f.in.FP())
	if lr, ok := f.in.Regs.Value(f.rule.reg); ok && v == unwind.Success {
		f.out.Regs.Set(f.arch.LR, lr)
		f.out.Flags |= unwind.Interrupted
	}
	return v, err
}

// gogo walks from the switch to a goroutine: before it to the scheduler (on
// amd64 the rule knows that), after it to where the goroutine goes on.
func (f *goFrame) gogo() (unwind.Verdict, error) {
	if f.arch.LR == procstate.NoReg {
		return f.byGobuf()
	}
	if f.rule.base < 0 {
		pc, ok := f.onlyCall()
		if !ok {
			return unwind.Failed, unwind.NoUnwindInfo
		}
		f.finish(pc, f.in.SP())
		if f.in.FP() != 0 {
			f.keepFP(f.in.FP())
		}
		f.out.Flags |= unwind.StackSwitched // SP is the caller's
		return unwind.Success, nil
	}
	s, err := f.stacks()
	if err != nil {
		return unwind.Failed, err
	}
	if s.curg == 0 || !s.onGoroutine(f.in.SP()) {
		return f.plain(f.in.SP(), f.in.FP())
	}
	f.finish(s.pc, f.in.SP())
	if f.in.FP() != 0 {
		f.keepFP(f.in.FP())
	}
	f.setG(s.curg)
	// A new goroutine goes on at the first instruction of its function.
	f.out.Flags |= unwind.Interrupted | unwind.StackSwitched
	return unwind.Success, nil
}

// byGobuf is gogo on amd64, on the goroutine's stack.
func (f *goFrame) byGobuf() (unwind.Verdict, error) {
	const pcInGobuf = 8
	buf, ok := f.in.Regs.Value(rbx)
	if !ok {
		return unwind.Failed, unwind.NoRegister
	}
	pc, where := buf, unwind.InRegister(rbx)
	if f.rule.reg == procstate.NoReg {
		if pc, ok = f.mem.ReadWord(buf + pcInGobuf); !ok {
			return unwind.Failed, unwind.ReadFailure(f.mem, buf+pcInGobuf)
		}
		where = unwind.InMemory(buf + pcInGobuf)
	}
	f.finish(pc, f.in.SP())
	f.out.PCLocation = where
	if f.rule.depth != 0 {
		f.loadFP(buf + uint64(f.rule.depth))
	} else {
		f.keepFP(f.in.FP())
	}
	// A new goroutine goes on at the first instruction of its function.
	f.out.Flags |= unwind.Interrupted | unwind.StackSwitched
	return unwind.Success, nil
}

// asmcgocall walks from C to the goroutine that called it. The frame on g0
// holds the goroutine and the depth of its stack, which may have moved since.
func (f *goFrame) asmcgocall() (unwind.Verdict, error) {
	in := f.in
	if in.Flags&unwind.Interrupted != 0 {
		// At some instruction around the call.
		s, err := f.stacks()
		if err != nil {
			return unwind.Failed, err
		}
		if s.curg == 0 || s.onGoroutine(in.SP()) || !s.onGoroutine(s.sp) {
			return f.plain(in.SP(), in.FP())
		}
		return f.toSched(&s)
	}
	if f.rule.base == -1 { // a call before the switch
		return f.plain(in.SP(), in.FP())
	}
	depth, ok := f.mem.ReadWord(in.SP() + uint64(f.rule.depth))
	if !ok {
		return unwind.Failed, unwind.MemoryUnreadable
	}
	if f.rule.base == -2 { // was on g0 already
		return f.plain(depth, in.FP())
	}
	g, ok := f.mem.ReadWord(in.SP() + uint64(f.rule.base))
	if !ok {
		return unwind.Failed, unwind.MemoryUnreadable
	}
	if f.arch.LR != procstate.NoReg && g == 0 { // one code path for both
		return f.plain(depth, in.FP())
	}
	if f.rt == nil {
		return f.byFramePointer(unwind.UnsupportedUnwind)
	}
	hi, ok := f.mem.ReadWord(g + uint64(f.rt.StackHi))
	if !ok {
		return f.byFramePointer(unwind.MemoryUnreadable)
	}
	v, err := f.switched(hi - depth)
	if v == unwind.Success {
		f.setG(g)
	}
	return v, err
}

// callbackKeepsLR is where in its frame cgocallback keeps the former g0.sched.sp on machines with a link register; on
// others it is the first word.
const callbackKeepsLR = 16

// ownCallback is for cgocallback while it is on g0's stack, but g0.sched.sp is its own SP already, or still: that
// of the callback before, which the next frame of it is of, is what it keeps.
func (f *goFrame) ownCallback(walk *goWalk) {
	s, err := f.stacks()
	if err != nil || len(walk.callbacks) == maxGoCallbacks {
		return
	}
	kept := f.in.SP()
	if f.arch.LR != procstate.NoReg {
		kept += callbackKeepsLR
	}
	sp, ok1 := f.mem.ReadWord(s.g0 + uint64(f.rt.SchedSP))
	if next, ok2 := f.mem.ReadWord(kept); ok1 && ok2 && sp == f.in.SP() {
		walk.callbacks = append(walk.callbacks, goCallback{s.g0, next})
	}
}

// maxGoCallbacks bounds how many runtimes of Go there are in one walk.
const maxGoCallbacks = 8

// cgocallback walks from Go to the C code that called back into it. It has a
// frame of the same size on both stacks; that on the goroutine's pretends to
// have been called by the Go code that called C, that on g0 was called by C.
// g0.sched.sp is its SP, and it keeps there that of the callback before. This is
// for the time that it spends on the goroutine's stack.
func (f *goFrame) cgocallback(walk *goWalk) (unwind.Verdict, error) {
	in := f.in
	s, err := f.stacks()
	if err != nil {
		return unwind.Failed, err
	}
	at := slices.IndexFunc(walk.callbacks, func(c goCallback) bool { return c.g0 == s.g0 })
	if at < 0 {
		if at = len(walk.callbacks); at == maxGoCallbacks {
			return unwind.Failed, unwind.UnsupportedUnwind
		}
		sp, _ := f.mem.ReadWord(s.g0 + uint64(f.rt.SchedSP))
		walk.callbacks = append(walk.callbacks, goCallback{s.g0, sp})
	}
	callback := &walk.callbacks[at]
	sp := callback.sp
	next, ok := f.mem.ReadWord(sp + uint64(f.rule.depth))
	if !ok {
		// The C frames are out of sight. The Go frames go on behind them, but
		// a stack with a hole would look whole.
		return unwind.Failed, unwind.ReadFailure(f.mem, sp)
	}
	callback.sp = next
	v, err := f.plain(sp, 0)
	if v != unwind.Success {
		return v, err
	}
	if !f.isGo(f.out.PC()) { // crosscall2 is Go's assembly
		*f.out = unwind.Frame{}
		return f.plain(in.SP(), in.FP())
	}
	if f.arch.LR != procstate.NoReg {
		f.loadFP(sp - 8)
	} else {
		f.loadFP(f.out.SP() - 16)
	}
	f.setG(s.g0)
	f.out.Flags |= unwind.StackSwitched
	return v, nil
}
