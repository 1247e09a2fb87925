package unwind

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/swbpf/swbpf/procstate"
)

// DefaultMaxFrames bounds a walk unless Walker.MaxFrames says otherwise.
const DefaultMaxFrames = 32768

// ErrNoProcess is returned by a Walker that has no process: it was not made by
// NewWalker, or from nil.
var ErrNoProcess = errors.New("the Walker has no process: unwind.NewWalker makes one from a procstate.ProcessState")

// ErrWalking is returned for a walk by a Walker that is in another one: a stepper, or another part of the Walker, has
// asked for it. Another Walker of the same process may walk within a walk.
var ErrWalking = errors.New("the Walker is in a walk")

// Walker walks the stacks of one process. NewWalker makes one: to the zero value
// all walks are an error, ErrNoProcess.
type Walker struct {
	// MaxFrames is the number of frames after which a walk stops with the
	// reason TooManyFrames; 0 means DefaultMaxFrames.
	MaxFrames int

	proc   procstate.ProcessState
	group  StepperGroup
	ranged *AddressRangeGroup // group, when it is the default kind
	lookup SymbolLookup
	arch   *procstate.Arch

	work     [2]Frame            // the two frames that WalkPCs alternates between
	last     uint64              // SP of the last frame of the last WalkPCs
	captured *procstate.Snapshot // proc, when it is one
	at       place               // where WalkPCs is
	run      ruledRun
	rules    *ruledFrames // of the walk that goes on; nil where all steppers are asked for each frame
	trail    []memoFrame  // the last frames of WalkPCs, as far as rules led through all of them; the group's
	noted    bool         // see Noted

	walking    bool // between enter and leave
	otherStack bool // another stack was added to captured in this walk
	guessed    bool // see Guessed

	kept     []kept                 // by steppers
	codes    *Codes                 // of frames; nil before they are asked for
	walks    uint64                 // begun so far
	libs     procstate.LibraryState // of proc, during a walk
	mappings [2]*procstate.Mapping  // that MappingAt found last in this walk, the last one first
	codeMask uint64                 // see CodeAddress
}

// NewWalker makes a Walker from its parts. lookup may be nil: then frames
// have no names. A default group comes from package steppers; nil is an empty one,
// for AddStepper. Where proc has no architecture, as one that was not opened, there
// is no process.
func NewWalker(proc procstate.ProcessState, group StepperGroup, lookup SymbolLookup) *Walker {
	if group == nil {
		group = NewGroup()
	}
	var arch *procstate.Arch
	if proc != nil {
		arch = proc.Arch()
	}
	if arch == nil {
		return &Walker{group: group, lookup: lookup}
	}
	w := &Walker{proc: proc, group: group, lookup: lookup, arch: arch, codeMask: arch.CodeMask}
	w.ranged, _ = group.(*AddressRangeGroup)
	w.captured, _ = proc.(*procstate.Snapshot)
	if n, ok := proc.(procstate.LibraryNotifier); ok {
		w.listen(n)
	}
	return w
}

// ProcessState returns the Walker's access to the process.
func (w *Walker) ProcessState() procstate.ProcessState { return w.proc }

// StepperGroup returns the Walker's steppers.
func (w *Walker) StepperGroup() StepperGroup { return w.group }

// SymbolLookup returns what names the Walker's frames; it may be nil.
func (w *Walker) SymbolLookup() SymbolLookup { return w.lookup }

// Arch is the architecture of the process, nil when there is none.
func (w *Walker) Arch() *procstate.Arch { return w.arch }

// AddStepper adds a stepper to the group, for all addresses.
func (w *Walker) AddStepper(s FrameStepper) error {
	if w.group == nil {
		return ErrNoProcess
	}
	return w.group.AddStepper(s)
}

// Threads returns the threads whose stacks can be walked, the default first.
func (w *Walker) Threads() ([]procstate.ThreadID, error) {
	if w.proc == nil {
		return nil, ErrNoProcess
	}
	return w.proc.Threads()
}

// enter begins what only one at a time may do with the Walker, up to leave.
func (w *Walker) enter() error {
	switch {
	case w.proc == nil:
		return ErrNoProcess
	case w.walking:
		return ErrWalking
	}
	w.walking = true
	return nil
}

