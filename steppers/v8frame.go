package steppers

import (
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// byFramePointer walks from a frame of V8's that calls: all of them have a frame pointer.
func byFramePointer(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	arch, mem := w.Arch(), w.ProcessState()
	fp, known := in.Regs.Value(arch.FP)
	if !known || fp < in.SP() || fp%8 != 0 {
		return unwind.NotMe, nil
	}
	callerFP, ok1 := mem.ReadWord(fp)
	pc, ok2 := mem.ReadWord(fp + 8)
	if !ok1 || !ok2 {
		return unwind.Failed, unwind.ReadFailure(mem, fp)
	}
	out.SetPC(arch, pc)
	out.SetSP(arch, fp+16)
	out.SetFP(arch, callerFP)
	out.PCLocation, out.FPLocation = unwind.InMemory(fp+8), unwind.InMemory(fp)
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	return unwind.Success, nil
}

// v8Unframed is where the return address of an interrupted function is that has no frame yet or
// no more: in a register, or so many bytes above SP, where it is 8 below which the caller's frame pointer is saved; or
// that it has one.
type v8Unframed struct {
	ok         bool
	framed     bool // it has a frame, by the frame pointer
	inRegister bool
	reg        procstate.Reg
	above      uint64 // with a register: where the caller's SP is
}

// callerFrame walks from such a frame. Where the return address is in a register arguments may be on
// the stack, more or fewer: the caller's SP is as it would be without.
func (at v8Unframed) callerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	if at.framed {
		return byFramePointer(w, in, out)
	}
	arch, mem := w.Arch(), w.ProcessState()
	fp, fpKnown := in.Regs.Value(arch.FP)
	ra, sp := in.SP()+at.above, in.SP()+at.above+8
	pc, ok := uint64(0), false
	if at.inRegister {
		if pc, ok = in.Regs.Value(at.reg); !ok {
			return unwind.NotMe, nil
		}
		out.PCLocation, sp = unwind.InRegister(at.reg), in.SP()+at.above
	} else if pc, ok = mem.ReadWord(ra); ok {
		out.PCLocation = unwind.InMemory(ra)
	} else {
		return unwind.Failed, unwind.ReadFailure(mem, ra)
	}
	out.FPLocation = in.FPLocation
	if at.above != 0 {
		if fp, fpKnown = mem.ReadWord(in.SP()); !fpKnown {
			return unwind.Failed, unwind.ReadFailure(mem, in.SP())
		}
		out.FPLocation = unwind.InMemory(in.SP())
	}
	out.SetPC(arch, pc)
	out.SetSP(arch, sp)
	if fpKnown {
		out.SetFP(arch, fp)
	}
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	return unwind.Success, nil
}

// unframed tells where the return address is at pc, in compiled code that a thread was interrupted
// in, where that is before its frame is set up, or behind.
func (s *V8) unframed(w *unwind.Walker, m *procstate.Mapping, c *v8Code, pc uint64) v8Unframed {
	if pc-c.start >= uint64(len(s.buf)) {
		return v8Leaves(readCode(w, m, pc-v8DropBytes, s.buf[:min(c.start+c.size-pc+v8DropBytes, v8DropBytes+v8LeaveBytes)]))
	}
	arch := w.Arch()
	code := readCode(w, m, c.start, s.buf[:min(c.size, uint64(len(s.buf)))])
	at := pathState{pc: c.start}
	callerSP, callerFP := pathValue{base: pathSP}, pathValue{base: pathFP}
	at.regs[arch.SP], at.regs[arch.FP] = callerSP, callerFP
	var in isa.Inst
	for at.pc < pc {
		if !decode(arch, code, at.pc, &in) || in.Flow != isa.Next && in.Flow != isa.CondJump {
			return v8Unframed{}
		}
		code = code[in.Len:]
		at.apply(arch, &in)
		at.pc += uint64(in.Len)
	}
	if at.pc != pc || at.regs[arch.FP] != callerFP {
		return v8Unframed{}
	}
	switch at.regs[arch.SP] {
	case callerSP:
		return v8Unframed{ok: true}
	case callerSP.plus(-8):
		return v8Unframed{ok: at.wordAt(callerSP.plus(-8)) == callerFP, above: 8}
	}
	return v8Unframed{}
}

