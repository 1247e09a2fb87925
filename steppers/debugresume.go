package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/dataflow"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// The unwinder of exceptions, libgcc's, goes on at a landing pad like this: it
// writes over the registers that its own frame has saved, with their values at
// the pad, and has its way out restore them. Meanwhile its CFI gives the caller
// those registers, the frame pointer above all, of a frame further down, and in
// the end the return address. What SP is in the caller is right all the time.

const (
	maxResume  = 512 // instructions looked at to find the way out
	maxCarried = 64  // frames that leave a frame pointer as it is

	maxLeftOut = 64 << 10 // bytes that a frame may have to be looked through

	// maxResuming bounds the frames of a walk that are looked through: a throw has one,
	// and one in a handler of a signal meanwhile another. Any program may have thousands
	// that look like it.
	maxResuming = 8
)

// resuming knows where code is about to leave several frames at once.
type resuming struct {
	facts mcode.VaddrCache
	busy  bool // looking for a frame pointer: what looks like an unwinder meanwhile is none
}

// at reports whether code that goes on at pc leaves by giving SP a value of
// its own, with one call at most before that, which tells debuggers.
func (k *resuming) at(m *procstate.Mapping, pc uint64) bool {
	const returns, jumps = 1, 2
	vaddr := pc - m.Bias
	fact, ok := k.facts.Get(m.Image, vaddr)
	if !ok {
		fact = returns
		if leavesFrames(m.Image, vaddr) {
			fact = jumps
		}
		k.facts.Put(m.Image, vaddr, fact)
	}
	return fact == jumps
}

// leavesFrames answers resuming.at for a link-time address.
func leavesFrames(im *procstate.Image, vaddr uint64) bool {
	type place struct {
		vaddr uint64
		zero  procstate.Reg // a register that is 0
	}
	arch := im.Arch()
	var code [16]byte
	var in isa.Inst
	seen := map[place]bool{}
	work, called := []place{{vaddr, procstate.NoReg}}, []place(nil) // where to look now, and behind a call
	for first := true; first || len(called) > 0; first = false {
		if !first {
			work, called = called, nil
		}
		for len(work) > 0 {
			at := work[len(work)-1]
			work = work[:len(work)-1]
			for !seen[at] && len(seen) < maxResume {
				seen[at] = true
				if im.ReadVaddr(code[:], at.vaddr) != nil || !mcode.Decode(arch, code[:], at.vaddr, &in) {
					break
				}
				if leavesSP(arch, &in, at.zero) {
					return true
				}
				at.zero = zeroAfter(&in, at.zero)
				at.vaddr += uint64(in.Len)
				switch in.Flow {
				case isa.Jump, isa.CondJump:
					work = append(work, place{in.Target, at.zero})
				case isa.Call, isa.IndirectCall:
					if first {
						called = append(called, place{at.vaddr, procstate.NoReg})
					}
				}
				if in.Ends() || in.Flow == isa.Call || in.Flow == isa.IndirectCall {
					break
				}
			}
		}
	}
	return false
}

// zeroAfter returns a register that is 0 after an instruction, when zero is
// before it.
func zeroAfter(in *isa.Inst, zero procstate.Reg) procstate.Reg {
	for _, op := range in.Ops[:in.NumOps] {
		switch op.Kind {
		case isa.Store, isa.StoreIndexed, isa.Scratch, isa.Compare:
		case isa.Const:
			if op.Imm == 0 {
				zero = op.Dst
			} else if op.Dst == zero {
				zero = procstate.NoReg
			}
		default:
			if op.Dst == zero || op.Kind == isa.Swap && op.Src == zero {
				zero = procstate.NoReg
			}
		}
	}
	return zero
}

// leavesSP reports whether an instruction gives SP a value that no frame of
// the function tells. On AArch64 the ways out of the unwinder are one: what it
// adds to SP is zero where it returns to its caller.
func leavesSP(a *procstate.Arch, in *isa.Inst, zero procstate.Reg) bool {
	for _, op := range in.Ops[:in.NumOps] {
		switch op.Kind {
		case isa.Set:
			if op.Dst == a.SP && op.Src != a.SP && op.Src != a.FP {
				return true
			}
		case isa.Add, isa.SetIndexed:
			if op.Dst == a.SP && op.Src != zero {
				return true
			}
		}
	}
	return false
}

