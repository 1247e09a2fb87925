package loader

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// ProcessesOf returns the processes that threads belong to, each once.
func ProcessesOf(threads []int) (pids []int, err error) {
	for _, tid := range threads {
		pid, err := processOfThread(tid)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// processOfThread is tgidOf for one that is asked for as a thread, and that has not ended.
func processOfThread(tid int) (pid int, err error) {
	pid, err = tgidOf(tid)
	if err == nil {
		// The first thread of a process may have ended before others.
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid))
		if i := bytes.LastIndexByte(b, ')'); i < 0 || i+2 >= len(b) || b[i+2] == 'Z' || b[i+2] == 'X' {
			err = errors.New("it has ended")
		}
	}
	if missing := (*MissingError)(nil); err != nil && !errors.As(err, &missing) {
		err = fmt.Errorf("thread %d: %w", tid, procstate.ErrNoThread)
	}
	return pid, err
}

// ThreadsDone returns a channel that is closed when all these threads have ended, or cannot be found any
// more; nil where the kernel does not tell. That a thread ends is told of its perf events (pidfds do so from
// Linux 6.9 on), if they have a ring.
func ThreadsDone(threads []int) <-chan struct{} {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Bits: unix.PerfBitDisabled,
	}
	return allDone(threads, func(tid int) (*ending, error) {
		fd, err := unix.PerfEventOpen(&attr, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err != nil {
			return nil, err
		}
		e := &ending{fd: fd}
		if e.ring, err = unix.Mmap(fd, 0, 2*os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED); err != nil {
			e.close()
		}
		return e, err
	})
}

// ProcessesDone is ThreadsDone for processes.
func ProcessesDone(pids []int) <-chan struct{} {
	return allDone(pids, watchProcess)
}

// watchProcess waits for the end of a process, if there is one.
func watchProcess(pid int) (*ending, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	return &ending{fd: fd}, err
}

// ending is a file that has an event when a thread or process ends.
type ending struct {
	fd   int
	ring []byte // of a perf event
}

// await waits for the end, and closes it.
func (e *ending) await() {
	for !e.isOver(-1) {
	}
	e.close()
}

// isOver reports whether it has ended, within some milliseconds; -1: when it has.
func (e *ending) isOver(ms int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(e.fd), Events: unix.POLLIN}}, ms)
	return n > 0 || err != nil && err != unix.EINTR
}

func (e *ending) close() {
	if e.ring != nil {
		_ = unix.Munmap(e.ring)
	}
	unix.Close(e.fd)
}

// allDone returns a channel that is closed when all have ended, nil if one cannot be watched.
func allDone(ids []int, watch func(id int) (*ending, error)) <-chan struct{} {
	var running []*ending
	for _, id := range ids {
		e, err := watch(id)
		switch {
		case err == nil:
			running = append(running, e)
		case err != unix.ESRCH:
			for _, e := range running {
				e.close()
			}
			return nil
		}
	}
	done := make(chan struct{})
	go func() {
		for len(running) > 0 {
			polled := make([]unix.PollFd, len(running))
			for i, e := range running {
				polled[i] = unix.PollFd{Fd: int32(e.fd), Events: unix.POLLIN}
			}
			if _, err := unix.Poll(polled, -1); err != nil && err != unix.EINTR {
				return
			}
			kept := running[:0]
			for i, e := range running {
				if polled[i].Revents == 0 {
					kept = append(kept, e)
				} else {
					e.close()
				}
			}
			running = kept
		}
		close(done)
	}()
	return done
}
