package procstate

import (
	"os/exec"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hurries reports whether this thread has precedence over usual ones.
func hurries(t *testing.T) bool {
	t.Helper()
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return a.Policy == unix.SCHED_RR || a.Nice <= -10
}

// TestQuietStops: while a process stands, its stops send no signals.
func TestQuietStops(t *testing.T) {
	quiet := func() bool {
		var action struct {
			handler        uintptr
			flags          uint64
			restorer, mask uint64
		}
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), 0, uintptr(unsafe.Pointer(&action)), 8, 0, 0)
		if errno != 0 {
			t.Error(errno)
		}
		return action.flags&1 != 0 // SA_NOCLDSTOP
	}
	cmd := exec.Command("cat")
	startCat(t, cmd)
	held := 0
	_, err := CaptureProcess(cmd.Process.Pid, CaptureOptions{Collect: func(Memory, ThreadID, *Regs, func(uint64, int)) {
		if held++; !quiet() {
			t.Error("the stops of a process with one thread send signals")
		}
	}})
	if err != nil || held != 1 || quiet() {
		t.Errorf("%d threads, %v; quiet afterwards: %v", held, err, quiet())
	}
}

// TestHurry: whoever holds a process has precedence, until it has let it go.
func TestHurry(t *testing.T) {
	runtime.LockOSThread() // for ever: where the test fails, the thread is not as it was
	was, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if hurries(t) {
		t.Skipf("precedence already: %+v", was)
	}
	if was.Nice--; unix.SchedSetAttr(0, was, 0) != nil {
		t.Skip("precedence is not allowed")
	}
	for _, policy := range []uint32{unix.SCHED_BATCH, unix.SCHED_IDLE, unix.SCHED_NORMAL} {
		if was.Policy = policy; unix.SchedSetAttr(0, was, 0) != nil {
			t.Fatalf("policy %d is not allowed", policy)
		}
		undo := hurry()
		if !hurries(t) {
			t.Errorf("policy %d: no precedence", policy)
		}
		undo()
		if is, err := unix.SchedGetAttr(0, 0); err != nil || *is != *was {
			t.Errorf("%+v afterwards, %+v before, %v", is, was, err)
		}
	}

	cmd := exec.Command("cat")
	startCat(t, cmd)
	held := 0
	_, err = CaptureProcess(cmd.Process.Pid, CaptureOptions{Collect: func(Memory, ThreadID, *Regs, func(uint64, int)) {
		if held++; !hurries(t) {
			t.Error("no precedence while a process stands")
		}
	}})
	if err != nil || held != 1 {
		t.Errorf("%d threads, %v", held, err)
	}
}

// TestStoodFrom: a thread that did not get to stopping stood for no longer than since then.
func TestStoodFrom(t *testing.T) {
	begin := time.Now().Add(-100 * time.Millisecond)
	at := func(ms int) *tracee { return &tracee{ran: begin.Add(time.Duration(ms) * time.Millisecond)} }
	for _, test := range []struct {
		threads []*tracee
		want    int
	}{
		{[]*tracee{at(30)}, 30}, {[]*tracee{at(30), at(20), at(40)}, 20},
		{[]*tracee{at(30), {}}, 0}, {[]*tracee{at(-50)}, 0}, // which was seen to stand at once
	} {
		if got := stoodFrom(test.threads, begin).Sub(begin).Milliseconds(); got != int64(test.want) {
			t.Errorf("from %d ms after the request, want %d", got, test.want)
		}
	}
}
