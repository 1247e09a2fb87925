package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// CFI that contradicts the code that it is for. libcrypto's leaves out the last
// change of SP before a return. Compilers move instructions over the directive
// that tells of a change of SP: in clang's libraries a comparison stands between
// the addition to SP that ends a frame and the row of CFI that knows of it, and a
// move behind the push of an argument. Where SP is known up to the next row, that
// one tells where the CFA is. And functions written by hand, those of libc that
// multiply long numbers, change SP without a word of it in their CFI.

const (
	// maxLag bounds the bytes from an instruction to the row that corrects its own.
	maxLag = 24
	// maxSilent bounds the bytes of a function that are looked at for how it moves SP.
	maxSilent = 256
)

// What the code at an instruction has against its row of CFI.
const (
	doubtNone    uint8 = 1 + iota
	doubtReturns       // it takes its address from SP, and the row counts from elsewhere
	doubtLags          // the next row has the CFA elsewhere
	doubtSilent        // SP has moved, and the function has no other row
)

// doubt returns what there is against the rule r for a link-time address, where
// a frame was interrupted or is in a call.
func (d *Debug) doubt(im *procstate.Image, vaddr uint64, r *unwind.Rule, interrupted bool) uint8 {
	arch := im.Arch()
	if arch == procstate.ARM64 || r.Reason() != unwind.ReasonNone {
		return doubtNone
	}
	atEntry := r.CFAIs(arch.SP, int64(arch.AddressWidth)) // the rule is that of where functions begin
	if !interrupted {
		if atEntry && d.isSilent(im, vaddr) {
			return doubtSilent
		}
		return doubtNone
	}
	fact, ok := d.doubts.get(im, vaddr)
	if !ok {
		fact = doubtNone
		if !atEntry && d.isReturn(im, vaddr) {
			fact = doubtReturns
		} else if code, next := d.upToNext(im, vaddr, r); next != nil && lag(code, vaddr, r, next) != 0 {
			fact = doubtLags
		} else if atEntry && d.isSilent(im, vaddr) {
			fact = doubtSilent
		}
		d.doubts.put(im, vaddr, fact)
	}
	return fact
}

// mend sets out right, the caller that the rule r for vaddr has for in, where r
// is wrong, by what there is against it. It returns false when only the analysis of
// the code can tell.
func (d *Debug) mend(w *unwind.Walker, im *procstate.Image, vaddr uint64, doubt uint8, r *unwind.Rule, in, out *unwind.Frame) bool {
	switch doubt {
	case doubtReturns:
		if out.SP() == in.SP()+uint64(im.Arch().AddressWidth) {
			return true
		}
		ra, ok := w.ProcessState().ReadWord(in.SP())
		return !ok || !behindCall(w, d.buf[:], ra)
	case doubtLags:
		code, next := d.upToNext(im, vaddr, r)
		if next == nil { // the file was cut short
			return true
		}
		bytes := lag(code, vaddr, r, next)
		cfa := out.SP() + uint64(bytes)
		ra, ok := w.ProcessState().ReadWord(cfa - 8)
		if !ok || cfa <= in.SP() || !behindCall(w, d.buf[:], ra) {
			return true // the next row is wrong
		}
		raised, ok := r.Raised(bytes, next)
		if !ok || behindCall(w, d.buf[:], out.PC()) {
			return false
		}
		*out = unwind.Frame{}
		v, _ := raised.CallerFrame(w, in, out)
		return v == unwind.Success
	}
	return true
}

// upToNext returns the rule that follows upon r, the one for vaddr, which counts
// from SP, and the code up to there. next is nil where none is near.
func (d *Debug) upToNext(im *procstate.Image, vaddr uint64, r *unwind.Rule) (code []byte, next *unwind.Rule) {
	if reg, _, ok := r.CFA(); !ok || im.Arch() != procstate.AMD64 || reg != procstate.AMD64.SP {
		return nil, nil
	}
	at, next := d.tables.For(im).NextRule(vaddr, maxLag)
	if next == nil {
		return nil, nil
	}
	if code = d.code[:at-vaddr]; im.ReadVaddr(code, vaddr) != nil {
		return nil, nil
	}
	return code, next
}

