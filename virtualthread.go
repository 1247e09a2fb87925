package swbpf

import (
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/unwind"
)

// WalkVirtualThread walks the stack of a virtual thread of Java that is on no other thread, as
// [steppers.HotSpot.WalkVirtualThread] does, by the HotSpot of the Walker's group.
func WalkVirtualThread(w *unwind.Walker, dst []unwind.Frame, t *steppers.VirtualThread) ([]unwind.Frame, error) {
	for _, s := range w.StepperGroup().Steppers() {
		if s, ok := s.(*steppers.HotSpot); ok {
			return s.WalkVirtualThread(w, dst, t)
		}
	}
	return dst, unwind.NoUnwindInfo
}
