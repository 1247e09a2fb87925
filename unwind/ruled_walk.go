package unwind

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
)

// captured is implemented by a ProcessState that holds pieces of memory.
type captured interface {
	// RegionAt returns the piece that holds addr, an empty one when there is
	// none.
	RegionAt(addr uint64) procstate.Region
}

// wordBytes is the width of addresses where rules are used.
const wordBytes = 8

// place is what of a frame is needed to walk from it by rules. The frame is
// interrupted or without flags.
type place struct {
	pc, sp, fp  uint64
	fpKnown     bool
	interrupted bool
	plain       bool // no other register is known
	ask         int  // index of the first stepper that may know the frame
}

func (f *Frame) place(a *procstate.Arch) place {
	return place{pc: f.pc, sp: f.sp, fp: f.fp, fpKnown: f.Regs.Known()>>a.FP&1 != 0, interrupted: f.Flags&Interrupted != 0}
}

// topPlace is the place of a top frame.
func topPlace(a *procstate.Arch, regs *procstate.Regs) place {
	fp, known := regs.Value(a.FP)
	return place{pc: regs.Raw(a.PC), sp: regs.Raw(a.SP), fp: fp, fpKnown: known, interrupted: true}
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

// walkRuled walks from p, the place of the last frame of dst, for as long as
// rules tell how, and appends at most limit frames. The verdict is Success when
// it has appended as many, StackBottom when the last one is the bottom, and
// NotMe when the steppers must be asked for the caller of the last one. It
// returns the place of that. memo may be nil.
func (w *Walker) walkRuled(dst []PC, p place, rules *ruledFrames, memo *Memo, limit int) ([]PC, place, Verdict) {
	// All that changes from frame to frame is in variables of its own, which
	// stay in registers.
	pc, sp, fp, fpKnown := p.pc, p.sp, p.fp, p.fpKnown
	stack := w.regionAt(sp)
	low, data := stack.Addr, stack.Data
	var start, size, toKey uint64 // of the mapping that holds the code
	var only ruledOnly
	var before *ruledFrame // of the callee
	next, ask := uint16(0), 0
	verdict := Success
	interrupted := p.interrupted
	if memo != nil {
		memo.enter()
	}
	for ; limit > 0; limit-- {
		if pc-start >= size {
			var ok bool
			if start, size, toKey, ok = w.ruledMapping(pc, interrupted); !ok {
				verdict = NotMe
				break
			}
		}
		if memo != nil && !interrupted {
			if i := memo.find(pc, sp, fp, fpKnown, low, data); i >= 0 && i <= limit {
				dst = memo.appendTo(dst, i)
				sp = memo.frames[0].sp
				verdict = StackBottom
				break
			}
		}
		key := pc + toKey
		r := &rules.slots[next&(2<<ruledSetBits-1)]
		if r.key != key {
			n := rules.find(key)
			if r = &rules.slots[n&(2<<ruledSetBits-1)]; r.key == 0 {
				r.fill(w, key, pc, interrupted)
			}
			if before != nil {
				before.next = n
			}
		}
		before, next = r, r.next
		cfa := sp
		if r.how != ruledBySP {
			if r.how == ruledBottom {
				if memo != nil {
					memo.add(memoFrame{pc: pc, sp: sp, fp: fp}, r.only)
				}
				verdict = StackBottom
				break
			}
			if r.how != ruledByFP || !fpKnown {
				if r.how == ruledNot {
					ask = int(r.ra)
				}
				verdict = NotMe
				break
			}
			cfa = fp
		}
		cfa += uint64(int64(r.cfa) * wordBytes)
		only = r.only
		at := cfa + uint64(int64(r.ra)*wordBytes)
		if i := at - low; i > uint64(len(data)) || uint64(len(data))-i < wordBytes {
			stack = w.regionAt(at)
			if low, data = stack.Addr, stack.Data; at-low > uint64(len(data)) || uint64(len(data))-(at-low) < wordBytes {
				verdict = NotMe
				break
			}
		}
		ra := binary.LittleEndian.Uint64(data[at-low:])
		if only&ruledSigned != 0 {
			ra &= w.arch.CodeMask
		}
		if ra == 0 || ra&(w.arch.PCAlign-1) != 0 || cfa <= sp {
			verdict = NotMe
			break
		}
		fpBefore, fpAt := fp, uint64(0)
		if r.fp != 0 {
			fpAt = cfa + uint64(int64(r.fp)*wordBytes)
			saved, ok := uint64(0), false
			if i := fpAt - low; i < uint64(len(data)) && uint64(len(data))-i >= wordBytes {
				saved, ok = binary.LittleEndian.Uint64(data[i:]), true
			} else {
				saved, ok = w.proc.ReadWord(fpAt)
			}
			if !interrupted || !w.fpStays(r, fpAt, sp, fp, fpKnown, ok) {
				fp, fpKnown = saved, ok
			}
		}
		if memo != nil && !interrupted {
			if fpKnown {
				memo.add(memoFrame{pc: pc, sp: sp, fp: fpBefore, raAt: at, fpAt: fpAt, byFP: r.how == ruledByFP}, only)
			} else {
				memo.enter()
			}
		}
		pc, sp = ra, cfa
		dst = append(dst, PC{Addr: ra - 1})
		if interrupted { // from here on PCs are return addresses: see ruledMapping
			interrupted = false
			start, toKey = start+1, toKey-keyInterrupted-1
		}
	}
	return dst, place{pc, sp, fp, fpKnown, interrupted, only&ruledPlain != 0, ask}, verdict
}

// ruledMapping returns the addresses [start, start+size) of the PCs for which
// the mapping at pc counts, and what makes keys of them. ok is false when rules
// tell nothing of it.
func (w *Walker) ruledMapping(pc uint64, interrupted bool) (start, size, toKey uint64, ok bool) {
	back := uint64(1) // from PC to LookupPC
	flag := uint64(0)
	if interrupted {
		back, flag = 0, keyInterrupted
	}
	m := w.MappingAt(pc - back)
	if m == nil || m.Image == nil || m.Image.Arch() != w.arch {
		return 0, 0, 0, false
	}
	key, ok := imageKey(m)
	return m.Start + back, m.End - m.Start, key + flag - m.Bias - back, ok
}

// fpStays reports whether the frame pointer of an interrupted frame, which its
// rule says is saved at an address, is still or again in its register.
func (w *Walker) fpStays(r *ruledFrame, at, sp, fp uint64, known, readable bool) bool {
	if r.only&ruledLinked != 0 {
		return known && fp != at
	}
	return at < sp && (!readable || sp-at > w.arch.RedZone) // see popped
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
		w.step(f, out, 0)
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
