package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Some hand-written code has CFI that says where it begins and ends and nothing
// else: libc's arithmetic on long numbers, Crystal's change between fibers. All of
// it has the row of a function's first instruction, which holds until SP moves.

// maxMute bounds the bytes of a function that are looked at.
const maxMute = 4096

// isMute reports whether the CFI at pc says nothing of how SP was moved before. It
// is asked of rows that count from SP as at the start of a function.
func (d *Debug) isMute(m *procstate.Mapping, pc uint64) bool {
	if m.Image.Arch() != procstate.AMD64 {
		return false
	}
	const speaks, mute = 1, 2
	vaddr := pc - m.Bias
	fact, ok := d.mute.get(m.Image, vaddr)
	if !ok {
		fact = speaks
		if d.movesUntold(m.Image, vaddr) {
			fact = mute
		}
		d.mute.put(m.Image, vaddr, fact)
	}
	return fact == mute
}

// movesUntold reports whether code between the start of a function whose CFI has
// a single row and vaddr moves SP. Where that row says that there is no caller, as
// at the entry point of a program, it is all there is to say.
func (d *Debug) movesUntold(im *procstate.Image, vaddr uint64) bool {
	table := d.tables.For(im)
	start, end, ok := table.FunctionAt(vaddr)
	if !ok || vaddr == start || vaddr-start > maxMute {
		return false
	}
	row, from, to, err := table.Row(vaddr)
	if err != nil || from != start || to != end || row.Regs[row.RA].Kind == unwind.Undefined {
		return false
	}
	code := readVaddr(im, start, vaddr)
	var in isa.Inst
	for at := start; len(code) > 0 && isa.DecodeAMD64(code, at, &in); at += uint64(in.Len) {
		for _, op := range in.Ops[:in.NumOps] {
			switch op.Kind {
			case isa.Store, isa.StoreIndexed, isa.Scratch, isa.Compare:
			default:
				if op.Dst == procstate.AMD64.SP && in.Flow == isa.Next {
					return true
				}
			}
		}
		code = code[in.Len:]
	}
	return false
}
