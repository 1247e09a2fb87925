package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// InstFrame walks over the frames that Dyninst's instrumentation builds for
// first-party walks on x86-64. It knows them by a mark behind the frame
// pointer of code that is in no file, or in the section that the binary rewriter adds:
//
//	FP+24  the stack pointer of the instrumented code
//	FP+16  the mark, 0xbeefdead
//	FP+8   the address of the instrumented instruction
//	FP     its frame pointer
type InstFrame struct{}

// NewInstFrame makes an InstFrame.
func NewInstFrame() *InstFrame { return &InstFrame{} }

// instFrameMark is the word at FP+16.
const instFrameMark = 0xbeefdead

// Name implements unwind.FrameStepper.
func (*InstFrame) Name() string { return "inst-frame" }

// Priority implements unwind.FrameStepper.
func (*InstFrame) Priority() unwind.Priority { return unwind.PriorityInstrumentation }

// CallerFrame implements unwind.FrameStepper.
func (*InstFrame) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	fp := in.FP()
	if m := w.MappingAt(in.LookupPC()); m != nil && !maybeTramp(m.Image, in.LookupPC()-m.Bias) {
		return unwind.NotMe, nil // called by the instrumentation, or the program's own
	}
	if w.Arch() != procstate.AMD64 || fp < in.SP() || fp-in.SP() > maxChainFrame || fp%8 != 0 {
		return unwind.NotMe, nil
	}
	mem := w.ProcessState()
	if mark, ok := mem.ReadWord(fp + 16); !ok || mark != instFrameMark {
		return unwind.NotMe, nil
	}
	callerFP, ok1 := mem.ReadWord(fp)
	pc, ok2 := mem.ReadWord(fp + 8)
	sp, ok3 := mem.ReadWord(fp + 24)
	if !ok1 || !ok2 || !ok3 {
		return unwind.Failed, unwind.ReadFailure(mem, fp)
	}
	arch := w.Arch()
	out.SetPC(arch, pc)
	out.SetSP(arch, sp)
	out.SetFP(arch, callerFP)
	out.PCLocation, out.SPLocation, out.FPLocation = unwind.InMemory(fp+8), unwind.InMemory(fp+24), unwind.InMemory(fp)
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	out.Flags |= unwind.Interrupted
	in.Flags |= unwind.Instrumentation
	return unwind.Success, nil
}

// maybeTramp reports whether instrumentation can be at a link-time address of a
// file, which is nil where there is none.
func maybeTramp(im *procstate.Image, vaddr uint64) bool {
	if im == nil {
		return true
	}
	s, ok := im.Section(dyninstSection)
	return ok && vaddr-s.Vaddr < s.Size
}
