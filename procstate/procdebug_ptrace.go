package procstate

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of a tracer. None of them blocks, so they go past the Go
// scheduler: a thousand threads are stopped with some thousands of calls.

// ptrace makes a request whose data is a number.
func ptrace(req uintptr, tid ThreadID, data uintptr) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, req, uintptr(tid), 0, data, 0, 0)
	return errno
}

// traceOptions are those of every tracee. PTRACE_O_EXITKILL is not among
// them: when the tracer dies, the kernel detaches and the target goes on.
const traceOptions = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK |
	unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC

func ptraceSeize(tid ThreadID) unix.Errno {
	return ptrace(unix.PTRACE_SEIZE, tid, traceOptions)
}

func ptraceInterrupt(tid ThreadID) unix.Errno { return ptrace(unix.PTRACE_INTERRUPT, tid, 0) }

func ptraceCont(tid ThreadID, sig unix.Signal) unix.Errno {
	return ptrace(unix.PTRACE_CONT, tid, uintptr(sig))
}

func ptraceListen(tid ThreadID) unix.Errno { return ptrace(unix.PTRACE_LISTEN, tid, 0) }

func ptraceDetach(tid ThreadID, sig unix.Signal) unix.Errno {
	return ptrace(unix.PTRACE_DETACH, tid, uintptr(sig))
}

// ptraceEventMessage returns what came with a PTRACE_EVENT stop: the ID of
// the new thread or process, or the former ID of a thread that called exec.
func ptraceEventMessage(tid ThreadID) ThreadID {
	var msg uint64 // an unsigned long of the host, little-endian
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETEVENTMSG, uintptr(tid), 0,
		uintptr(unsafe.Pointer(&msg)), 0, 0)
	if errno != 0 {
		return 0
	}
	return ThreadID(msg)
}

// ptraceSigCode returns si_code of the signal in a signal-delivery-stop.
func ptraceSigCode(tid ThreadID) (code int32, ok bool) {
	var info unix.Siginfo
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETSIGINFO, uintptr(tid), 0,
		uintptr(unsafe.Pointer(&info)), 0, 0)
	return info.Code, errno == 0
}

const (
	ntPRStatus = 1     // NT_PRSTATUS: the general registers
	ntARMTLS   = 0x401 // NT_ARM_TLS: TPIDR_EL0
)

// regsetBuffer has room for the general registers of every architecture.
type regsetBuffer [64]uint64

// ptraceRegset reads a register set into buf and returns its length in bytes.
func ptraceRegset(tid ThreadID, set uintptr, buf *regsetBuffer) (int, unix.Errno) {
	iov := unix.Iovec{Base: (*byte)(unsafe.Pointer(buf))}
	iov.SetLen(int(unsafe.Sizeof(*buf)))
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(tid), set,
		uintptr(unsafe.Pointer(&iov)), 0, 0)
	return int(iov.Len), errno
}

// ptraceRegs reads the general registers of a stopped thread.
func ptraceRegs(tid ThreadID, buf *regsetBuffer, regs *Regs) (*Arch, error) {
	n, errno := ptraceRegset(tid, ntPRStatus, buf)
	if errno != 0 {
		return nil, errno
	}
	set := regsetOfTask(n)
	if set == nil {
		return nil, fmt.Errorf("register set of %d bytes: %w", n, ErrNotSupported)
	}
	block := unsafe.Slice((*byte)(unsafe.Pointer(buf)), unsafe.Sizeof(*buf))
	set.decode(block[:n], regs)
	switch set.arch {
	case ARM64:
		if n, errno := ptraceRegset(tid, ntARMTLS, buf); errno == 0 && n >= 8 {
			regs.ThreadPointer = buf[0]
		}
	case I386:
		gs := gsOf(block)
		if n, errno := ptraceRegset(tid, nt386TLS, buf); errno == 0 {
			regs.ThreadPointer = segmentBase(block[:n], gs)
		}
	}
	return set.arch, nil
}

// waitNow reaps a change of state without waiting: of one tracee, or of any
// tracee of the calling thread when tid is -1. It returns 0 when there is
// none. Ordinary children of the process are not touched: with WCLONE only
// tracees answer.
func waitNow(tid ThreadID) (ThreadID, unix.WaitStatus, unix.Errno) {
	opts := uintptr(unix.WNOHANG | unix.WALL)
	if tid == -1 {
		opts = unix.WNOHANG | unix.WCLONE | unix.WNOTHREAD
	}
	var status uint32
	r, _, errno := unix.RawSyscall6(unix.SYS_WAIT4, uintptr(tid), uintptr(unsafe.Pointer(&status)), opts, 0, 0, 0)
	if errno != 0 {
		return 0, 0, errno
	}
	return ThreadID(r), unix.WaitStatus(status), 0
}

