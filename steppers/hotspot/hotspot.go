package hotspot

import (
	"path/filepath"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/javacode"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper walks through the compiled code of Java's virtual machine, which
// keeps no frame pointer, by the sizes of frames that the machine has noted.
// They are read from the process while it runs, also for a Snapshot of it (see
// procstate.LiveCode): by then a method can have given its place to another, with
// another frame. So a walk ends where no call stands, as it is now, before the
// address that is returned to. Frames of the interpreter and of stubs without a size
// are FrameFunc's. Which methods run in all these frames is noted (see unwind.Codes).
// What is known of a process is kept with its Walker, and found anew when it has
// executed another program.
type Stepper struct {
	fields  mcode.PerImage[vmFields] // of libjvm
	buf     [128]byte
	own     codeBlob // of the frame that is walked from
	frames  FrameStates
	ways    waysOut
	linked  [256]linkedPlace // of the interpreter, by a hash of the PC
	stored  [256]storedPlace // of compiled methods, the same
	virtual virtualWalk
}

// FrameStates tells of functions whether they have set up their frames. It is asked of code of the interpreter, of
// which HotSpot does not say that.
type FrameStates interface {
	// IsFrameSet reports whether the frame pointer points into the frame of the function that f is in, when
	// execution has reached f's PC, and whether that is known.
	IsFrameSet(w *unwind.Walker, f *unwind.Frame) (set, known bool)

	unwind.ImageForgetter
}

// New makes a Stepper. The frames may be nil: of none that is known, then.
func New(frames FrameStates) *Stepper { return &Stepper{frames: frames} }

// isFrameSet is FrameStates.IsFrameSet, where there is one.
func (s *Stepper) isFrameSet(w *unwind.Walker, f *unwind.Frame) (set, known bool) {
	if s.frames == nil {
		return false, false
	}
	return s.frames.IsFrameSet(w, f)
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) {
	s.fields.KeepOnly(isKept)
	if s.frames != nil {
		s.frames.ForgetImages(isKept)
	}
}

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "hotspot" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityFrame - 1 }

// machine returns the virtual machine of the process that w walks, nil when there
// is none.
func (s *Stepper) machine(w *unwind.Walker) *machine {
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.walk != w.Walks() && !vm.stays(w.ProcessState().Libraries()) {
		vm = s.findMachine(w)
		w.Keep(s, vm)
	}
	vm.walk = w.Walks()
	if vm.fields == nil {
		return nil
	}
	return vm
}

// findMachine looks for libjvm. What it returns has no fields when there is none.
func (s *Stepper) findMachine(w *unwind.Walker) *machine {
	return s.machineIn(w.ProcessState(), w.ProcessState().Libraries())
}

// machineIn is findMachine for a process with some memory and libraries.
func (s *Stepper) machineIn(mem procstate.Memory, libs procstate.LibraryState) *machine {
	vm := &machine{mem: mem, asked: vmread.FramesAsked{}}
	vm.live, _ = mem.(procstate.LiveMemory)
	if libs == nil {
		return vm
	}
	vm.generation, _ = vmread.GenerationOf(libs)
	for _, lib := range libs.Libraries() {
		if lib.Image == nil || filepath.Base(lib.Path) != "libjvm.so" {
			continue
		}
		fields := s.fields.Get(lib.Image)
		if fields == nil {
			if fields = findVMFields(lib.Image, lib.Bias, vm.read); fields == nil {
				continue
			}
			s.fields.Put(lib.Image, fields)
		}
		vm.fields, vm.image, vm.bias = fields, lib.Image, lib.Bias
		vm.array, _ = vm.word(fields.heaps + lib.Bias)
		return vm
	}
	return vm
}