// isReturn reports whether the instruction at vaddr returns to the address at SP.
func (d *Debug) isReturn(im *procstate.Image, vaddr uint64) bool {
	code := d.code[:2]
	return mayHave(im, vaddr, markReturn, 0, 0) && im.ReadVaddr(code, vaddr) == nil &&
		(code[0] == 0xc3 || code[0] == 0xc2 || code[1] == 0xc3 && (code[0] == 0xf3 || code[0] == 0xf2))
}

// lag returns by how many bytes the CFA is higher than r has it, by the next rule,
// behind code. It is 0 where that does not tell.
func lag(code []byte, vaddr uint64, r, next *unwind.Rule) int64 {
	_, size, _ := r.CFA()
	reg, nextSize, ok := next.CFA()
	if !ok {
		return 0
	}
	change, ok := changeOf(code, vaddr, reg)
	if !ok {
		return 0
	}
	return change + nextSize - size
}

// changeOf returns by how much reg is, behind code, more than SP was before it.
// ok is false where that does not follow from the code, or it does not go on to
// its end.
func changeOf(code []byte, vaddr uint64, reg procstate.Reg) (bytes int64, ok bool) {
	const fp, sp = 6, 7
	var more [sp + 1]int64 // than SP was
	known := [sp + 1]bool{sp: true}
	var in isa.Inst
	for ; len(code) > 0; code = code[in.Len:] {
		if !isa.DecodeAMD64(code, vaddr, &in) || int(in.Len) > len(code) || in.Flow != isa.Next && in.Flow != isa.CondJump {
			return 0, false
		}
		vaddr += uint64(in.Len)
		for _, op := range in.Ops[:in.NumOps] {
			switch op.Kind {
			case isa.Store, isa.StoreIndexed, isa.Scratch, isa.Compare:
				continue
			case isa.Set:
				if op.Dst|1 == sp && op.Src|1 == sp {
					more[op.Dst], known[op.Dst] = more[op.Src]+op.Imm, known[op.Src]
					continue
				}
			case isa.Swap:
				if op.Src|1 == sp {
					known[op.Src] = false
				}
			}
			if op.Dst|1 == sp {
				known[op.Dst] = false
			}
		}
	}
	if reg|1 != sp {
		return 0, false
	}
	return more[reg], known[reg]
}

// isSilent reports whether SP has moved at vaddr in a function of which CFI has
// one row, that of its start.
func (d *Debug) isSilent(im *procstate.Image, vaddr uint64) bool {
	if im.Arch() != procstate.AMD64 {
		return false
	}
	start, end, ok := d.tables.For(im).OnlyRule(vaddr)
	if !ok || start == vaddr {
		return false
	}
	const stays, moves = 1, 2
	fact, ok := d.starts.get(im, start)
	if ok && fact == stays {
		return false
	}
	code := d.code[:min(maxSilent, end-start)]
	if im.ReadVaddr(code, start) != nil {
		return false
	}
	behind, ok := movesSP(code, start)
	fact = stays
	if ok {
		fact = moves
	}
	d.starts.put(im, start, fact)
	return ok && vaddr >= behind
}

// movesSP returns where the first instruction of code ends that moves SP.
func movesSP(code []byte, vaddr uint64) (behind uint64, ok bool) {
	const sp = 7
	var in isa.Inst
	for len(code) > 0 && isa.DecodeAMD64(code, vaddr, &in) && int(in.Len) <= len(code) {
		vaddr += uint64(in.Len)
		for _, op := range in.Ops[:in.NumOps] {
			switch op.Kind {
			case isa.Store, isa.StoreIndexed, isa.Scratch, isa.Compare:
			default:
				if op.Dst == sp && in.Flow == isa.Next {
					return vaddr, true
				}
			}
		}
		code = code[in.Len:]
	}
	return 0, false
}
