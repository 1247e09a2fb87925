package procstate

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// unknownStatus is that of a target whose parent has taken its status away. It
// neither exited nor was killed.
const unknownStatus = ^unix.WaitStatus(0)

// awaitEnd sees to it that the engine of a child learns of the child's end. Its
// parent, in this process, may reap the child before the engine has looked at
// it, which leaves the engine nothing to wait for. A pidfd tells all the same.
// It returns what ends the wait, nil where there are no such descriptors (before
// Linux 5.3).
func (e *engine) awaitEnd() *os.File {
	fd, err := unix.PidfdOpen(e.child, 0)
	if err != nil {
		return nil
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	go func() {
		defer pidfd.Close()
		conn, err := pidfd.SyscallConn()
		if err != nil {
			return
		}
		if conn.Read(isReadable) != nil {
			return // it was closed
		}
		e.do(func() {
			e.drain()
			t := e.tracees[ThreadID(e.child)]
			if t == nil {
				return
			}
			conn.Control(func(fd uintptr) {
				if unix.PidfdSendSignal(int(fd), 0, nil, 0) == unix.ESRCH { // reaped
					e.gone(t, statusOfReaped(fd))
				}
			})
		})
	}()
	return pidfd
}

// isReadable reports whether there is something to read, or an end.
func isReadable(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// statusOfReaped is the status of the process of a pidfd that was reaped:
// unknown before Linux 6.15.
func statusOfReaped(fd uintptr) unix.WaitStatus {
	info := struct { // pidfd_info (linux/pidfd.h)
		mask, cgroup uint64
		ids          [11]uint32
		status       int32
	}{mask: 1 << 3} // PIDFD_INFO_EXIT
	const getInfo = 3<<30 | unsafe.Sizeof(info)<<16 | 0xff<<8 | 11 // PIDFD_GET_INFO
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, getInfo, uintptr(unsafe.Pointer(&info))); errno != 0 || info.mask&(1<<3) == 0 {
		return unknownStatus
	}
	return unix.WaitStatus(info.status)
}