// CallerFrame implements unwind.FrameStepper.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image != nil || procstate.HasFile(m.Path) || codeRegsOf(w.Arch()) == nil {
		return unwind.NotMe, nil
	}
	vm := s.machine(w)
	if vm == nil {
		return unwind.NotMe, nil
	}
	arch, b := w.Arch(), vm.blobAt(in.LookupPC())
	if b == nil {
		return unwind.NotMe, nil
	}
	walks := b.jumps || b.fixed && b.frame >= 16 || isWholeStub(arch, b, in)
	if in.Flags&unwind.Interrupted != 0 {
		if thread, ok := in.Regs.Value(codeRegsOf(w.Arch()).thread); ok {
			vm.thread = javaThreadAt{w.Walks(), thread}
		}
	}
	if s.virtual.w == w {
		vm.stack = javaStack{chunks: s.virtual.chunks, walk: w.Walks()}
	}
	number := vm.stack.chunkAt(w, in.SP())
	waits := number >= 0 && in.SP() == vm.stack.chunks[number].sp // a native method may go on behind no call
	if walks && in.Flags&unwind.Interrupted == 0 && in.PC() != b.returned && !waits {
		if !javacode.MayReturnTo(w, in.PC(), s.buf[:]) {
			return unwind.Failed, unwind.NoUnwindInfo // other code has come into this place since
		}
		b.returned = in.PC()
	}
	in.Code = s.codeOf(w, vm, b, in)
	if b.yields {
		vm.stack.yields = w.Walks()
	}
	if number >= 0 {
		return s.inChunk(w, vm, b, number, in, out)
	}
	if b.thaws {
		if v, err := s.thawed(w, vm, in, out); v != unwind.NotMe {
			return v, err
		}
	}
	if in.Flags&unwind.Interrupted != 0 && (b.adapts || b.links && arch.LR == procstate.NoReg) {
		adapted := s.adapted
		if arch.LR == procstate.NoReg {
			adapted = s.adaptedByWord
		}
		if caller, ok := adapted(w, vm, b, in); ok {
			caller.load(w, out)
			out.Regs.ThreadPointer = in.Regs.ThreadPointer
			return unwind.Success, nil
		}
	}
	switch {
	case b.interpreter:
		return s.interpreted(w, vm, b, in, out)
	case !walks && in.Flags&unwind.Interrupted == 0 && s.inEntryBarrier(w, b, in, out):
		return unwind.Success, nil
	case !walks && in.Flags&unwind.Interrupted == 0:
		return unwind.NotMe, nil
	case !walks:
		if _, known := s.isFrameSet(w, in); known {
			return unwind.NotMe, nil
		}
	}
	cfa, fpSaved := in.SP()+b.frame, true
	s.own = *b
	b = &s.own // what else is looked for may take its place
	switch {
	case !walks:
		var ok bool
		if cfa, fpSaved, ok = s.ways.cfa(w, m, in, b); !ok {
			return unwind.NotMe, nil
		}
	case b.jumps:
		cfa, fpSaved = in.SP()+uint64(returnBytes(arch)), false
	case in.Flags&unwind.Interrupted == 0 && arch.LR != procstate.NoReg:
		cfa += s.pushedForCall(w, m, in.PC())
	case in.Flags&unwind.Interrupted == 0 && b.method != 0:
		if stored := s.storedForBarrier(w, m, b, in.PC()); stored != 0 {
			if ra, _, ok := returnOf(w, in, cfa+stored, fpSaved); ok && s.isReturn(w, ra) {
				cfa += stored
			}
		}
	case in.Flags&unwind.Interrupted != 0:
		var ok bool
		if b.complete < 0 {
			cfa, fpSaved, ok = s.interruptedStub(w, m, in, b)
		} else {
			cfa, fpSaved, ok = s.interrupted(w, vm, m, in, b)
		}
		if !ok && (arch.LR != procstate.NoReg || b.complete >= 0) {
			cfa, fpSaved, ok = s.ways.cfa(w, m, in, b)
		}
		if !ok {
			return unwind.Failed, unwind.NoUnwindInfo
		}
	}
	mem := w.ProcessState()
	ra, raAt, ok := returnOf(w, in, cfa, fpSaved)
	if ok && in.Flags&unwind.Interrupted != 0 && walks && b.complete >= 0 && !s.isReturn(w, ra) {
		if way, saved, known := s.ways.cfa(w, m, in, b); known {
			cfa, fpSaved = way, saved
			ra, raAt, ok = returnOf(w, in, cfa, fpSaved)
		}
	}
	if fp, known := in.Regs.Value(arch.FP); known && b.complete < 0 && fp-in.SP() < b.frame && fp%8 == 0 && !(ok && s.isReturn(w, ra)) {
		// A stub that makes frames anew where a method is given up aligns SP before its call.
		cfa, fpSaved = fp+16, true
		ra, raAt, ok = returnOf(w, in, cfa, fpSaved)
	}
	if !ok {
		return unwind.Failed, unwind.ReadFailure(mem, cfa-8)
	}
	if !s.isReturn(w, ra) {
		return unwind.Failed, unwind.BadPC
	}
	fp, fpKnown := in.Regs.Value(arch.FP)
	out.FPLocation = in.FPLocation
	if fpSaved {
		if fp, fpKnown = mem.ReadWord(cfa - 16); !fpKnown {
			return unwind.Failed, unwind.ReadFailure(mem, cfa-16)
		}
		out.FPLocation = unwind.InMemory(cfa - 16)
	}
	out.SetPC(arch, ra)
	out.SetSP(arch, cfa)
	if fpKnown {
		out.SetFP(arch, fp)
	}
	out.PCLocation = raAt
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	return unwind.Success, nil
}

