package steppers

import (
	"bytes"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/javacode"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// SBCL walks through what Steel Bank Common Lisp has compiled for x86-64, in its core and since. The
// frames of functions are linked by the frame pointer (see calleesframe.go): the caller's is where it points,
// and the return address above. Where that is not so yet, or no more, and in routines that have no frame, the
// code says it on its way: it uses the frame pointer, or returns without. The zero value is that of NewSBCL.
type SBCL struct {
	images mcode.PerImage[bool] // whether a file is the runtime
	buf    [max(givesTarget+longestInst, mcode.MaxCallLen)]byte
}

// NewSBCL makes an SBCL.
func NewSBCL() *SBCL { return &SBCL{} }

// sbclProcess is what is kept of a process.
type sbclProcess struct {
	vmread.Found
	runs bool // it is SBCL

	start uint64 // of the code that was read last, with that before a return address
	code  []byte // in buf; of this walk
	buf   [lispWindow]byte
}

// Name implements unwind.FrameStepper.
func (s *SBCL) Name() string { return "sbcl" }

// Priority implements unwind.FrameStepper.
func (s *SBCL) Priority() unwind.Priority { return unwind.PriorityFrame - 1 }

// CallerFrame implements unwind.FrameStepper.
func (s *SBCL) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	a, m := w.Arch(), w.MappingAt(in.LookupPC())
	if a != procstate.AMD64 || m == nil || m.Image != nil {
		return unwind.NotMe, nil
	}
	lisp := s.process(w)
	if !lisp.runs {
		return unwind.NotMe, nil
	}
	fp, ok := in.Regs.Value(a.FP)
	if !ok {
		return unwind.NotMe, nil
	}
	mem := w.ProcessState()
	at := s.placeOf(w, lisp, m, in)
	var ra, callersFP, callersSP uint64
	switch at.frame {
	case lispNone:
		ra, callersFP = in.SP()+at.ra, fp
		callersSP = ra + 8
	case lispCallees:
		if fp, ok = mem.ReadWord(fp); !ok {
			return unwind.Failed, unwind.ReadFailure(mem, in.FP())
		}
		fallthrough
	default:
		if fp < in.SP() && at.frame != lispEntered || fp%8 != 0 || fp-in.SP() > maxChainFrame {
			return unwind.NotMe, nil
		}
		if callersFP, ok = mem.ReadWord(fp); !ok {
			return unwind.Failed, unwind.ReadFailure(mem, fp)
		}
		ra, callersSP = fp+8, fp+16
		if at.frame == lispEntered {
			ra = in.SP() + at.ra
		}
		out.FPLocation = unwind.InMemory(fp)
	}
	pc, ok := mem.ReadWord(ra)
	if !ok {
		return unwind.Failed, unwind.ReadFailure(mem, ra)
	}
	// Lisp may have a stack of its own: C's that has called it can be anywhere.
	to := w.MappingAt(pc - 1)
	if to == nil || !s.mayReturnTo(w, lisp, to, pc) || to.Image == nil && at.frame != lispNone && callersFP <= fp {
		*out = unwind.Frame{}
		return unwind.NotMe, nil
	}
	out.SetPC(a, pc)
	out.SetSP(a, callersSP)
	out.SetFP(a, callersFP)
	out.PCLocation = unwind.InMemory(ra)
	if at.frame == lispNone {
		out.FPLocation = in.FPLocation
	}
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	return unwind.Success, nil
}

// mayReturnTo reports whether an address in the mapping m is behind a call, as far as the code can be read.
func (s *SBCL) mayReturnTo(w *unwind.Walker, lisp *sbclProcess, m *procstate.Mapping, pc uint64) bool {
	if m.Image != nil {
		return javacode.MayReturnTo(w, pc, s.buf[:])
	}
	before := min(mcode.MaxCallLen, pc-m.Start)
	code := lisp.readAt(w, pc-before)
	if uint64(len(code)) < before {
		return true
	}
	_, _, ok := mcode.CallBefore(procstate.AMD64, code[:before], pc)
	return ok
}