// How much code v8Leaves looks at: so much, and so much before.
const (
	v8LeaveBytes = 9
	v8DropBytes  = 4
)

// v8Leaves tells where the return address is at one of the last instructions of a function that takes its
// arguments off the stack, its frame being gone, but for the return itself:
//
//	pop  %r10
//	lea  (%rsp,n,8),%rsp
//	push %r10
//	ret
//
// It is at v8DropBytes of the code. A push and a return alone may be a jump.
func v8Leaves(code []byte) v8Unframed {
	if len(code) < v8DropBytes {
		return v8Unframed{}
	}
	before, code := code[:v8DropBytes], code[v8DropBytes:]
	dropped := v8Drops(before) == v8DropBytes || v8Drops(before[1:]) == v8DropBytes-1
	if n := v8Drops(code); n > 0 {
		reg, ok := v8PushReturn(code[n:])
		return v8Unframed{ok: ok, inRegister: true, reg: reg}
	}
	if reg, ok := v8PushReturn(code); ok {
		return v8Unframed{ok: dropped, inRegister: true, reg: reg}
	}
	for n := 1; n <= 2 && n <= len(code); n++ {
		if op, popped := oneRegister(code[:n]); op == popAMD64 {
			drop := v8Drops(code[n:])
			reg, ok := v8PushReturn(code[n+drop:])
			return v8Unframed{ok: ok && drop > 0 && reg == popped}
		}
	}
	return v8Unframed{}
}

// v8Drops returns how long the instruction is that code begins with, if it takes arguments off the
// stack: lea (%rsp,reg,8),%rsp, lea n(reg),%rsp, add reg,%rsp. Else it returns 0.
func v8Drops(code []byte) int {
	switch {
	case len(code) < 3:
	case code[0]&^4 == 0x48 && code[1] == 0x01 && code[2]&^0x38 == 0xc4, code[0]&^1 == 0x48 && code[1] == 0x03 && code[2]&^7 == 0xe0:
		return 3
	case len(code) < 4 || code[1] != 0x8d:
	case code[0]&^2 == 0x48 && code[2] == 0x24 && code[3]&^0x38 == 0xc4, code[0]&^1 == 0x48 && code[2]&^7 == 0x60 && code[2] != 0x64:
		return 4
	}
	return 0
}

// v8PushReturn reports whether code begins with the push of a register and a return.
func v8PushReturn(code []byte) (reg procstate.Reg, ok bool) {
	const ret = 0xc3
	for n := 1; n <= 2 && n < len(code); n++ {
		if op, reg := oneRegister(code[:n]); op == pushAMD64 && code[n] == ret {
			return reg, true
		}
	}
	return 0, false
}

// inBuiltin tells the same of V8's own code.
func (s *V8) inBuiltin(m *procstate.Mapping, pc uint64, interrupted bool) v8Unframed {
	if !interrupted {
		return v8Unframed{}
	}
	p, vaddr := s.image(m.Image), pc-m.Bias
	if vaddr-p.builtins.start >= p.builtins.end-p.builtins.start {
		return v8Unframed{}
	}
	if off := vaddr - p.prologueStart; off < uint64(len(p.prologue)) {
		return p.prologue[off]
	}
	if g := &p.generator; vaddr-g.popped < g.left-g.popped {
		return v8Unframed{ok: true, inRegister: vaddr <= g.pushed, reg: g.reg}
	}
	code := s.buf[:v8DropBytes+v8LeaveBytes]
	if m.Image.ReadVaddr(code, vaddr-v8DropBytes) != nil {
		return v8Unframed{}
	}
	return v8Leaves(code)
}