// isWholeStub reports whether a frame of a stub is whole while it calls: the frame pointer points to where that and the
// return address are saved, which is where the size of the frame has them.
func isWholeStub(a *procstate.Arch, b *codeBlob, f *unwind.Frame) bool {
	fp, known := f.Regs.Value(a.FP)
	return f.Flags&unwind.Interrupted == 0 && b.frame >= 16 && known && fp == f.SP()+b.frame-16
}

// returnBytes is how much of the stack a return takes.
func returnBytes(a *procstate.Arch) int32 {
	if a.LR != procstate.NoReg {
		return 0
	}
	return int32(a.AddressWidth)
}

// returnOf returns where a frame with a CFA returns to, and where that is: in the word below the CFA, or on AArch64,
// which saves both together, in the link register as long as the frame pointer is not saved.
func returnOf(w *unwind.Walker, f *unwind.Frame, cfa uint64, fpSaved bool) (ra uint64, at unwind.Location, ok bool) {
	if lr := w.Arch().LR; !fpSaved && lr != procstate.NoReg {
		ra, ok = f.Regs.Value(lr)
		return w.CodeAddress(ra), unwind.InRegister(lr), ok
	}
	ra, ok = w.ProcessState().ReadWord(cfa - 8)
	return w.CodeAddress(ra), unwind.InMemory(cfa - 8), ok
}

// isReturn reports whether ra may be a return address, as far as it is in a file: of others
// the next frame tells.
func (s *Stepper) isReturn(w *unwind.Walker, ra uint64) bool {
	to := w.MappingAt(ra - 1)
	return to != nil && to.Image == nil || javacode.MayReturnTo(w, ra, s.buf[:])
}

