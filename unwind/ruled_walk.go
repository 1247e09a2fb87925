package unwind

import (
	"encoding/binary"
	"unsafe"

	"github.com/swbpf/swbpf/procstate"
)

// wordBytes is the width of addresses where rules are used.
const wordBytes = 8

// place is what of a frame is needed to walk from it by rules. The frame is
// interrupted or without flags.
type place struct {
	pc, sp, fp  uint64
	fpKnown     bool
	interrupted bool
	plain       bool   // no other register is known
	why         Reason // why the walk has failed
}

// setFrame makes p the place of a frame.
func (p *place) setFrame(a *procstate.Arch, f *Frame) {
	p.pc, p.sp, p.fp, p.fpKnown, p.interrupted = f.pc, f.sp, f.fp, f.Regs.Known()>>a.FP&1 != 0, f.Flags&Interrupted != 0
}

// setTop makes p the place of a top frame.
func (p *place) setTop(a *procstate.Arch, regs *procstate.Regs) {
	p.pc, p.sp, p.interrupted = regs.Raw(a.PC), regs.Raw(a.SP), true
	p.fp, p.fpKnown = regs.Value(a.FP)
}

// ruledFrames returns the rules for the walk that begins, nil when the
// steppers must be asked for each frame.
func (w *Walker) ruledFrames() *ruledFrames {
	g := w.ranged
	if g == nil || len(g.ranges) > 0 || w.arch.AddressWidth != wordBytes {
		return nil
	}
	if g.ruled == nil {
		g.ruled = newRuledFrames(g.all)
	}
	if !g.ruled.hold(w) {
		return nil
	}
	return g.ruled
}

