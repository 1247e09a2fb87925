package unwind

import (
	"math"
	"math/bits"

	"github.com/swbpf/swbpf/procstate"
)

// maxSaved is the number of callee-saved registers, the stack pointer aside,
// of the architecture that has most.
const maxSaved = 11

// Rule is a row compiled for use: how to come from a frame whose code it
// covers to the caller's frame. Rules are immutable and shared; a pointer to
// one stays valid for ever.
//
// The usual rule reads
//
//	CFA  = reg + cfaOff, or *(reg + cfaOff) + cfaAdd
//	RA   = *(CFA + raOff), or a register
//	r[i] = *(base + off[i]) with base the CFA, or reg
//
// with every other callee-saved register unchanged and every caller-saved one
// unknown. A row that does not fit is kept whole.
type Rule struct {
	row    *Row   // when the rule does not fit; what follows is not used then
	carry  uint64 // registers with the same value in the caller: bit r is register r
	cfaOff int32
	cfaAdd int32
	raOff  int16
	flags  ruleFlags
	cfaReg procstate.Reg
	raReg  procstate.Reg // for ruleRAInReg
	why    Reason        // what is wrong here; ReasonNone for a rule that can be used
	n      uint8         // registers saved
	reg    [maxSaved]procstate.Reg
	off    [maxSaved]int16
}

type ruleFlags uint8

const (
	ruleDeref       ruleFlags = 1 << iota // CFA is in memory
	ruleSavedByReg                        // base is reg, not the CFA
	ruleRAInReg                           // RA is in a register
	ruleRAUndefined                       // there is no caller
	ruleRASigned                          // RA carries an authentication code
	ruleSignal                            // a signal trampoline
	rulePlain                             // made by PlainRule
	ruleFPLinked                          // see PlainRule

	// A plain rule never saves by a register.
	ruleNoted = ruleSavedByReg // see Noted
)

// Rules for addresses that cannot be unwound, by reason.
var (
	ruleNone        = &Rule{why: NoUnwindInfo}
	ruleBad         = &Rule{why: BadUnwindInfo}
	ruleUnsupported = &Rule{why: UnsupportedUnwind}
)

func ruleFor(why Reason) *Rule {
	switch why {
	case NoUnwindInfo:
		return ruleNone
	case UnsupportedUnwind:
		return ruleUnsupported
	}
	return ruleBad
}

// Reason tells why the code has no usable rule: NoUnwindInfo where no CFI
// covers it, BadUnwindInfo or UnsupportedUnwind where it does. It is
// ReasonNone for a rule that can be used.
func (r *Rule) Reason() Reason { return r.why }

// CFARegister returns the register that the CFA is found from, NoReg when that
// takes more than one or the rule cannot be used.
func (r *Rule) CFARegister() procstate.Reg {
	switch {
	case r.why != ReasonNone, r.row != nil && r.row.CFA.Kind != InReg:
		return procstate.NoReg
	case r.row != nil:
		return r.row.CFA.Reg
	}
	return r.cfaReg
}

// CFA returns the register and the bytes that the CFA is the sum of. ok is false
// when it is found in another way.
func (r *Rule) CFA() (reg procstate.Reg, bytes int64, ok bool) {
	switch reg = r.CFARegister(); {
	case reg == procstate.NoReg, r.flags&ruleDeref != 0:
		return procstate.NoReg, 0, false
	case r.row != nil:
		return reg, r.row.CFA.Offset, true
	}
	return reg, int64(r.cfaOff), true
}

// CFAIs reports whether the CFA is a register plus so many bytes.
func (r *Rule) CFAIs(reg procstate.Reg, bytes int64) bool {
	base, off, ok := r.CFA()
	return ok && base == reg && off == bytes
}

// Raised returns the rule by which the CFA is that many bytes higher, and what is
// saved as far from it as before. ok is false unless next, the rule that
// follows, differs from that in where the CFA counts from alone.
func (r *Rule) Raised(bytes int64, next *Rule) (raised *Rule, ok bool) {
	a, b := *r, *next
	a.cfaOff += int32(bytes)
	b.cfaReg, b.cfaOff = a.cfaReg, a.cfaOff
	return &a, a == b && int64(a.cfaOff) == int64(r.cfaOff)+bytes && a.row == nil && a.flags&(ruleDeref|ruleSavedByReg) == 0
}

