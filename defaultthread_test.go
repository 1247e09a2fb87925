package swbpf_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// TestLeaderLeaves: the initial thread ends while the process is attached, and another is
// the default then; so it is for who attaches afterwards.
func TestLeaderLeaves(t *testing.T) {
	tg, p := attachLife(t)
	busy := busyThread(t, tg.pid)
	w := swbpf.With(p, nil, nil)
	check := func(when string) {
		t.Helper()
		frames, err := w.WalkStack(nil, procstate.DefaultThread)
		if err != nil || frames[0].Thread != busy {
			t.Errorf("%s: the default thread has %d frames (%v); want those of thread %d", when, len(frames), err, busy)
		}
		if tids, err := w.Threads(); err != nil || len(tids) != 1 || tids[0] != busy {
			t.Errorf("%s: threads %d (%v); want %d alone", when, tids, err, busy)
		}
	}
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if err != nil {
		t.Fatal(err)
	}
	tg.ask(t, "leave")
	eventually(t, "the initial thread has ended", func() bool { return statusValue(tg.pid, "State") == "Z (zombie)" })
	var regs procstate.Regs
	if err := p.Registers(procstate.DefaultThread, &regs); err != nil || regs.Known() == 0 {
		t.Errorf("registers of the default thread: %v", err)
	}
	check("attached")
	if _, err := w.WalkFrom(nil, &frames[0]); !errors.Is(err, procstate.ErrNoThread) {
		t.Errorf("a frame of the thread that has ended is walked from: %v", err)
	}
	p.Detach()
	if w, err = swbpf.ForPID(tg.pid); err != nil {
		t.Fatal(err)
	}
	defer swbpf.Detach(w)
	check("attached again")
	swbpf.Detach(w)
	c, err := procstate.CaptureProcess(tg.pid, procstate.CaptureOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w = swbpf.With(c, nil, nil)
	check("captured")
}

// TestThreadOfFrames: frames of the default thread tell which one that was.
func TestThreadOfFrames(t *testing.T) {
	canTrace(t)
	tg := start(t, build(t, "life.c", lifeBuild))
	w, err := swbpf.ForPID(tg.pid)
	if err != nil {
		t.Fatal(err)
	}
	defer swbpf.Detach(w)
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if err != nil {
		t.Fatal(err)
	}
	var top, next unwind.Frame
	if err := w.InitialFrame(procstate.DefaultThread, &top); err != nil {
		t.Fatal(err)
	}
	if v, err := w.Step(&top, &next); v != unwind.Success {
		t.Fatal(v, err)
	}
	for _, f := range append(frames, top, next) {
		if f.Thread != procstate.ThreadID(tg.pid) {
			t.Errorf("frame at %#x is of thread %d; want %d", f.PC(), f.Thread, tg.pid)
		}
	}
	unix.Kill(tg.pid, unix.SIGKILL)
}