// walkRuled walks from at, the place of the last frame of dst, for as long as
// rules tell how, and appends at most limit frames. The verdict is Success when
// it has appended as many, StackBottom when the last one is the bottom, Failed
// when the return address of the last one cannot be read, and NotMe when the
// steppers must be asked for its caller. at is the place of the last one then.
// memo may be nil.
func (w *Walker) walkRuled(dst []PC, at *place, rules *ruledFrames, memo *Memo, limit int) ([]PC, Verdict) {
	pc, sp, fp, fpKnown, interrupted := at.pc, at.sp, at.fp, at.fpKnown, at.interrupted
	stack := w.regionAt(sp)
	run := &w.run
	run.last, run.low, run.stack, run.start, run.size, run.align = &rules.none, stack.Addr, stack.Data, 0, 0, w.arch.PCAlign-1
	run.stop = ^uint64(0) // SP from which on the memo may know the frame
	if memo != nil {
		_, run.stop = memo.find(0, sp, 0)
	}
	if w.trail == nil {
		w.trail = rules.trail[:0]
	}
	w.trail = w.trail[:0]
	var only ruledOnly
	verdict := Success
	for limit > 0 {
		if pc-run.start >= run.size && !w.ruledMapping(pc, interrupted) {
			verdict = NotMe
			break
		}
		if !interrupted && fpKnown {
			if sp >= run.stop {
				i := 0
				if i, run.stop = memo.find(pc, sp, fp); i >= 0 && i <= limit {
					dst = memo.appendTo(dst, i)
					sp = memo.frames[0].sp
					verdict = StackBottom
					break
				}
			}
			if len(w.trail) == maxTrail {
				w.trail = w.trail[:0]
			}
			run.pc, run.sp, run.fp = pc, sp, fp
			n := min(cap(dst)-len(dst), limit, maxTrail-len(w.trail))
			if n = rules.run(run, dst[len(dst):len(dst)+n], w.trail[len(w.trail):maxTrail]); n > 0 {
				pc, sp, fp, only = run.pc, run.sp, run.fp, run.last.only
				dst, w.trail = dst[:len(dst)+n], w.trail[:len(w.trail)+n]
				limit -= n
				continue
			}
		}
		key := pc + run.toKey
		r := &rules.slots[run.last.next&(2<<ruledSetBits-1)]
		if r.key != key {
			n := rules.find(key)
			if r = &rules.slots[n&(2<<ruledSetBits-1)]; r.key == 0 {
				r.fill(w, key, pc, interrupted)
			}
			run.last.next = n
		}
		run.last = r
		cfa := sp
		if r.how != ruledBySP {
			if r.how == ruledBottom {
				w.trail = append(w.trail, memoFrame{pc, sp, fp})
				verdict = StackBottom
				break
			}
			if r.how != ruledByFP || !fpKnown {
				verdict = NotMe
				break
			}
			cfa = fp
		}
		cfa += uint64(int64(r.cfa) * wordBytes)
		only = r.only
		raAt := cfa + uint64(int64(r.ra)*wordBytes)
		ra, ok := wordAt(run.low, run.stack, raAt)
		kept := ok && raAt >= sp && !interrupted && fpKnown // what a Memo may rely on
		if !ok {
			stack := w.regionAt(raAt)
			run.low, run.stack = stack.Addr, stack.Data
			if ra, ok = wordAt(run.low, run.stack, raAt); !ok {
				if verdict = NotMe; !w.isReadable(raAt) {
					verdict, at.why = Failed, ReadFailure(w.proc, raAt)
				}
				break
			}
		}
		if only&ruledSigned != 0 {
			ra = w.CodeAddress(ra)
		}
		if ra == 0 || ra&run.align != 0 || cfa <= sp {
			verdict = NotMe
			break
		}
		w.trail = append(w.trail, memoFrame{pc, sp, fp})
		if r.fp != 0 {
			fpAt := cfa + uint64(int64(r.fp)*wordBytes)
			saved, ok := wordAt(run.low, run.stack, fpAt)
			kept = kept && ok && fpAt >= sp
			if !ok {
				saved, ok = w.proc.ReadWord(fpAt)
			}
			if !interrupted || !w.fpStays(r, fpAt, sp, fp, fpKnown, ok) {
				fp, fpKnown = saved, ok
			}
		}
		if !kept {
			w.trail = w.trail[:0]
		}
		w.noted = w.noted || only&ruledNoted != 0
		pc, sp = ra, cfa
		dst = append(dst, PC{Addr: ra - 1})
		limit--
		if interrupted { // from here on PCs are return addresses: see ruledMapping
			interrupted = false
			run.start, run.toKey = run.start+1, run.toKey-keyInterrupted-1
		}
	}
	at.pc, at.sp, at.fp, at.fpKnown, at.interrupted, at.plain = pc, sp, fp, fpKnown, interrupted, only&ruledPlain != 0
	return dst, verdict
}

// wordAt returns the word at an address of stack, which begins at low.
func wordAt(low uint64, stack []byte, addr uint64) (uint64, bool) {
	i := addr - low
	if i >= uint64(len(stack)) || uint64(len(stack))-i < wordBytes {
		return 0, false
	}
	return binary.LittleEndian.Uint64(stack[i:]), true
}

// ruledRun is the place that a walk by rules has come to, and what it has at
// hand. It lies in the Walker: a copy of it would cost as much as a frame.
type ruledRun struct {
	pc, sp, fp uint64
	last       *ruledFrame // the callee's

	stop  uint64 // SP from which on it is not to go on
	low   uint64 // address of stack, captured memory
	stack []byte
	align uint64 // bits that no PC has

	// The mapping that holds the code: PCs in [start, start+size) are looked up
	// in it, and toKey makes keys of them.
	start, size, toKey uint64
}