func (w *Walker) leave() { w.walking = false }

// still runs f while the process stands still for a walk of a thread. It goes on also
// when f panics, as a stepper may.
func (w *Walker) still(tid procstate.ThreadID, f func() error) (err error) {
	if err := w.enter(); err != nil {
		return err
	}
	defer w.leave()
	if err := w.beforeWalk(tid); err != nil {
		return err
	}
	defer func() {
		if aerr := w.proc.AfterWalk(tid); err == nil {
			err = aerr
		}
	}()
	return f()
}

// beforeWalk is what a ProcSelf knows the Walker by that has called it, through whatever ProcessState.
//
//go:noinline
func (w *Walker) beforeWalk(tid procstate.ThreadID) error { return w.proc.BeforeWalk(tid) }

// InitialFrame stores the top frame of a thread in f.
func (w *Walker) InitialFrame(tid procstate.ThreadID, f *Frame) error {
	return w.still(tid, func() error { return w.initialFrame(tid, f) })
}

func (w *Walker) initialFrame(tid procstate.ThreadID, f *Frame) error {
	var regs procstate.Regs
	if err := w.proc.Registers(tid, &regs); err != nil {
		return fmt.Errorf("registers of thread %d: %w", tid, err)
	}
	f.Load(w.arch, &regs)
	if c, ok := w.proc.(inCall); ok && c.InCall() {
		f.Flags &^= Interrupted
		f.PCLocation, f.SPLocation, f.FPLocation = Location{}, Location{}, Location{} // the registers have gone on
	} else if tid == procstate.DefaultThread { // of which there may be another at the next walk
		tid = w.defaultThread()
	}
	f.Thread = tid
	return nil
}

// defaultThread returns which thread is the default one in a walk.
func (w *Walker) defaultThread() procstate.ThreadID {
	if p, ok := w.proc.(interface{ WalkedThread() procstate.ThreadID }); ok {
		return p.WalkedThread()
	}
	if tids, err := w.proc.Threads(); err == nil && len(tids) > 0 {
		return tids[0]
	}
	return procstate.DefaultThread
}

// inCall is implemented by a ProcessState whose threads are in a call when
// their registers are read: the PC is a return address.
type inCall interface{ InCall() bool }

// WalkStack walks the stack of a thread and appends its frames, top first, to
// dst. The error is nil when the last frame is the bottom of the stack; when
// it is a Reason, or what a stepper of the caller's own has failed with, the frames up to
// there are returned, and right. Any other error is the ProcessState's, as
// procstate.ErrNoThread or procstate.ErrTerminated: there are no frames.
func (w *Walker) WalkStack(dst []Frame, tid procstate.ThreadID) ([]Frame, error) {
	err := w.still(tid, func() (err error) {
		var top Frame
		if err = w.initialFrame(tid, &top); err == nil {
			dst, err = w.walkFrom(dst, &top)
		}
		return err
	})
	return dst, err
}

// WalkFrom is WalkStack from a given frame on, which becomes the first of
// those appended. The stack must still be what it was when f was found.
func (w *Walker) WalkFrom(dst []Frame, f *Frame) ([]Frame, error) {
	err := w.still(f.Thread, func() (err error) { // f may be in dst
		dst, err = w.walkFrom(dst, f)
		return err
	})
	return dst, err
}

func (w *Walker) walkFrom(dst []Frame, f *Frame) ([]Frame, error) {
	w.begin(true)
	dst = append(dst, *f)
	for n := 1; ; n++ {
		if n >= w.maxFrames() {
			return dst, TooManyFrames
		}
		if len(dst) == cap(dst) {
			// Twice as much, where that is little: less is copied and thrown away.
			dst = slices.Grow(dst, max(16, min(len(dst), 1<<16)))
		}
		out := &dst[:len(dst)+1][len(dst)]
		in := &dst[len(dst)-1]
		v, err := w.step(in, out)
		switch v {
		case Success:
			dst = dst[:len(dst)+1]
		case StackBottom:
			in.Flags |= Bottom
			return dst, nil
		default:
			return dst, err
		}
	}
}

