package clr

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// arch is what code of .NET has of a processor's own.
type arch struct {
	functionBytes uint64             // of a RUNTIME_FUNCTION
	fieldsOf      map[string]*fields // of versions that do not tell them

	// readUnwind reads the RUNTIME_FUNCTION b, whose addresses count from base, into a function, with its unwind
	// information. ok is false where that is not understood.
	readUnwind func(f *function, read vmread.Reader, base uint64, b []byte) (ok bool)

	// epilog tells whether code is the rest of an epilogue; nil where the unwind information tells that.
	epilog func(f *function, code []byte, pc uint64) epilogue
}

var archs = map[*procstate.Arch]*arch{
	procstate.AMD64: {functionBytes: bytesAMD64, fieldsOf: map[string]*fields{"8": &fields8}, readUnwind: (*function).readAMD64, epilog: (*function).epilog},
	procstate.ARM64: {functionBytes: bytesARM64, readUnwind: (*function).readARM64},
}

// maxFunctionBytes is the most of a RUNTIME_FUNCTION.
const maxFunctionBytes = bytesAMD64

// unwindInfo is what the unwind information of a function says, which is that of Windows, also on Linux.
type unwindInfo struct {
	prolog  uint32 // bytes
	ops     []unwindOp
	epilogs []toldEpilog // in order, where they are told
}

// unwindOp is a step of a prologue, which is to be undone.
type unwindOp struct {
	from uint32 // offset in the function behind it; of an epilogue, that of the instruction that undoes it
	kind unwindKind
	reg  procstate.Reg // that is saved, or that the frame is found by from there on
	n    uint64        // bytes, where the register is saved, or how far above SP it points
}

type unwindKind uint8

const (
	alloc  unwindKind = iota
	setFP             // at most once
	save              // as far above SP as that is behind the prologue
	saveSP            // as far above SP as that is then
)

// toldEpilog is an epilogue of which is told what it undoes: offsets in the function.
type toldEpilog struct {
	begin, end uint32
	ops        []unwindOp
}

// undone returns the steps of the prologue that are to be undone at an offset in the function, last first.
func (u *unwindInfo) undone(at uint32) []unwindOp {
	for i := range u.epilogs {
		if e := &u.epilogs[i]; at >= e.begin && at < e.end {
			ops := e.ops
			for len(ops) > 0 && ops[0].from < at {
				ops = ops[1:]
			}
			return ops
		}
	}
	ops := u.ops
	for len(ops) > 0 && ops[0].from > at {
		ops = ops[1:]
	}
	return ops
}

// callerFrame walks from a frame of the function, by what is told of it.
func (f *function) callerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	arch, mem := w.Arch(), w.ProcessState()
	ops := f.undone(uint32(in.PC() - f.begin))
	out.Regs.Inherit(&in.Regs, arch.CalleeSaved)
	sp := in.SP()
	base := sp // of what is saved
	for i := range ops {
		if ops[i].kind == setFP {
			fp, known := in.Regs.Value(ops[i].reg)
			if !known {
				return unwind.Failed, unwind.NoRegister
			}
			base = fp - ops[i].n
			break
		}
	}
	link := linkOf(w, in)
	for i := range ops {
		op := &ops[i]
		from := sp + op.n
		switch op.kind {
		case alloc:
			sp += op.n
			continue
		case setFP:
			sp = base
			continue
		case save:
			from = base + op.n
		}
		v, ok := mem.ReadWord(from)
		switch {
		case !ok:
			return unwind.Failed, unwind.ReadFailure(mem, from)
		case op.reg == arch.LR:
			link = returnAddress{v, unwind.InMemory(from)}
			continue
		case op.reg == arch.FP:
			out.FPLocation = unwind.InMemory(from)
		}
		out.Regs.Set(op.reg, v)
	}
	return returnFrom(w, in, out, sp, link)
}

// returnAddress is one, and where it is.
type returnAddress struct {
	pc uint64
	at unwind.Location // of no kind: not known
}

// linkOf returns the return address of a frame that has not saved it: where the processor has a register for that, and
// the frame was interrupted.
func linkOf(w *unwind.Walker, in *unwind.Frame) (link returnAddress) {
	lr := w.Arch().LR
	if lr == procstate.NoReg || in.Flags&unwind.Interrupted == 0 {
		return link
	}
	if pc, known := in.Regs.Value(lr); known {
		link = returnAddress{pc, unwind.InRegister(lr)}
	}
	return link
}

// returnFrom completes the frame that called, by where SP is when the function returns, and by the return address
// where that is not there.
func returnFrom(w *unwind.Walker, in, out *unwind.Frame, sp uint64, link returnAddress) (unwind.Verdict, error) {
	arch, mem := w.Arch(), w.ProcessState()
	if sp < in.SP() || sp%8 != 0 {
		return unwind.Failed, unwind.BadUnwindInfo
	}
	switch {
	case arch.LR == procstate.NoReg:
		ra, ok := mem.ReadWord(sp)
		if !ok {
			return unwind.Failed, unwind.ReadFailure(mem, sp)
		}
		link = returnAddress{ra, unwind.InMemory(sp)}
		sp += 8
	case link.at.Kind == unwind.LocationUnknown:
		return unwind.Failed, unwind.NoRegister
	}
	if fp, known := out.Regs.Value(arch.FP); known {
		out.SetFP(arch, fp)
	}
	out.SetPC(arch, w.CodeAddress(link.pc))
	out.SetSP(arch, sp)
	out.PCLocation = link.at
	return unwind.Success, nil
}

// thunk tells how far above SP that is when code that jumps on has been entered, by what it pushes and pops up to
// there. Its branches do not differ in that. Where the processor has a register for the return address that stays there.
func thunk(arch *procstate.Arch, code []byte, pc uint64) (off uint64, ok bool) {
	const most = 8 * epilogPops
	at := int64(0) // how far SP is above where it was
	for {
		var in isa.Inst
		if !mcode.Decode(arch, code, pc, &in) || int(in.Len) > len(code) {
			return 0, false
		}
		for _, op := range in.Ops[:in.NumOps] {
			switch {
			case op.Kind == isa.Store || op.Kind == isa.Scratch || op.Kind == isa.Compare || op.Kind == isa.StoreIndexed:
			case op.Dst == arch.LR:
				return 0, false
			case op.Dst != arch.SP:
			case op.Kind == isa.Set && op.Src == arch.SP:
				at += op.Imm
			default:
				return 0, false
			}
		}
		switch in.Flow {
		case isa.Next, isa.CondJump:
		case isa.Jump, isa.IndirectJump, isa.Return:
			return uint64(at), at >= 0 && at <= most
		default:
			return 0, false
		}
		code, pc = code[in.Len:], pc+uint64(in.Len)
	}
}
