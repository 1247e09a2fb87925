package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Compilers move instructions over the directive that tells of a change of SP:
// in clang's libraries a comparison stands between the addition to SP that ends
// a frame and the row of CFI that knows of it. One row that counts from SP
// cannot be right both before the addition and after; where it began earlier
// than that, it is right before.

// maxRaise bounds the bytes from the instruction that raises SP to the one in
// question.
const maxRaise = 24

// lags reports whether the row of CFI for an interrupted frame is the one from
// before SP was raised: the return address that it led to then stands behind a
// call.
func (d *Debug) lags(w *unwind.Walker, m *procstate.Mapping, in, out *unwind.Frame) bool {
	raise := d.raise(m, in.PC())
	if raise == 0 || out.SP() < in.SP()+raise+8 {
		return false
	}
	ra, ok := w.ProcessState().ReadWord(out.SP() - raise - 8)
	return ok && behindCall(w, d.buf[:], ra)
}

// raise returns by how many bytes SP was raised right before pc without a row
// of CFI for it, 0 when it was not.
func (d *Debug) raise(m *procstate.Mapping, pc uint64) uint64 {
	if m.Image.Arch() != procstate.AMD64 {
		return 0
	}
	vaddr := pc - m.Bias
	if !mayHave(m.Image, vaddr, markRaise, -maxRaise, -4) {
		return 0
	}
	words, ok := d.raised.get(m.Image, vaddr)
	if !ok {
		if at, n := d.raiseBefore(m.Image, vaddr); n != 0 {
			if _, start, _, err := d.tables.For(m.Image).Row(vaddr); err == nil && start < at {
				words = uint8(n / 8)
			}
		}
		d.raised.put(m.Image, vaddr, words)
	}
	return uint64(words) * 8
}

// raiseBefore finds the instruction, an addition or LEA, that raises SP and is
// followed by others up to vaddr that leave it alone; and by how much.
func (d *Debug) raiseBefore(im *procstate.Image, vaddr uint64) (at, n uint64) {
	if im.ReadVaddr(d.before[:], vaddr-maxRaise) != nil {
		return 0, 0
	}
	for i := maxRaise - 4; i >= 0; i-- {
		b := d.before[i:]
		add := (b[1] == 0x83 || b[1] == 0x81) && b[2] == 0xc4
		lea := b[1] == 0x8d && (b[2] == 0x64 || b[2] == 0xa4) && b[3] == 0x24
		if b[0] == 0x48 && (add || lea) {
			if n := raiseOf(b, vaddr); n != 0 {
				return vaddr - maxRaise + uint64(i), n
			}
		}
	}
	return 0, 0
}

// raiseOf returns by how much the first instruction of code, which ends at
// vaddr, raises SP; 0 unless the others let it be and go on to the end.
func raiseOf(code []byte, vaddr uint64) (n uint64) {
	const sp = 7
	var in isa.Inst
	for first := true; len(code) > 0; first = false {
		if !isa.DecodeAMD64(code, vaddr-uint64(len(code)), &in) || int(in.Len) > len(code) || in.Flow != isa.Next {
			return 0
		}
		for _, op := range in.Ops[:in.NumOps] {
			switch {
			case first && op.Kind == isa.Set && op.Dst == sp && op.Src == sp && op.Imm > 0 && op.Imm < 256*8 && op.Imm%8 == 0:
				n = uint64(op.Imm)
			case op.Kind == isa.Store || op.Kind == isa.StoreIndexed || op.Kind == isa.Scratch || op.Kind == isa.Compare:
			case op.Dst == sp || op.Kind == isa.Swap && op.Src == sp:
				return 0
			}
		}
		code = code[in.Len:]
	}
	return n
}