// begin starts a walk, or goes on with one: what was true of the process before
// may not be now.
func (w *Walker) begin(another bool) {
	if another {
		w.walks++
		w.guessed = false
	}
	w.libs = w.proc.Libraries()
	w.mappings, w.rules = [2]*procstate.Mapping{}, nil
	w.noted, w.otherStack = false, false
	w.trail = w.trail[:0]
	w.codeMask = w.arch.CodeMask
	if w.arch == procstate.ARM64 {
		w.codeMask &= addressBits(w.libs)
	}
}

// addressBits returns the bits of which there is one in the address of any
// mapping, and those below.
func addressBits(libs procstate.LibraryState) uint64 {
	if s, ok := libs.(interface{ Highest() *procstate.Mapping }); ok {
		if m := s.Highest(); m != nil {
			return 1<<bits.Len64(m.End-1) - 1
		}
	}
	return ^uint64(0)
}

// CodeAddress removes from a signed return address what is not address: the
// pointer authentication code of AArch64. How many bits it leaves to addresses
// depends on the kernel, 48 or fewer, with pages of 16 KB 47: it begins above
// those that the process's mappings have. It is for steppers.
func (w *Walker) CodeAddress(ra uint64) uint64 { return ra & w.codeMask }

// Noted reports whether the walk has come through a frame whose rule is noted:
// see [Rule.Noted]. It is for steppers.
func (w *Walker) Noted() bool { return w.noted }

// Guessed reports whether the walk has come through a frame that is Heuristic, or to a
// stack that was read after the walk's own memory: what looks like the end of the stack may
// be none. It is for steppers.
func (w *Walker) Guessed() bool { return w.guessed || w.otherStack }

// Codes returns what runtimes of the process say of the code of frames: those that were
// given to ShareCodes, or the Walker's own. They grow, up to a bound beyond which frames
// have no code: who walks for weeks resets them when no frames are held.
func (w *Walker) Codes() *Codes {
	if w.codes == nil {
		w.codes = new(Codes)
	}
	return w.codes
}

// ShareCodes has the Walker use c for the codes of frames, as others may that belong to the
// same goroutine. It is called before the first walk.
func (w *Walker) ShareCodes(c *Codes) { w.codes = c }

// Walks is the number of walks that the Walker has begun. A stepper that
// remembers what it has seen in a walk tells by it that this is another: the
// top frame may have been walked by another stepper, or by rules. Frames walked
// one at a time, by Step, are of one walk from a top frame on.
func (w *Walker) Walks() uint64 { return w.walks }

// MappingAt returns the executable mapping that holds addr, or nil: what the
// process's libraries say, remembered within a walk. It is for steppers.
func (w *Walker) MappingAt(addr uint64) *procstate.Mapping {
	last, before := w.mappings[0], w.mappings[1]
	if last != nil && last.Contains(addr) {
		return last
	}
	if before != nil && before.Contains(addr) {
		w.mappings = [2]*procstate.Mapping{before, last}
		return before
	}
	if w.libs == nil {
		if w.proc == nil {
			return nil
		}
		w.libs = w.proc.Libraries()
	}
	m := mappingAt(w.libs, addr)
	if m != nil {
		w.mappings = [2]*procstate.Mapping{m, last}
	}
	return m
}

// mappingAt is MappingAt of a LibraryState that may be anybody's, or nil.
func mappingAt(libs procstate.LibraryState, addr uint64) *procstate.Mapping {
	if libs == nil {
		return nil
	}
	m := libs.MappingAt(addr)
	if m == nil || m.End <= m.Start || !m.Contains(addr) {
		return nil
	}
	return m
}

// Step walks through a single frame: it stores in's caller in out, which must
// be another Frame. The verdict is never NotMe: that no stepper knows the frame
// is Failed with the reason NoUnwindInfo. With StackBottom, in is marked as the
// bottom. Each step is a walk to the process: between two of them a live thread
// goes on, unless it is paused. To the steppers all steps from a top frame on are
// one walk: those of one stack are to be taken before those of another.
func (w *Walker) Step(in, out *Frame) (Verdict, error) {
	v := Failed
	err := w.still(in.Thread, func() (err error) {
		w.begin(in.Flags&Top != 0)
		v, err = w.step(in, out)
		return err
	})
	if err != nil {
		return Failed, err
	}
	if v == StackBottom {
		in.Flags |= Bottom
	}
	return v, nil
}