// interrupted finds the CFA of the frame of b in which a thread was interrupted,
// which may not be whole, and whether the frame pointer is saved: what the
// instructions up to the place where it is, or those up to a return that is
// near, do to the stack.
func (s *Stepper) interrupted(w *unwind.Walker, vm *machine, m *procstate.Mapping, f *unwind.Frame, b *codeBlob) (cfa uint64, fpSaved, ok bool) {
	arch, pc := w.Arch(), f.PC()
	whole := b.begin + uint64(b.complete)
	code := mcode.Read(w, m, pc, s.buf[:min(uint64(len(s.buf)), b.end-pc)])
	at := firstPathState(arch, pc)
	ret := returnBytes(arch)
	var in isa.Inst
	steady := mcode.PathValue{Base: mcode.PathSP} // where SP is but for words that are moved by way of the stack
	for n := 0; ; n++ {
		sp := at.Regs[arch.SP]
		if sp.Base != mcode.PathSP || sp.InMemory {
			// Around its call a native method aligns SP.
			if cfa := f.SP() + uint64(steady.Off) + b.frame; pc >= whole && f.FP() == cfa-16 {
				return cfa, true, true
			}
			return 0, false, false
		}
		steady.Off = max(steady.Off, sp.Off)
		if pc < whole && at.PC >= whole {
			return frameAt(&at, arch, sp.Plus(int64(b.frame)), f.SP(), false)
		}
		if n >= maxWayOut && pc >= whole {
			break
		}
		if !mcode.Decode(arch, code, at.PC, &in) {
			if pc < whole || len(code) == 0 {
				return 0, false, false
			}
			break
		}
		code = code[in.Len:]
		switch {
		case in.Flow == isa.Return:
			return frameAt(&at, arch, sp.Plus(int64(ret)), f.SP(), true)
		case in.Flow == isa.Jump && pc < whole && sp.Off == 0 && in.Target-b.begin >= b.end-b.begin:
			return frameAt(&at, arch, sp.Plus(int64(ret)), f.SP(), true) // the method is not to be entered any more
		case in.Flow == isa.Jump && pc >= whole && at.Regs[arch.FP] == mcode.PathValue{Base: mcode.PathSP, InMemory: true, Off: sp.Off + ret - 16}:
			return frameAt(&at, arch, sp.Plus(int64(ret)), f.SP(), true) // the frame has been taken down, FP last
		case ret == 0 && pc >= whole && vm.pollsAt(b, &in, &at):
			return frameAt(&at, arch, sp, f.SP(), true)
		case in.Flow == isa.IndirectJump, in.Flow == isa.Jump && in.Target-b.begin >= b.end-b.begin:
			return 0, false, false // to other code, with or without this frame
		case in.Flow == isa.Jump && pc < whole && in.Target-at.PC <= uint64(len(code)) && in.Target > at.PC && arch.LR != procstate.NoReg:
			code = code[in.Target-at.PC-uint64(in.Len):] // over a word of the entry barrier
			at.PC = in.Target
			continue
		case in.Flow == isa.Jump && pc < whole:
			return 0, false, false
		case pc >= whole && (in.Ends() || in.Flow == isa.Call || in.Flow == isa.IndirectCall):
			return frameAt(&at, arch, steady.Plus(int64(b.frame)), f.SP(), false)
		}
		at.Apply(arch, &in)
		at.PC += uint64(in.Len)
		if after := at.Regs[arch.SP]; pc >= whole && after.Base == mcode.PathSP && after.Off > sp.Off+16-ret {
			// The way out begins: the frame is whole before it.
			return f.SP() + uint64(sp.Off) + b.frame, true, true
		}
	}
	return frameAt(&at, arch, steady.Plus(int64(b.frame)), f.SP(), false)
}

// firstPathState is mcode.FirstPathState, with the link register where there is one.
func firstPathState(a *procstate.Arch, pc uint64) mcode.PathState {
	s := mcode.FirstPathState(a, pc)
	if a.LR != procstate.NoReg {
		s.Regs[a.LR] = mcode.PathValue{Base: mcode.PathLR}
	}
	return s
}

// interruptedStub is interrupted for a stub of which it is not noted where its
// frame is whole: it is followed from its start. Behind a way out it is whole.
func (s *Stepper) interruptedStub(w *unwind.Walker, m *procstate.Mapping, f *unwind.Frame, b *codeBlob) (cfa uint64, fpSaved, ok bool) {
	arch, pc := w.Arch(), f.PC()
	if pc-b.begin >= uint64(len(s.buf)) {
		return 0, false, false
	}
	code := mcode.Read(w, m, b.begin, s.buf[:min(uint64(len(s.buf)), b.end-b.begin)])
	at := mcode.FirstPathState(arch, b.begin)
	ret := returnBytes(arch)
	steady := mcode.PathValue{Base: mcode.PathSP, Off: ret - int32(b.frame)}
	whole, saved := false, false // the frame is; FP is, below the return address
	var in isa.Inst
	for at.PC < pc {
		if !mcode.Decode(arch, code, at.PC, &in) {
			return 0, false, false
		}
		code = code[in.Len:]
		at.Apply(arch, &in)
		at.PC += uint64(in.Len)
		sp := at.Regs[arch.SP]
		if sp.Base != mcode.PathSP || sp.InMemory {
			return 0, false, false
		}
		slot := at.WordAt(mcode.PathValue{Base: mcode.PathSP, Off: ret - 16})
		saved = whole || slot.Base == mcode.PathFP && !slot.InMemory
		whole = whole || saved && sp == steady
		if in.Ends() {
			if !whole {
				return 0, false, false
			}
			at.Regs[arch.SP] = steady
		}
	}
	sp := at.Regs[arch.SP].Off
	if at.PC != pc || sp > 0 {
		return 0, false, false // or the return address is popped
	}
	return f.SP() + uint64(ret-sp), saved && sp <= ret-16, true
}

