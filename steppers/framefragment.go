package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Clang's machine outliner (-moutline) makes functions of instructions that are the same in
// several places, those of prologues and epilogues too, and calls them there:
//
//	stp  x29, x30, [sp, #-96]!
//	bl   1f
//	sub  sp, sp, #800
//	...
//	1: stp  x28, x27, [sp, #16]
//	mov  x29, sp
//	ret
//
// Such a fragment sets the frame pointer or moves SP for who has called it, as no function does.
// Its instructions count as those of its caller.

// maxFragment bounds the bytes of a fragment.
const maxFragment = 96

// fragments finds fragments in a file. The zero value finds none.
type fragments struct {
	img   *procstate.Image
	sizes map[uint64]uint8 // in bytes, without the return, by link-time address; 0 is none
	buf   [maxFragment]byte
}

// at returns the code of the fragment that a call leads to at a link-time address, nil where there is none. It
// is valid until the next call.
func (f *fragments) at(in *isa.Inst) []byte {
	const most = 1 << 12
	if f == nil || in.Flow != isa.Call || f.img.Arch().LR == procstate.NoReg {
		return nil
	}
	size, known := f.sizes[in.Target]
	if known && size == 0 {
		return nil
	}
	n := 0
	if s, ok := segmentAt(f.img, in.Target); ok {
		n = int(min(maxFragment, s.Vaddr+s.Filesz-in.Target))
	}
	code := f.buf[:n]
	if f.img.ReadVaddr(code, in.Target) != nil {
		code = nil
	}
	if !known {
		size = uint8(fragmentSize(f.img.Arch(), code))
		if f.sizes == nil || len(f.sizes) >= most {
			f.sizes = map[uint64]uint8{}
		}
		f.sizes[in.Target] = size
	}
	return code[:min(int(size), len(code))]
}

// isCalled reports whether a fragment is called before a link-time address, which the call returns to.
func (f *fragments) isCalled(pc uint64) bool {
	_, code := f.calledBefore(pc)
	return len(code) > 0
}

// state returns the link-time address at which a frame's function is as it is taken to be while a fragment runs that
// has been called before pc: as before the call or, where the fragment takes some of the stack off, as behind it. For other
// calls it is pc.
func (f *fragments) state(pc uint64) uint64 {
	if _, code := f.calledBefore(pc); len(code) > 0 && movesBy(f.img.Arch(), code) <= 0 {
		return pc - f.img.Arch().PCAlign
	}
	return pc
}

// movesBy returns by how much the instructions of a fragment raise SP, in bytes.
func movesBy(a *procstate.Arch, code []byte) (bytes int64) {
	var in isa.Inst
	for ; len(code) > 0 && mcode.Decode(a, code, 0, &in); code = code[in.Len:] {
		for _, op := range in.Ops[:in.NumOps] {
			if op.Dst == a.SP && !writesMemory(op.Kind) {
				bytes += op.Imm
			}
		}
	}
	return bytes
}

// calledBefore returns the fragment that is called before a link-time address, if there is one, and where it is.
func (f *fragments) calledBefore(pc uint64) (start uint64, code []byte) {
	const callLen = 4
	a := f.img.Arch()
	var in isa.Inst
	if a.LR == procstate.NoReg || f.img.ReadVaddr(f.buf[:callLen], pc-callLen) != nil || !mcode.Decode(a, f.buf[:callLen], pc-callLen, &in) {
		return 0, nil
	}
	return in.Target, f.at(&in)
}

// leaveFragment sets out to the function that has called the fragment which in was interrupted in, as
// fragments.state has it. It returns false where that is none.
func (s *FrameFunc) leaveFragment(w *unwind.Walker, m *procstate.Mapping, in, out *unwind.Frame) bool {
	arch := w.Arch()
	a, ok := s.helper.(*FrameAnalyzer)
	if arch.LR == procstate.NoReg || !ok || in.Flags&unwind.Interrupted == 0 || m.Image == nil || m.Image.Arch() != arch {
		return false
	}
	ra, known := in.Regs.Value(arch.LR)
	if !known || !m.Contains(ra-1) {
		return false
	}
	start, code := a.framesOf(m.Image).fragments.calledBefore(ra - m.Bias)
	done := in.PC() - m.Bias - start
	if len(code) == 0 || done > uint64(len(code)) {
		return false
	}
	sp := in.SP() - uint64(movesBy(arch, code[:done]))
	if moves := movesBy(arch, code); moves > 0 {
		sp += uint64(moves)
	}
	out.Regs.Inherit(&in.Regs, arch.CalleeSaved)
	out.SetPC(arch, ra)
	out.SetSP(arch, sp)
	out.SetFP(arch, in.FP())
	out.PCLocation, out.FPLocation = unwind.InRegister(arch.LR), in.FPLocation
	return true
}

// fragmentSize returns how many bytes a fragment has before its return, 0 where code is none.
func fragmentSize(a *procstate.Arch, code []byte) int {
	moved, setsFP := int64(0), false
	var in isa.Inst
	for at := 0; mcode.Decode(a, code[at:], 0, &in); at += int(in.Len) {
		if in.Flow == isa.Return {
			if in.Reg == a.LR && (moved != 0 || setsFP) {
				return at
			}
			return 0
		}
		if in.Flow != isa.Next {
			return 0
		}
		for _, op := range in.Ops[:in.NumOps] {
			switch {
			case writesMemory(op.Kind):
			case op.Dst == a.SP && (op.Kind != isa.Set || op.Src != a.SP), op.Dst == a.LR:
				return 0
			case op.Dst == a.SP:
				moved += op.Imm
			case op.Dst == a.FP:
				setsFP = op.Kind == isa.Set && op.Src == a.SP
				if !setsFP {
					return 0
				}
			}
		}
	}
	return 0
}
