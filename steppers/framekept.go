package steppers

import (
	"bytes"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// keepsFrame reports whether the function that f is in, of a file, has a frame pointer although
// its code does not show where it is set: it has called, or goes on to use it, and keepsFrames
// is true of the file.
func (s *FrameFunc) keepsFrame(w *unwind.Walker, m *procstate.Mapping, f *unwind.Frame) bool {
	if !*s.keepers.Known(m.Image, keepsFrames) {
		return false
	}
	if a, ok := s.helper.(*FrameAnalyzer); ok && f.Flags&unwind.Interrupted == 0 && a.framesOf(m.Image).fragments.isCalled(f.PC()-m.Bias) {
		return false // which may have set it, or not yet
	}
	return f.Flags&unwind.Interrupted == 0 || s.usesFrame(w, m, f.PC())
}

// usesFrame reports whether code at pc, or where it leads without a choice, finds memory or the
// end of the frame by the frame pointer, before that is set.
func (s *FrameFunc) usesFrame(w *unwind.Walker, m *procstate.Mapping, pc uint64) bool {
	const most = 64 // instructions
	var in isa.Inst
	fp, sp := w.Arch().FP, w.Arch().SP
	for range most {
		if !m.Contains(pc) || !mcode.Decode(w.Arch(), mcode.Read(w, m, pc, s.buf[:mcode.MaxInstLen]), pc, &in) {
			return false
		}
		if in.Base == fp || in.Flow == isa.Next && in.NumOps == 1 && in.Ops[0].Kind == isa.SetIndexed && (in.Ops[0].Src == fp || in.Ops[0].Index == fp) {
			return true
		}
		for _, op := range in.Ops[:in.NumOps] {
			switch op.Kind {
			case isa.Store, isa.Scratch, isa.Compare, isa.StoreIndexed:
				continue
			}
			switch {
			case op.Kind == isa.Set && op.Dst == sp && op.Src == fp:
				return true
			case op.Dst == fp:
				return false
			}
		}
		switch {
		case in.Flow == isa.Jump:
			pc = in.Target
		case in.Ends():
			return false
		default:
			pc += uint64(in.Len)
		}
	}
	return false
}

// keepsFrames reports whether the functions of a file keep a frame pointer, and only that
// tells of their frames: it has no unwind tables and none of Go, as Bun and Deno, and its code sets
// the register as often as code does that is compiled with frame pointers. In such a file it
// is used for nothing else.
func keepsFrames(img *procstate.Image) bool {
	if _, err := procstate.Pclntab(img); err == nil || hasTables(img) {
		return false
	}
	const (
		perReturns = 4  // there is a frame for so many returns; clang's leaves have none
		fewest     = 32 // frames
	)
	frames, returns, ok := sampleFrames(img)
	return ok && frames >= fewest && frames*perReturns >= returns
}

// framesAreRare reports whether hardly a function of a file sets the frame pointer.
func framesAreRare(img *procstate.Image) bool {
	const perReturns, fewest = 32, 128 // there is no frame for so many returns; of these there are so many
	frames, returns, ok := sampleFrames(img)
	return ok && returns >= fewest && frames*perReturns < returns
}

// sampleFrames is countFrames of pieces of the code of a file. It is false where they cannot be
// read.
func sampleFrames(img *procstate.Image) (frames, returns int, ok bool) {
	const pieces = 32
	ok = img.CodePieces(pieces, func(code []byte, _ uint64) {
		f, r := countFrames(img.Arch(), code)
		frames, returns = frames+f, returns+r
	})
	return frames, returns, ok
}

// countFrames counts in code what looks like an instruction that sets the frame pointer, and
// like one that returns.
func countFrames(a *procstate.Arch, code []byte) (frames, returns int) {
	if x86Prologues(a) {
		const ret = 0xc3
		for i := range code {
			if beginsFrame(a, code[i:]) {
				frames++
			}
		}
		return frames, bytes.Count(code, []byte{ret})
	}
	const ret = 0xd65f03c0
	for ; len(code) >= 4; code = code[4:] {
		switch w := binary.LittleEndian.Uint32(code); {
		case setsFPARM64(w):
			frames++
		case w == ret:
			returns++
		}
	}
	return frames, returns
}
