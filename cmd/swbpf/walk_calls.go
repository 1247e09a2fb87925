package main

import "github.com/swbpf/swbpf/procstate"

// waitAbout is what an argument of a system call is.
type waitAbout uint8

const (
	aboutNothing waitAbout = iota // that would say anything
	aboutFile                     // a descriptor
	aboutFiles                    // an array of struct pollfd
	aboutPath                     // the name of a file
	aboutLock                     // a futex
	aboutProcess                  // a PID
)

// waitCall is a system call in which a thread can wait for long, and which argument says
// for what.
type waitCall struct {
	name               string
	amd64, arm64, i386 int // numbers; -1 where there is none
	about              waitAbout
	arg                uint8
}

func (c *waitCall) numberOn(a *procstate.Arch) int {
	switch a {
	case procstate.AMD64:
		return c.amd64
	case procstate.ARM64:
		return c.arm64
	case procstate.I386:
		return c.i386
	}
	return -2
}

// restarted is the call that goes on with one that was interrupted, as a walk does.
const restarted = "restart_syscall"

// waitCalls are those, with their numbers of the kernel's syscall tables.
var waitCalls = [...]waitCall{
	{"accept", 43, 202, -1, aboutFile, 0},
	{"accept4", 288, 242, 364, aboutFile, 0},
	{"clock_nanosleep", 230, 115, 267, aboutNothing, 0},
	{"clock_nanosleep", -1, -1, 407, aboutNothing, 0},
	{"connect", 42, 203, 362, aboutFile, 0},
	{"epoll_pwait", 281, 22, 319, aboutNothing, 0},
	{"epoll_pwait2", 441, 441, 441, aboutNothing, 0},
	{"epoll_wait", 232, -1, 256, aboutNothing, 0},
	{"faccessat", 269, 48, 307, aboutPath, 1},
	{"fallocate", 285, 47, 324, aboutFile, 0},
	{"fcntl", 72, 25, 55, aboutFile, 0},
	{"fcntl", -1, -1, 221, aboutFile, 0},
	{"fdatasync", 75, 83, 148, aboutFile, 0},
	{"flock", 73, 32, 143, aboutFile, 0},
	{"fstat", 5, 80, 197, aboutFile, 0},
	{"fsync", 74, 82, 118, aboutFile, 0},
	{"ftruncate", 77, 46, 194, aboutFile, 0},
	{"futex", 202, 98, 240, aboutLock, 0},
	{"futex", -1, -1, 422, aboutLock, 0},
	{"getdents64", 217, 61, 220, aboutFile, 0},
	{"getrandom", 318, 278, 355, aboutNothing, 0},
	{"io_getevents", 208, 4, 247, aboutNothing, 0},
	{"io_uring_enter", 426, 426, 426, aboutNothing, 0},
	{"ioctl", 16, 29, 54, aboutFile, 0},
	{"lstat", 6, -1, 196, aboutPath, 0},
	{"mq_timedreceive", 243, 183, 280, aboutNothing, 0},
	{"mq_timedsend", 242, 182, 279, aboutNothing, 0},
	{"msgrcv", 70, 188, 401, aboutNothing, 0},
	{"msgsnd", 69, 189, 400, aboutNothing, 0},
	{"nanosleep", 35, 101, 162, aboutNothing, 0},
	{"newfstatat", 262, 79, 300, aboutPath, 1},
	{"open", 2, -1, 5, aboutPath, 0},
	{"openat", 257, 56, 295, aboutPath, 1},
	{"pause", 34, -1, 29, aboutNothing, 0},
	{"poll", 7, -1, 168, aboutFiles, 0},
	{"ppoll", 271, 73, 309, aboutFiles, 0},
	{"ppoll", -1, -1, 414, aboutFiles, 0},
	{"pread64", 17, 67, 180, aboutFile, 0},
	{"preadv", 295, 69, 333, aboutFile, 0},
	{"pselect6", 270, 72, 308, aboutNothing, 0},
	{"pselect6", -1, -1, 413, aboutNothing, 0},
	{"pwrite64", 18, 68, 181, aboutFile, 0},
	{"pwritev", 296, 70, 334, aboutFile, 0},
	{"read", 0, 63, 3, aboutFile, 0},
	{"readlinkat", 267, 78, 305, aboutPath, 1},
	{"readv", 19, 65, 145, aboutFile, 0},
	{"recvfrom", 45, 207, 371, aboutFile, 0},
	{"recvmmsg", 299, 243, 337, aboutFile, 0},
	{"recvmsg", 47, 212, 372, aboutFile, 0},
	{"renameat2", 316, 276, 353, aboutPath, 1},
	{restarted, 219, 128, 0, aboutNothing, 0},
	{"rt_sigsuspend", 130, 133, 179, aboutNothing, 0},
	{"rt_sigtimedwait", 128, 137, 177, aboutNothing, 0},
	{"rt_sigtimedwait", -1, -1, 421, aboutNothing, 0},
	{"select", 23, -1, 142, aboutNothing, 0},
	{"semop", 65, 193, -1, aboutNothing, 0},
	{"semtimedop", 220, 192, 420, aboutNothing, 0},
	{"sendfile", 40, 71, 187, aboutFile, 0},
	{"sendmmsg", 307, 269, 345, aboutFile, 0},
	{"sendmsg", 46, 211, 370, aboutFile, 0},
	{"sendto", 44, 206, 369, aboutFile, 0},
	{"splice", 275, 76, 313, aboutFile, 0},
	{"stat", 4, -1, 195, aboutPath, 0},
	{"statx", 332, 291, 383, aboutPath, 1},
	{"sync", 162, 81, 36, aboutNothing, 0},
	{"syncfs", 306, 267, 344, aboutFile, 0},
	{"unlinkat", 263, 35, 301, aboutPath, 1},
	{"vfork", 58, -1, 190, aboutNothing, 0},
	{"wait4", 61, 260, 114, aboutProcess, 0},
	{"waitid", 247, 95, 284, aboutNothing, 0},
	{"write", 1, 64, 4, aboutFile, 0},
	{"writev", 20, 66, 146, aboutFile, 0},
}