// v8Generator is where the code that resumes a generator has popped its return address into a
// register, below which it pushes arguments, pushes it again, and leaves.
type v8Generator struct {
	popped, pushed, left uint64
	reg                  procstate.Reg
}

// findV8Generator finds these places in the code of that function.
func findV8Generator(im *procstate.Image, start, end uint64) (g v8Generator) {
	code := readVaddr(im, start, min(end, start+1<<10))
	var in isa.Inst
	for at := start; ; at += uint64(in.Len) {
		b := code[at-start:]
		if !decode(im.Arch(), b, at, &in) {
			return v8Generator{}
		}
		op, reg := oneRegister(b[:in.Len])
		switch {
		case g.popped == 0:
			if op == popAMD64 {
				g.popped, g.reg = at+uint64(in.Len), reg
			}
		case g.pushed == 0:
			if op == pushAMD64 && reg == g.reg {
				g.pushed = at
			}
		case in.Flow == isa.IndirectJump:
			g.left = at + uint64(in.Len)
			return g
		case in.Flow != isa.Next && in.Flow != isa.CondJump && in.Flow != isa.Jump:
			return v8Generator{}
		}
	}
}

// findV8Prologue tells of each byte of the function that code of the baseline compiler calls first where an instruction
// begins, and where that function's return address is before it. It takes that off the stack, sets up a
// frame for the code that has called it, and puts it on again. In some versions it may run optimised code in its
// caller's place.
func findV8Prologue(arch *procstate.Arch, code []byte, start uint64) []v8Unframed {
	places := make([]v8Unframed, len(code))
	at, known := firstState(arch, start), true
	jumps := map[uint64]pathState{} // to behind where they are
	var in isa.Inst
	for off := uint64(0); off < uint64(len(code)); off += uint64(in.Len) {
		if to, ok := jumps[start+off]; ok && !known {
			at, known = to, true
		}
		if !decode(arch, code[off:], start+off, &in) {
			return nil
		}
		if !known {
			continue
		}
		places[off] = v8InPrologue(arch, &at)
		at.apply(arch, &in)
		if in.Flow == isa.Jump || in.Flow == isa.CondJump {
			jumps[in.Target] = at
		}
		known = in.Flow != isa.Jump && in.Flow != isa.IndirectJump && in.Flow != isa.Return
	}
	return places
}

// v8InPrologue tells the same of what is known before an instruction.
func v8InPrologue(arch *procstate.Arch, s *pathState) v8Unframed {
	sp, fp := s.regs[arch.SP], s.regs[arch.FP]
	if sp.base != pathSP {
		return v8Unframed{}
	}
	returnAddress, callerFP := pathValue{base: pathSP, inMemory: true}, pathValue{base: pathFP}
	switch top := s.wordAt(sp); {
	case top == returnAddress:
		return v8Unframed{ok: true}
	case top == fp && s.wordAt(sp.plus(8)) == returnAddress:
		return v8Unframed{ok: true, above: 8}
	}
	reg := slices.Index(s.regs[:arch.NumRegs], returnAddress)
	if reg >= 0 && (fp == callerFP || s.wordAt(fp) == callerFP) {
		at := v8Unframed{ok: true, inRegister: true, reg: procstate.Reg(reg)}
		if fp == callerFP { // the frame is not set up
			at.above = uint64(8 - sp.off)
		}
		return at
	}
	// It has forgotten its return address, and goes on in its caller's place.
	switch {
	case fp == callerFP && sp.off == 8:
		return v8Unframed{ok: true}
	case sp.off == 0 && s.wordAt(sp) == callerFP:
		return v8Unframed{ok: true, above: 8}
	}
	return v8Unframed{ok: fp.base == pathSP, framed: fp.base == pathSP}
}
