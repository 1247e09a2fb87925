package clr

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// unwindInfo is what the unwind information of a function says, which is that of Windows for x64, also on Linux
// (src/coreclr/inc/win64unwind.h): what the prologue does, last first. Epilogues it does not tell: they are known
// by their code.
type unwindInfo struct {
	prolog uint32 // bytes
	ops    []unwindOp
	fp     procstate.Reg // that the frame is found by; NoReg: SP
	fpOff  uint64        // how far it is above SP behind the prologue
}

// unwindOp is a step of a prologue.
type unwindOp struct {
	from uint32 // offset in the function behind it
	kind unwindKind
	reg  procstate.Reg
	n    uint64 // bytes, or where the register is saved
}

type unwindKind uint8

const (
	push unwindKind = iota
	alloc
	setFP
	save
)

// regs are the registers by their numbers there.
var regs = [16]procstate.Reg{0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15}

// Operations, as they are stored.
const (
	opPush = iota
	opAllocLarge
	opAllocSmall
	opSetFP
	opSave
	opSaveFar
	opEpilog // of version 2
	opSpare
	opSaveXMM
	opSaveXMMFar
	opMachineFrame
	opSetFPLarge

	unwindChained = 4 // flag: the information of another function holds as well
	maxChain      = 8
)

// readUnwind reads the unwind information at base+rva. ok is false where it is not understood.
func (u *unwindInfo) readUnwind(read vmread.Reader, base, rva uint64) (ok bool) {
	*u = unwindInfo{fp: procstate.NoReg}
	le := binary.LittleEndian
	for depth := 0; ; depth++ {
		const flags = 3 // bits to shift
		var head [4]byte
		if depth >= maxChain || !read(base+rva, head[:]) || head[0]&7 != 1 {
			return false
		}
		codes := make([]byte, 2*int(head[2]))
		if !read(base+rva+4, codes) {
			return false
		}
		if depth == 0 {
			u.prolog = uint32(head[1])
		}
		if head[3] != 0 {
			fp, off := regs[head[3]&15], 16*uint64(head[3]>>4)
			if u.fp != procstate.NoReg && (u.fp != fp || u.fpOff != off) {
				return false
			}
			u.fp, u.fpOff = fp, off
		}
		if !u.addOps(codes, depth > 0) {
			return false
		}
		if head[0]>>flags&unwindChained == 0 {
			return true
		}
		var parent [clrFunctionBytes]byte
		if !read(base+rva+4+uint64(len(codes)+3)&^3, parent[:]) {
			return false
		}
		rva = uint64(le.Uint32(parent[8:]))
	}
}

// addOps adds the operations of a prologue, or with done those of one that is over.
func (u *unwindInfo) addOps(codes []byte, done bool) (ok bool) {
	le := binary.LittleEndian
	for len(codes) >= 2 {
		op := unwindOp{from: uint32(codes[0]), reg: regs[codes[1]>>4]}
		if done {
			op.from = 0
		}
		info, slots := uint64(codes[1]>>4), 1
		operand := func(n int) uint64 { // the next two bytes, or four
			slots += n
			switch {
			case len(codes) < 2*slots:
			case n == 1:
				return uint64(le.Uint16(codes[2:]))
			default:
				return uint64(le.Uint32(codes[2:]))
			}
			return 0
		}
		skip := false
		switch codes[1] & 15 {
		case opPush:
			op.kind = push
		case opAllocLarge:
			op.kind = alloc
			if info == 0 {
				op.n = 8 * operand(1)
			} else {
				op.n = operand(2)
			}
		case opAllocSmall:
			op.kind, op.n = alloc, 8*info+8
		case opSetFP:
			op.kind = setFP
		case opSetFPLarge:
			op.kind = setFP
			u.fpOff = 16 * operand(2)
		case opSave:
			op.kind, op.n = save, 8*operand(1)
		case opSaveFar:
			op.kind, op.n = save, operand(2)
		case opSaveXMM:
			operand(1)
			skip = true
		case opSaveXMMFar:
			operand(2)
			skip = true
		default:
			return false
		}
		if len(codes) < 2*slots {
			return false
		}
		codes = codes[2*slots:]
		if !skip {
			u.ops = append(u.ops, op)
		}
	}
	return true
}

// callerFrame walks from a frame of the function, which is not in an epilogue.
func (f *function) callerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	arch, mem := w.Arch(), w.ProcessState()
	at := uint32(in.PC() - f.begin)
	out.Regs.Inherit(&in.Regs, arch.CalleeSaved)
	sp := in.SP()
	base := sp // of what is saved
	if f.fp != procstate.NoReg {
		for i := range f.ops {
			if f.ops[i].kind == setFP && f.ops[i].from <= at {
				fp, known := in.Regs.Value(f.fp)
				if !known {
					return unwind.Failed, unwind.NoRegister
				}
				base = fp - f.fpOff
				break
			}
		}
	}
	for i := range f.ops {
		op := &f.ops[i]
		if op.from > at {
			continue
		}
		switch op.kind {
		case alloc:
			sp += op.n
		case setFP:
			sp = base
		case push, save:
			from := sp
			if op.kind == save {
				from = base + op.n
			} else {
				sp += 8
			}
			v, ok := mem.ReadWord(from)
			if !ok {
				return unwind.Failed, unwind.ReadFailure(mem, from)
			}
			if out.Regs.Set(op.reg, v); op.reg == arch.FP {
				out.FPLocation = unwind.InMemory(from)
			}
		}
	}
	return returnFrom(w, in, out, sp)
}

