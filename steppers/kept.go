package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/dataflow"
	"github.com/swbpf/swbpf/unwind"
)

// keptRegs knows of subroutines which registers they leave alone. Hand-written
// code, that of libcrypto for one, finds its frame from a register that calls
// do not preserve, and says so in its CFI, over calls of subroutines that do
// not touch it.
type keptRegs struct {
	images perImage[map[uint64]*dataflow.Callee] // by link-time address
}

// carry sets reg of out to its value in the frame in that out has called, where
// the code between proves that it is the same. m maps the code of both.
func (k *keptRegs) carry(w *unwind.Walker, m *procstate.Mapping, in, out *unwind.Frame, reg procstate.Reg) {
	v, known := in.Regs.Value(reg)
	if !known {
		return
	}
	var buf [maxCallLen]byte
	n := min(maxCallLen, out.PC()-m.Start)
	code := readCode(w, m, out.PC()-n, buf[:n])
	if uint64(len(code)) < n {
		return
	}
	target, direct, ok := callBefore(w.Arch(), code, out.PC())
	if !ok || !direct {
		return
	}
	of := k.images.get(m.Image)
	if of == nil {
		of = &map[uint64]*dataflow.Callee{}
		k.images.put(m.Image, of)
	}
	c := (*of)[target-m.Bias]
	if c == nil {
		c = dataflow.NewCallee(m.Image, target-m.Bias)
		(*of)[target-m.Bias] = c
	}
	if c.Writes>>reg&1 == 0 && c.Covers(in.PC()-m.Bias) {
		out.Regs.Set(reg, v)
	}
}
