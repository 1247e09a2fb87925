package steppers

import "github.com/swbpf/swbpf/unwind"

// Instrumentation is what a DynamicHelper knows of a frame whose PC is not
// the program's own. At most one of the two PCs is set; neither is when the
// code that the frame came from cannot be known: there the walk ends.
type Instrumentation struct {
	// OriginalPC is what the frame's PC stands for: the return address that
	// instrumentation has replaced. The frame is the caller's, and nothing
	// else in it is changed.
	OriginalPC uint64

	// CallerPC, CallerSP and CallerFP are those of the code that the frame,
	// one of instrumentation itself, came from or will return to. All other
	// registers are the same in both.
	CallerPC, CallerSP, CallerFP uint64

	// Interrupted tells that CallerPC is the address of an instruction that was
	// instrumented, and not a return address.
	Interrupted bool
}

// DynamicHelper knows instrumentation that was put into a process at run
// time. The original's returns the height of a tramp, and whether it aligns
// the stack or is at a function's entry or exit; from these its stepper works
// out the caller's frame, which here the helper does itself.
type DynamicHelper interface {
	// IsInstrumentation reports whether the PC of f, a frame of a walk by w,
	// is in instrumentation, and what that hides. It is called for nearly
	// each frame: it must be quick and must not allocate.
	IsInstrumentation(w *unwind.Walker, f *unwind.Frame) (Instrumentation, bool)
}

// Dynamic puts right what instrumentation at run time does to a stack:
// it restores return addresses that were replaced, so that the frame is the
// caller's again, and walks from frames of the instrumentation itself to the
// code that they belong to. The zero value is that of NewDynamic(nil).
type Dynamic struct{ helper DynamicHelper }

// NewDynamic makes a Dynamic. helper may be nil: that is a ReturnProbes, which
// knows uretprobes.
func NewDynamic(helper DynamicHelper) *Dynamic { return &Dynamic{helper} }

// Name implements unwind.FrameStepper.
func (d *Dynamic) Name() string { return "instrumentation" }

// Priority implements unwind.FrameStepper.
func (d *Dynamic) Priority() unwind.Priority { return unwind.PriorityInstrumentation }

// CallerFrame implements unwind.FrameStepper.
func (d *Dynamic) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	if d.helper == nil {
		d.helper = &ReturnProbes{}
	}
	ins, ok := d.helper.IsInstrumentation(w, in)
	if !ok {
		return unwind.NotMe, nil
	}
	arch := w.Arch()
	switch {
	case ins.OriginalPC != 0:
		in.SetPC(arch, ins.OriginalPC)
		return unwind.Mended, nil
	case ins.CallerPC == 0:
		in.Flags |= unwind.Instrumentation
		return unwind.Failed, unwind.ReturnReplaced
	}
	out.Regs = in.Regs
	out.SetPC(arch, ins.CallerPC)
	out.SetSP(arch, ins.CallerSP)
	out.SetFP(arch, ins.CallerFP)
	if ins.Interrupted {
		out.Flags |= unwind.Interrupted
	}
	in.Flags |= unwind.Instrumentation
	return unwind.Success, nil
}
