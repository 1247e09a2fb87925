package loader

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pollSet waits for several descriptors as for one file, through the runtime's
// poller. A wait in a system call that the runtime is told of has its monitor wake
// three times to look after it, which costs more than what there is to do behind
// most waits. One goroutine at a time may wait.
type pollSet struct {
	epoll int
	file  *os.File // of epoll, which nobody waits for in the usual way
	conn  syscall.RawConn
	timer int // timerfd

	there  func() bool // what is waited for
	parked bool
	read   func(uintptr) bool
}

func newPollSet() (*pollSet, error) {
	p := &pollSet{timer: -1}
	var err error
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	if err := unix.SetNonblock(p.epoll, true); err != nil { // without it the runtime's poller does not take it
		unix.Close(p.epoll)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	p.file = os.NewFile(uintptr(p.epoll), "epoll")
	if p.conn, err = p.file.SyscallConn(); err == nil {
		p.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	}
	if err == nil {
		err = p.add(p.timer)
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	p.read = func(uintptr) bool {
		if p.parked || p.there() {
			return true
		}
		p.parked = true
		return false
	}
	return p, nil
}

// add has waits end when fd becomes readable, until that is closed.
func (p *pollSet) add(fd int) error {
	return unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// heed has waits end when fd, which was added, becomes readable, or not.
func (p *pollSet) heed(fd int, on bool) {
	event := unix.EpollEvent{Fd: int32(fd)}
	if on {
		event.Events = unix.EPOLLIN
	}
	_, _, _ = unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(p.epoll), unix.EPOLL_CTL_MOD, uintptr(fd), uintptr(unsafe.Pointer(&event)), 0, 0)
}

// wait returns when there is what is waited for, a descriptor has become readable, or
// a time has passed that is not 0: then it reports true. That a descriptor is readable
// does not tell before: a perf event says so once, to whoever asks first.
func (p *pollSet) wait(there func() bool, timeout time.Duration) (timedOut bool, err error) {
	p.setTimer(timeout)
	p.there, p.parked = there, false
	err = p.conn.Read(p.read)
	var ticks uint64
	n, _, _ := unix.RawSyscall(unix.SYS_READ, uintptr(p.timer), uintptr(unsafe.Pointer(&ticks)), unsafe.Sizeof(ticks))
	p.setTimer(0)
	return n == unsafe.Sizeof(ticks), err
}

// setTimer has the timer become readable in a while, and not before; 0: never.
func (p *pollSet) setTimer(in time.Duration) {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(in))}
	_, _, _ = unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, uintptr(p.timer), 0, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
}

func (p *pollSet) close() error {
	err := p.file.Close()
	if p.timer >= 0 {
		err = errors.Join(err, unix.Close(p.timer))
	}
	return err
}
