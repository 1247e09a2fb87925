package v8

import (
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
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
	out.SetPC(arch, w.CodeAddress(pc))
	out.SetSP(arch, fp+16)
	out.SetFP(arch, callerFP)
	out.PCLocation, out.FPLocation = unwind.InMemory(fp+8), unwind.InMemory(fp)
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	return unwind.Success, nil
}

// unframed is where the return address of an interrupted function is that has no frame yet or
// no more: in a register, or so many bytes above SP, where it is 8 below which the caller's frame pointer is saved; or
// that it has one.
type unframed struct {
	ok         bool
	framed     bool // it has a frame, by the frame pointer
	inRegister bool
	reg        procstate.Reg
	above      uint64 // with a register: where the caller's SP is
}

// callerFrame walks from such a frame. Where the return address is in a register arguments may be on
// the stack, more or fewer: the caller's SP is as it would be without.
func (at unframed) callerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
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
	pc = w.CodeAddress(pc) // V8 may be built to sign it
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
func (s *Stepper) unframed(w *unwind.Walker, m *procstate.Mapping, c *code, isBaseline bool, pc uint64) unframed {
	arch := w.Arch()
	isLinked, far := arch.LR != procstate.NoReg, pc-c.start >= uint64(len(s.buf))
	if isLinked && (isBaseline || !far) {
		at := inCompiled(arch, mcode.Read(w, m, c.start, s.buf[:min(c.size, uint64(len(s.buf)))]), isBaseline, pc-c.start)
		if at.ok || isBaseline {
			return at
		}
	}
	if !isLinked && !far {
		if at := beforeFrame(arch, mcode.Read(w, m, c.start, s.buf[:min(c.size, uint64(len(s.buf)))]), c.start, pc); at.ok {
			return at
		}
	}
	code := mcode.Read(w, m, pc-dropBytes, s.buf[:min(c.start+c.size-pc+dropBytes, dropBytes+leaveBytes)])
	switch {
	case isLinked:
		return returns(code)
	case len(code) > dropBytes && code[dropBytes] == retAMD64:
		return unframed{ok: true}
	}
	return leaves(code)
}

// beforeFrame tells the same of code of x86-64 that has not called anything, from its start on.
func beforeFrame(arch *procstate.Arch, code []byte, start, pc uint64) unframed {
	at := mcode.PathState{PC: start}
	callerSP, callerFP := mcode.PathValue{Base: mcode.PathSP}, mcode.PathValue{Base: mcode.PathFP}
	at.Regs[arch.SP], at.Regs[arch.FP] = callerSP, callerFP
	over := uint64(0) // where the last conditional jump goes to, maybe over a jump to what gives the code up
	var in isa.Inst
	for at.PC < pc {
		if !mcode.Decode(arch, code, at.PC, &in) {
			return unframed{}
		}
		switch next := at.PC + uint64(in.Len); {
		case in.Flow == isa.CondJump:
			over = in.Target
		case in.Flow != isa.Next && (in.Flow != isa.Jump || next != over):
			return unframed{}
		}
		code = code[in.Len:]
		at.Apply(arch, &in)
		at.PC += uint64(in.Len)
	}
	if at.PC != pc || at.Regs[arch.FP] != callerFP {
		return unframed{}
	}
	switch at.Regs[arch.SP] {
	case callerSP:
		return unframed{ok: true}
	case callerSP.Plus(-8):
		return unframed{ok: at.WordAt(callerSP.Plus(-8)) == callerFP, above: 8}
	}
	return unframed{}
}

// How much code leaves looks at: so much, and so much before.
const (
	leaveBytes = 13
	dropBytes  = 4
)

const retAMD64 = 0xc3

// leaves tells where the return address is at one of the last instructions of a function that takes its
// arguments off the stack, its frame being gone, but for the return itself:
//
//	pop  %r10
//	lea  (%rsp,n,8),%rsp
//	push %r10
//	ret
//
// or with ret n, before which there may be a comparison and a jump to these for when there are more of them. It is at dropBytes of the
// code. A push and a return alone may be a jump.
func leaves(code []byte) unframed {
	if len(code) < dropBytes {
		return unframed{}
	}
	before, code := code[:dropBytes], code[dropBytes:]
	rest := code[compare(code):]
	if returnsN(rest[condJump(rest):]) {
		return unframed{ok: true}
	}
	dropped := drops(before) == dropBytes || drops(before[1:]) == dropBytes-1
	if n := drops(code); n > 0 {
		reg, ok := pushReturn(code[n:])
		return unframed{ok: ok, inRegister: true, reg: reg}
	}
	if reg, ok := pushReturn(code); ok {
		return unframed{ok: dropped, inRegister: true, reg: reg}
	}
	for n := 1; n <= 2 && n <= len(code); n++ {
		if op, popped := mcode.OneRegister(code[:n]); op == mcode.PopAMD64 {
			drop := drops(code[n:])
			reg, ok := pushReturn(code[n+drop:])
			return unframed{ok: ok && drop > 0 && reg == popped}
		}
	}
	return unframed{}
}

// returnsN reports whether code begins with a return that takes so many bytes off the stack.
func returnsN(code []byte) bool { return len(code) >= 3 && code[0] == 0xc2 }

// compare returns how long the comparison of a register and a small number is that code begins with, 0 where there is none.
func compare(code []byte) int {
	if len(code) >= 4 && code[0]&^1 == 0x48 && code[1] == 0x83 && code[2]&^7 == 0xf8 {
		return 4
	}
	return 0
}