// TakenOff returns the rule where code of architecture a takes the frame off: the CFA is so many
// bytes above SP, and with inLR the return address is back in the link register. ok is false where
// the rule has the CFA or registers in other ways.
func (r *Rule) TakenOff(a *procstate.Arch, bytes int64, inLR bool) (off *Rule, ok bool) {
	const other = ruleDeref | ruleSavedByReg | ruleRAUndefined | ruleSignal
	if r.why != ReasonNone || r.row != nil || r.flags&other != 0 || int64(int32(bytes)) != bytes {
		return nil, false
	}
	o := *r
	o.cfaReg, o.cfaOff = a.SP, int32(bytes)
	if inLR {
		o.flags |= ruleRAInReg
		o.raReg, o.raOff = a.LR, 0
	}
	return &o, true
}

// SavedAt returns where a callee-saved register or, for the link register of architecture a, the return
// address is saved, in bytes from the CFA. ok is false when it is elsewhere.
func (r *Rule) SavedAt(a *procstate.Arch, reg procstate.Reg) (bytes int64, ok bool) {
	if r.why != ReasonNone || r.row != nil || r.flags&ruleSavedByReg != 0 {
		return 0, false
	}
	if reg == a.LR {
		return int64(r.raOff), r.flags&(ruleRAInReg|ruleRAUndefined) == 0
	}
	for i, saved := range r.reg[:r.n] {
		if saved == reg {
			return int64(r.off[i]), true
		}
	}
	return 0, false
}

// SavesNone reports whether no register of the caller's is in the frame but the return address.
func (r *Rule) SavesNone() bool { return r.why == ReasonNone && r.row == nil && r.n == 0 }

// SavesResults reports whether the rule has the register that calls return
// their result in saved in the frame: no function keeps that for its caller but
// the unwinder of exceptions, for the landing pad.
func (r *Rule) SavesResults() bool {
	const result = 0 // RAX, X0
	return r.row != nil && !r.row.Signal && r.row.Regs[result].Kind == AtOffset
}

// SwitchesStack reports whether the rule, for code of architecture a, tells of a caller on another
// stack, as those of Wine do where a function of Windows has called the system: the caller's SP is
// in a place of its own, and is the CFA.
func (r *Rule) SwitchesStack(a *procstate.Arch) bool {
	const deref = "\x06" // DW_OP_deref
	if r.row == nil {
		return false
	}
	at := r.row.Regs[a.SP]
	return at.Kind == AtExpression && r.row.CFA.isExpression() && r.row.Expression(r.row.CFA) == r.row.Expression(at)+deref
}

// Jumps reports whether the rule, for code of architecture a, tells of where
// the code is about to jump to and not of its caller, as the tables of longjmp
// and setcontext do: the caller's SP is not the CFA but is kept in a place of
// its own, or the return address is at or above the CFA, and the code is no
// signal trampoline.
func (r *Rule) Jumps(a *procstate.Arch) bool {
	if r.row != nil {
		ra := &r.row.Regs[r.row.RA]
		return !r.row.Signal && (r.row.recovers(a, a.SP) && !r.SwitchesStack(a) || ra.Kind == AtOffset && ra.Offset >= 0)
	}
	return r.why == ReasonNone && r.flags&(ruleRAInReg|ruleRAUndefined|ruleSignal) == 0 && r.raOff >= 0
}

// raiseCFA raises the CFA of a row and leaves where registers are saved as it is.
func (r *Row) raiseCFA(up int64) {
	if up == 0 {
		return
	}
	r.CFA.Offset += up
	for i := range r.Regs {
		if rule := &r.Regs[i]; rule.Kind == AtOffset {
			rule.Offset -= up
		}
	}
}