// returnFrom completes the frame that called, by where its return address is.
func returnFrom(w *unwind.Walker, in, out *unwind.Frame, at uint64) (unwind.Verdict, error) {
	arch, mem := w.Arch(), w.ProcessState()
	ra, ok := mem.ReadWord(at)
	switch {
	case !ok:
		return unwind.Failed, unwind.ReadFailure(mem, at)
	case at < in.SP() || at%8 != 0:
		return unwind.Failed, unwind.BadUnwindInfo
	}
	if fp, known := out.Regs.Value(arch.FP); known {
		out.SetFP(arch, fp)
	}
	out.SetPC(arch, ra)
	out.SetSP(arch, at+8)
	out.PCLocation = unwind.InMemory(at)
	return unwind.Success, nil
}

// epilogue is what is left of an epilogue.
type epilogue struct {
	ok    bool
	base  procstate.Reg // SP or the frame pointer
	off   int64         // from it to where registers are popped from
	pops  [epilogPops]procstate.Reg
	nPops int
}

const (
	codeBytes  = 128 // of code that are looked at
	epilogPops = 8
)

// epilog tells whether code of a function is the rest of an epilogue: perhaps one that sets SP, registers popped, and a
// return or a jump. A jump by itself is one when it leaves the function: to somewhere else, to an address in
// memory, or, marked by a prefix that it has no need of, to one in a register. The others are those of switches.
func (f *function) epilog(code []byte, pc uint64) (e epilogue) {
	arch := procstate.AMD64
	e.base = arch.SP
	popped := isa.Op{Kind: isa.Set, Dst: arch.SP, Src: arch.SP, Imm: 8}
	first := true
	for {
		var in isa.Inst
		if !mcode.Decode(arch, code, pc, &in) || int(in.Len) > len(code) {
			return e
		}
		switch op := &in.Ops[0]; {
		case in.Flow == isa.Return:
			e.ok = in.Pop == 0
			return e
		case in.Flow == isa.Jump:
			e.ok = e.nPops > 0 || in.Target-f.begin >= f.end-f.begin
			return e
		case in.Flow == isa.IndirectJump:
			const marked, prefix = 0x48, 0xfe // but for a bit of the register
			e.ok = e.nPops > 0 || in.Reg == procstate.NoReg && in.Table == 0 || code[0]&prefix == marked
			return e
		case in.Flow != isa.Next:
			return e
		case isVZeroUpper(code):
		case in.NumOps == 2 && *op == popped && in.Ops[1].Kind == isa.Load && in.Ops[1].Src == arch.SP && in.Ops[1].Imm == -8:
			if e.nPops == epilogPops {
				return e
			}
			e.pops[e.nPops] = in.Ops[1].Dst
			e.nPops++
		case first && in.NumOps == 1 && op.Kind == isa.Set && op.Dst == arch.SP && (op.Src == arch.SP && op.Imm > 0 || op.Src == arch.FP):
			e.base, e.off = op.Src, op.Imm
		default:
			return e
		}
		if !isVZeroUpper(code) {
			first = false
		}
		code, pc = code[in.Len:], pc+uint64(in.Len)
	}
}

// isVZeroUpper reports whether code begins with that instruction.
func isVZeroUpper(code []byte) bool {
	return len(code) >= 3 && code[0] == 0xc5 && code[1]&^0x80 == 0x78 && code[2] == 0x77
}

// callerFrame walks from a frame in an epilogue.
func (e *epilogue) callerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	arch, mem := w.Arch(), w.ProcessState()
	sp, known := in.Regs.Value(e.base)
	if !known {
		return unwind.Failed, unwind.NoRegister
	}
	sp += uint64(e.off)
	out.Regs.Inherit(&in.Regs, arch.CalleeSaved)
	for _, reg := range e.pops[:e.nPops] {
		v, ok := mem.ReadWord(sp)
		if !ok {
			return unwind.Failed, unwind.ReadFailure(mem, sp)
		}
		if out.Regs.Set(reg, v); reg == arch.FP {
			out.FPLocation = unwind.InMemory(sp)
		}
		sp += 8
	}
	return returnFrom(w, in, out, sp)
}

// thunk tells how far above SP the return address is in code that jumps on, by what it pushes and pops up to
// there. Its branches do not differ in that.
func thunk(code []byte, pc uint64) (off uint64, ok bool) {
	const most = 8 * epilogPops
	arch := procstate.AMD64
	at := int64(0) // how far SP is above where it was
	for {
		var in isa.Inst
		if !mcode.Decode(arch, code, pc, &in) || int(in.Len) > len(code) {
			return 0, false
		}
		for _, op := range in.Ops[:in.NumOps] {
			switch {
			case op.Dst != arch.SP || op.Kind == isa.Store || op.Kind == isa.Scratch || op.Kind == isa.Compare || op.Kind == isa.StoreIndexed:
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
