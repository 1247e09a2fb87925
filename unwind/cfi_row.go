package unwind

import "github.com/swbpf/swbpf/procstate"

// RuleKind tells how a register of the caller is recovered (DWARF 5, 6.4.1).
type RuleKind uint8

// The kinds of rule.
const (
	Unspecified   RuleKind = iota // the table says nothing: the ABI decides
	Undefined                     // not recoverable
	SameValue                     // not changed by the function
	AtOffset                      // saved at CFA + Offset
	ValOffset                     // is CFA + Offset
	InReg                         // is (for the CFA: plus Offset) in register Reg
	AtExpression                  // saved at the address that an expression gives
	ValExpression                 // is the value of an expression
)

// RegRule is the rule for one register, or for the CFA: then its Kind is
// InReg or ValExpression, or Unspecified where the table gives no CFA.
type RegRule struct {
	Kind   RuleKind
	Reg    procstate.Reg // for InReg; NoReg for a register that is not tracked
	inCIE  bool          // the expression lies in the CIE; only while a row is made
	size   uint32        // bytes of the expression
	Offset int64         // bytes; for expressions their place in what holds them
}

// raOther is the index in Row.Regs of a return address column that is not a
// tracked register.
const raOther = procstate.MaxRegs

// Row is one row of a call frame information table: how the caller's
// registers are recovered at some range of code addresses. Rows are values
// that can be compared with ==.
type Row struct {
	CFA      RegRule
	Regs     [procstate.MaxRegs + 1]RegRule // by register; the last is for RA == MaxRegs
	RA       uint8                          // index in Regs of the return address
	Signal   bool                           // a signal trampoline: its caller was interrupted
	RASigned bool                           // the return address carries an authentication code

	code string // the expressions, one after the other
}

// Expression returns the DWARF expression of a rule of the row whose kind is
// AtExpression or ValExpression.
func (r *Row) Expression(rule RegRule) string {
	at := uint64(rule.Offset)
	if at > uint64(len(r.code)) || uint64(rule.size) > uint64(len(r.code))-at {
		return ""
	}
	return r.code[at : at+uint64(rule.size)]
}

func (r RegRule) isExpression() bool { return r.Kind == AtExpression || r.Kind == ValExpression }
