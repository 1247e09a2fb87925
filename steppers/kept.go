package steppers

import (
	"math/bits"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/dataflow"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// keptRegs knows of subroutines which registers they leave alone. Hand-written
// code, that of libcrypto for one, finds its frame from a register that calls
// do not preserve, and says so in its CFI, over calls of subroutines that do
// not touch it.
type keptRegs struct {
	images mcode.PerImage[map[uint64]*dataflow.Callee] // by link-time address
	buf    [mcode.MaxCallLen]byte
}

// knowsScratch reports whether a register of a frame is known that calls do not preserve.
func knowsScratch(a *procstate.Arch, f *unwind.Frame) bool {
	return f.Regs.Known()&^(a.CalleeSaved|1<<a.SP|1<<a.PC) != 0
}

// maxCallees bounds the subroutines that are known of a file.
const maxCallees = 1 << 10

// carry sets reg of out to its value in the frame in that out has called, where
// the code between proves that it is the same. m maps the code of both.
func (k *keptRegs) carry(w *unwind.Walker, m *procstate.Mapping, in, out *unwind.Frame, reg procstate.Reg) {
	v, known := in.Regs.Value(reg)
	if !known {
		return
	}
	if c := k.callee(w, m, in, out); c != nil && c.Writes>>reg&1 == 0 {
		out.Regs.Set(reg, v)
	}
}

// carryAll is carry for all registers that are not known of out.
func (k *keptRegs) carryAll(w *unwind.Walker, m *procstate.Mapping, in, out *unwind.Frame) {
	c := k.callee(w, m, in, out)
	if c == nil {
		return
	}
	keep := in.Regs.Known() &^ (out.Regs.Known() | c.Writes)
	if lr := w.Arch().LR; lr != procstate.NoReg {
		keep &^= 1 << lr // the call has written it
	}
	for ; keep != 0; keep &= keep - 1 {
		reg := procstate.Reg(bits.TrailingZeros64(keep))
		out.Regs.Set(reg, in.Regs.Raw(reg))
	}
}

// callee returns the subroutine that out has called, if in is in its code.
func (k *keptRegs) callee(w *unwind.Walker, m *procstate.Mapping, in, out *unwind.Frame) *dataflow.Callee {
	n := min(mcode.MaxCallLen, out.PC()-m.Start)
	code := mcode.Read(w, m, out.PC()-n, k.buf[:n])
	if uint64(len(code)) < n {
		return nil
	}
	target, direct, ok := mcode.CallBefore(w.Arch(), code, out.PC())
	if !ok || !direct {
		return nil
	}
	of := k.images.Get(m.Image)
	if of == nil {
		of = &map[uint64]*dataflow.Callee{}
		k.images.Put(m.Image, of)
	}
	c := (*of)[target-m.Bias]
	if c == nil {
		if len(*of) >= maxCallees {
			clear(*of)
		}
		c = dataflow.NewCallee(m.Image, target-m.Bias)
		(*of)[target-m.Bias] = c
	}
	if !c.Covers(in.PC() - m.Bias) {
		return nil
	}
	return c
}
