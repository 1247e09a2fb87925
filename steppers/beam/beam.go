package beam

import (
	"debug/elf"
	"slices"
	"strings"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper walks from functions of Erlang that BeamAsm, the compiler in Erlang's runtime system, has made, on
// x86-64 and AArch64, and notes which they are (see unwind.Codes). They run on the stack of their Erlang process, which
// lies at the end of its heap. The first of them is run by the scheduler, whose own stack goes on where its
// thread has left it.
//
// What an Erlang process has on its stack are terms, which are tagged, and return addresses, which are not:
// above a function that has called another the next of these is the one (erts/emulator/beam/beam_common.c,
// gather_stacktrace, finds it so). Where a function was interrupted, or has called code of the runtime's own,
// its stack may hold anything, and its code tells. A [Collector] copies the stack of
// the Erlang process where a function of C runs on the scheduler's, or the kernel side does (see [Stepper.Lacked]).
type Stepper struct {
	images mcode.PerImage[imageInfo]
}

// New makes a Stepper.
func New() *Stepper { return &Stepper{} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "beam" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// imageInfo is what is known of a file that may be the runtime system: link-time addresses, 0 where they are not exported.
type imageInfo struct {
	descriptor, schedulers, count uint64
	main                          mcode.Range // of process_main
	code, data                    mcode.Range // none: it is not the runtime system
}

// image returns what is known of a file.
func (s *Stepper) image(im *procstate.Image) *imageInfo { return s.images.Known(im, findImage) }

// findImage looks for the runtime system in a file. It exports all that it has to libraries of
// functions for Erlang; that of OTP 29 no more than these are meant to use.
func findImage(im *procstate.Image) (p imageInfo) {
	if archOf(im.Arch()) == nil {
		return p
	}
	for _, name := range []string{"enif_self", "driver_output", "erl_drv_thread_create"} {
		if _, ok := im.ExportedSymbol(name); !ok {
			return p
		}
	}
	for _, seg := range im.Segments() {
		switch segment := (mcode.Range{Start: seg.Vaddr, End: seg.Vaddr + seg.Memsz}); {
		case seg.Flags&elf.PF_X != 0:
			p.code = segment
		case seg.Flags&elf.PF_W != 0 && seg.Memsz <= maxData:
			p.data = segment
		}
	}
	for _, v := range []struct {
		name string
		at   *uint64
	}{
		{"process_main", &p.main.Start}, {"erts_aligned_scheduler_data", &p.schedulers},
		{"erts_no_schedulers", &p.count}, {"__jit_debug_descriptor", &p.descriptor},
	} {
		if sym, ok := im.ExportedSymbol(v.name); ok {
			if *v.at = sym.Value; v.at == &p.main.Start {
				p.main.End = sym.Value + sym.Size
			}
		}
	}
	return p
}

// machine is what is known of the runtime system of a process.
type machine struct {
	*runtime // nil: there is none
	vmread.Memory
	vmread.Found

	now     vmread.Reader // of memory as it is now
	updated time.Time

	// What the walk has come to: the frame with these, of which the callee was a function of Erlang.
	calledPC, calledSP uint64

	lacks   bool   // the stack of the Erlang process was not copied
	stack   uint64 // where the scheduler's stack goes on
	asked   vmread.FramesAsked
	scheds  map[uint64][]byte // what is on the stacks of schedulers above Erlang's registers, by where they go on
	returns map[uint64]place  // by PC
	codes   map[uint64]uint32 // numbers in unwind.Codes, by PC
	funcs   map[string]*unwind.CodeFunction
	resets  int // of unwind.Codes, when these began
	gone    int // of the code

	call [mcode.MaxCallLen]byte // code before a return address
}

// place is what was found out of an instruction of a module.
type place struct {
	module *loadedModule
	returnPlace
}

// Limits on what is kept of a process.
const (
	maxReturns = 1 << 15
	maxCodes   = 1 << 17
	maxScheds  = 1 << 11

	interval   = 100 * time.Millisecond // after which the list of code is looked at again
	stackBytes = 4 << 10                // that schedulers have on their stacks at most, before they run Erlang
	mostWay    = 16                     // bytes of a way to what is far
	erlang     = "erlang"
)

// machine returns the runtime system of the process that w walks, nil when there is none.
func (s *Stepper) machine(w *unwind.Walker) *machine {
	vm, isNew := vmread.MachineOf(w, s, s.findMachine)
	if isNew {
		vm.lacks, vm.calledPC = false, 0
	}
	if vm.runtime == nil {
		return nil
	}
	return vm
}

// findMachine looks for the runtime system, which may be the one that is known.
func (s *Stepper) findMachine(w *unwind.Walker, libs procstate.LibraryState, known *machine) *machine {
	rt := find(libs, s.image)
	if known != nil && known.runtime != nil && rt != nil && rt.data == known.data && known.Captured != nil {
		return known
	}
	vm := &machine{runtime: rt, Memory: vmread.MemoryOf(w), asked: vmread.FramesAsked{}, scheds: map[uint64][]byte{}, returns: map[uint64]place{}}
	vm.now = vm.ReadNow
	return vm
}

// rangeAt returns the code at an address.
func (vm *machine) rangeAt(addr uint64) (m *loadedModule, r *codeRange) {
	if m, r = vm.code.at(vm.now, addr); r != nil && vm.isLaidOut && time.Since(vm.updated) < interval {
		return m, r
	}
	if r == nil || time.Since(vm.updated) >= interval {
		vm.updated = time.Now()
		if !vm.update(vm.now) {
			return nil, nil
		}
		m, r = vm.code.at(vm.now, addr)
	}
	return m, r
}

// wasThere reports whether the code in the place of a module, where another was before, was that module's at the time that
// is walked.
func (vm *machine) wasThere(m *loadedModule) bool {
	at := vm.Times()
	if m.valid.IsDue(at) && vm.update(vm.now) {
		if now, _ := vm.code.at(vm.now, m.start); now == m && vm.code.isTold(vm.now, m) {
			m.valid.Read(at, true)
		}
	}
	return m.valid.Holds(at)
}

// CallerFrame implements unwind.FrameStepper.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	pc := in.LookupPC()
	m := w.MappingAt(pc)
	if m == nil || m.Image != nil || archOf(w.Arch()) == nil {
		return unwind.NotMe, nil
	}
	vm := s.machine(w)
	if vm == nil {
		return unwind.NotMe, nil
	}
	module, function := vm.rangeAt(pc)
	if function == nil {
		return unwind.NotMe, nil
	}
	isCalled := in.Flags&unwind.Interrupted == 0 && vm.calledPC == in.PC() && vm.calledSP == in.SP()
	if module.replaces && !vm.wasThere(module) {
		if in.Code = vm.codeOf(w, in, &notRead); !isCalled {
			return unwind.Failed, unwind.NoUnwindInfo
		}
	} else {
		in.Code = vm.codeOf(w, in, function)
	}
	if function.name == processMain || vm.isExit(function) {
		return vm.scheduler(w, in, out)
	}
	var back back
	if isCalled {
		at, ok := vm.scan(vm.stackPointer(in))
		if !ok {
			return unwind.Failed, vm.missing(w, at)
		}
		back.found(at)
	} else {
		var err error
		if back, err = vm.follow(w, in, module); err == unwind.NoUnwindInfo && vm.isEntered(in, module, function) {
			back, err = vm.atEntry(in), nil
		}
		if err != nil {
			return unwind.Failed, err
		}
	}
	ra, ok := uint64(0), true
	if back.isInRegister {
		ra, ok = in.Regs.Value(back.reg)
	} else if ra, ok = vm.Word(back.at); !ok {
		return unwind.Failed, vm.missing(w, back.at)
	}
	if !ok {
		return unwind.Failed, unwind.NoUnwindInfo
	}
	if ra == vm.code.exit {
		return vm.scheduler(w, in, out)
	}
	if _, r := vm.rangeAt(ra - 1); r == nil {
		if vm.isLast(in, back.at) {
			return vm.scheduler(w, in, out)
		}
		return unwind.Failed, unwind.BadPC
	}
	arch := w.Arch()
	out.Regs = in.Regs
	out.SetPC(arch, ra)
	out.SetSP(arch, back.sp)
	out.PCLocation = unwind.InMemory(back.at)
	if back.isInRegister {
		out.PCLocation = unwind.Location{}
		if in.IsTop() {
			out.PCLocation = unwind.InRegister(back.reg)
		}
	}
	if at := back.at; vm.code.hasFramePointers && (in.Flags&unwind.Interrupted == 0 || in.FP() == at-8) { // else there is no frame: not yet, or no more
		fp, ok := vm.Word(at - 8)
		if !ok {
			return unwind.Failed, unwind.ReadFailure(w.ProcessState(), at-8)
		}
		out.SetFP(arch, fp)
		out.FPLocation = unwind.InMemory(at - 8)
	}
	if back.sp <= in.SP() || back.sp-in.SP() > maxFrame {
		out.Flags |= unwind.StackSwitched
	}
	if vm.arch.isLinked {
		vm.setRegisters(in, out, back.sp)
	}
	if !vm.code.isShared(module) {
		vm.calledPC, vm.calledSP = ra, back.sp
	}
	return unwind.Success, nil
}

// isExit reports whether code is what the first function of an Erlang process returns to, in which that ends, with
// nothing on its stack.
func (vm *machine) isExit(r *codeRange) bool {
	_, exit := vm.code.at(vm.now, vm.code.exit)
	return exit != nil && exit.name == r.name
}

// back is where a frame returns to: where it has the address of that, and the process's stack pointer then.
type back struct {
	at, sp       uint64
	reg          procstate.Reg
	isInRegister bool
}

// found sets where the return address is on the process's stack.
func (b *back) found(at uint64) { b.at, b.sp = at, at+8 }

// atEntry is the back of a function that has just been called.
func (vm *machine) atEntry(in *unwind.Frame) (b back) {
	if sp := vm.stackPointer(in); !vm.arch.isLinked {
		b.found(sp)
	} else {
		b = back{sp: sp, reg: vm.arch.LR, isInRegister: true}
	}
	return b
}

// stackPointer returns the process's stack pointer.
func (vm *machine) stackPointer(in *unwind.Frame) uint64 {
	if vm.arch.stack == vm.arch.SP {
		return in.SP()
	}
	return in.Regs.Raw(vm.arch.stack)
}

// setRegisters sets the registers of a frame with a stack pointer of its own besides that of the process, by which
// it is told from others: its own is where the scheduler's stack goes on, and so is the frame pointer.
func (vm *machine) setRegisters(in, out *unwind.Frame, sp uint64) {
	out.Regs.Set(vm.arch.stack, sp)
	registers, ok := in.Regs.Value(vm.arch.registers)
	if !ok {
		return
	}
	out.SetFP(vm.arch.Arch, registers-vm.registers)
	out.Regs.Set(vm.arch.SP, registers-vm.registers)
}

// scan returns where the return address is of a function of Erlang that has called another, with the
// stack pointer at sp.
func (vm *machine) scan(sp uint64) (at uint64, ok bool) {
	const tag = 3 // bits; all terms on stacks have some of them
	for at = sp; at-sp < maxFrame; at += 8 {
		word, ok := vm.Word(at)
		if !ok {
			return at, false
		}
		if word&tag == 0 && (word != 0 || vm.code.hasFramePointers) { // in place of the address of what has raised an exception there may be none
			if vm.code.hasFramePointers {
				at += 8
			}
			return at, true
		}
	}
	return at, false
}

// follow returns where a frame returns to by its code.
func (vm *machine) follow(w *unwind.Walker, in *unwind.Frame, module *loadedModule) (b back, err error) {
	key := in.PC() << 1
	if in.Flags&unwind.Interrupted != 0 {
		key |= 1
	}
	r, known := vm.returns[key]
	if !known || r.module != module {
		r = place{module, vm.paths.returnAddress(in.PC())}
		if len(vm.returns) >= maxReturns {
			clear(vm.returns)
		}
		vm.returns[key] = r
	}
	if !r.ok {
		return b, unwind.NoUnwindInfo
	}
	switch r.at.base {
	case ofLink, ofKept:
		b.isInRegister, b.reg = true, vm.arch.LR
		if r.at.base == ofKept {
			b.reg = linkedKept
		} else if in.Flags&unwind.Interrupted == 0 { // what it has called is in the register
			return b, unwind.NoUnwindInfo
		}
		b.sp, err = vm.valueOf(w, in, r.sp)
		return b, err
	case ofFP:
		fp, ok := in.Regs.Value(vm.arch.FP)
		if ok && !vm.arch.isLinked && in.Flags&unwind.Interrupted == 0 && vm.isBeingMoved(in, fp) {
			if at, ok := vm.scan(in.SP()); ok {
				b.found(at)
				return b, nil
			}
		}
	}
	at, err := vm.valueOf(w, in, r.at)
	if err != nil {
		return b, err
	}
	if at%8 != 0 {
		return b, unwind.BadPC
	}
	vm.noteStack(in)
	if b.found(at); r.sp.base != unknown {
		b.sp, err = vm.valueOf(w, in, r.sp)
		return b, err
	}
	if !r.isAbove && len(r.guesses) == 0 {
		return b, nil
	}
	from := at - uint64(int64(r.at.off))
	at, ok := vm.scan(at)
	if !ok {
		return b, vm.missing(w, at)
	}
	isGuessed := func(v value) bool {
		guess := from + uint64(int64(v.off))
		return guess == at || vm.code.hasFramePointers && guess == at-8 // where it goes on elsewhere with its frame
	}
	if !r.isAbove && !slices.ContainsFunc(r.guesses, isGuessed) {
		return b, unwind.NoUnwindInfo
	}
	b.found(at)
	return b, nil
}

// valueOf returns what a value is in a frame.
func (vm *machine) valueOf(w *unwind.Walker, in *unwind.Frame, v value) (at uint64, err error) {
	ok := false
	switch v.base {
	case ofSP:
		at, ok = vm.stackPointer(in), true
	case ofNative:
		at, ok = in.Regs.Value(vm.arch.SP)
	case ofFP:
		at, ok = in.Regs.Value(vm.arch.FP)
	case ofProcess:
		p, known := in.Regs.Value(vm.arch.process)
		if !known {
			break
		}
		word := p + uint64(int64(v.word))
		if at, ok = vm.Word(word); !ok {
			vm.noteStack(in)
			return 0, vm.missing(w, word)
		}
	}
	if !ok {
		return 0, unwind.NoUnwindInfo
	}
	return at + uint64(int64(v.off)), nil
}

// isEntered reports whether code has on top of the stack, or in the link register, where it returns to: behind a call of
// the very instruction that comes next, as is a jump to code of the runtime's own at the end of a module, or behind a call
// of such code, maybe by such a jump, which may be about to take that away, and go on elsewhere.
func (vm *machine) isEntered(in *unwind.Frame, module *loadedModule, r *codeRange) bool {
	ra, ok := uint64(0), false
	if vm.arch.isLinked {
		ra, ok = in.Regs.Value(vm.arch.LR)
		ok = ok && in.Flags&unwind.Interrupted != 0
	} else {
		ra, ok = vm.Word(in.SP())
	}
	if !ok || !vm.now(ra-mcode.MaxCallLen, vm.call[:]) {
		return false
	}
	target, direct, ok := mcode.CallBefore(vm.arch.Arch, vm.call[:], ra)
	if !ok || !direct {
		return false
	}
	var jump isa.Inst
	switch {
	case vm.arch.isLinked:
		if strings.HasSuffix(r.name, footer) && in.PC()-target < mostWay {
			return true
		}
		e := explorer{pathFinder: &vm.paths}
		target = e.through(target)
	case target != in.PC() && isa.DecodeAMD64(vm.paths.codeAt(target), target, &jump) && jump.Flow == isa.Jump:
		target = jump.Target
	}
	return target == in.PC() || target == r.start && vm.code.isShared(module) && !vm.code.hasFramePointers
}

// missing tells why a word was not read that is not in what was captured, and has the capture know of it.
func (vm *machine) missing(w *unwind.Walker, at uint64) error {
	vm.lacks = true
	_, _ = vm.Mem.ReadWord(at)
	return unwind.ReadFailure(w.ProcessState(), at)
}

// isLast reports whether a word is the last of an Erlang process's stack, where the first function called returns to.
// When a heap has been given up, and the process still has the bounds of it, something else may be there already.
func (vm *machine) isLast(in *unwind.Frame, at uint64) bool {
	process, ok1 := in.Regs.Value(vm.arch.process)
	registers, ok2 := in.Regs.Value(vm.arch.registers)
	if !ok1 || !ok2 {
		return false
	}
	vm.findSchedulers(vm.now)
	scheduler := vm.byStack[registers-vm.registers]
	if scheduler == 0 || !vm.knowsFields(vm.now, scheduler) {
		return false
	}
	end, ok := vm.Word(process + vm.end)
	return ok && end == at+8
}

// isBeingMoved reports whether a frame on the stack of the Erlang process has a frame pointer that belongs to
// no frame there: the stack has just been moved to another heap, and the frame pointers on it are not right yet.
func (vm *machine) isBeingMoved(in *unwind.Frame, fp uint64) bool {
	p, _ := in.Regs.Value(vm.arch.process)
	stop, ok := vm.Word(p + vm.stop)
	sp := in.SP()
	return ok && stop <= sp && sp-stop < maxStack && fp-sp >= maxFrame
}

// noteStack takes note of where the stack of the scheduler goes on.
func (vm *machine) noteStack(in *unwind.Frame) {
	if r, ok := in.Regs.Value(vm.arch.registers); ok {
		vm.stack = r - vm.registers
	}
}

// codeOf returns the number of what runs in a frame.
func (vm *machine) codeOf(w *unwind.Walker, in *unwind.Frame, r *codeRange) uint32 {
	codes := w.Codes()
	if vm.codes == nil || vm.resets != codes.Resets() || vm.gone != vm.code.gone || len(vm.codes) >= maxCodes {
		vm.codes, vm.funcs = map[uint64]uint32{}, map[string]*unwind.CodeFunction{}
		vm.resets, vm.gone = codes.Resets(), vm.code.gone
	}
	pc := in.LookupPC()
	key := pc
	if r == &notRead {
		key = ^pc
	}
	n, known := vm.codes[key]
	if known {
		if lines := codes.Lines(n); len(lines) > 0 && lines[0].SystemName == r.name {
			return n
		}
	}
	file, line := r.lineAt(pc)
	f := vm.funcs[r.name]
	if f == nil || f.File != file {
		f = &unwind.CodeFunction{Name: r.name, SystemName: r.name, File: file, Runtime: erlang}
		vm.funcs[r.name] = f
	}
	n = codes.Add(r.start, []unwind.CodeLine{{CodeFunction: f, Line: line, IsCompiled: r != &notRead}}, 0)
	vm.codes[key] = n
	return n
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, _ uint64, _ bool) (*unwind.Rule, bool) {
	return unwind.RuleNotMe, m == nil || m.Image != nil
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }
