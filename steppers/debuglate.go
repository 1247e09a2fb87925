package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// CFI of AArch64 that tells late that a frame is taken off. GCC's has the CFA at the frame
// pointer until SP is where the function began, when that is loaded before other registers are:
//
//	                           CFA X29+64, X29 at cfa-64, X30 at cfa-56
//	ldp x29, x30, [sp, #48]
//	ldp x19, x20, [sp, #64]    CFA SP+112, X30 is the return address
//	add sp, sp, #112           the same
//	ret                        CFA SP+0; GCC has a row for this one
//
// That of clang for functions without asynchronous tables (-fno-asynchronous-unwind-tables,
// as in parts of Rust's library) has one row behind the prologue, to the end of the function,
// be the CFA found from X29 or SP, and one for the prologue, where SP has been moved.
//
// At a return the CFA is SP. So, where code goes straight on to one, it is where SP will be, and
// a register that is not loaded on the way has come back.

// maxLate bounds the bytes of code on either side of an instruction that are looked at.
const maxLate = 96

// leaving is how a function goes on straight to where it returns or jumps to another one.
type leaving struct {
	bytes   int64 // from SP to the CFA
	loadsLR bool  // the return address comes back on the way
}

// leavesLate tells how the function goes on at an instruction where a frame is taken off, if the
// rule r for vaddr does not know of that yet.
func (d *Debug) leavesLate(im *procstate.Image, vaddr uint64, r *unwind.Rule) (l leaving, late bool) {
	a := im.Arch()
	reg, bytes, plain := r.CFA()
	if !plain || reg != a.SP && reg != a.FP {
		return l, false
	}
	s, ok := segmentAt(im, vaddr)
	if !ok {
		return l, false
	}
	before := min(maxLate, vaddr-s.Vaddr)
	code := d.code[:before+min(maxLate, s.Vaddr+s.Filesz-vaddr)]
	if im.ReadVaddr(code, vaddr-before) != nil {
		return l, false
	}
	end := isa.Next // where the code goes straight on to
	var in isa.Inst
	for at := before; end == isa.Next; at += uint64(in.Len) {
		if !mcode.Decode(a, code[at:], vaddr-before+at, &in) {
			return l, false
		}
		for _, op := range in.Ops[:in.NumOps] {
			switch {
			case writesMemory(op.Kind):
			case op.Dst == a.SP && op.Kind == isa.Set && op.Src == a.SP:
				l.bytes += op.Imm
			case op.Dst == a.SP, op.Dst == a.FP && reg == a.FP:
				return l, false
			case op.Dst == a.LR && op.Kind != isa.Sign:
				l.loadsLR = op.Kind == isa.Load
			}
		}
		end = in.Flow
	}
	if l.bytes < 0 || reg == a.SP && l.bytes == bytes {
		return l, false
	}
	switch end {
	case isa.Return:
		return l, in.Reg == a.LR && (reg == a.SP || d.hasLoaded(a, code[:before], vaddr, r, l.bytes))
	case isa.Jump, isa.IndirectJump:
		start, functionEnd, known := d.tables.For(im).FunctionAt(vaddr)
		elsewhere := end == isa.IndirectJump || in.Target-start >= functionEnd-start
		return l, known && elsewhere && d.hasLoaded(a, code[:before], vaddr, r, l.bytes)
	}
	return l, false
}

// hasLoaded reports whether code, which goes straight on to vaddr, has loaded the register that
// the rule r has the CFA from, or the return address where that is SP, from where r has it saved; there
// the CFA is so many bytes above SP.
func (d *Debug) hasLoaded(a *procstate.Arch, code []byte, vaddr uint64, r *unwind.Rule, bytes int64) bool {
	reg := r.CFARegister()
	if reg == a.SP {
		reg = a.LR
	}
	place, ok := r.SavedAt(a, reg)
	var in isa.Inst
	for ; ok && len(code) > 0; code = code[:len(code)-4] {
		vaddr -= 4
		if !mcode.Decode(a, code[len(code)-4:], vaddr, &in) || in.Flow != isa.Next {
			return false
		}
		for i := in.NumOps; i > 0; i-- {
			switch op := &in.Ops[i-1]; {
			case writesMemory(op.Kind):
			case op.Kind == isa.Load && op.Dst == reg:
				return op.Src == a.SP && op.Imm-bytes == place
			case op.Dst == a.SP && op.Kind == isa.Set && op.Src == a.SP:
				bytes += op.Imm
			case op.Dst == a.SP, op.Dst == reg && op.Kind != isa.Sign:
				return false
			}
		}
	}
	return false
}

// takenOff returns the rule for where leavesLate tells that a frame is taken off. ok is false where
// there is none.
func (d *Debug) takenOff(im *procstate.Image, vaddr uint64, r *unwind.Rule) (off *unwind.Rule, ok bool) {
	l, late := d.leavesLate(im, vaddr, r)
	if !late {
		return r, true // the file was cut short
	}
	return r.TakenOff(im.Arch(), l.bytes, !l.loadsLR)
}

// doubtLate returns what there is against the rule r for a link-time address of AArch64, where a
// frame was interrupted.
func (d *Debug) doubtLate(im *procstate.Image, vaddr uint64, r *unwind.Rule) uint8 {
	if _, late := d.leavesLate(im, vaddr, r); late {
		return doubtLeaves
	}
	if !isAtEntry(im.Arch(), r) {
		return doubtNone
	}
	start, _, _, first := d.tables.For(im).FirstRule(vaddr)
	if !first || start == vaddr {
		return doubtNone
	}
	if bytes, known := d.pushed(im, start, vaddr, true); !known || bytes == 0 {
		return doubtNone
	}
	return doubtPushed
}

func writesMemory(kind isa.OpKind) bool {
	return kind == isa.Store || kind == isa.StoreIndexed || kind == isa.Scratch || kind == isa.Compare
}