// codeAt returns code of no file from an address on, of what has been read in this walk if that has it.
func (p *sbclProcess) codeAt(w *unwind.Walker, pc uint64) []byte {
	if o := pc - p.start; o < uint64(len(p.code)) {
		return p.code[o:]
	}
	return p.readAt(w, pc)
}

// readAt reads code of no file.
func (p *sbclProcess) readAt(w *unwind.Walker, pc uint64) []byte {
	p.start, p.code = pc, nil
	if m := w.MappingAt(pc); m != nil && m.Image == nil {
		p.code = mcode.Read(w, m, pc, p.buf[:])
	}
	return p.code
}

// process returns what is known of the process that w walks: it is SBCL if a file in it exports what C calls Lisp by.
func (s *SBCL) process(w *unwind.Walker) *sbclProcess {
	p, isNew := vmread.MachineOf(w, s, func(_ *unwind.Walker, libs procstate.LibraryState, _ *sbclProcess) *sbclProcess {
		p := new(sbclProcess)
		if libs == nil {
			return p
		}
		for _, lib := range libs.Libraries() {
			p.runs = p.runs || lib.Image != nil && *s.images.Known(lib.Image, isSBCL)
		}
		return p
	})
	if isNew {
		p.code = nil
	}
	return p
}

// isSBCL reports whether a file is SBCL's runtime (src/runtime/x86-64-assem.S, interrupt.c).
func isSBCL(im *procstate.Image) bool {
	_, ok1 := im.ExportedSymbol("call_into_lisp")
	_, ok2 := im.ExportedSymbol("arrange_return_to_lisp_function")
	return ok1 && ok2
}

// lispFrame tells which frame the frame pointer is of, where code of SBCL was interrupted or has called.
type lispFrame uint8

const (
	lispUnknown lispFrame = iota
	lispOwn               // that of the function
	lispCallees           // that of the function which it is about to call: its own is where that one points
	lispEntered           // that of the function, which has not put the return address into it yet
	lispNone              // that of the caller
)

// lispPlace is how far a function has come.
type lispPlace struct {
	frame lispFrame
	ra    uint64 // from SP to the return address, with lispEntered and lispNone
}

// placeOf finds out how far the function has come that f is in.
func (s *SBCL) placeOf(w *unwind.Walker, lisp *sbclProcess, m *procstate.Mapping, f *unwind.Frame) lispPlace {
	pc := f.PC()
	if f.Flags&unwind.Interrupted != 0 {
		before := min(givesTarget, pc-m.Start)
		code := mcode.Read(w, m, pc-before, s.buf[:givesTarget+longestInst])
		switch {
		case uint64(len(code)) <= before:
			return lispPlace{frame: lispOwn}
		case before > 0 && code[before-1] == mcode.BreakpointAMD64: // a trap: a byte says which, and what has gone wrong comes behind
			if code[before] != lispPending {
				return lispPlace{frame: lispOwn}
			}
			pc++
		case callsWithFrame(procstate.AMD64, code, int(before)):
			return lispPlace{frame: lispCallees}
		}
	}
	at := lisp.follow(w, pc)
	if at.frame == lispUnknown {
		at.frame = lispOwn
	}
	return at
}

const (
	lispPending = 9   // the trap behind code that was not to be interrupted (pending_interrupt_trap): it goes on there
	lispWindow  = 128 // bytes of code that are read at once
	longestInst = 16  // bytes of an instruction
	lispInsts   = 64  // instructions that are looked at
	lispWays    = 8   // branches of which both ways are
)

// lispWay is where code goes on.
type lispWay struct {
	pc uint64
	sp int64 // from where it was when the code was interrupted, in bytes
}

