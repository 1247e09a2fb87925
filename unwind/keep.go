package unwind

import "iter"

// kept is what a stepper keeps with a Walker.
type kept struct {
	stepper FrameStepper
	what    any
}

// Keep stores what a stepper knows of the Walker's process, for Kept: it lives as
// long as the Walker. That a process executes another program, the stepper must
// see for itself. It is for steppers.
func (w *Walker) Keep(s FrameStepper, what any) {
	for i := range w.kept {
		if w.kept[i].stepper == s {
			w.kept[i].what = what
			return
		}
	}
	w.kept = append(w.kept, kept{s, what})
}

// Kept returns what a stepper has stored with Keep, nil when it has not.
func (w *Walker) Kept(s FrameStepper) any {
	for i := range w.kept {
		if w.kept[i].stepper == s {
			return w.kept[i].what
		}
	}
	return nil
}

// Keepers are the steppers that have stored something with Keep.
func (w *Walker) Keepers() iter.Seq[FrameStepper] {
	return func(yield func(FrameStepper) bool) {
		for i := range w.kept {
			if !yield(w.kept[i].stepper) {
				return
			}
		}
	}
}
