package swbpf

import (
	"github.com/swbpf/swbpf/steppers/hotspot"
	"github.com/swbpf/swbpf/unwind"
)

// WalkVirtualThread walks the stack of a virtual thread of Java that is on no other thread, as
// [hotspot.Stepper.WalkVirtualThread] does, by the HotSpot stepper of the Walker's group.
func WalkVirtualThread(w *unwind.Walker, dst []unwind.Frame, t *hotspot.VirtualThread) ([]unwind.Frame, error) {
	for _, s := range w.StepperGroup().Steppers() {
		if s, ok := s.(*hotspot.Stepper); ok {
			return s.WalkVirtualThread(w, dst, t)
		}
	}
	return dst, unwind.NoUnwindInfo
}
