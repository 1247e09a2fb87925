package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// BadCall walks from an address that holds no code to the function that has called
// it, through a pointer that was null or garbage: the thread has executed nothing
// there, so the return address is where the call has left it. It walks only if that
// is behind a call. As the thread might also have come by a return, to an address
// that was overwritten, its frames are marked Heuristic. The zero value is that of
// NewBadCall.
type BadCall struct{ calls codeHelper }

// NewBadCall makes a BadCall.
func NewBadCall() *BadCall { return &BadCall{} }

// Name implements unwind.FrameStepper.
func (s *BadCall) Name() string { return "bad-call" }

// Priority implements unwind.FrameStepper.
func (s *BadCall) Priority() unwind.Priority { return unwind.PriorityBadCall }

// RuleAt implements unwind.RuleStepper: it has nothing to say where code is.
func (s *BadCall) RuleAt(*unwind.Walker, *procstate.Mapping, uint64, bool) (*unwind.Rule, bool) {
	return unwind.RuleNotMe, true
}

// CallerFrame implements unwind.FrameStepper.
func (s *BadCall) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	if in.Flags&unwind.Interrupted == 0 || w.MappingAt(in.PC()) != nil || !isNoCode(w, in.PC()) {
		return unwind.NotMe, nil
	}
	arch, sp := w.Arch(), in.SP()
	ra, known := in.Regs.Value(arch.LR)
	from := unwind.InRegister(arch.LR)
	if arch.LR == procstate.NoReg {
		if ra, known = w.ProcessState().ReadWord(sp); known {
			from = unwind.InMemory(sp)
			sp += uint64(arch.AddressWidth)
		}
	}
	pc := codeAddress(w, ra)
	if _, _, called := s.calls.IsPrevInstrACall(w, pc); !known || !called {
		return unwind.NotMe, nil
	}
	out.Regs = in.Regs
	out.SetPC(arch, pc)
	out.SetSP(arch, sp)
	out.SetFP(arch, in.FP())
	out.PCLocation, out.FPLocation = from, in.FPLocation
	if arch.LR != procstate.NoReg {
		out.Regs.Forget(arch.LR)
	}
	out.Flags = unwind.Heuristic
	return unwind.Success, nil
}

// lowestMapping is the least address that a process may map, by vm.mmap_min_addr as
// it comes.
const lowestMapping = 64 << 10

// isNoCode reports whether an address that is in no known executable mapping is in
// none at all: of a sampled process mappings may be missing that are new.
func isNoCode(w *unwind.Walker, addr uint64) bool {
	_, sampled := w.ProcessState().(*procstate.Snapshot)
	return !sampled || addr < lowestMapping || w.Arch() == procstate.AMD64 && addr>>47 != 0
}
