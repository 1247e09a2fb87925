package unwind

import (
	"math/bits"

	"github.com/swbpf/swbpf/procstate"
)

// sameStack bounds the distance of an interrupted function's SP from the
// frame of the signal trampoline when both are on one stack: the frame holds
// the registers of the processor, which take up to 12 KB.
const sameStack = 64 << 10

// CallerFrame finds the caller of in, whose code the rule covers: see
// [FrameStepper]. It allocates nothing.
func (r *Rule) CallerFrame(w *Walker, in, out *Frame) (Verdict, error) {
	switch {
	case r.why == NoUnwindInfo:
		return NotMe, nil
	case r.why != ReasonNone:
		return Failed, r.why
	case r.row != nil:
		return r.row.callerFrame(w, in, out)
	case r.flags&ruleRAUndefined != 0:
		return StackBottom, nil
	}
	a := w.arch
	base, ok := in.Regs.Value(r.cfaReg)
	if !ok {
		return Failed, NoRegister
	}
	wrap := ^uint64(0) >> (64 - 8*a.AddressWidth)
	cfa := (base + uint64(int64(r.cfaOff))) & wrap
	if r.flags&ruleDeref != 0 {
		v, ok := w.proc.ReadWord(cfa)
		if !ok {
			return Failed, ReadFailure(w.proc, cfa)
		}
		cfa = (v + uint64(int64(r.cfaAdd))) & wrap
	}
	var ra uint64
	if r.flags&ruleRAInReg == 0 {
		addr := (cfa + uint64(int64(r.raOff))) & wrap
		if ra, ok = w.proc.ReadWord(addr); !ok {
			return Failed, ReadFailure(w.proc, addr)
		}
		out.PCLocation = InMemory(addr)
	} else {
		if ra, ok = in.Regs.Value(r.raReg); !ok {
			return Failed, NoRegister
		}
		if in.IsTop() {
			out.PCLocation = InRegister(r.raReg)
		}
	}
	if r.flags&ruleRASigned != 0 {
		ra = w.CodeAddress(ra)
	}
	out.Regs.Inherit(&in.Regs, r.carry)
	if r.carry>>a.FP&1 != 0 {
		out.FPLocation = in.FPLocation
	}
	if r.flags&ruleSavedByReg == 0 {
		base = cfa
	}
	for i := range min(int(r.n), maxSaved) {
		addr := (base + uint64(int64(r.off[i]))) & wrap
		v, ok := w.proc.ReadWord(addr)
		loc := InMemory(addr)
		if addr < in.sp && popped(a, in, addr, ok) {
			v, ok = in.Regs.Value(r.reg[i])
			loc = in.FPLocation
		}
		// A register that cannot be read is missed only by whom needs it.
		if !ok {
			continue
		}
		out.Regs.Set(r.reg[i], v)
		if r.reg[i] == a.FP {
			out.FPLocation = loc
		}
	}
	out.SetPC(a, ra)
	out.SetSP(a, cfa)
	out.fp = out.Regs.Raw(a.FP)
	switch {
	case r.flags&ruleSignal != 0:
		crossSignal(in, out)
	case r.cfaReg != a.SP && r.cfaReg != a.FP && out.sp < in.sp && in.sp-out.sp >= sameStack && w.MappingAt(out.LookupPC()) != nil:
		// A call with another stack, as OCaml's of C, leaves SP in a register that is preserved.
		out.Flags |= StackSwitched
	}
	return Success, nil
}

// popped reports whether a register that the table says is saved at addr,
// below SP, has been restored. On x86 the tables of compilers leave registers
// at their place on the stack after an epilogue has popped them. The place can
// still be read within the red zone, where a leaf function may really have
// saved them. When it is not there to be read the register is the likely holder, unless
// it lies farther below SP than is captured.
func popped(a *procstate.Arch, in *Frame, addr uint64, readable bool) bool {
	return in.Flags&Interrupted != 0 && isAbandoned(a, in.sp-addr, readable)
}

// isAbandoned reports whether what a register was saved in so many bytes below SP is likely not
// in use any more.
func isAbandoned(a *procstate.Arch, below uint64, readable bool) bool {
	return below > a.RedZone || !readable && below <= a.BelowSP
}

// crossSignal marks a signal trampoline and the frame it interrupted.
func crossSignal(in, out *Frame) {
	in.Flags |= Signal
	out.Flags |= Interrupted
	if out.sp-in.sp-1 >= sameStack {
		out.Flags |= StackSwitched
	}
}

