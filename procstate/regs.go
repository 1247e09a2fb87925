package procstate

import "math/bits"

// Regs is a set of register values, each known or not. It is a plain value:
// assigning it copies it. The zero Regs knows nothing.
type Regs struct {
	// ThreadPointer is the base of the thread's local storage (FS base on
	// amd64, GS base on 386, TPIDR_EL0 on arm64); 0 when not known. It does not change along
	// a stack.
	ThreadPointer uint64

	val   [MaxRegs]uint64
	known uint64 // bit r is set when val[r] is meaningful
}

// Value returns the value of r and whether it is known.
func (r *Regs) Value(reg Reg) (uint64, bool) {
	if reg >= MaxRegs || r.known&(1<<reg) == 0 {
		return 0, false
	}
	return r.val[reg], true
}

// Raw returns the value of r, or 0 when it is not known or r is NoReg.
func (r *Regs) Raw(reg Reg) uint64 {
	v, _ := r.Value(reg)
	return v
}

// Set makes v the known value of reg. Registers past MaxRegs are ignored.
func (r *Regs) Set(reg Reg, v uint64) {
	if reg < MaxRegs {
		r.val[reg] = v
		r.known |= 1 << reg
	}
}

// Forget makes the value of reg unknown.
func (r *Regs) Forget(reg Reg) {
	if reg < MaxRegs {
		r.val[reg] = 0
		r.known &^= 1 << reg
	}
}

// Retain forgets all registers whose bit in mask is not set.
func (r *Regs) Retain(mask uint64) {
	for k := r.known &^ mask; k != 0; k &= k - 1 {
		r.val[bits.TrailingZeros64(k)] = 0
	}
	r.known &= mask
}

// Inherit makes those registers of o that are in mask the known registers of
// r, which must not know any, and takes over the thread pointer.
func (r *Regs) Inherit(o *Regs, mask uint64) {
	r.ThreadPointer = o.ThreadPointer
	r.known = o.known & mask
	for k := r.known; k != 0; k &= k - 1 {
		i := bits.TrailingZeros64(k)
		r.val[i] = o.val[i]
	}
}

// Known returns the set of known registers: bit n stands for register n.
func (r *Regs) Known() uint64 { return r.known }
