package spidermonkey

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

const (
	codeLook = 128 // bytes of code that are looked at, of each piece
	maxLeave = 96  // instructions up to a return
)

// makesRoom returns by how much code that begins at start lowers SP by a constant first, and where it goes on then.
func makesRoom(arch *procstate.Arch, code []byte, start uint64) (size, end uint64, ok bool) {
	var in isa.Inst
	for at := start; mcode.Decode(arch, code, at, &in) && (in.Flow == isa.Next || in.Flow == isa.CondJump); at += uint64(in.Len) {
		for i := range in.Ops[:in.NumOps] {
			op := &in.Ops[i]
			if op.Kind == isa.Set && op.Dst == arch.SP && op.Src == arch.SP && op.Imm < 0 && in.NumOps == 1 {
				return uint64(-op.Imm), at + uint64(in.Len), true
			}
			if op.Dst == arch.SP && op.Kind != isa.Store && op.Kind != isa.Compare {
				return 0, 0, false
			}
		}
		code = code[in.Len:]
	}
	return 0, 0, false
}

// registerState is what registers have, as far as it is known, and what was stored in words of memory.
type registerState struct {
	value  [procstate.MaxRegs]uint64
	has    uint64 // bit by bit
	stores [maxStores]struct {
		addr, v uint64
		known   bool
	}
	n int
}

// maxStores is how many words may be stored on the way to a return.
const maxStores = 32

// store stores a word. It reports false where there is no room for more.
func (r *registerState) store(addr, v uint64, known bool) bool {
	if r.n == maxStores {
		return false
	}
	r.stores[r.n].addr, r.stores[r.n].v, r.stores[r.n].known = addr, v, known
	r.n++
	return true
}

// load returns the word at an address, which is what was last stored there.
func (r *registerState) load(mem procstate.ProcessState, addr uint64) (v uint64, ok bool) {
	for i := r.n - 1; i >= 0; i-- {
		if s := &r.stores[i]; s.addr == addr {
			return s.v, s.known
		} else if s.addr-addr < 8 || addr-s.addr < 8 {
			return 0, false
		}
	}
	return mem.ReadWord(addr)
}

func (r *registerState) set(reg procstate.Reg, v uint64, known bool) {
	if reg >= procstate.MaxRegs {
		return
	}
	r.value[reg] = v
	if r.has &^= 1 << reg; known {
		r.has |= 1 << reg
	}
}

func (r *registerState) get(reg procstate.Reg) (uint64, bool) {
	if reg >= procstate.MaxRegs {
		return 0, false
	}
	return r.value[reg], r.has>>reg&1 != 0
}

// leaveCode walks from code that is not a function's by what it does until it returns. It may call, and goes on behind jumps
// that are not always taken, as those are that it takes when something has failed.
func (at *madeFrame) leaveCode(out *unwind.Frame) (unwind.Verdict, caller) {
	arch := at.w.Arch()
	var regs registerState
	for r := range procstate.Reg(arch.NumRegs) {
		if v, ok := at.in.Regs.Value(r); ok && (at.interrupted || arch.CalleeSaved>>r&1 != 0 || r == arch.SP) {
			regs.set(r, v, true)
		}
	}
	ra, pop, ok := at.returns(&regs)
	if !ok {
		return unwind.NotMe, caller{}
	}
	pc, ok := at.w.ProcessState().ReadWord(ra)
	if !ok || !at.isCaller(pc) {
		return unwind.NotMe, caller{}
	}
	var next caller
	if at.vm.frames != framesLinked && at.frame == 0 {
		next, _ = sized(ra-8, at.word(ra+8))
	}
	for r := range procstate.Reg(arch.NumRegs) {
		if v, ok := regs.get(r); ok && arch.CalleeSaved>>r&1 != 0 {
			out.Regs.Set(r, v)
		}
	}
	if fp, ok := regs.get(arch.FP); ok {
		out.SetFP(arch, fp)
	}
	if next.kind == baselineFrame && next.frame != 0 {
		out.SetFP(arch, next.frame)
	}
	out.SetPC(arch, pc)
	out.SetSP(arch, ra+8+uint64(pop))
	out.PCLocation = unwind.InMemory(ra)
	out.Regs.ThreadPointer = at.in.Regs.ThreadPointer
	return unwind.Success, next
}

