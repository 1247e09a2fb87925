package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/javacode"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// FrameType describes the stack frame that a function sets up.
type FrameType uint8

// The frame types.
const (
	UnknownFrame    FrameType = iota // it could not be found out
	NoFrame                          // none: the frame pointer stays the caller's
	StandardFrame                    // the frame pointer is saved, and points into the frame
	SaveFPOnlyFrame                  // the frame pointer is saved and then used for something else
)

// FrameState tells how far a function has come in setting up its frame, or in
// tearing it down.
type FrameState uint8

// The frame states.
const (
	UnknownState FrameState = iota // it could not be found out
	UnsetFrame                     // the frame does not exist yet, or no more
	HalfSetFrame                   // the old frame pointer is saved, the new one not set
	SetFrame                       // the frame pointer points into the frame
)

// FrameLayout describes the frame of a function as it is when execution has
// reached an instruction, before that is executed. Distances are in bytes
// below the CFA.
type FrameLayout struct {
	Type  FrameType
	State FrameState

	// SP is how far the stack pointer is below the CFA, negative when not
	// known, and FP the same of the frame pointer with SetFrame.
	SP, FP int32

	// RA is where the return address is, 0 when it is in the link register.
	RA int32

	// SavedFP is where the caller's frame pointer is, 0 when it is still in
	// its register.
	SavedFP int32

	// CallerUnset tells that the function sets up its caller's frame, and has not
	// done so yet: the caller's return address is where SP will be in it.
	CallerUnset bool
}

// aligned reports whether SP and the frame pointer are as far below the CFA as a
// whole number of words, each as far as it is known.
func (l *FrameLayout) aligned(a *procstate.Arch) bool {
	width := int32(a.AddressWidth)
	return (l.SP < 0 || l.SP%width == 0) && (l.FP < 0 || l.FP%width == 0)
}

// unknownLayout is the answer when there is none.
var unknownLayout = FrameLayout{SP: -1, FP: -1} // read only

// FrameFuncHelper finds out about the frames of functions for FrameFunc.
type FrameFuncHelper interface {
	// AllocatesFrame describes the frame of the function that f is in, as it
	// is when execution has reached f's PC or, where f is in a call, the
	// call. It returns UnknownFrame and UnknownState when the code cannot be
	// read or understood, and NoFrame and UnknownState when all that it knows is
	// that the frame pointer is not of this code.
	AllocatesFrame(w *unwind.Walker, f *unwind.Frame) FrameLayout
}

// FrameFunc walks through frames that are linked by a frame pointer. Whether
// a function has one, and whether it is set up at the instruction in
// question, is asked of its helper, about code in a mapping of the process. Code
// that cannot be read, as that of a JIT compiler in a snapshot, is taken to keep
// a frame pointer when all that can be checked agrees; such a frame is marked
// Heuristic. A return address and a frame pointer of 0 are the bottom. The other
// registers that calls preserve are known in the caller where the Analysis of the same
// group, of [Default] for one, tells of them. The zero value is that of NewFrameFunc(nil).
type FrameFunc struct {
	helper FrameFuncHelper
	saved  *Analysis              // what tells where registers are that calls preserve; may be nil
	buf    [mcode.MaxInstLen]byte // of code; holds a call, a return entry and a javacode.DeoptHandlerLen too
	led    led
	kept   keptRegs
	unset  unsetFrame

	keepers mcode.PerImage[bool] // keepsFrames
}

// unsetFrame is a frame whose callee sets it up, and has not yet.
type unsetFrame struct {
	walk     uint64 // Walker.Walks
	calleeSP uint64
}

// is reports whether f is that frame, the next one of the walk, with the frame
// pointer that its callee began with.
func (u *unsetFrame) is(w *unwind.Walker, f *unwind.Frame) bool {
	const most = 16 // words that the callee may have on the stack
	width := uint64(w.Arch().AddressWidth)
	return u.walk == w.Walks() && !f.IsTop() && f.SP()-u.calleeSP <= most*width && f.FP() != f.SP()-width
}

// NewFrameFunc makes a FrameFunc. The helper may be nil: then a
// FrameAnalyzer is used.
func NewFrameFunc(helper FrameFuncHelper) *FrameFunc { return &FrameFunc{helper: helper} }

// Name implements unwind.FrameStepper.
func (s *FrameFunc) Name() string { return "frame-pointer" }

// Priority implements unwind.FrameStepper.
func (s *FrameFunc) Priority() unwind.Priority { return unwind.PriorityFrame }

