package unwind

import (
	"math"

	"github.com/swbpf/swbpf/procstate"
)

// Call frame instructions (DWARF 5, 7.24; the Linux Standard Base; DWARF for
// the Arm 64-bit Architecture). The first three have their operand in the low
// six bits.
const (
	cfaAdvanceLoc = 0x40
	cfaOffset     = 0x80
	cfaRestore    = 0xc0

	cfaNop                 = 0x00
	cfaSetLoc              = 0x01
	cfaAdvanceLoc1         = 0x02
	cfaAdvanceLoc2         = 0x03
	cfaAdvanceLoc4         = 0x04
	cfaOffsetExtended      = 0x05
	cfaRestoreExtended     = 0x06
	cfaUndefined           = 0x07
	cfaSameValue           = 0x08
	cfaRegister            = 0x09
	cfaRememberState       = 0x0a
	cfaRestoreState        = 0x0b
	cfaDefCFA              = 0x0c
	cfaDefCFARegister      = 0x0d
	cfaDefCFAOffset        = 0x0e
	cfaDefCFAExpression    = 0x0f
	cfaExpression          = 0x10
	cfaOffsetExtendedSf    = 0x11
	cfaDefCFASf            = 0x12
	cfaDefCFAOffsetSf      = 0x13
	cfaValOffset           = 0x14
	cfaValOffsetSf         = 0x15
	cfaValExpression       = 0x16
	cfaMIPSAdvanceLoc8     = 0x1d
	cfaNegateRAStateWithPC = 0x2c
	cfaNegateRAState       = 0x2d
	cfaGNUArgsSize         = 0x2e
	cfaGNUNegOffsetExt     = 0x2f
)

// arm64RASignState is the pseudo-register of AArch64 whose value tells whether
// the return address is signed.
const arm64RASignState = 34

// maxRememberDepth bounds the stack of remembered rows. Compilers use one or
// two levels.
const maxRememberDepth = 64

// program executes call frame instructions and yields the rows they describe.
type program struct {
	cursor
	arch     *procstate.Arch
	cie      *cie
	row      Row
	loc      uint64 // link-time address at which row begins
	end      uint64 // and at which the code of the FDE ends
	bases    pointerBases
	remember []Row
	ignored  RegRule // takes the rules of columns that are not tracked
	thunk    thunk
	epilogue epilogue
	named    uint64 // registers that the instructions, or those of the CIE, tell of: bit r is register r
}

// start prepares the instructions of an FDE.
func (p *program) start(a *procstate.Arch, f *fde) {
	p.cursor = cursor{b: f.instructions}
	p.arch, p.cie = a, f.cie
	p.row = f.cie.initial
	p.named = f.cie.named
	p.loc, p.end = f.start, f.end
	p.bases = f.bases
	p.remember = p.remember[:0]
	p.thunk = thunk{img: p.thunk.img, prev: f.start}
	p.epilogue.late = 0
}

// next executes up to the end of the row: afterwards p.row holds from p.loc to
// end. more is false when it is the last row, which ends with the FDE. A
// reason other than ReasonNone tells that the instructions are bad from p.loc
// on.
func (p *program) next() (end uint64, more bool, why Reason) {
	t := &p.thunk
	if t.until != 0 && p.loc >= t.until {
		p.row.CFA.Offset, t.until = t.cfa, 0
		if t.at > p.loc {
			return t.at, true, ReasonNone
		}
	}
	for p.cursor.more() {
		at := p.loc
		op := p.u8()
		arg := uint64(op & 0x3f)
		switch op & 0xc0 {
		case cfaAdvanceLoc:
			at, p.bad = p.advance(arg)
		case cfaOffset:
			p.offset(arg, int64(p.uleb()))
		case cfaRestore:
			p.restore(arg)
		default:
			if at, why = p.extended(op); why != ReasonNone {
				return 0, false, why
			}
		}
		if p.bad {
			return 0, false, BadUnwindInfo
		}
		if at != p.loc {
			t.prev = p.loc
			end, more = t.split(at, true)
			return end, more, ReasonNone
		}
	}
	if p.bad {
		return 0, false, BadUnwindInfo
	}
	end, more = t.split(0, false)
	return end, more, ReasonNone
}

