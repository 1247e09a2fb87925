package main

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// alarm wakes the goroutine that waits for it at the time that was set, or when
// another one rings. It is a timer of the kernel that is waited for as for a
// file, and its system calls are told to nobody: a timer or a channel of Go's
// wakes two more threads each time, and so does a call that the runtime knows of
// when nothing else happens. That is most of what a recorder costs which idles.
type alarm struct {
	conn  syscall.RawConn
	file  *os.File
	read  func(fd uintptr) bool
	count uint64 // what is read

	now    atomic.Bool  // rung since the last wait
	news   atomic.Bool  // told since the last wait
	due    atomic.Int64 // CLOCK_MONOTONIC ns at which it rings as set
	hasten atomic.Int64 // ns until it rings from when news are told; 0: as set
	could  bool         // be hastened
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("timer: %w", err)
	}
	a := &alarm{file: os.NewFile(uintptr(fd), "timer")}
	if a.conn, err = a.file.SyscallConn(); err != nil {
		return nil, fmt.Errorf("timer: %w", err)
	}
	a.read = func(fd uintptr) bool {
		_, _, e := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&a.count)), unsafe.Sizeof(a.count))
		return e != unix.EAGAIN
	}
	return a, nil
}

// arm has it ring in a while, and not when it was to before.
func (a *alarm) arm(in time.Duration) {
	spec := &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(in, 1)))}
	_ = a.conn.Control(func(fd uintptr) {
		_, _, _ = unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, fd, 0, uintptr(unsafe.Pointer(spec)), 0, 0, 0)
	})
}

// set is arm; news since the last wait, and those to come, have it ring after
// no more than hasten, if that is not 0.
func (a *alarm) set(in, hasten time.Duration) {
	a.armUnlessRung(in)
	a.could = hasten > 0
	a.due.Store(int64(procstate.Monotonic()) + int64(in))
	a.hasten.Store(int64(hasten))
	if a.news.Load() {
		a.tellNews()
	}
}

// armUnlessRung is arm, but at once when it was rung since the last wait: arming it
// takes back what it has not been waited for.
func (a *alarm) armUnlessRung(in time.Duration) {
	a.arm(in)
	if a.now.Load() {
		a.arm(0)
	}
}

// ring has it ring at once, or as soon as it is set. It may be called by any
// goroutine.
func (a *alarm) ring() {
	a.now.Store(true)
	a.arm(0)
}

// tellNews may be called by any goroutine.
func (a *alarm) tellNews() {
	a.news.Store(true)
	if in := a.hasten.Swap(0); in > 0 {
		a.armUnlessRung(time.Duration(min(in, a.due.Load()-int64(procstate.Monotonic()))))
	}
}

// wait waits until it rings. It reports whether that was hastened, where it
// could be.
func (a *alarm) wait() (hastened bool, err error) {
	if err := a.conn.Read(a.read); err != nil {
		return false, fmt.Errorf("timer: %w", err)
	}
	hastened = a.hasten.Swap(0) == 0 && a.could
	a.news.Store(false)
	a.now.Store(false)
	return hastened, nil
}

// close ends it; those who ring it then do no harm.
func (a *alarm) close() { a.file.Close() }