// resumer is a stepper that walks out of an unwinder of exceptions.
type resumer interface {
	unwind.FrameStepper
	// fpBySize finds the frame pointer of a frame whose CFA is found from
	// it, by the size of the frame.
	fpBySize(*unwind.Walker, *unwind.Frame) (fp uint64, ok bool)
	// hasRule reports whether frames of the file that m maps are known at pc.
	hasRule(m *procstate.Mapping, pc uint64) bool
}

// distrust takes from out, the caller of an unwinder that has begun to go on
// elsewhere, in, the registers that may not be its own any more, and gives it its
// return address back. The frame pointer it leaves or sets right where it can be told
// what it is in the frame that needs it: s walks from there. Where all that is left is
// the jump, out is the frame that it leads to.
func (k *resuming) distrust(w *unwind.Walker, s resumer, in, out *unwind.Frame) {
	a := w.Arch()
	pad, told := landing{}, false
	blind := k.busy || !mayLook(w, s)
	if !blind {
		if own, ra, ok := ownContext(w, in, out); ok {
			pad, told = landingOf(w, in, out, own, ra)
			if told && pad.left {
				out.SetPC(a, pad.pc)
				out.SetSP(a, pad.sp)
				out.Flags |= unwind.Interrupted
				return // with the registers that it has there
			}
			if ra != out.PC() {
				out.SetPC(a, ra)
				out.PCLocation = unwind.InMemory(own + contextRA)
			}
		}
	}
	suspect, at := out.FP(), out.FPLocation
	out.SetFP(a, 0)
	out.FPLocation = unwind.Location{}
	out.Regs.Retain(^a.CalleeSaved | 1<<a.SP)
	switch {
	case blind:
		return
	case told && pad.kept:
		out.SetFP(a, suspect)
		out.FPLocation = at
		return
	}
	k.busy = true
	if fp, ok := k.framePointer(w, s, out, suspect, pad, told); ok {
		out.SetFP(a, fp)
	}
	k.busy = false
}

// looked counts the frames of a walk that were looked through.
type looked struct {
	walk   uint64
	frames int
}

// mayLook reports whether s may look through another frame in this walk.
func mayLook(w *unwind.Walker, s resumer) bool {
	l, _ := w.Kept(s).(*looked)
	if l == nil {
		l = &looked{}
		w.Keep(s, l)
	}
	if l.walk != w.Walks() {
		*l = looked{walk: w.Walks()}
	}
	l.frames++
	return l.frames <= maxResuming
}

// framePointer answers distrust for a frame pointer that may be suspect.
func (k *resuming) framePointer(w *unwind.Walker, s resumer, out *unwind.Frame, suspect uint64, pad landing, told bool) (fp uint64, ok bool) {
	a, f := w.Arch(), *out
	for n := range maxCarried {
		var next unwind.Frame
		if v, _ := s.CallerFrame(w, &f, &next); v == unwind.Success {
			if next.Regs.Known()>>a.FP&1 != 0 {
				return 0, false // nobody needs it
			}
			f = next
			continue
		}
		if told {
			fp, ok = pad.framePointer(w, s, &f, n+1)
		}
		if !ok {
			fp, ok = s.fpBySize(w, &f)
		}
		if ok || told {
			return fp, ok
		}
		f.SetFP(a, suspect)
		next = unwind.Frame{}
		v, _ := s.CallerFrame(w, &f, &next)
		return suspect, v == unwind.Success && leavesOutNone(w, &f, &next)
	}
	return 0, false
}

// leavesOutNone reports whether no word between SP of a frame and where its
// return address was found could be that.
func leavesOutNone(w *unwind.Walker, f, caller *unwind.Frame) bool {
	a, end := w.Arch(), caller.PCLocation.Addr
	if caller.PCLocation.Kind != unwind.LocationAddress || end-f.SP() > maxLeftOut {
		return false
	}
	var code [mcode.MaxCallLen]byte
	for at := f.SP(); at < end; at += uint64(a.AddressWidth) {
		if v, ok := w.ProcessState().ReadWord(at); !ok || behindCall(w, code[:], v&a.CodeMask) {
			return false
		}
	}
	return true
}

// behindCall reports whether an instruction of a file that stands before pc is
// a call. It reads that into buf, of mcode.MaxCallLen bytes.
func behindCall(w *unwind.Walker, buf []byte, pc uint64) bool {
	m := w.MappingAt(pc - 1)
	if m == nil || m.Image == nil {
		return false
	}
	vaddr := pc - m.Bias
	if m.Image.ReadVaddr(buf, vaddr-mcode.MaxCallLen) != nil {
		return false
	}
	_, _, call := mcode.CallBefore(w.Arch(), buf, vaddr)
	return call
}

// fpBySize implements resumer.
func (d *Debug) fpBySize(w *unwind.Walker, f *unwind.Frame) (fp uint64, ok bool) {
	a := w.Arch()
	m := w.MappingAt(f.LookupPC())
	if m == nil || m.Image == nil || m.Image.Arch() != a {
		return 0, false
	}
	r := d.rule(m.Image, f.LookupPC()-m.Bias)
	reg, off, plain := r.CFA()
	if !plain || reg != a.FP {
		return 0, false
	}
	size := d.sizeAt(m, f.LookupPC())
	if size == 0 {
		return 0, false
	}
	with, next := *f, unwind.Frame{}
	fp = f.SP() + size - uint64(off)
	with.SetFP(a, fp)
	v, _ := r.CallerFrame(w, &with, &next)
	return fp, v == unwind.Success && behindCall(w, d.buf[:], next.PC())
}

// hasRule implements resumer: what has no CFI the unwinder does not get through.
func (d *Debug) hasRule(*procstate.Mapping, uint64) bool { return true }

// sizeAt returns how far the CFA is above SP at pc, in bytes, by the instructions
// of the function; 0 when they do not tell.
func (d *Debug) sizeAt(m *procstate.Mapping, pc uint64) uint64 {
	const unknown = 0xff
	vaddr := pc - m.Bias
	words, ok := d.sizes.Get(m.Image, vaddr)
	if !ok {
		words = uint8(min(d.frameSize(m.Image, vaddr)/8, unknown))
		d.sizes.Put(m.Image, vaddr, words)
	}
	if words == unknown {
		return 0
	}
	return uint64(words) * 8
}

// frameSize answers sizeAt for a link-time address. A part of a function that
// begins in the middle of a frame tells nothing.
func (d *Debug) frameSize(im *procstate.Image, vaddr uint64) int32 {
	a, table := im.Arch(), d.tables.For(im)
	start, end, ok := table.FunctionAt(vaddr)
	entry := int64(0)
	if a.LR == procstate.NoReg {
		entry = int64(a.AddressWidth)
	}
	if !ok || !table.Rule(start).CFAIs(a.SP, entry) || variesSP(im, start, end) {
		return 0
	}
	code, err := dataflow.NewRange(im, start, end)
	if err != nil {
		return 0
	}
	r, ok := code.RuleAt(vaddr)
	if !ok || r.Reg != a.SP || r.Deref || r.Scale != 0 || r.Off < 0 || r.Off%8 != 0 {
		return 0
	}
	return r.Off
}

// variesSP reports whether code moves SP by what only run time knows. A landing
// pad does not tell: how far SP is from the frame then depends on who threw.
func variesSP(im *procstate.Image, start, end uint64) bool {
	a := im.Arch()
	var code [16]byte
	var in isa.Inst
	for at := start; at < end; at += uint64(in.Len) {
		if im.ReadVaddr(code[:], at) != nil || !mcode.Decode(a, code[:], at, &in) {
			return true
		}
		for _, op := range in.Ops[:in.NumOps] {
			if op.Dst != a.SP {
				continue
			}
			switch op.Kind {
			case isa.Set:
				if op.Src != a.SP && op.Src != a.FP {
					return true
				}
			case isa.Add, isa.Sub, isa.Align, isa.SetIndexed, isa.Load, isa.LoadIndexed, isa.Swap, isa.Clobber:
				return true
			}
		}
	}
	return false
}