// extended executes an instruction that has a byte of its own and returns the
// location after it.
func (p *program) extended(op byte) (at uint64, why Reason) {
	at = p.loc
	switch op {
	case cfaNop:
	case cfaSetLoc:
		v, indirect := p.pointer(p.cie.enc, &p.bases)
		if indirect {
			return at, UnsupportedUnwind
		}
		p.take(uint64(p.cie.segmentSize))
		p.bad = p.bad || v < at
		at = v
	case cfaAdvanceLoc1:
		at, p.bad = p.advance(p.uint(1))
	case cfaAdvanceLoc2:
		at, p.bad = p.advance(p.uint(2))
	case cfaAdvanceLoc4:
		at, p.bad = p.advance(p.uint(4))
	case cfaMIPSAdvanceLoc8:
		at, p.bad = p.advance(p.uint(8))
	case cfaOffsetExtended:
		reg := p.uleb()
		p.offset(reg, int64(p.uleb()))
	case cfaOffsetExtendedSf:
		reg := p.uleb()
		p.offset(reg, p.sleb())
	case cfaGNUNegOffsetExt:
		reg := p.uleb()
		p.offset(reg, -int64(p.uleb()))
	case cfaRestoreExtended:
		p.restore(p.uleb())
	case cfaUndefined:
		*p.slot(p.uleb()) = RegRule{Kind: Undefined}
	case cfaSameValue:
		*p.slot(p.uleb()) = RegRule{Kind: SameValue}
	case cfaRegister:
		s := p.slot(p.uleb())
		*s = RegRule{Kind: InReg, Reg: p.tracked(p.uleb())}
	case cfaRememberState:
		if len(p.remember) >= maxRememberDepth {
			return at, UnsupportedUnwind
		}
		p.remember = append(p.remember, p.row)
		p.toEpilogue()
	case cfaRestoreState:
		n := len(p.remember)
		if n == 0 {
			return at, BadUnwindInfo
		}
		p.row = p.remember[n-1]
		p.remember = p.remember[:n-1]
	case cfaDefCFA:
		reg := p.tracked(p.uleb())
		p.row.CFA = RegRule{Kind: InReg, Reg: reg, Offset: int64(p.uleb())}
	case cfaDefCFASf:
		reg := p.tracked(p.uleb())
		p.row.CFA = RegRule{Kind: InReg, Reg: reg, Offset: p.sleb() * p.cie.dataAlign}
	case cfaDefCFARegister:
		p.bad = p.row.CFA.Kind != InReg
		p.row.CFA.Reg = p.tracked(p.uleb())
	case cfaDefCFAOffset:
		p.bad = p.row.CFA.Kind != InReg
		before := p.row.CFA.Offset
		p.row.CFA.Offset = int64(p.uleb())
		p.push(before)
	case cfaDefCFAOffsetSf:
		p.bad = p.row.CFA.Kind != InReg
		p.row.CFA.Offset = p.sleb() * p.cie.dataAlign
	case cfaDefCFAExpression:
		p.row.CFA = p.expression(ValExpression)
	case cfaExpression:
		s := p.slot(p.uleb())
		*s = p.expression(AtExpression)
	case cfaValExpression:
		p.valExpression()
	case cfaValOffset:
		s := p.slot(p.uleb())
		*s = RegRule{Kind: ValOffset, Offset: int64(p.uleb()) * p.cie.dataAlign}
	case cfaValOffsetSf:
		s := p.slot(p.uleb())
		*s = RegRule{Kind: ValOffset, Offset: p.sleb() * p.cie.dataAlign}
	case cfaGNUArgsSize:
		p.uleb() // matters to landing pads only
	case cfaNegateRAState, cfaNegateRAStateWithPC:
		if p.arch != procstate.ARM64 {
			return at, UnsupportedUnwind
		}
		p.row.RASigned = !p.row.RASigned
	default:
		return at, UnsupportedUnwind
	}
	return at, ReasonNone
}

// advance returns the location delta code units after the present one.
func (p *program) advance(delta uint64) (at uint64, bad bool) {
	if delta != 0 && p.cie.codeAlign > math.MaxUint64/delta {
		return p.loc, true
	}
	at = p.loc + delta*p.cie.codeAlign + p.epilogue.late
	p.epilogue.late = 0
	return at, p.bad || at < p.loc
}

// tracked makes a Reg of a register number; NoReg when it is not tracked.
func (p *program) tracked(reg uint64) procstate.Reg {
	if reg < uint64(p.arch.NumRegs) {
		return procstate.Reg(reg)
	}
	return procstate.NoReg
}

// slot returns where the rule of a column is kept. Columns that nothing needs,
// such as vector registers, share one that is never read.
func (p *program) slot(reg uint64) *RegRule {
	switch {
	case reg < uint64(p.arch.NumRegs):
		p.named |= 1 << reg
		return &p.row.Regs[reg]
	case reg == p.cie.raColumn:
		return &p.row.Regs[raOther]
	}
	return &p.ignored
}

func (p *program) offset(reg uint64, factored int64) {
	*p.slot(reg) = RegRule{Kind: AtOffset, Offset: factored * p.cie.dataAlign}
}

// restore gives a column the rule that it has after the CIE's instructions.
func (p *program) restore(reg uint64) {
	switch s := p.slot(reg); {
	case s == &p.ignored:
	case s == &p.row.Regs[raOther]:
		*s = p.cie.initial.Regs[raOther]
	default:
		*s = p.cie.initial.Regs[reg]
	}
}

// expression reads a block and makes it the expression of a rule.
func (p *program) expression(kind RuleKind) RegRule {
	n := p.uleb()
	at := p.i
	p.take(n)
	if p.bad {
		return RegRule{}
	}
	return RegRule{Kind: kind, size: uint32(n), Offset: int64(at), inCIE: p.cie.parsing}
}

func (p *program) valExpression() {
	reg := p.uleb()
	rule := p.expression(ValExpression)
	if reg == arm64RASignState && p.arch == procstate.ARM64 {
		// The older way to say what DW_CFA_AARCH64_negate_ra_state says.
		if e := p.bytesOf(rule); len(e) == 1 && e[0] >= opLit0 && e[0] < opReg0 {
			p.row.RASigned = e[0]&1 != 0
			return
		}
		p.bad = true
		return
	}
	*p.slot(reg) = rule
}

// bytesOf returns the bytes of an expression of p.row, valid until the next
// record is read.
func (p *program) bytesOf(r RegRule) []byte {
	b := p.b
	if r.inCIE && !p.cie.parsing {
		b = p.cie.instructions
	}
	if !r.isExpression() || uint64(r.Offset)+uint64(r.size) > uint64(len(b)) {
		return nil
	}
	return b[r.Offset : r.Offset+int64(r.size)]
}

// ownRow returns p.row with copies of its expressions.
func (p *program) ownRow() Row {
	row := p.row
	var code []byte
	own := func(r *RegRule) {
		if r.isExpression() {
			e := p.bytesOf(*r)
			r.Offset, r.inCIE = int64(len(code)), false
			code = append(code, e...)
		}
	}
	own(&row.CFA)
	for i := range row.Regs {
		own(&row.Regs[i])
	}
	row.code = string(code)
	return row
}