// follow follows the code from pc on to the first instruction that tells which frame the frame pointer is of.
func (p *sbclProcess) follow(w *unwind.Walker, pc uint64) lispPlace {
	var ways [lispWays]lispWay
	ways[0] = lispWay{pc: pc}
	var in isa.Inst
	for n, left := 1, lispInsts; n > 0; {
		n--
		for way := ways[n]; left > 0; left-- {
			here := p.codeAt(w, way.pc)
			if !mcode.Decode(procstate.AMD64, here, way.pc, &in) {
				here = p.readAt(w, way.pc)
				if !mcode.Decode(procstate.AMD64, here, way.pc, &in) {
					break
				}
			}
			if bytes.HasPrefix(here, popsReturn) && way.sp >= 0 {
				return lispPlace{lispEntered, uint64(way.sp)}
			}
			if at, ok := way.tells(&in, here[in.Len:]); ok {
				return at
			}
			moved, known := spMovedBy(&in)
			if !known {
				break
			}
			way.sp += moved
			way.pc += uint64(in.Len)
			if in.Flow == isa.CondJump && n < lispWays {
				ways[n] = lispWay{in.Target, way.sp}
				n++
			}
			if in.Flow == isa.Jump {
				way.pc = in.Target
			} else if in.Ends() {
				break
			}
		}
	}
	return lispPlace{}
}

// tells reports whether an instruction, with the code behind it, tells which frame the frame pointer is of.
func (way *lispWay) tells(in *isa.Inst, behind []byte) (at lispPlace, ok bool) {
	fp, sp := procstate.AMD64.FP, procstate.AMD64.SP
	own := lispPlace{frame: lispOwn}
	switch {
	case in.Base == fp:
		return own, true
	case in.Flow == isa.Return && way.sp >= 0:
		return lispPlace{lispNone, uint64(way.sp)}, true
	case in.Flow == isa.IndirectJump && (in.Word || in.Target != 0) && way.sp >= 0: // to a function, by what is called in its place
		return lispPlace{lispEntered, uint64(way.sp)}, true
	}
	pushes := false
	for _, op := range in.Ops[:in.NumOps] {
		pushes = pushes || op.Kind == isa.Set && op.Dst == sp && op.Src == sp && op.Imm == -8
	}
	for _, op := range in.Ops[:in.NumOps] {
		switch op.Kind {
		case isa.Set:
			switch {
			case op.Dst == fp && op.Src == sp && op.Imm == 0 && way.sp >= -8 && !aboutToCall(behind):
				return lispPlace{lispNone, uint64(way.sp + 8)}, true // it has pushed the caller's
			case op.Dst == fp || op.Src == fp:
				return own, true
			}
		case isa.Store, isa.StoreIndexed:
			if op.Src == fp && !pushes || op.Dst == fp {
				return own, true
			}
		case isa.Load, isa.LoadIndexed, isa.SetIndexed, isa.Add, isa.Sub:
			if op.Dst == fp || op.Src == fp {
				return own, true
			}
		}
	}
	return lispPlace{}, false
}

// aboutToCall reports whether code begins with a call, or with an address in EAX and then that.
func aboutToCall(code []byte) bool {
	const movEAX = 0xb8
	var in isa.Inst
	if len(code) > 0 && code[0] == movEAX {
		code = code[min(len(code), givesTarget-movesToFP):]
	}
	return isa.DecodeAMD64(code, 0, &in) && (in.Flow == isa.Call || in.Flow == isa.IndirectCall)
}

// spMovedBy is how far an instruction moves SP, in bytes; not known when it sets it otherwise.
func spMovedBy(in *isa.Inst) (n int64, known bool) {
	sp := procstate.AMD64.SP
	for _, op := range in.Ops[:in.NumOps] {
		switch op.Kind {
		case isa.Store, isa.StoreIndexed, isa.Scratch, isa.Compare:
			continue
		}
		switch {
		case op.Dst != sp:
		case op.Kind == isa.Set && op.Src == sp:
			n += op.Imm
		default:
			return 0, false
		}
	}
	return n, true
}