// isCaller reports whether a call stands before pc.
func (at *madeFrame) isCaller(pc uint64) bool {
	m := at.w.MappingAt(pc - 1)
	if m == nil || pc-m.Start < mcode.MaxCallLen {
		return false
	}
	code := mcode.Read(at.w, m, pc-mcode.MaxCallLen, at.buf[:mcode.MaxCallLen])
	if len(code) < mcode.MaxCallLen {
		return false
	}
	_, _, ok := mcode.CallBefore(at.w.Arch(), code, pc)
	return ok
}

// returns follows the code to a return. It tells where the return address is, and how much is taken off the stack behind it.
func (at *madeFrame) returns(regs *registerState) (ra uint64, pop uint16, ok bool) {
	arch, mem := at.w.Arch(), at.w.ProcessState()
	var in isa.Inst
	var code []byte
	pc, first := at.in.PC(), at.in.SP()
	for range maxLeave {
		if len(code) < mcode.MaxInstLen {
			m := at.w.MappingAt(pc)
			if m == nil || m.Image != nil || procstate.HasFile(m.Path) {
				return 0, 0, false
			}
			code = mcode.Read(at.w, m, pc, at.buf)
		}
		if !mcode.Decode(arch, code, pc, &in) {
			return 0, 0, false
		}
		if reg, by, ok := shifts(code); ok {
			v, known := regs.get(reg)
			regs.set(reg, v>>by, known)
		} else if !apply(arch, mem, &in, regs) {
			return 0, 0, false
		}
		sp, known := regs.get(arch.SP)
		if !known || sp-first+maxFrame > 2*maxFrame {
			return 0, 0, false
		}
		code = code[in.Len:]
		pc += uint64(in.Len)
		switch in.Flow {
		case isa.Next, isa.CondJump:
		case isa.Call, isa.IndirectCall:
			regs.has &= arch.CalleeSaved | 1<<arch.SP
		case isa.Jump:
			pc, code = in.Target, nil
		case isa.Return:
			return sp, in.Pop, sp%8 == 0 && sp >= first
		default:
			return 0, 0, false
		}
	}
	return 0, 0, false
}

// shifts reports whether code begins with a shift of a register of 64 bits to the right: shr $by, %reg.
func shifts(code []byte) (reg procstate.Reg, by uint8, ok bool) {
	const rexW, rexWB, shift, right = 0x48, 0x49, 0xc1, 0xe8
	if len(code) < 4 || code[0]&^1 != rexW || code[1] != shift || code[2]&^7 != right || code[3] > 63 {
		return 0, 0, false
	}
	if code[0] == rexWB {
		return procstate.Reg(8 + code[2]&7), code[3], true
	}
	return mcode.RegisterX86(procstate.AMD64, code[2]&7), code[3], true
}

// apply executes an instruction. It reports false where that stores more than there is room for.
func apply(arch *procstate.Arch, mem procstate.ProcessState, in *isa.Inst, regs *registerState) bool {
	if in.Flow == isa.Return || in.Flow == isa.Call || in.Flow == isa.IndirectCall {
		return true
	}
	for i := range in.Ops[:in.NumOps] {
		op := &in.Ops[i]
		dst, dstKnown := regs.get(op.Dst)
		src, srcKnown := regs.get(op.Src)
		switch op.Kind {
		case isa.Set:
			regs.set(op.Dst, src+uint64(op.Imm), srcKnown)
		case isa.Const:
			regs.set(op.Dst, uint64(op.Imm), true)
		case isa.Load:
			v, ok := uint64(0), false
			if srcKnown {
				v, ok = regs.load(mem, src+uint64(op.Imm))
			}
			regs.set(op.Dst, v, ok)
		case isa.Add:
			regs.set(op.Dst, dst+src, dstKnown && srcKnown)
		case isa.Sub:
			regs.set(op.Dst, dst-src, dstKnown && srcKnown)
		case isa.Store, isa.Scratch:
			known := op.Kind == isa.Store && srcKnown
			for n := uint64(0); n < max(8, uint64(op.Size)); n += 8 {
				if dstKnown && !regs.store(dst+uint64(op.Imm)+n, src, known) {
					return false
				}
			}
		case isa.Align:
			regs.set(op.Dst, dst&uint64(op.Imm), dstKnown)
		case isa.Compare, isa.StoreIndexed:
		case isa.Swap:
			regs.set(op.Dst, src, srcKnown)
			regs.set(op.Src, dst, dstKnown)
		default:
			regs.set(op.Dst, 0, false)
		}
	}
	return true
}
