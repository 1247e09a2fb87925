package hotspot

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/javacode"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// On AArch64 a method has its return address in the link register until its frame is there, and again when that is gone.
// The interpreter makes the frame of a method (TemplateInterpreterGenerator::generate_fixed_frame) with one instruction
// that saves the frame pointer and this register, the next one that sets the frame pointer, and a later one that notes
// what SP the caller had.

// linkedPlace is how far the interpreter is with a frame where it has reached a PC.
type linkedPlace struct {
	pc, begin uint64 // of the code around it
	state     linkedState
	off       int32 // linkedLeaf: what a return adds to SP
}

type linkedState uint8

const (
	linkedNot      linkedState = iota // the frame is there, or nothing is known
	linkedEntering                    // there is none yet,
	linkedBuilding                    // the frame pointer points into it, but not all is there
	linkedLeaving                     // it is gone but for where SP points to: the frame pointer and the return address
	linkedLeft                        // and those too; a register has the caller's SP
	linkedLeaf                        // there will be none
)

// Instructions of these, and how many of them may be between the place and what tells it.
const (
	armSavesLink     = 0xa9057bfd // stp x29,x30,[sp,#80]
	armSetsFrame     = 0x910143fd // add x29,sp,#80
	armNotesSender   = 0xa90437ff // stp xzr,x13,[sp,#64]
	armNotesSender21 = 0xa9044fff // stp xzr,x19,[sp,#64]

	maxLinkedEntry = 160
	maxLinkedWay   = 48 // to a return
)

// enteredByLink is entered for AArch64. The method is nil where execution has left it, or it has no frame ever.
func (s *Stepper) enteredByLink(w *unwind.Walker, vm *machine, b *codeBlob, f *unwind.Frame) (m *javaMethod, caller javaRegs, ok bool) {
	if f.Flags&unwind.Interrupted == 0 || !b.interpreter || vm.fields.method == nil {
		return nil, caller, false
	}
	arch, regs, mem := w.Arch(), codeRegsOf(w.Arch()), w.ProcessState()
	place := s.linkedAt(w, b, f.PC())
	lr, ok := f.Regs.Value(arch.LR)
	caller = javaRegs{w.CodeAddress(lr), f.SP(), f.FP(), unwind.InRegister(arch.LR)}
	from := regs.senderOf(vm)
	switch place.state {
	case linkedNot:
		return nil, caller, false
	case linkedLeaf:
		caller.sp += uint64(int64(place.off))
		return nil, caller, ok && javacode.MayReturnTo(w, caller.pc, s.buf[:])
	case linkedBuilding:
		caller.fp, _ = mem.ReadWord(f.FP())
	case linkedLeaving:
		caller.fp, _ = mem.ReadWord(f.SP())
		lr, ok = mem.ReadWord(f.SP() + 8)
		caller.pc, caller.pcAt = w.CodeAddress(lr), unwind.InMemory(f.SP()+8)
		caller.sp += 16
		from = regs.operands
	case linkedLeft:
		from = regs.operands
	default:
	}
	// That of an interpreted caller may be lower, see javacode.SenderSP.
	if sender, known := f.Regs.Value(from); known && sender > caller.sp && sender-caller.sp <= javacode.MaxLocals {
		caller.sp = sender &^ 15
	}
	if place.state == linkedEntering || place.state == linkedBuilding {
		method, _ := f.Regs.Value(regs.method)
		if m = vm.methodAt(method); m == nil {
			return nil, caller, false
		}
	}
	return m, caller, ok && javacode.MayReturnTo(w, caller.pc, s.buf[:])
}

// pollsAt reports whether an instruction of b jumps to where a thread waits for a safepoint that has polled at a return, when
// its frame is gone (C2SafepointPollStub).
func (vm *machine) pollsAt(b *codeBlob, in *isa.Inst, at *mcode.PathState) bool {
	target := in.Target
	switch {
	case in.Flow == isa.IndirectJump && in.Reg < procstate.MaxRegs && at.Word>>in.Reg&1 == 0:
		target = at.Known[in.Reg]
	case in.Flow != isa.Jump:
		return false
	}
	if target == 0 || target-b.begin < b.end-b.begin {
		return false
	}
	to := vm.blobAt(target)
	return to != nil && vm.blobName(to) == "SafepointBlob"
}

// pushedForCall returns how many bytes of AArch64's stack beneath a frame code has pushed that goes on at pc when its call
// returns (MacroAssembler::call_VM_leaf_base).
func (s *Stepper) pushedForCall(w *unwind.Walker, m *procstate.Mapping, pc uint64) uint64 {
	const pops = 0xa8c133e8 // ldp x8,x12,[sp],#16
	if code := mcode.Read(w, m, pc, s.buf[:4]); len(code) == 4 && binary.LittleEndian.Uint32(code) == pops {
		return 16
	}
	return 0
}