// waitStopNow takes in a stop of a thread like waitNow, never its end.
func waitStopNow(tid ThreadID) (ThreadID, unix.WaitStatus, unix.Errno) {
	var info childInfo
	errno := waitID(unix.P_PID, tid, &info, unix.WSTOPPED|unix.WNOHANG|unix.WALL)
	if errno == unix.ECHILD {
		// Also the answer for a leader that has ended before its threads.
		errno = waitID(unix.P_PID, tid, nil, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG|unix.WALL)
	}
	if errno != 0 || info.pid == 0 {
		return 0, 0, errno
	}
	return ThreadID(info.pid), unix.WaitStatus(info.status)<<8 | 0x7f, 0
}

// peek looks for a change of state like waitNow, and leaves it. exited tells
// that the thread has ended, with status ws.
func peek(tid ThreadID) (who ThreadID, ws unix.WaitStatus, exited bool) {
	kind, opts := unix.P_PID, unix.WALL
	if tid == -1 {
		kind, opts, tid = unix.P_ALL, unix.WCLONE|unix.WNOTHREAD, 0
	}
	var info childInfo
	errno := waitID(kind, tid, &info, opts|unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT|unix.WNOHANG)
	if errno != 0 || info.pid == 0 {
		return 0, 0, false
	}
	const cldExited, cldKilled, cldDumped = 1, 2, 3 // si_code
	switch info.code {
	case cldExited:
		return ThreadID(info.pid), unix.WaitStatus(info.status&0xff) << 8, true
	case cldKilled:
		return ThreadID(info.pid), unix.WaitStatus(info.status & 0x7f), true
	case cldDumped:
		return ThreadID(info.pid), unix.WaitStatus(info.status&0x7f | 0x80), true
	}
	return ThreadID(info.pid), 0, false
}

// waitID is waitid(2), which must not block.
func waitID(kind int, tid ThreadID, info *childInfo, opts int) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_WAITID, uintptr(kind), uintptr(tid), uintptr(unsafe.Pointer(info)), uintptr(opts), 0, 0)
	return errno
}

// childInfo is siginfo_t as waitid fills it on 64-bit machines.
type childInfo struct {
	signo, errno, code, _ int32
	pid, uid, status      int32
	_                     [100]byte
}

// waitForTracee blocks until some tracee of this process has changed state,
// and leaves the state for waitNow. ECHILD: there are no tracees.
func waitForTracee() unix.Errno {
	var info unix.Siginfo
	_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)),
		unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT|unix.WCLONE, 0, 0)
	return errno
}

// quietStops keeps the kernel from sending this process a SIGCHLD for each
// stop of a tracee (SA_NOCLDSTOP), while some are about to come: a signal handler
// takes longer than a stop, and the tracee stands meanwhile. Signals for the end of
// children are not affected. The function returned undoes it.
func quietStops() (undo func()) {
	quiet.Lock()
	defer quiet.Unlock()
	quiet.users++
	if quiet.users == 1 {
		setNoChildStop(true)
	}
	return func() {
		quiet.Lock()
		defer quiet.Unlock()
		quiet.users--
		if quiet.users == 0 {
			setNoChildStop(false)
		}
	}
}

var quiet struct {
	sync.Mutex
	users int
}

// setNoChildStop changes the one flag of what the Go runtime, or the program,
// has set up for SIGCHLD.
func setNoChildStop(on bool) {
	var action struct {
		handler  uintptr
		flags    uint64
		restorer uintptr
		mask     uint64
	} // the kernel's struct sigaction on 64-bit machines
	const size = unsafe.Sizeof(action.mask)
	ptr := uintptr(unsafe.Pointer(&action))
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), 0, ptr, size, 0, 0); errno != 0 {
		return
	}
	const saNoCldStop = 1 // SA_NOCLDSTOP
	if on {
		action.flags |= saNoCldStop
	} else {
		action.flags &^= saNoCldStop
	}
	unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), ptr, 0, size, 0, 0)
}