// pushed returns by how much the CFA of a row is too low, in bytes: that of one
// that is found from SP with the return address at or above it, as glibc's tables
// of _dl_runtime_resolve for AArch64 have it. They leave out the two words that
// the procedure linkage table pushes. Where a frame record of AArch64 is at the CFA, in
// libffi from 3.4.7 on, it is taken to be before that.
func (r *Row) pushed(a *procstate.Arch) int64 {
	const most = 256
	ra := &r.Regs[r.RA]
	if fp := &r.Regs[a.FP]; a.LR != procstate.NoReg && !r.Signal && r.CFA.Kind == InReg && r.CFA.Reg != a.SP && !r.recovers(a, a.SP) &&
		fp.Kind == AtOffset && fp.Offset == 0 && ra.Kind == AtOffset && ra.Offset == int64(a.AddressWidth) {
		return 2 * int64(a.AddressWidth)
	}
	if r.Signal || ra.Kind != AtOffset || ra.Offset < 0 || ra.Offset > most || r.CFA.Kind != InReg || r.CFA.Reg != a.SP || r.recovers(a, a.SP) {
		return 0
	}
	up := ra.Offset + int64(a.AddressWidth)
	if a.LR != procstate.NoReg {
		up = (up + 15) &^ 15
	}
	return up
}

// pushedBefore returns by how much the CFA of an FDE's first row, which ends at
// end, is too low because that of the second is: the first still has the
// return address in its register.
func (p *program) pushedBefore(end uint64) int64 {
	ra := p.row.Regs[p.row.RA].Kind
	if p.arch.LR == procstate.NoReg || ra != Unspecified && ra != SameValue || !p.cursor.more() {
		return 0
	}
	ahead := *p
	ahead.loc, ahead.remember = end, nil
	if _, _, why := ahead.next(); why != ReasonNone || ahead.row.CFA != p.row.CFA {
		return 0
	}
	return ahead.row.pushed(p.arch)
}

// compact makes a Rule of p.row. ok is false when it does not fit.
func (p *program) compact() (r Rule, ok bool) {
	row, a := &p.row, p.arch
	if !r.compactCFA(p) || !r.compactRA(p) {
		return Rule{}, false
	}
	if row.Signal {
		r.flags |= ruleSignal
	}
	r.carry = a.CalleeSaved &^ (1 << a.SP)
	for left := p.named; left != 0; left &= left - 1 {
		i := bits.TrailingZeros64(left)
		rule := &row.Regs[i]
		preserved := r.carry>>i&1 != 0
		if rule.Kind == Unspecified || i == int(row.RA) {
			continue
		}
		switch {
		case rule.Kind == SameValue && preserved:
		case rule.Kind == Undefined && !preserved && i != int(a.SP):
		case i == int(a.SP) && rule.Kind == ValOffset && rule.Offset == 0: // the CFA, as ever
		case preserved && r.compactSaved(p, procstate.Reg(i), rule):
		default:
			return Rule{}, false
		}
	}
	for _, reg := range r.reg[:r.n] {
		r.carry &^= 1 << reg
	}
	return r, true
}

func (r *Rule) compactCFA(p *program) bool {
	cfa := &p.row.CFA
	switch cfa.Kind {
	case InReg:
		if cfa.Reg == procstate.NoReg || int64(int32(cfa.Offset)) != cfa.Offset {
			return false
		}
		r.cfaReg, r.cfaOff = cfa.Reg, int32(cfa.Offset)
		return true
	case ValExpression:
		// DW_OP_bregN off; DW_OP_deref [; DW_OP_plus_uconst add]: functions
		// that realign their stack, and hand-written ones.
		c := cursor{b: p.bytesOf(*cfa)}
		reg, off, ok := breg(&c, p.arch)
		if !ok || c.u8() != opDeref {
			return false
		}
		var add uint64
		if c.more() && c.u8() == opPlusUconst {
			add = c.uleb()
		}
		if c.bad || c.i != len(c.b) || add > math.MaxInt32 {
			return false
		}
		r.flags |= ruleDeref
		r.cfaReg, r.cfaOff, r.cfaAdd = reg, off, int32(add)
		return true
	}
	return false
}