// adapted is where execution goes back to from b, an adapter between interpreted and compiled callers and callees, in
// which f was interrupted on AArch64 (SharedRuntime::gen_i2c_adapter, gen_c2i_adapter). It jumps to what is called, and
// moves SP for its arguments, which for an interpreted method it notes before.
func (s *Stepper) adapted(w *unwind.Walker, vm *machine, b *codeBlob, f *unwind.Frame) (caller javaRegs, ok bool) {
	const (
		noted   = 0x910003ed // mov x13,sp
		noted21 = 0x910003f3 // mov x19,sp
		leaves  = 0xa8c17bfd // ldp x29,x30,[sp],#16, of a call that patches the caller
		saves   = 0xa9bf7bfd // stp x29,x30,[sp,#-16]!, at the beginning of that
	)
	arch, regs, pc := w.Arch(), codeRegsOf(w.Arch()), f.PC()
	lr, ok := f.Regs.Value(arch.LR)
	caller = javaRegs{w.CodeAddress(lr), f.SP(), f.FP(), unwind.InRegister(arch.LR)}
	end := b.end // what is looked for may take its place
	from := vm.blobAt(caller.pc - 1)
	if !ok || from == nil || !javacode.MayReturnTo(w, caller.pc, s.buf[:]) {
		return caller, false
	}
	var buf [4 * maxLinkedEntry]byte
	code := mcode.Read(w, w.MappingAt(pc), pc, buf[:min(uint64(len(buf)), end-pc)])
	var in isa.Inst
	for ; mcode.Decode(arch, code, pc, &in); code = code[4:] {
		switch word := binary.LittleEndian.Uint32(code); {
		case word == saves, word == noted, word == noted21:
			return caller, true
		case word == leaves, in.Flow == isa.Return, in.Flow == isa.Trap:
			return caller, false
		case in.Flow == isa.IndirectJump:
			if !from.interpreter {
				sender, _ := f.Regs.Value(regs.senderOf(vm))
				ok = sender >= caller.sp && sender-caller.sp <= javacode.MaxLocals && sender%16 == 0
				caller.sp = sender
			}
			return caller, ok
		}
		pc += 4
	}
	return caller, false
}

// linkedAt finds how far the code of the interpreter, b, is at a PC.
func (s *Stepper) linkedAt(w *unwind.Walker, b *codeBlob, pc uint64) linkedPlace {
	place := &s.linked[pc*0x9e3779b97f4a7c15>>(64-8)]
	if place.pc == pc && place.begin == b.begin {
		return *place
	}
	*place = linkedPlace{pc: pc, begin: b.begin}
	var buf [4 * maxLinkedEntry]byte
	code := mcode.Read(w, w.MappingAt(pc), pc, buf[:min(uint64(len(buf)), b.end-pc)])
	if place.state = linkedEntry(code, pc); place.state == linkedNot {
		place.state, place.off = linkedWay(w.Arch(), code, pc)
	}
	return *place
}

// linkedEntry looks for the instructions that make a frame.
func linkedEntry(code []byte, pc uint64) linkedState {
	var in isa.Inst
	state := linkedBuilding
	for ; mcode.Decode(procstate.ARM64, code, pc, &in) && in.Flow != isa.IndirectJump && in.Flow != isa.Return && in.Flow != isa.Trap; code = code[4:] {
		switch binary.LittleEndian.Uint32(code) {
		case armSavesLink, armSetsFrame:
			state = linkedEntering
		case armNotesSender, armNotesSender21:
			return state
		}
		pc += 4
	}
	return linkedNot
}

// linkedWay follows code to a return with no fork before it.
func linkedWay(a *procstate.Arch, code []byte, pc uint64) (state linkedState, off int32) {
	var in isa.Inst
	at := firstPathState(a, pc)
	for n := 0; n < maxLinkedWay && mcode.Decode(a, code, at.PC, &in); n++ {
		switch in.Flow {
		case isa.Return:
			sp, fp, lr := at.Regs[a.SP], at.Regs[a.FP], at.Regs[a.LR]
			saved := mcode.PathValue{Base: mcode.PathSP, InMemory: true}
			savedLR := mcode.PathValue{Base: mcode.PathSP, InMemory: true, Off: 8}
			isKept := fp == mcode.PathValue{Base: mcode.PathFP} && lr == mcode.PathValue{Base: mcode.PathLR}
			switch {
			case isKept && sp.Base == mcode.PathSP && !sp.InMemory && sp.Off >= 0:
				return linkedLeaf, sp.Off
			case isKept && sp == (mcode.PathValue{}):
				return linkedLeft, 0
			case fp == saved && lr == savedLR:
				return linkedLeaving, 0
			}
			return linkedNot, 0
		case isa.Next:
		default:
			return linkedNot, 0
		}
		at.Apply(a, &in)
		at.PC += 4
		code = code[4:]
	}
	return linkedNot, 0
}
