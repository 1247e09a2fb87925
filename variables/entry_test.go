package variables_test

import (
	"errors"
	"testing"

	swbpf "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/symbols"
)

// TestRecursion: a value on entry that is from the caller's, and that from its
// caller's, is not there when that goes on for too long; and what belongs to the
// calls and functions, not to the frames, is not read again for each.
func TestRecursion(t *testing.T) {
	pid, _ := start(t, compile(t, "varsdeep.c", "gcc -g -O1"))
	walkBlocked(t, pid, func(s *swbpf.ThreadStack) {
		r := swbpf.Variables(s.Walker)
		frames := 0
		for i := range s.Frames {
			fns, err := r.Functions(&s.Frames[i])
			if err != nil || fns[0].Name != "recurse" {
				continue
			}
			if frames++; frames > 1 {
				continue
			}
			_, n := find(t, r, s.Frames, "recurse", "n", false)
			if _, err := r.Value(s.Frames, i, n); !errors.Is(err, symbols.ErrOptimizedOut) {
				t.Errorf("n is %v", err)
			}
			if got := testing.AllocsPerRun(10, func() { r.Value(s.Frames, i, n) }); got > 100 {
				t.Errorf("n takes %v allocations", got)
			}
		}
		if frames != 101 {
			t.Errorf("%d frames", frames)
		}
	})
}
