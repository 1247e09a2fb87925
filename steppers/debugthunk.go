package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Thunks that stand for indirect branches (retpolines) move SP without a word of it in the
// CFI of the function that they are in.

// aroundThunk is how many bytes are read on either side of an instruction of a thunk,
// which has 25 at most.
const aroundThunk = 32

// mayBeInThunk reports whether an instruction may be one of a thunk: its call, store or
// return, see isa.InThunk.
func mayBeInThunk(a *procstate.Arch, code []byte) bool {
	switch {
	case a != procstate.AMD64 || len(code) == 0:
		return false
	case code[0] == 0xc3:
		return true
	}
	return len(code) >= 5 && (code[0] == 0xe8 && code[1] == 7 && code[2] == 0 || code[0]&^4 == 0x48 && code[1] == 0x89 && code[4] == 0xc3)
}

// thunkAround returns the code around a link-time address, nil where that cannot be read.
func (d *Debug) thunkAround(im *procstate.Image, vaddr uint64) []byte {
	for n := 2 * aroundThunk; n > aroundThunk; n-- { // the code may end there
		if im.ReadVaddr(d.code[:n], vaddr-aroundThunk) == nil {
			return d.code[:n]
		}
	}
	return nil
}

// isThunk reports whether x86-64 code, from thunkAround, is that of a thunk.
func isThunk(code []byte) bool {
	if code == nil {
		return false
	}
	_, inlined := isa.InThunk(code, aroundThunk)
	_, _, _, ok := isa.InJumpThunk(code, aroundThunk)
	return inlined || ok
}

// leaveThunk sets out to the caller of in, which is in a thunk of which CFI has the
// rule r. One that is inlined is called, and the CFI is that of the function that calls
// it. Any other is jumped to, at times with a frame that CFI cannot tell of: then what
// is there is what will be where it jumps to.
func (d *Debug) leaveThunk(w *unwind.Walker, m *procstate.Mapping, r *unwind.Rule, in, out *unwind.Frame) (unwind.Verdict, error) {
	arch, code := w.Arch(), d.thunkAround(m.Image, in.PC()-m.Bias)
	size, inlined := isa.InThunk(code, aroundThunk)
	if !inlined {
		if reg, pushed, atTop, ok := isa.InJumpThunk(code, aroundThunk); ok && d.leaveJump(w, reg, pushed, atTop, in, out) {
			return unwind.Success, nil
		}
		*out = unwind.Frame{}
		v, err := r.CallerFrame(w, in, out)
		if v == unwind.Success && !behindCall(w, d.buf[:], out.PC()) {
			*out = unwind.Frame{}
			return unwind.NotMe, nil
		}
		return v, err
	}
	at := in.SP() + uint64(size) - 8
	ra, ok := w.ProcessState().ReadWord(at)
	if !ok {
		return unwind.Failed, unwind.ReadFailure(w.ProcessState(), at)
	}
	out.Regs.Inherit(&in.Regs, arch.CalleeSaved)
	if fp, known := in.Regs.Value(arch.FP); known {
		out.SetFP(arch, fp)
	}
	out.SetPC(arch, ra)
	out.SetSP(arch, at+8)
	out.PCLocation, out.FPLocation = unwind.InMemory(at), in.FPLocation
	return unwind.Success, nil
}

// leaveJump sets out to the caller of in as it will be behind the jump of a thunk, see
// isa.InJumpThunk. It returns false when there is no CFI of that.
func (d *Debug) leaveJump(w *unwind.Walker, reg procstate.Reg, pushed int64, atTop bool, in, out *unwind.Frame) bool {
	target, ok := in.Regs.Value(reg)
	if atTop {
		target, ok = w.ProcessState().ReadWord(in.SP())
	}
	m := w.MappingAt(target)
	if !ok || m == nil || m.Image == nil || m.Image.Arch() != w.Arch() {
		return false
	}
	there := *in
	there.SetPC(w.Arch(), target)
	there.SetSP(w.Arch(), in.SP()+uint64(pushed))
	v, _ := d.rule(m.Image, target-m.Bias).CallerFrame(w, &there, out)
	return v == unwind.Success && behindCall(w, d.buf[:], out.PC())
}