// run goes on from a frame in a call for as long as that takes nothing but what
// is at hand and rules that are known, which is so for most frames. It calls
// nothing, so that all that changes from frame to frame stays in registers. It
// stores the callers in dst and the frames themselves in trail, which is as long
// at least, and returns how many there were.
func (c *ruledFrames) run(at *ruledRun, dst []PC, trail []memoFrame) int {
	if len(at.stack) < wordBytes {
		return 0
	}
	pc, sp, fp, last := at.pc, at.sp, at.fp, at.last
	stack, end := unsafe.Pointer(unsafe.SliceData(at.stack)), uint64(len(at.stack)-wordBytes)
	trail = trail[:len(dst)]
	n := 0
	for n < len(dst) && pc-at.start < at.size && sp < at.stop {
		key := pc + at.toKey
		r := &c.slots[last.next&(2<<ruledSetBits-1)]
		if r.key != key {
			i := ruledSet(key)
			if r = &c.slots[i&(2<<ruledSetBits-1)]; r.key != key {
				i++
				if r = &c.slots[i&(2<<ruledSetBits-1)]; r.key != key {
					break
				}
			}
			last.next = i
		}
		cfa := sp
		if r.how != ruledBySP {
			if r.how != ruledByFP {
				break
			}
			cfa = fp
		}
		cfa += uint64(int64(r.cfa) * wordBytes)
		raAt, fpAt, from := cfa+uint64(int64(r.ra)*wordBytes)-at.low, cfa+uint64(int64(r.fp)*wordBytes)-at.low, sp-at.low
		if r.only&(ruledSigned|ruledNoted) != 0 || cfa <= sp || raAt > end || raAt < from || r.fp != 0 && (fpAt > end || fpAt < from) {
			break
		}
		ra := *(*uint64)(unsafe.Add(stack, raAt))
		if ra == 0 || ra&at.align != 0 {
			break
		}
		trail[n] = memoFrame{pc, sp, fp}
		if r.fp != 0 {
			fp = *(*uint64)(unsafe.Add(stack, fpAt))
		}
		pc, sp, last = ra, cfa, r
		dst[n] = PC{Addr: ra - 1}
		n++
	}
	at.pc, at.sp, at.fp, at.last = pc, sp, fp, last
	return n
}

// ruledMapping finds the mapping for which the code at pc counts. It reports
// false when rules tell nothing of it.
func (w *Walker) ruledMapping(pc uint64, interrupted bool) bool {
	lookup := lookupPC(pc, interrupted)
	m := w.MappingAt(lookup)
	toKey, ok := keyOf(m, interrupted)
	if !ok || m.Image.Arch() != w.arch {
		return false
	}
	w.run.start, w.run.size, w.run.toKey = m.Start+pc-lookup, m.End-m.Start, toKey
	return true
}

// fpStays reports whether the frame pointer of an interrupted frame, which its
// rule says is saved at an address, is still or again in its register.
func (w *Walker) fpStays(r *ruledFrame, at, sp, fp uint64, known, readable bool) bool {
	if r.only&ruledLinked != 0 {
		return known && fp != at
	}
	return at < sp && isAbandoned(w.arch, sp-at, readable)
}

func (w *Walker) isReadable(addr uint64) bool {
	_, ok := w.proc.ReadWord(addr)
	return ok
}

// regionAt returns the captured memory that holds an address, if any.
func (w *Walker) regionAt(addr uint64) procstate.Region {
	if w.captured == nil {
		return procstate.Region{}
	}
	return w.captured.RegionAt(addr)
}

// frameAt stores in one of w.work the last frame that walkRuled has found, n
// callers from f on, with all its registers. f is nil for the top frame, whose
// registers are regs.
func (w *Walker) frameAt(p *place, f *Frame, regs *procstate.Regs, n int) *Frame {
	if n > 0 && p.plain {
		if f == nil {
			f = &w.work[0]
		}
		*f = Frame{}
		f.Regs.ThreadPointer = regs.ThreadPointer // the same along a stack
		f.SetPC(w.arch, p.pc)
		f.SetSP(w.arch, p.sp)
		if p.fpKnown {
			f.SetFP(w.arch, p.fp)
		}
		return f
	}
	if f == nil {
		f = &w.work[0]
		f.Load(w.arch, regs)
	}
	for range n {
		out := w.other(f)
		w.step(f, out)
		f = out
	}
	return f
}

// other returns the frame of w.work that f is not.
func (w *Walker) other(f *Frame) *Frame {
	if f == &w.work[0] {
		return &w.work[1]
	}
	return &w.work[0]
}