// javaRegs are the registers of a frame that Java's code finds its own and its caller's by. fp is 0 where it is of no use.
type javaRegs struct {
	pc, sp, fp uint64
	pcAt       unwind.Location
}

// load sets the registers of a frame.
func (r javaRegs) load(w *unwind.Walker, to *unwind.Frame) {
	arch := w.Arch()
	to.SetPC(arch, r.pc)
	to.SetSP(arch, r.sp)
	if r.fp != 0 {
		to.SetFP(arch, r.fp)
	}
	to.PCLocation = r.pcAt
}

// interpreted walks from a frame of the interpreter in which there is the caller's SP
// already, but not yet the rest of what javacode.SenderSP looks at: from one that a thread was
// building when it was interrupted, and from those that take the place of a compiled
// method that is deoptimised, which are filled in later. Others are FrameFunc's.
func (s *Stepper) interpreted(w *unwind.Walker, vm *machine, b *codeBlob, in, out *unwind.Frame) (unwind.Verdict, error) {
	if _, caller, ok := s.entered(w, vm, b, in); ok {
		caller.load(w, out)
		out.Regs.ThreadPointer = in.Regs.ThreadPointer
		return unwind.Success, nil
	}
	fp, sp := in.FP(), in.SP()
	if fp < sp+javacode.SenderWord || fp%8 != 0 {
		return unwind.NotMe, nil
	}
	if s.endsThawed(w, vm, in, out) {
		return unwind.Success, nil
	}
	isWhole := fp-sp >= vm.fields.interp.InitialSP
	if in.Flags&unwind.Interrupted != 0 {
		if set, _ := s.isFrameSet(w, in); isWhole || !set {
			return unwind.NotMe, nil
		}
	} else if _, _, ok := javacode.SenderSP(w, sp, fp); ok || !isWhole {
		return unwind.NotMe, nil
	}
	arch, mem := w.Arch(), w.ProcessState()
	callerFP, ok1 := mem.ReadWord(fp)
	pc, ok2 := mem.ReadWord(fp + 8)
	sender, ok3 := mem.ReadWord(fp - javacode.SenderWord)
	sender, ok := javacode.CallersSP(arch, fp, sender)
	if !ok1 || !ok2 || !ok3 || !ok {
		return unwind.NotMe, nil
	}
	out.SetPC(arch, w.CodeAddress(pc))
	out.SetSP(arch, sender)
	out.SetFP(arch, callerFP)
	out.PCLocation, out.FPLocation = unwind.InMemory(fp+8), unwind.InMemory(fp)
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	return unwind.Success, nil
}

// maxWayOut is how many instructions before a return the frame may not be whole
// any more.
const maxWayOut = 12

// frameAt finds the CFA from the state where it is known relative to SP; left tells that the frame is taken down there.
func frameAt(at *mcode.PathState, arch *procstate.Arch, cfa mcode.PathValue, sp uint64, left bool) (addr uint64, fpSaved, ok bool) {
	if cfa.Base != mcode.PathSP || cfa.InMemory || cfa.Off < returnBytes(arch) {
		return 0, false, false
	}
	if lr := arch.LR; lr != procstate.NoReg {
		link, pending := mcode.PathValue{Base: mcode.PathLR}, at.WordAt(cfa.Plus(-8)) // it will be saved
		return sp + uint64(cfa.Off), pending != link && !(left && at.Regs[lr] == link), true
	}
	slot := at.WordAt(cfa.Plus(-16))
	fp := at.Regs[arch.FP]
	pending := slot.Base == mcode.PathFP && !slot.InMemory // it will be saved
	kept := fp.Base == mcode.PathFP && !fp.InMemory && cfa.Off == 8
	return sp + uint64(cfa.Off), !pending && !kept, true
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, _ uint64, _ bool) (*unwind.Rule, bool) {
	return unwind.RuleNotMe, m.Image != nil
}