// CallerFrame implements unwind.FrameStepper.
func (s *FrameFunc) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil {
		return unwind.NotMe, nil
	}
	if s.helper == nil {
		s.helper = NewFrameAnalyzer()
	}
	if s.leaveFragment(w, m, in, out) {
		return unwind.Success, nil
	}
	fp, fpKnown := in.Regs.Value(w.Arch().FP)
	saved, ra, begun, lent := lentFrame(w, m, in, fp)
	if fpKnown && begun {
		return s.walkChain(w, in, out, saved, ra)
	}
	l, isStub := s.layoutAt(w, m, in)
	switch {
	case isStub:
		return unwind.NotMe, nil
	case l.State != UnknownState:
		v, err := s.walkKnown(w, m, in, out, &l)
		if v == unwind.NotMe {
			*out = unwind.Frame{}
		}
		return v, err
	}
	switch {
	case l.Type == NoFrame || m.Image != nil && !s.keepsFrame(w, m, in):
		return unwind.NotMe, nil // there is code, and it does not show a frame pointer
	case m.Image == nil:
		if v, err := s.walkBeside(w, in, out); v != unwind.NotMe {
			return v, err
		}
		*out = unwind.Frame{}
	}
	switch {
	case !fpKnown:
		return unwind.NotMe, nil
	case !lent:
		saved, ra = fp, fp+uint64(w.Arch().AddressWidth)
	}
	return s.walkChain(w, in, out, saved, ra)
}

// layoutAt is what the helper says of a frame, but for one that its callee was to set up, and
// where the frame is about to jump to what the helper knows. isStub tells that it is about to
// jump, and that is all that is known.
func (s *FrameFunc) layoutAt(w *unwind.Walker, m *procstate.Mapping, in *unwind.Frame) (l FrameLayout, isStub bool) {
	l = s.helper.AllocatesFrame(w, in)
	if s.unset.is(w, in) {
		width := int32(w.Arch().AddressWidth)
		l = FrameLayout{Type: StandardFrame, State: UnsetFrame, SP: width, FP: -1, RA: width}
	}
	interrupted := in.Flags&unwind.Interrupted != 0
	if s.unset = (unsetFrame{}); l.CallerUnset && interrupted {
		s.unset = unsetFrame{w.Walks(), in.SP()}
	}
	if l.State == UnknownState && l.Type != NoFrame && m.Image == nil && interrupted {
		return s.behindStub(w, m, in)
	}
	return l, false
}

// walkKnown walks through a frame in the mapping m whose layout is known, and checks what it
// finds, as far as the layout may have been guessed. With NotMe out is not clear.
func (s *FrameFunc) walkKnown(w *unwind.Walker, m *procstate.Mapping, in, out *unwind.Frame, l *FrameLayout) (unwind.Verdict, error) {
	v, err := walkLayout(w, in, out, l)
	if v == unwind.Success && l.State == SetFrame && m.Image == nil {
		if fp, ok := in.Regs.Value(w.Arch().FP); ok {
			if sp, _, ok := javacode.SenderSP(w, in.SP(), fp); ok {
				out.SetSP(w.Arch(), sp)
			}
		}
	}
	if v == unwind.Success && m.Image == nil && !s.led.mayLead(w, out.PC(), in.PC()) {
		return unwind.NotMe, nil
	}
	// A frame pointer proves itself. Where it is not set, the start of
	// the function may have been guessed wrong, and any null be its return address.
	if v == unwind.Success && l.State != SetFrame && !javacode.MayReturnTo(w, out.PC(), s.buf[:]) ||
		v == unwind.StackBottom && l.State != SetFrame && m.Image == nil && l.RA != 0 {
		return unwind.NotMe, nil
	}
	// The caller may have no frame pointer, and find its frame from a register
	// that calls do not preserve, over subroutines that may call others without a frame.
	lends := in.Flags&unwind.Interrupted != 0 || l.State != SetFrame && l.SP == l.RA && knowsScratch(w.Arch(), in)
	if v == unwind.Success && m.Image != nil && lends && m.Contains(out.PC()-1) {
		s.kept.carryAll(w, m, in, out)
	}
	if v == unwind.Success && m.Image != nil && s.saved != nil {
		s.saved.restore(w, m, in, out)
	}
	return v, err
}

// walkBeside walks through a frame whose code leads to where is not known, as that which
// stands behind it does, see beside.
func (s *FrameFunc) walkBeside(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	a, ok := s.helper.(*FrameAnalyzer)
	if !ok {
		return unwind.NotMe, nil
	}
	l, ok := a.made.besideAt(in)
	if !ok {
		return unwind.NotMe, nil
	}
	v, err := walkLayout(w, in, out, l)
	if v == unwind.Success && followsIndirectCall(w, out.PC(), s.buf[:]) {
		out.Flags |= unwind.Heuristic
		return v, err
	}
	return unwind.NotMe, nil
}

// followsIndirectCall reports whether pc lies behind a call, in a file, to where code that is in
// none may be. buf is for the code.
func followsIndirectCall(w *unwind.Walker, pc uint64, buf []byte) bool {
	m := w.MappingAt(pc - 1)
	if m == nil || m.Image == nil {
		return false
	}
	n := min(mcode.MaxCallLen, pc-m.Start)
	_, direct, ok := mcode.CallBefore(w.Arch(), mcode.Read(w, m, pc-n, buf[:n]), pc)
	return ok && !direct
}