func (w *Walker) maxFrames() int {
	if w.MaxFrames > 0 {
		return w.MaxFrames
	}
	return DefaultMaxFrames
}

// step asks the steppers in turn, and once more when one has mended the
// frame. Those before the first of a group for all addresses are known not to
// know the frame.
func (w *Walker) step(in, out *Frame) (Verdict, error) {
	v, err := w.ask(in, out)
	if v == Mended {
		v, err = w.ask(in, out)
	}
	if v == Failed && err == MemoryUnreadable && w.addOtherStack(in) {
		v, err = w.ask(in, out)
		if v == Success && w.MappingAt(out.LookupPC()) == nil {
			return Failed, MemoryUnreadable
		}
		if v == Success {
			out.Flags |= StackSwitched
		}
	}
	if v == Mended {
		return Failed, StepperFailed
	}
	return v, err
}

// addOtherStack has the rest of the stack captured that a frame was called on, if
// that is another than the one that it has called on itself.
func (w *Walker) addOtherStack(in *Frame) bool {
	if w.captured == nil || in.Flags&Interrupted != 0 || w.leavesStack(in) || !w.captured.AddOtherStack(in.SP()) {
		return false
	}
	w.otherStack = true
	return true
}

// leavesStack reports whether a stepper knows that a frame has left its stack for one of many calls.
func (w *Walker) leavesStack(in *Frame) bool {
	var steppers []FrameStepper
	if w.ranged != nil {
		steppers = w.ranged.steppers
	} else {
		steppers = w.group.Steppers()
	}
	for _, s := range steppers {
		if l, ok := s.(StackLeaver); ok && l.LeavesStack(w, in) {
			return true
		}
	}
	return false
}

// ask asks the steppers in turn. One that needs a register which is not known,
// or which is not the frame's, as those that the unwinder of exceptions is
// about to change, so that the caller would not be further down the stack,
// may be followed by one that does without it.
func (w *Walker) ask(in, out *Frame) (Verdict, error) {
	addr := in.LookupPC()
	*out = Frame{}
	var why error // of the first of them that failed
	if w.ranged != nil {
		may := w.mayKnow(in)
		for i, m := range w.ranged.members(addr) {
			if !may.has(i) {
				continue
			}
			v, err := m.stepper.CallerFrame(w, in, out)
			if v == NotMe {
				continue
			}
			if v, err = w.check(in, out, m.id, v, err); err != NoProgress && err != NoRegister {
				return v, err
			}
			why = cmp.Or(why, err)
			*out = Frame{}
		}
	} else {
		var last FrameStepper
		for range maxSteppers + 1 { // a group of one's own may name the same ones for ever
			s, ok := w.group.StepperFor(addr, last)
			if !ok || s == nil {
				break
			}
			last = s
			v, err := s.CallerFrame(w, in, out)
			if v == NotMe {
				continue
			}
			id := slices.Index(w.group.Steppers(), s) + 1
			if id > maxSteppers {
				id = 0
			}
			if v, err = w.check(in, out, StepperID(id), v, err); err != NoProgress && err != NoRegister {
				return v, err
			}
			why = cmp.Or(why, err)
			*out = Frame{}
		}
	}
	if why != nil {
		return Failed, why
	}
	return Failed, w.whyNone(in)
}

