package steppers

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// QEMU registers one object file for all code that it generates, now and later.
// All of that has the same frame, which is made by other code, right below it:
//
//	push %rbp ... push %r15    the way in
//	add  $-n,%rsp
//	jmp  *%rsi
//	add  $n,%rsp               the way out
//	pop  %r15 ... pop %rbp
//	ret
//
// Where generated code calls a function that is to return elsewhere, it pushes that
// address and jumps.

// maxGlue bounds the distance from either way to the first of the code, in bytes.
const maxGlue = 256

// glue finds the caller of in, which is on the way into code with the frame row, or
// out of it. It returns false when its code is not like that.
func (s *JIT) glue(w *unwind.Walker, m *procstate.Mapping, row *unwind.Row, in, out *unwind.Frame) bool {
	a := w.Arch()
	if a != procstate.AMD64 || row.CFA.Kind != unwind.InReg || row.CFA.Reg != a.SP {
		return false
	}
	code := mcode.Read(w, m, in.PC(), s.buf[:])
	sp, cfa := in.SP(), uint64(0)
	pushed, popped := uint64(0), [procstate.MaxRegs]uint64{} // registers yet to be saved, and where the others are restored from
	var inst isa.Inst
	for pc := in.PC(); cfa == 0; {
		if !isa.DecodeAMD64(code, pc, &inst) || int(inst.Len) > len(code) {
			return false
		}
		for _, op := range inst.Ops[:inst.NumOps] {
			switch {
			case op.Dst == a.SP && op.Kind == isa.Set && op.Src == a.SP:
				sp += uint64(op.Imm)
			case op.Dst == a.SP && op.Kind == isa.Store:
				pushed |= 1 << op.Src
			case op.Kind == isa.Load && op.Src == a.SP && op.Dst < procstate.MaxRegs:
				popped[op.Dst] = sp + uint64(op.Imm)
			case op.Dst == a.SP:
				return false
			}
		}
		switch {
		case inst.Flow == isa.Return && inst.Pop == 0:
			cfa = sp + 8
		case inst.Flow == isa.IndirectJump && inst.Reg != procstate.NoReg && inst.Table == 0:
			cfa = sp + uint64(row.CFA.Offset)
		case inst.Flow != isa.Next:
			return false
		}
		code, pc = code[inst.Len:], pc+uint64(inst.Len)
	}
	mem := w.ProcessState()
	ra, ok := mem.ReadWord(cfa - 8)
	if !ok || cfa <= in.SP() {
		return false
	}
	out.Regs.Inherit(&in.Regs, a.CalleeSaved&^(1<<a.SP))
	out.FPLocation = in.FPLocation
	for r := procstate.Reg(0); int(r) < a.NumRegs; r++ {
		rule := &row.Regs[r]
		if rule.Kind != unwind.AtOffset || r == a.PC || pushed>>r&1 != 0 || a.CalleeSaved>>r&1 == 0 {
			continue
		}
		at := popped[r]
		if at == 0 && inst.Flow == isa.Return {
			continue // it has been restored
		}
		if at == 0 {
			at = cfa + uint64(rule.Offset)
		}
		out.Regs.Retain(^(uint64(1) << r))
		if v, ok := mem.ReadWord(at); ok {
			out.Regs.Set(r, v)
		}
		if r == a.FP {
			out.FPLocation = unwind.InMemory(at)
		}
	}
	out.SetPC(a, ra)
	out.SetSP(a, cfa)
	if fp, ok := out.Regs.Value(a.FP); ok {
		out.SetFP(a, fp)
	}
	out.PCLocation = unwind.InMemory(cfa - 8)
	return true
}

// hasPushed reports whether in, in generated code of o, is about to jump to a
// function that will return to where it has pushed.
func (s *JIT) hasPushed(w *unwind.Walker, m *procstate.Mapping, o *procstate.JITObject, in *unwind.Frame) bool {
	if w.Arch() != procstate.AMD64 {
		return false
	}
	code := mcode.Read(w, m, in.PC(), s.buf[:16])
	var inst isa.Inst
	if !isa.DecodeAMD64(code, in.PC(), &inst) || int(inst.Len) > len(code) || inst.Target == 0 {
		return false
	}
	mem, target := w.ProcessState(), inst.Target
	switch inst.Flow {
	case isa.Jump:
	case isa.IndirectJump:
		var word [8]byte
		if n := procstate.ReadPart(mem, target, word[:]); n < len(word) {
			return false
		}
		target = binary.LittleEndian.Uint64(word[:])
	default:
		return false
	}
	back, ok := mem.ReadWord(in.SP())
	return ok && !o.Holds(target) && o.Holds(back)
}