// breg reads a DW_OP_bregN of a tracked register.
func breg(c *cursor, a *procstate.Arch) (reg procstate.Reg, off int32, ok bool) {
	op := c.u8()
	v := c.sleb()
	reg = procstate.Reg(op - opBreg0)
	if c.bad || op < opBreg0 || int(reg) >= a.NumRegs || reg == a.PC || int64(int32(v)) != v {
		return 0, 0, false
	}
	return reg, int32(v), true
}

func (r *Rule) compactRA(p *program) bool {
	row, a := &p.row, p.arch
	if row.RASigned {
		r.flags |= ruleRASigned
	}
	ra := &row.Regs[row.RA]
	switch ra.Kind {
	case AtOffset:
		if int64(int16(ra.Offset)) != ra.Offset {
			return false
		}
		r.raOff = int16(ra.Offset)
		return true
	case Undefined:
		r.flags |= ruleRAUndefined
		return true
	case Unspecified, SameValue:
		if a.LR != procstate.NoReg && row.RA == uint8(a.LR) {
			r.flags |= ruleRAInReg
			r.raReg = a.LR
			return true
		}
	}
	return false
}

// compactSaved adds a callee-saved register that is in memory.
func (r *Rule) compactSaved(p *program, reg procstate.Reg, rule *RegRule) bool {
	off := rule.Offset
	switch rule.Kind {
	case AtOffset:
		if r.flags&ruleSavedByReg != 0 {
			return false
		}
	case AtExpression:
		// In functions that realign their stack: DW_OP_bregN off, with the
		// register from which the CFA is found.
		c := cursor{b: p.bytesOf(*rule)}
		base, o, ok := breg(&c, p.arch)
		if !ok || c.i != len(c.b) || base != r.cfaReg || r.flags&ruleDeref == 0 ||
			r.n > 0 && r.flags&ruleSavedByReg == 0 {
			return false
		}
		r.flags |= ruleSavedByReg
		off = int64(o)
	default:
		return false
	}
	if r.n == maxSaved || int64(int16(off)) != off {
		return false
	}
	r.reg[r.n], r.off[r.n] = reg, int16(off)
	r.n++
	return true
}

// pltExpression recognises the CFA of a linker's procedure linkage table on
// x86: reg + off, plus one word when the last four bits of the PC are at least
// threshold: DW_OP_breg(SP) off; breg(PC) 0; lit15; and; lit(threshold); ge;
// lit(log2 word); shl; plus.
func pltExpression(a *procstate.Arch, e []byte) (off int64, threshold uint64, ok bool) {
	shift := byte(opLit0 + 3)
	if a.AddressWidth == 4 {
		shift = opLit0 + 2
	}
	if len(e) != 11 || e[0] != opBreg0+byte(a.SP) || e[1] >= 0x40 ||
		e[2] != opBreg0+byte(a.PC) || e[3] != 0 || e[4] != opLit0+15 || e[5] != opAnd ||
		e[6] < opLit0 || e[6] > opLit0+15 || e[7] != opGe || e[8] != shift || e[9] != opShl ||
		e[10] != opPlus {
		return 0, 0, false
	}
	return int64(e[1]), uint64(e[6] - opLit0), true
}

// maxLiveStack bounds how far beyond what was captured of a stack a read is
// still one of that stack.
const maxLiveStack = 64 << 20

// ReadFailure tells why the word at addr could not be read: StackCut when it
// lies past the captured part of a stack, else MemoryUnreadable.
func ReadFailure(p procstate.ProcessState, addr uint64) Reason {
	s, ok := p.(*procstate.Snapshot)
	if !ok || len(s.Regions()) == 0 {
		return MemoryUnreadable
	}
	stack := &s.Regions()[0]
	past := addr + uint64(s.Arch().AddressWidth) - (stack.Addr + uint64(len(stack.Data)))
	if addr >= stack.Addr && past > 0 && past <= maxLiveStack {
		return StackCut
	}
	return MemoryUnreadable
}