// check completes a stepper's answer and refuses a caller that is not further
// down its stack, unless the stepper says that the stack was switched. The caller
// of a stack's first function is none.
func (w *Walker) check(in, out *Frame, id StepperID, v Verdict, err error) (Verdict, error) {
	switch v {
	case Failed:
		if err == nil {
			err = StepperFailed
		}
		return v, err
	case StackBottom, Mended:
		return v, nil
	case Success:
	default:
		return Failed, StepperFailed
	}
	out.Thread, out.Stepper = in.Thread, id
	w.guessed = w.guessed || (in.Flags|out.Flags)&Heuristic != 0
	if out.pc == 0 && w.BeginsStack(out.sp) {
		return StackBottom, nil
	}
	if (out.pc == 0 || out.pc&(w.arch.PCAlign-1) != 0) && out.Flags&Interrupted == 0 { // a signal may tell of such a call
		return Failed, BadPC
	}
	if out.sp <= in.sp && out.Flags&StackSwitched == 0 {
		// A frame that calls nothing may have its return address in a
		// register and nothing on the stack: leaves where there is a link
		// register, and vfork and the unwinder's last jump on x86. That of
		// instrumentation may be kept elsewhere, and so does musl's sigsetjmp
		// with its own, over a call too. OCaml pops it into memory, and what it
		// was popped from, right below SP, still has it.
		inRegister := w.arch.LR != procstate.NoReg || out.PCLocation.Kind == LocationRegister
		isPopped := out.PCLocation == InMemory(in.sp-uint64(w.arch.AddressWidth))
		leaf := in.Flags&Interrupted != 0 && (inRegister || isPopped) ||
			out.PCLocation.Kind == LocationAddress && out.PCLocation.Addr-in.sp+elsewhere >= 2*elsewhere
		if out.sp < in.sp || out.pc == in.pc || !leaf && in.Flags&Instrumentation == 0 {
			return Failed, NoProgress
		}
	}
	return Success, nil
}

// BeginsStack reports whether a frame with a null return address is the first of
// its stack, by its CFA. No call leaves one. Stacks that are made for coroutines,
// as those of D and Crystal, begin with it in their last words, and they end where
// a page does, with nothing behind it; anywhere else it is more likely none at all.
func (w *Walker) BeginsStack(cfa uint64) bool {
	const page, head, behind = 4096, 64, 512 // bytes
	left := -cfa % page
	if left >= head || cfa == 0 || w.proc == nil {
		return false
	}
	width := uint64(w.arch.AddressWidth)
	for n := uint64(0); n < left+behind; n += width {
		if word, ok := w.proc.ReadWord(cfa + n); !ok || word != 0 {
			return !ok && n >= left
		}
	}
	return true
}

// elsewhere is a distance from SP beyond which a word is not in the frame of a
// function that has nothing on the stack.
const elsewhere = 128

// whyNone tells why no stepper knew the code of a frame.
func (w *Walker) whyNone(f *Frame) Reason {
	if m := w.MappingAt(f.PC()); m != nil && m.Path == procstate.UprobesMapping {
		return ReturnReplaced
	}
	m := w.MappingAt(f.LookupPC())
	switch {
	case m == nil:
		return NoMapping
	case m.Image == nil && m.ImageErr != nil && !errors.Is(m.ImageErr, procstate.ErrNotELF):
		return NoFile
	}
	return NoUnwindInfo
}

// Stepper returns the stepper that made the frame; nil for a top frame, and where the group does not tell.
func (w *Walker) Stepper(f *Frame) FrameStepper {
	if f.Stepper == 0 || w.group == nil {
		return nil
	}
	if s := w.group.Steppers(); int(f.Stepper) <= len(s) {
		return s[f.Stepper-1]
	}
	return nil
}

// Name returns the symbol of the frame's function, by the code that the process has when it
// is asked: that of a library which is gone has no name, or that of what took its place.
func (w *Walker) Name(f *Frame) (Symbol, bool) {
	if lines := w.Codes().Lines(f.Code); len(lines) > 0 {
		sym := Symbol{Name: lines[len(lines)-1].Name}
		if start := w.codes.Start(f.Code); start != 0 {
			sym.Offset = f.PC() - start
		}
		return sym, true
	}
	if w.lookup == nil {
		return Symbol{}, false
	}
	sym, ok := w.lookup.SymbolAt(f.LookupPC())
	if ok {
		sym.Offset += f.PC() - f.LookupPC()
	}
	return sym, ok
}

// Library returns the library of the frame's code, as loaded when it is asked, and the
// link-time address of its PC in it.
func (w *Walker) Library(f *Frame) (lib procstate.Library, vaddr uint64, ok bool) {
	if w.proc == nil {
		return procstate.Library{}, 0, false
	}
	m := mappingAt(w.proc.Libraries(), f.LookupPC())
	if m == nil {
		return procstate.Library{}, 0, false
	}
	return procstate.Library{Path: m.Path, Bias: m.Bias, Image: m.Image}, f.PC() - m.Bias, true
}