// callerFrame is CallerFrame for a row of any form. GCC's tables of functions
// that realign their stack have the frame pointer saved where it points to
// itself, also when it has been restored already: then that is not in the
// frame.
func (row *Row) callerFrame(w *Walker, in, out *Frame) (Verdict, error) {
	if row.Regs[row.RA].Kind == Undefined {
		return StackBottom, nil
	}
	a := w.arch
	e := expression{regs: &in.Regs, pc: a.PC, mem: w.proc, width: a.AddressWidth}
	if m := w.MappingAt(in.LookupPC()); m != nil {
		e.bias = m.Bias
	}
	cfa, why := row.cfa(&e)
	if why != ReasonNone {
		return Failed, why
	}
	ra, at, why := row.value(&e, procstate.Reg(row.RA), cfa)
	if why != ReasonNone {
		return Failed, why
	}
	if row.RASigned {
		ra = w.CodeAddress(ra)
	}
	out.Regs.Inherit(&in.Regs, row.carried(a))
	out.SetSP(a, cfa)
	elsewhere := row.recovers(a, a.SP) // what is saved is not in the frame
	for i := range row.Regs[:a.NumRegs] {
		reg := procstate.Reg(i)
		if !row.recovers(a, reg) {
			continue
		}
		v, loc, why := row.value(&e, reg, cfa)
		if loc.Kind == LocationAddress && !elsewhere && (loc.Addr < in.sp && popped(a, in, loc.Addr, why == ReasonNone) ||
			loc.Addr >= cfa && in.Flags&Interrupted != 0 && !row.Signal) {
			if held, ok := in.Regs.Value(reg); ok {
				v, why = held, ReasonNone
				loc = InRegister(reg)
			}
		}
		switch {
		case why == ReasonNone:
			out.Regs.Set(reg, v)
		case why == BadUnwindInfo || why == UnsupportedUnwind || reg == a.SP:
			return Failed, why
		}
		switch reg {
		case a.SP:
			out.SetSP(a, v)
			out.SPLocation = loc
		case a.FP:
			out.FPLocation = loc
		}
	}
	out.PCLocation = at
	out.SetPC(a, ra)
	out.fp = out.Regs.Raw(a.FP)
	if !in.IsTop() {
		// Registers other than FP have been carried here from who knows where.
		for _, loc := range []*Location{&out.PCLocation, &out.SPLocation, &out.FPLocation} {
			if loc.Kind == LocationRegister {
				*loc = Location{}
			}
		}
	}
	if row.carried(a)>>a.FP&1 != 0 {
		out.FPLocation = in.FPLocation
	}
	if row.Signal {
		crossSignal(in, out)
	}
	return Success, nil
}

// carried returns the registers that have the same value in the caller: those
// said to, and callee-saved ones of which nothing is said. A caller-saved
// register of which nothing is said has a value only the callee knew.
func (row *Row) carried(a *procstate.Arch) (mask uint64) {
	for left := uint64(1)<<a.NumRegs - 1; left != 0; left &= left - 1 {
		i := bits.TrailingZeros64(left)
		switch row.Regs[i].Kind {
		case SameValue:
			mask |= 1 << i
		case Unspecified:
			mask |= a.CalleeSaved & (1 << i)
		}
	}
	return mask &^ (1<<a.SP | 1<<row.notRecovered(a) | 1<<a.PC)
}

// recovers reports whether the caller's value of reg comes from a rule that
// must be evaluated.
func (row *Row) recovers(a *procstate.Arch, reg procstate.Reg) bool {
	switch row.Regs[reg].Kind {
	case Unspecified, Undefined, SameValue:
		return false
	}
	return reg != a.PC && reg != row.notRecovered(a)
}

// notRecovered is the return address column, whose value is the caller's PC.
// A link register is not the caller's again by that: it was overwritten by
// the call. Only a signal trampoline restores it, besides the PC.
func (row *Row) notRecovered(a *procstate.Arch) procstate.Reg {
	if row.RA == raOther {
		return a.PC
	}
	return procstate.Reg(row.RA)
}

// cfa computes the CFA.
func (row *Row) cfa(e *expression) (uint64, Reason) {
	switch row.CFA.Kind {
	case InReg:
		v, ok := e.regs.Value(row.CFA.Reg)
		if !ok {
			return 0, NoRegister
		}
		return e.wrap(v + uint64(row.CFA.Offset)), ReasonNone
	case ValExpression:
		return e.eval(row.Expression(row.CFA), nil)
	}
	return 0, BadUnwindInfo
}

// value computes the caller's value of a column and tells where it is.
func (row *Row) value(e *expression, reg procstate.Reg, cfa uint64) (v uint64, loc Location, why Reason) {
	rule := row.Regs[reg]
	addr := cfa
	ok := true
	switch rule.Kind {
	case Unspecified, SameValue:
		// Of a return address column: the link register. A PC would be its
		// own return address.
		if v, ok = e.regs.Value(reg); !ok || reg == e.pc {
			return 0, loc, NoRegister
		}
		return v, InRegister(reg), ReasonNone
	case InReg:
		if v, ok = e.regs.Value(rule.Reg); !ok {
			return 0, loc, NoRegister
		}
		return v, InRegister(rule.Reg), ReasonNone
	case ValOffset:
		return e.wrap(cfa + uint64(rule.Offset)), loc, ReasonNone
	case ValExpression:
		v, why = e.eval(row.Expression(rule), &cfa)
		return v, loc, why
	case AtOffset:
		addr = e.wrap(cfa + uint64(rule.Offset))
	case AtExpression:
		if addr, why = e.eval(row.Expression(rule), &cfa); why != ReasonNone {
			return 0, loc, why
		}
	default:
		return 0, loc, NoRegister
	}
	loc = InMemory(addr)
	if v, ok = e.mem.ReadWord(addr); !ok {
		return 0, loc, ReadFailure(e.mem, addr)
	}
	return v, loc, ReasonNone
}

// wrap cuts a sum to the width of an address.
func (e *expression) wrap(v uint64) uint64 { return v & (^uint64(0) >> (64 - 8*e.width)) }
