package unwind

import (
	"errors"

	"github.com/swbpf/swbpf/procstate"
)

// WalkerSet is a group of Walkers, of the processes of a parallel program
// say, that are walked as one. The zero value is an empty group.
type WalkerSet struct {
	walkers []*Walker
}

// Add adds a Walker. Adding one twice, or nil, is harmless.
func (s *WalkerSet) Add(w *Walker) {
	if w == nil {
		return
	}
	for _, o := range s.walkers {
		if o == w {
			return
		}
	}
	s.walkers = append(s.walkers, w)
}

// Remove takes a Walker out.
func (s *WalkerSet) Remove(w *Walker) {
	for i, o := range s.walkers {
		if o == w {
			s.walkers = append(s.walkers[:i:i], s.walkers[i+1:]...)
			return
		}
	}
}

// Walkers returns the Walkers in the order they were added. The slice must
// not be modified.
func (s *WalkerSet) Walkers() []*Walker { return s.walkers }

// Walk is the walk of one thread.
type Walk struct {
	Walker *Walker // nil: its frames have no names
	Thread procstate.ThreadID
	Frames []Frame // top first
	Err    error   // nil when the stack is complete; see Walker.WalkStack
}

// WalkStacks walks all threads of all processes. A process whose threads
// cannot be listed, because it has ended say, is left out and part of the
// error; the walks of the others are returned all the same.
func (s *WalkerSet) WalkStacks() ([]Walk, error) {
	var walks []Walk
	var errs []error
	for _, w := range s.walkers {
		tids, err := w.Threads()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, tid := range tids {
			frames, err := w.WalkStack(nil, tid)
			walks = append(walks, Walk{Walker: w, Thread: tid, Frames: frames, Err: err})
		}
	}
	return walks, errors.Join(errs...)
}
