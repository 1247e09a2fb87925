package unwind

import "github.com/swbpf/swbpf/procstate"

// PC is one frame of a walk by WalkPCs: an address for lookups, and flags.
type PC struct {
	Addr  uint64 // Frame.LookupPC
	Flags FrameFlags
	Code  uint32 // Frame.Code
}

// WalkPCs walks the stack of a thread whose registers are given and appends
// one PC a frame to dst: what a profile needs. The result is that of
// WalkStack; it is got by rules where the steppers have given such (see
// [RuleStepper]), and none has ranges of its own. It allocates nothing once dst is large enough and the rules
// are known. It does not call BeforeWalk and AfterWalk.
func (w *Walker) WalkPCs(dst []PC, regs *procstate.Regs) ([]PC, error) {
	if err := w.enter(); err != nil {
		return dst, err
	}
	defer w.leave()
	w.begin(true)
	return w.walkPCs(dst, regs, w.ruledFrames(), nil)
}

// WalkPCsAgain is WalkPCs for a thread that was walked before with the same
// memo. The captured memory around SP is as it was then in what lies from an
// address on; that is the largest there is when nothing is known of it. The
// result is that of WalkPCs; same tells how many PCs at its end are those of the
// walk before.
func (w *Walker) WalkPCsAgain(dst []PC, regs *procstate.Regs, memo *Memo, from uint64) (pcs []PC, same int, err error) {
	if err := w.enter(); err != nil {
		return dst, 0, err
	}
	defer w.leave()
	w.begin(true)
	rules := w.ruledFrames()
	if !memo.begin(w, rules, from) {
		pcs, err = w.walkPCs(dst, regs, rules, nil)
		return pcs, 0, err
	}
	pcs, err = w.walkPCs(dst, regs, rules, memo)
	memo.keep(w.trail, err == nil && !w.otherStack)
	return pcs, memo.same, err
}

// walkPCs is WalkPCs by rules, which may be nil, as may memo.
func (w *Walker) walkPCs(dst []PC, regs *procstate.Regs, rules *ruledFrames, memo *Memo) ([]PC, error) {
	w.rules = rules
	at := &w.at
	at.setTop(w.arch, regs)
	var in *Frame // nil for the top frame by rules: most walks need no other
	if rules == nil {
		in = &w.work[0]
		in.Load(w.arch, regs)
	}
	w.last = at.sp
	dst = append(dst, PC{Addr: at.pc, Flags: Top | Interrupted})
	for left := w.maxFrames() - 1; left > 0; left-- {
		if rules != nil && (in == nil || in.Flags&^(Top|Interrupted|StackSwitched) == 0) {
			if in != nil {
				at.setFrame(w.arch, in)
			}
			before := len(dst)
			var v Verdict
			dst, v = w.walkRuled(dst, at, rules, memo, left)
			w.last = at.sp
			switch v {
			case StackBottom:
				dst[len(dst)-1].Flags |= Bottom
				return dst, nil
			case Success:
				return dst, TooManyFrames
			case Failed:
				if at.why != MemoryUnreadable {
					return dst, at.why
				}
			}
			n := len(dst) - before
			left -= n
			in = w.frameAt(at, in, regs, n)
		}
		w.trail = w.trail[:0]
		out := w.other(in)
		v, err := w.step(in, out)
		dst[len(dst)-1] = PC{in.LookupPC(), in.Flags, in.Code}
		if w.otherStack {
			memo = nil // it was not captured then
		}
		switch v {
		case Success:
			in = out
			w.last = in.sp
			dst = append(dst, PC{in.LookupPC(), in.Flags, in.Code})
		case StackBottom:
			dst[len(dst)-1].Flags |= Bottom
			return dst, nil
		default:
			return dst, err
		}
	}
	return dst, TooManyFrames
}

// LastSP is the SP of the last frame that WalkPCs appended. When the walk was
// complete, the thread's stack ends there.
func (w *Walker) LastSP() uint64 { return w.last }
