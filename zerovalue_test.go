package swbpf_test

import (
	"errors"
	"os/exec"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Without a Walker or a process there is nothing to do, or an error.
func TestNothing(t *testing.T) {
	testenv.NoPanic(t, "Detach", func() {
		if err := swbpf.Detach(nil); err != nil {
			t.Errorf("Detach: %v", err)
		}
	})
	testenv.NoPanic(t, "Debug", func() {
		if p, ok := swbpf.Debug(nil); p != nil || ok {
			t.Errorf("Debug: %v, %v", p, ok)
		}
	})
	testenv.NoPanic(t, "Variables", func() {
		if r := swbpf.Variables(nil); r != nil {
			t.Errorf("Variables: %v", r)
		}
	})
	testenv.NoPanic(t, "ForProcess", func() {
		w := swbpf.ForProcess(nil)
		if _, err := w.WalkStack(nil, procstate.DefaultThread); !errors.Is(err, unwind.ErrNoProcess) {
			t.Errorf("ForProcess: %v", err)
		}
	})
	testenv.NoPanic(t, "WalkGoroutine", func() {
		if _, err := swbpf.WalkGoroutine(new(unwind.Walker), nil, new(procstate.Goroutine)); !errors.Is(err, unwind.ErrNoProcess) {
			t.Errorf("WalkGoroutine: %v", err)
		}
	})
}

// WalkStopped needs nobody who looks.
func TestWalkStoppedWithoutLook(t *testing.T) {
	cat := exec.Command("cat")
	testenv.Start(t, cat)
	testenv.NoPanic(t, "WalkStopped", func() {
		ps, err := swbpf.WalkStopped(cat.Process.Pid, swbpf.WalkOptions{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(ps.Stacks) != 1 || ps.Stopped == 0 {
			t.Errorf("%d stacks, stopped for %v", len(ps.Stacks), ps.Stopped)
		}
	})
}
