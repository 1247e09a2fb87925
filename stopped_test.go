package swbpf_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/unwind"
)

// TestStopLimit holds a process for no longer than it may stand, whatever is
// done meanwhile, and then nothing of it can be read any more.
func TestStopLimit(t *testing.T) {
	tg, p := attachLife(t)
	busy := busyThread(t, tg.pid)
	p.Detach()
	stands := func() bool {
		all, err := procstate.ProcessThreads(tg.pid)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(th procstate.Thread) bool { return th.TID == busy })
		return all[i].State == procstate.StateTraced
	}
	const limit = 50 * time.Millisecond
	looked := false
	ps, err := swbpf.WalkStopped(tg.pid, swbpf.WalkOptions{StopLimit: limit}, func(ps *swbpf.ProcessStacks) {
		looked = true
		if len(ps.Stacks) < 2 {
			t.Errorf("%d threads", len(ps.Stacks))
		}
		s := &ps.Stacks[0]
		word := make([]byte, 8)
		read := func() error {
			_, err := s.Walker.ProcessState().ReadMemory(s.Frames[0].SP(), word)
			return err
		}
		eventually(t, "the process goes on", func() bool { return !stands() })
		if err := read(); !errors.Is(err, procstate.ErrDetached) {
			t.Errorf("memory of a process that goes on: %v", err)
		}
		if v, ok := s.Walker.ProcessState().ReadWord(s.Frames[0].SP()); ok {
			t.Errorf("a word of a process that goes on: %#x", v)
		}
	})
	if err != nil || !looked {
		t.Fatal(looked, err)
	}
	if ps.Stopped < limit {
		t.Errorf("it stood for %v only", ps.Stopped)
	}

	// Without a limit it stands until all is done.
	_, err = swbpf.WalkStopped(tg.pid, swbpf.WalkOptions{}, func(ps *swbpf.ProcessStacks) {
		s := &ps.Stacks[0]
		time.Sleep(2 * limit)
		if _, err := s.Walker.ProcessState().ReadMemory(s.Frames[0].SP(), make([]byte, 8)); err != nil {
			t.Errorf("memory of a process that stands: %v", err)
		}
		if !stands() {
			t.Error("the process went on")
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// TestWalkOptions: the caller's steppers walk, of as much of the stacks as it
// has asked for.
func TestWalkOptions(t *testing.T) {
	canTrace(t)
	tg := start(t, build(t, "deep.c", "gcc -O0"))
	tg.settle(t)
	made := 0
	opts := swbpf.WalkOptions{Group: func() unwind.StepperGroup {
		made++
		return unwind.NewGroup(steppers.NewDebug(nil))
	}}
	whole, err := swbpf.WalkProcess(tg.pid, opts)
	if err != nil {
		t.Fatal(err)
	}
	s := &whole.Stacks[0]
	if made != 1 || s.Err != nil || len(s.Frames) < 50 || len(s.Walker.StepperGroup().Steppers()) != 1 {
		t.Fatalf("%d groups were made; %d frames, %v", made, len(s.Frames), s.Err)
	}
	opts.StackBytes = 1024
	c, err := procstate.CaptureProcess(tg.pid, procstate.CaptureOptions{StackBytes: opts.StackBytes})
	if err != nil {
		t.Fatal(err)
	}
	frames, err := swbpf.With(c, nil, nil).WalkStack(nil, procstate.DefaultThread)
	if _, missed := c.Missed(); err == nil || !missed || len(frames) >= len(s.Frames) {
		t.Errorf("of %d bytes of the stack: %d frames, %v", opts.StackBytes, len(frames), err)
	}
	again, err := swbpf.WalkProcess(tg.pid, opts)
	if err != nil {
		t.Fatal(err)
	}
	if got := &again.Stacks[0]; got.Err != nil || !slices.Equal(got.Frames, s.Frames) {
		t.Errorf("by pieces: %d frames, %v", len(got.Frames), got.Err)
	}
}

// TestMaxFrames: stacks are walked as deep as they were asked to be, however much has to
// be copied for that; all of them together have a bound.
func TestMaxFrames(t *testing.T) {
	canTrace(t)
	const depth = 104_825 // that fill a stack of 8 MB
	tg := start(t, build(t, "recursion.c", "gcc -O1 -pthread -fno-optimize-sibling-calls"), "2", itoa(depth))
	tg.settle(t)
	stopped := func(opts swbpf.WalkOptions) (*swbpf.ProcessStacks, error) {
		return swbpf.WalkStopped(tg.pid, opts, func(*swbpf.ProcessStacks) {})
	}
	copied := func(opts swbpf.WalkOptions) (*swbpf.ProcessStacks, error) { return swbpf.WalkProcess(tg.pid, opts) }
	for name, walk := range map[string]func(swbpf.WalkOptions) (*swbpf.ProcessStacks, error){"copied": copied, "stopped": stopped} {
		for _, most := range []int{0, 100, depth, 1 << 20} {
			ps, err := walk(swbpf.WalkOptions{MaxFrames: most})
			if err != nil || len(ps.Stacks) != 3 {
				t.Fatalf("%s: %v, %v", name, ps, err)
			}
			for _, s := range ps.Stacks[1:] {
				want, reason := most, error(unwind.TooManyFrames)
				switch most {
				case 0:
					want = unwind.DefaultMaxFrames
				case 1 << 20:
					want, reason = depth+5, nil // pause, leaf, run, start_thread, clone3
				}
				if len(s.Frames) != want || s.Err != reason {
					t.Errorf("%s, %d at most: thread %d has %d frames, %v", name, most, s.TID, len(s.Frames), s.Err)
				}
			}
		}
	}
	b := swbpf.FrameBudget(1<<20, []swbpf.ThreadStack{{Frames: make([]unwind.Frame, depth)}})
	if before := swbpf.FrameBudget(1<<20, nil); b.Each != 1<<20 || before.Deep-b.Deep != depth-unwind.DefaultMaxFrames || before.Deep != 1_000_000 {
		t.Errorf("%+v is left of %+v", b, before)
	}
}
