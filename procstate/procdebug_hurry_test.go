package procstate

import (
	"os/exec"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func threadNice(t *testing.T) int {
	t.Helper()
	n, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Error(err)
	}
	return 20 - n
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
	was := threadNice(t)
	if was <= -10 {
		t.Skipf("nice value %d already", was)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, was-1); err != nil {
		t.Skipf("precedence: %v", err)
	}
	was--
	undo := hurry()
	if n := threadNice(t); n > -10 {
		t.Errorf("nice value %d", n)
	}
	undo()
	if n := threadNice(t); n != was {
		t.Errorf("nice value %d after, %d before", n, was)
	}

	cmd := exec.Command("cat")
	startCat(t, cmd)
	held := 0
	_, err := CaptureProcess(cmd.Process.Pid, CaptureOptions{Collect: func(Memory, ThreadID, *Regs, func(uint64, int)) {
		held++
		if n := threadNice(t); n > -10 {
			t.Errorf("nice value %d while a process stands", n)
		}
	}})
	if err != nil || held != 1 {
		t.Errorf("%d threads, %v", held, err)
	}
}
