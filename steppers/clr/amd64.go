package clr

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// regsAMD64 are the registers by their numbers in unwind information.
var regsAMD64 = [16]procstate.Reg{0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15}

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

	bytesAMD64    = 12 // of a RUNTIME_FUNCTION
	unwindChained = 4  // flag: the information of another function holds as well
	maxChain      = 8
)

// readAMD64 reads a RUNTIME_FUNCTION of x86-64.
func (f *function) readAMD64(read vmread.Reader, base uint64, b []byte) (ok bool) {
	le := binary.LittleEndian
	f.begin, f.end = base+uint64(le.Uint32(b)), base+uint64(le.Uint32(b[4:]))
	return f.readUnwindAMD64(read, base, uint64(le.Uint32(b[8:])))
}

// readUnwindAMD64 reads the unwind information at base+rva (src/coreclr/inc/win64unwind.h): what the prologue does, last
// first. Epilogues it does not tell: they are known by their code. ok is false where it is not understood.
func (u *unwindInfo) readUnwindAMD64(read vmread.Reader, base, rva uint64) (ok bool) {
	*u = unwindInfo{}
	fp, fpOff := procstate.NoReg, uint64(0) // that the frame is found by, and how far it is above SP then
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
			reg, off := regsAMD64[head[3]&15], 16*uint64(head[3]>>4)
			if fp != procstate.NoReg && (fp != reg || fpOff != off) {
				return false
			}
			fp, fpOff = reg, off
		}
		if !u.addOps(codes, depth > 0, fp, fpOff) {
			return false
		}
		if head[0]>>flags&unwindChained == 0 {
			return true
		}
		var parent [bytesAMD64]byte
		if !read(base+rva+4+uint64(len(codes)+3)&^3, parent[:]) {
			return false
		}
		rva = uint64(le.Uint32(parent[8:]))
	}
}

// addOps adds the operations of a prologue, or with done those of one that is over. The frame is found by fp.
func (u *unwindInfo) addOps(codes []byte, done bool, fp procstate.Reg, fpOff uint64) (ok bool) {
	le := binary.LittleEndian
	for len(codes) >= 2 {
		op := unwindOp{from: uint32(codes[0]), reg: regsAMD64[codes[1]>>4]}
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
			u.ops = append(u.ops, unwindOp{op.from, saveSP, op.reg, 0})
			op.kind, op.n = alloc, 8
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
			op.kind, op.reg, op.n = setFP, fp, fpOff
		case opSetFPLarge:
			op.kind, op.reg, op.n = setFP, fp, 16*operand(2)
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
		if len(codes) < 2*slots || op.reg == procstate.NoReg {
			return false
		}
		codes = codes[2*slots:]
		if !skip {
			u.ops = append(u.ops, op)
		}
	}
	return true
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
	return returnFrom(w, in, out, sp, returnAddress{})
}
