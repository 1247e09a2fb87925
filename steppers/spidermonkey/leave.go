package spidermonkey

import (
	"bytes"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

const (
	codeLook = 128 // bytes of code that are looked at, of each piece
	maxLeave = 96  // instructions up to a return
)

// registerState is what registers have, as far as it is known, and what was stored in words of memory.
type registerState struct {
	value  [procstate.MaxRegs]uint64
	has    uint64                    // bit by bit
	from   [procstate.MaxRegs]uint64 // where a value was loaded from, 0 for others
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
	r.value[reg], r.from[reg] = v, 0
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
	if pseudo := at.vm.arch.pseudoSP; regs.has>>pseudo&1 == 0 {
		regs.set(pseudo, at.in.SP(), true) // where calls return
	}
	if at.vm.frames == framesSized && at.interrupted {
		if next, ok := at.leaveStub(out); ok {
			return unwind.Success, next
		}
	}
	ret, ok := at.returns(&regs)
	if !ok || !at.isCaller(ret.pc) {
		if next, ok := at.leaveCalled(out); ok {
			return unwind.Success, next
		}
		if at.leaveEntry(out) {
			return unwind.Success, caller{}
		}
		return unwind.NotMe, caller{}
	}
	ra := ret.at
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
	out.SetPC(arch, ret.pc)
	out.SetSP(arch, ret.sp)
	if out.PCLocation = unwind.InMemory(ra); ret.inRegister {
		out.PCLocation = unwind.InRegister(arch.LR)
	}
	out.Regs.ThreadPointer = at.in.Regs.ThreadPointer
	return unwind.Success, next
}

// leaveStub walks from code that serves one operation of a function in a frame of its own, as it is where frames have sizes:
// above its caller's frame pointer and the stub there are the return address and the descriptor, which must lead to that frame.
func (at *madeFrame) leaveStub(out *unwind.Frame) (next caller, ok bool) {
	arch := at.w.Arch()
	fp, ok := at.in.Regs.Value(arch.FP)
	if !ok || fp%8 != 0 || fp-at.in.SP() > maxFrame {
		return next, false
	}
	pc, saved := at.word(fp+stubReturn), at.word(fp)
	next, ok = sized(fp+stubReturn-smReturn, at.word(fp+stubReturn+8))
	if !ok || next.kind != baselineFrame || next.frame != saved || !at.isCaller(pc) {
		return caller{}, false
	}
	out.SetPC(arch, pc)
	out.SetSP(arch, fp+stubReturn+8)
	out.SetFP(arch, saved)
	out.PCLocation, out.FPLocation = unwind.InMemory(fp+stubReturn), unwind.InMemory(fp)
	out.Regs.ThreadPointer = at.in.Regs.ThreadPointer
	return next, true
}

// stubReturn is where a stub's frame has its return address, from its frame pointer.
const stubReturn = 16

// leaveCalled walks from code that has no frame, by the link register: the function whose frame the frame pointer tells has
// called it, in code of the baseline compiler or interpreter, which calls nothing else so.
func (at *madeFrame) leaveCalled(out *unwind.Frame) (next caller, ok bool) {
	arch := at.w.Arch()
	pc, ok1 := at.in.Regs.Value(arch.LR)
	fp, ok2 := at.in.Regs.Value(arch.FP)
	if !at.interrupted || !ok1 || !ok2 || !at.isCaller(pc) {
		return next, false
	}
	by := *at
	by.pc = pc - 1
	if _, how := by.runs(fp); how != baseline && how != interpreter {
		return next, false
	}
	out.SetPC(arch, pc)
	out.SetSP(arch, at.sp)
	out.SetFP(arch, fp)
	out.PCLocation, out.FPLocation = unwind.InRegister(arch.LR), at.in.FPLocation
	out.Regs.ThreadPointer = at.in.Regs.ThreadPointer
	return caller{frame: fp, kind: baselineFrame}, true
}

// leaveEntry walks from the code by which functions of C++ call those of JavaScript, before that has done so: on AArch64 the
// return address is below the frame pointer there, so that others take one for the other.
func (at *madeFrame) leaveEntry(out *unwind.Frame) bool {
	entry, arch, mem := at.vm.arch.entry, at.w.Arch(), at.w.ProcessState()
	if len(entry) == 0 || !at.interrupted {
		return false
	}
	var buf [maxEntry]byte
	pc := at.in.PC()
	from := max(at.m.Start, pc-min(pc, maxEntry-uint64(len(entry))))
	code := mcode.Read(at.w, at.m, from, buf[:pc-from+uint64(len(entry))])
	n := bytes.LastIndex(code, entry)
	if n < 0 {
		return false
	}
	state := mcode.FirstPathState(arch, from+uint64(n))
	var in isa.Inst
	for code = code[n:]; state.PC < pc; code = code[in.Len:] {
		if !mcode.Decode(arch, code, state.PC, &in) || in.Flow == isa.Return || in.Flow == isa.Trap {
			return false
		}
		if state.Apply(arch, &in); in.Flow == isa.Call || in.Flow == isa.IndirectCall {
			state.Regs[arch.FP] = mcode.PathValue{} // which is not what it was
		}
		state.PC += uint64(in.Len)
	}
	first := at.in.SP() // as it was when this was called
	fp, ok := at.in.Regs.Value(arch.FP)
	ra, ok2 := at.in.Regs.Value(arch.LR)
	out.PCLocation, out.FPLocation = unwind.InRegister(arch.LR), at.in.FPLocation
	if own, sp := state.Regs[arch.FP], state.Regs[arch.SP]; own.Base == mcode.PathSP || sp.Base == mcode.PathSP && sp.Off != 0 {
		if first -= uint64(int64(sp.Off)); own.Base == mcode.PathSP {
			first = fp - uint64(int64(own.Off))
		}
		ra, ok2 = mem.ReadWord(first - 16)
		fp, ok = mem.ReadWord(first - 8)
		out.PCLocation, out.FPLocation = unwind.InMemory(first-16), unwind.InMemory(first-8)
	} else if state.PC != from+uint64(n) {
		ok = false
	}
	if ra = at.w.CodeAddress(ra); !ok || !ok2 || !at.isCaller(ra) {
		*out = unwind.Frame{}
		return false
	}
	out.SetPC(arch, ra)
	out.SetSP(arch, first)
	out.SetFP(arch, fp)
	out.Regs.ThreadPointer = at.in.Regs.ThreadPointer
	return true
}

const maxEntry = 1 << 10 // bytes of that code

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

// returned is where code returns to.
type returned struct {
	pc, sp     uint64
	at         uint64 // where the return address is on the stack, or would be
	inRegister bool   // it is in the link register yet
}

// returns follows the code to a return.
func (at *madeFrame) returns(regs *registerState) (ret returned, ok bool) {
	arch, mem := at.w.Arch(), at.w.ProcessState()
	var in isa.Inst
	var code []byte
	pc, first := at.in.PC(), at.in.SP()
	for range maxLeave {
		if len(code) < mcode.MaxInstLen {
			m := at.w.MappingAt(pc)
			if m == nil || m.Image != nil || procstate.HasFile(m.Path) {
				return ret, false
			}
			code = mcode.Read(at.w, m, pc, at.buf)
		}
		if !mcode.Decode(arch, code, pc, &in) {
			return ret, false
		}
		if !at.vm.arch.shifts(code, regs) && !apply(arch, mem, &in, regs) {
			return ret, false
		}
		sp, known := regs.get(arch.SP)
		if !known || sp-first+maxFrame > 2*maxFrame {
			return ret, false
		}
		code = code[in.Len:]
		pc += uint64(in.Len)
		switch in.Flow {
		case isa.Next, isa.CondJump:
		case isa.Call, isa.IndirectCall:
			regs.has &= arch.CalleeSaved | 1<<arch.SP
		case isa.Jump:
			pc, code = in.Target, nil
		case isa.IndirectJump: // to another function, if it has taken the return address off the stack
			if arch.LR == procstate.NoReg || regs.from[arch.LR] == 0 {
				return ret, false
			}
			in.Reg = arch.LR
			fallthrough
		case isa.Return:
			if sp%8 != 0 || sp < first {
				return ret, false
			}
			if arch.LR == procstate.NoReg {
				ret.at, ret.sp = sp, sp+8+uint64(in.Pop)
				ret.pc, ok = mem.ReadWord(sp)
				return ret, ok
			}
			if ret.pc, ok = regs.get(in.Reg); !ok {
				return ret, false
			}
			if ret.sp, ret.at = sp, regs.from[in.Reg]; ret.at == 0 {
				ret.at, ret.inRegister = sp-8, true
			}
			return ret, true
		default:
			return ret, false
		}
	}
	return ret, false
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
			if regs.set(op.Dst, v, ok); ok && op.Dst < procstate.MaxRegs {
				regs.from[op.Dst] = src + uint64(op.Imm)
			}
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