// condJump returns how long the conditional jump is that code begins with, 0 where there is none.
func condJump(code []byte) int {
	switch {
	case len(code) >= 2 && code[0]&^15 == 0x70:
		return 2
	case len(code) >= 6 && code[0] == 0x0f && code[1]&^15 == 0x80:
		return 6
	}
	return 0
}

// drops returns how long the instruction is that code begins with, if it takes arguments off the
// stack: lea (%rsp,reg,8),%rsp, lea n(reg),%rsp, add reg,%rsp. Else it returns 0.
func drops(code []byte) int {
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

// pushReturn reports whether code begins with the push of a register and a return.
func pushReturn(code []byte) (reg procstate.Reg, ok bool) {
	for n := 1; n <= 2 && n < len(code); n++ {
		if op, reg := mcode.OneRegister(code[:n]); op == mcode.PushAMD64 && code[n] == retAMD64 {
			return reg, true
		}
	}
	return 0, false
}

// inBuiltin tells the same of V8's own code.
func (s *Stepper) inBuiltin(m *procstate.Mapping, pc uint64, interrupted bool) unframed {
	p, vaddr := s.image(m.Image), pc-m.Bias
	switch {
	case vaddr-p.builtins.Start >= p.builtins.End-p.builtins.Start:
		return unframed{}
	case p.linked != nil:
		return p.linked.at(m.Image, vaddr, interrupted)
	case !interrupted:
		return unframed{}
	}
	for _, c := range p.prologues {
		if off := vaddr - c.start; off < uint64(len(c.places)) {
			return c.places[off]
		}
	}
	if g := &p.generator; vaddr-g.popped < g.left-g.popped {
		return unframed{ok: true, inRegister: vaddr <= g.pushed, reg: g.reg}
	}
	code := s.buf[:dropBytes+leaveBytes]
	if m.Image.ReadVaddr(code, vaddr-dropBytes) != nil {
		return unframed{}
	}
	return leaves(code)
}

// generator is where the code that resumes a generator has popped its return address into a
// register, below which it pushes arguments, pushes it again, and leaves.
type generator struct {
	popped, pushed, left uint64
	reg                  procstate.Reg
}

// findGenerator finds these places in the code of that function.
func findGenerator(im *procstate.Image, start, end uint64) (g generator) {
	code := mcode.ReadFile(im, start, min(end, start+1<<10))
	var in isa.Inst
	for at := start; ; at += uint64(in.Len) {
		b := code[at-start:]
		if !mcode.Decode(im.Arch(), b, at, &in) {
			return generator{}
		}
		op, reg := mcode.OneRegister(b[:in.Len])
		switch {
		case g.popped == 0:
			if op == mcode.PopAMD64 {
				g.popped, g.reg = at+uint64(in.Len), reg
			}
		case g.pushed == 0:
			if op == mcode.PushAMD64 && reg == g.reg {
				g.pushed = at
			}
		case in.Flow == isa.IndirectJump:
			g.left = at + uint64(in.Len)
			return g
		case in.Flow != isa.Next && in.Flow != isa.CondJump && in.Flow != isa.Jump:
			return generator{}
		}
	}
}

// findPrologue tells of each byte of the function that code of the baseline compiler calls first where an instruction
// begins, and where that function's return address is before it. It takes that off the stack, sets up a
// frame for the code that has called it, and puts it on again. In some versions it may run optimised code in its
// caller's place.
func findPrologue(arch *procstate.Arch, code []byte, start uint64) []unframed {
	places := make([]unframed, len(code))
	at, known := mcode.FirstPathState(arch, start), true
	jumps := map[uint64]mcode.PathState{} // to behind where they are
	var in isa.Inst
	for off := uint64(0); off < uint64(len(code)); off += uint64(in.Len) {
		if to, ok := jumps[start+off]; ok && !known {
			at, known = to, true
		}
		if !mcode.Decode(arch, code[off:], start+off, &in) {
			return nil
		}
		if !known {
			continue
		}
		places[off] = inPrologue(arch, &at)
		at.Apply(arch, &in)
		if in.Flow == isa.Jump || in.Flow == isa.CondJump {
			jumps[in.Target] = at
		}
		known = in.Flow != isa.Jump && in.Flow != isa.IndirectJump && in.Flow != isa.Return
	}
	return places
}

// inPrologue tells the same of what is known before an instruction.
func inPrologue(arch *procstate.Arch, s *mcode.PathState) unframed {
	sp, fp := s.Regs[arch.SP], s.Regs[arch.FP]
	if sp.Base != mcode.PathSP {
		return unframed{}
	}
	returnAddress, callerFP := mcode.PathValue{Base: mcode.PathSP, InMemory: true}, mcode.PathValue{Base: mcode.PathFP}
	switch top := s.WordAt(sp); {
	case top == returnAddress:
		return unframed{ok: true}
	case top == fp && s.WordAt(sp.Plus(8)) == returnAddress:
		return unframed{ok: true, above: 8}
	}
	reg := slices.Index(s.Regs[:arch.NumRegs], returnAddress)
	if reg >= 0 && (fp == callerFP || s.WordAt(fp) == callerFP) {
		at := unframed{ok: true, inRegister: true, reg: procstate.Reg(reg)}
		if fp == callerFP { // the frame is not set up
			at.above = uint64(8 - sp.Off)
		}
		return at
	}
	// It has forgotten its return address, and goes on in its caller's place.
	switch {
	case fp == callerFP && sp.Off == 8:
		return unframed{ok: true}
	case sp.Off == 0 && s.WordAt(sp) == callerFP:
		return unframed{ok: true, above: 8}
	}
	return unframed{ok: fp.Base == mcode.PathSP, framed: fp.Base == mcode.PathSP}
}