// walkLayout walks through a frame that the helper has described.
func walkLayout(w *unwind.Walker, in, out *unwind.Frame, l *FrameLayout) (unwind.Verdict, error) {
	arch, mem := w.Arch(), w.ProcessState()
	fp, fpKnown := in.Regs.Value(arch.FP)
	var cfa uint64
	switch {
	case l.State == SetFrame && fpKnown:
		cfa = fp + uint64(int64(l.FP))
	case l.SP >= 0:
		cfa = in.SP() + uint64(int64(l.SP))
	case l.State == SetFrame:
		return unwind.Failed, unwind.NoRegister
	default:
		return unwind.NotMe, nil
	}
	if cfa < in.SP() || cfa%uint64(arch.AddressWidth) != 0 {
		return unwind.Failed, unwind.NoProgress
	}
	var pc uint64
	var ok bool
	if l.RA == 0 {
		if pc, ok = in.Regs.Value(arch.LR); !ok {
			return unwind.Failed, unwind.NoRegister
		}
		out.PCLocation = unwind.InRegister(arch.LR)
	} else {
		slot := cfa - uint64(int64(l.RA))
		if pc, ok = mem.ReadWord(slot); !ok {
			return unwind.Failed, unwind.ReadFailure(mem, slot)
		}
		out.PCLocation = unwind.InMemory(slot)
	}
	callerFP, callerFPKnown := fp, fpKnown
	if l.SavedFP != 0 {
		slot := cfa - uint64(int64(l.SavedFP))
		callerFP, callerFPKnown = mem.ReadWord(slot)
		out.FPLocation = unwind.InMemory(slot)
	} else {
		out.FPLocation = in.FPLocation
	}
	if pc == 0 && (callerFPKnown && callerFP == 0 || l.State == SetFrame && w.BeginsStack(cfa)) {
		return unwind.StackBottom, nil // the former is what the ABIs ask of a thread's start
	}
	pc = codeAddress(w, pc)
	if w.MappingAt(pc-1) == nil && !mcode.IsReturnTrampoline(w, pc) {
		return unwind.NotMe, nil
	}
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	if l.RA == 0 && cfa == in.SP() { // where would it have saved anything?
		out.Regs.Inherit(&in.Regs, arch.CalleeSaved)
	}
	out.SetPC(arch, pc)
	out.SetSP(arch, cfa)
	if callerFPKnown {
		out.SetFP(arch, callerFP)
	}
	return unwind.Success, nil
}

// maxChainFrame bounds the size of a frame that is taken on trust.
const maxChainFrame = 1 << 20

// walkChain follows the frame pointer of code that is not known: fp is where the
// caller's is saved, and ra where the return address is.
func (s *FrameFunc) walkChain(w *unwind.Walker, in, out *unwind.Frame, fp, ra uint64) (unwind.Verdict, error) {
	arch, mem := w.Arch(), w.ProcessState()
	width := uint64(arch.AddressWidth)
	if fp < in.SP() || fp-in.SP() > maxChainFrame || fp%width != 0 {
		return unwind.NotMe, nil
	}
	callerFP, ok1 := mem.ReadWord(fp)
	pc, ok2 := mem.ReadWord(ra)
	if !ok1 || !ok2 {
		return unwind.Failed, unwind.ReadFailure(mem, ra)
	}
	if pc == 0 && callerFP == 0 {
		return unwind.StackBottom, nil
	}
	pc = codeAddress(w, pc)
	sp, _, interpreted := javacode.SenderSP(w, in.SP(), fp)
	if !interpreted {
		if callerFP != 0 && callerFP <= fp && !entersFile(w, in.LookupPC(), pc-1) {
			return unwind.NotMe, nil
		}
		sp = fp + 2*width
	}
	if !javacode.MayReturnTo(w, pc, s.buf[:]) || !s.led.mayLead(w, pc, in.PC()) {
		return unwind.NotMe, nil
	}
	out.SetPC(arch, pc)
	out.SetSP(arch, sp)
	out.SetFP(arch, callerFP)
	out.PCLocation, out.FPLocation = unwind.InMemory(ra), unwind.InMemory(fp)
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	if in.Flags&unwind.Interrupted != 0 || !javacode.IsReturnEntry(w, w.MappingAt(in.LookupPC()), in.PC(), s.buf[:]) {
		out.Flags |= unwind.Heuristic
	}
	return unwind.Success, nil
}

// entersFile reports whether code at pc, of a file, was called by that of another one at caller,
// which may keep anything in the register that is a frame pointer here.
func entersFile(w *unwind.Walker, pc, caller uint64) bool {
	m, c := w.MappingAt(pc), w.MappingAt(caller)
	return m != nil && c != nil && m.Image != nil && c.Image != nil && m.Image != c.Image
}

// codeAddress removes what is not address from a stored return address: a
// tag, or where it is in no code otherwise, a pointer authentication code.
func codeAddress(w *unwind.Walker, pc uint64) uint64 {
	arch := w.Arch()
	pc &= arch.AddrMask
	if address := w.CodeAddress(pc); address != pc && w.MappingAt(pc-1) == nil {
		return address
	}
	return pc
}
