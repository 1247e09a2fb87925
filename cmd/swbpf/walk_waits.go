package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// wait is a system call that a thread waits in.
type wait struct {
	number int
	args   [6]uint64
	sp     uint64 // by which one tells whether it is still that

	call   string             // its name
	on     string             // the file, lock or process that it is about; "" where that is not known
	holder procstate.ThreadID // of the lock; 0 is not known
}

// String is a call with what it is about: "read(3 pipe:[4711])".
func (w *wait) String() string {
	if w.on == "" {
		return w.call
	}
	return w.call + "(" + w.on + ")"
}

// readWaits reads which system calls the threads of a process wait in. It does so before
// they are stopped, which has some of them begin anew under another number.
func readWaits(pid int) map[procstate.ThreadID]*wait {
	tasks := fmt.Sprintf("/proc/%d/task/", pid)
	dir, err := os.Open(tasks)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	waits := make(map[procstate.ThreadID]*wait)
	var buf [256]byte
	for _, name := range names {
		tid, err := strconv.ParseInt(name, 10, 32)
		if err != nil {
			continue
		}
		fd, err := unix.Open(tasks+name+"/syscall", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		n, _ := unix.Read(fd, buf[:])
		unix.Close(fd)
		if w := parseWait(string(buf[:max(n, 0)])); w != nil {
			waits[procstate.ThreadID(tid)] = w
		}
	}
	return waits
}

// parseWait reads a line of /proc/PID/syscall: the number of the call, its arguments, SP
// and PC. It is nil for a thread that is in none.
func parseWait(line string) *wait {
	f := strings.Fields(line)
	if len(f) != 9 {
		return nil
	}
	w := new(wait)
	var err error
	if w.number, err = strconv.Atoi(f[0]); err != nil {
		return nil
	}
	for i := range w.args {
		if w.args[i], err = strconv.ParseUint(f[1+i], 0, 64); err != nil {
			return nil
		}
	}
	if w.sp, err = strconv.ParseUint(f[7], 0, 64); err != nil {
		return nil
	}
	return w
}

// isOf reports whether a wait, which may be nil, is what a thread that was walked after that
// was in still.
func (w *wait) isOf(t *threadWalk) bool {
	return w != nil && len(t.stack) > 0 && t.stack[0].SP() == w.sp && t.state != procstate.StateRunning.String()
}

// takeWaits gives the threads that were walked, and have names, the calls that they wait in
// still.
func (p *processWalk) takeWaits(waits map[procstate.ThreadID]*wait) {
	r := waitReader{pid: p.pid, arch: p.arch}
	for i := range p.threads {
		r.tids = append(r.tids, p.threads[i].tid)
	}
	for i := range p.threads {
		t := &p.threads[i]
		if w := waits[t.tid]; w.isOf(t) && r.describe(t, w) {
			t.wait = w
		}
	}
}

// keepWaits gives the threads that wait where they did in a walk before what was known of
// that.
func (p *processWalk) keepWaits(before *processWalk) {
	waits := make(map[procstate.ThreadID]*wait)
	for i := range before.threads {
		waits[before.threads[i].tid] = before.threads[i].wait
	}
	for i := range p.threads {
		t := &p.threads[i]
		if w := waits[t.tid]; w.isOf(t) {
			t.wait = w
		}
	}
}

// waitReader finds out what calls of a process's threads are about. It asks the process
// as it is now: what it says is of the thread that still waits.
type waitReader struct {
	pid     int
	arch    *procstate.Arch
	tids    []procstate.ThreadID
	foreign *bool             // whether the process has numbers of another PID namespace
	sockets map[string]string // by inode; nil before they are read
}

// describe fills in what a thread's wait is about. It returns false for a call without a
// name here.
func (r *waitReader) describe(t *threadWalk, w *wait) bool {
	i := slices.IndexFunc(waitCalls[:], func(c waitCall) bool { return c.numberOn(r.arch) == w.number })
	if i < 0 {
		return false
	}
	tid := t.tid
	if w.call = waitCalls[i].name; w.call == restarted {
		// It has its arguments still, and a function of its name.
		name := strings.TrimLeft(strings.TrimPrefix(t.frames[0].function, "__GI_"), "_")
		i = slices.IndexFunc(waitCalls[:], func(c waitCall) bool { return c.name == name })
		if i < 0 {
			return false
		}
		w.call = name
	}
	switch arg := w.args[waitCalls[i].arg]; waitCalls[i].about {
	case aboutFile:
		w.on = r.file(int32(arg))
	case aboutPath:
		w.on = r.path(tid, arg)
	case aboutFiles:
		w.on = r.polled(tid, arg, w.args[1])
	case aboutProcess:
		if pid := int32(arg); pid > 0 {
			w.on = fmt.Sprintf("process %d", pid)
		}
	case aboutLock:
		r.describeLock(tid, w, arg)
	}
	return true
}

// file names a descriptor: "3 /var/log/syslog".
func (r *waitReader) file(fd int32) string {
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", r.pid, fd))
	if err != nil {
		return strconv.Itoa(int(fd))
	}
	if inode, ok := strings.CutPrefix(name, "socket:["); ok {
		if r.sockets == nil {
			r.readSockets()
		}
		if ends := r.sockets[strings.TrimSuffix(inode, "]")]; ends != "" {
			name = ends
		}
	}
	return fmt.Sprintf("%d %s", fd, name)
}

// maxPolled is how many descriptors of a poll are named.
const maxPolled = 4

// polled names the descriptors in an array of struct pollfd.
func (r *waitReader) polled(tid procstate.ThreadID, addr, n uint64) string {
	const size = 8
	b := make([]byte, size*min(n, maxPolled))
	b = b[:procstate.ReadProcess(int(tid), addr, b)]
	var names []string
	for ; len(b) >= size; b = b[size:] {
		if fd := int32(binary.LittleEndian.Uint32(b)); fd >= 0 {
			names = append(names, r.file(fd))
		}
	}
	if n > maxPolled {
		names = append(names, fmt.Sprintf("and %d more", n-maxPolled))
	}
	return strings.Join(names, ", ")
}

// path reads the name of a file.
func (r *waitReader) path(tid procstate.ThreadID, addr uint64) string {
	b := make([]byte, 4096)
	b = b[:procstate.ReadProcess(int(tid), addr, b)]
	if n := bytes.IndexByte(b, 0); n >= 0 {
		return strconv.Quote(string(b[:n]))
	}
	return ""
}

// Bits of a futex's word that tells who holds a lock, as the kernel's locks with priority
// inheritance and musl have it.
const (
	futexWaiters = 1 << 31
	futexTID     = 1<<30 - 1
)

// describeLock fills in whose lock is at an address, or whose end is waited for. glibc's
// mutex has the word 2 when threads wait for it, and its holder two words behind; a
// thread's own word, which is cleared when it ends, has its number. A number counts only
// if it is one of the process's threads.
func (r *waitReader) describeLock(tid procstate.ThreadID, w *wait, addr uint64) {
	w.on = hex(addr)
	var b [12]byte
	if r.isForeign() || procstate.ReadProcess(int(tid), addr, b[:]) < len(b) {
		return
	}
	word, owner, expected := binary.LittleEndian.Uint32(b[:]), binary.LittleEndian.Uint32(b[8:]), uint32(w.args[2])
	switch {
	case word&futexWaiters != 0:
		owner = word & futexTID
	case word == expected && word != 2:
		if r.isOther(tid, word) {
			w.on = fmt.Sprintf("end of thread %d", word)
		}
		return
	case word != 2 || expected != 2:
		return
	}
	if r.isOther(tid, owner) {
		w.holder = procstate.ThreadID(owner)
		w.on = fmt.Sprintf("lock of thread %d", owner)
	}
}

// isOther reports whether a number is that of another thread of the process.
func (r *waitReader) isOther(tid procstate.ThreadID, number uint32) bool {
	other := procstate.ThreadID(number)
	return other != tid && slices.Contains(r.tids, other)
}

// isForeign reports whether the process is in another PID namespace: the numbers of
// threads that it has are not ours.
func (r *waitReader) isForeign() bool {
	if r.foreign == nil {
		own, err1 := os.Readlink("/proc/self/ns/pid")
		its, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", r.pid))
		foreign := err1 != nil || err2 != nil || own != its
		r.foreign = &foreign
	}
	return *r.foreign
}

// readSockets reads what the sockets of the process's network namespace are connected to.
func (r *waitReader) readSockets() {
	r.sockets = make(map[string]string)
	for _, kind := range []string{"tcp", "tcp6", "udp", "udp6", "unix"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", r.pid, kind))
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if inode, ends, ok := parseSocket(kind, lines.Text()); ok {
				r.sockets[inode] = ends
			}
		}
		f.Close()
	}
}

// parseSocket reads a line of /proc/net/tcp, of udp, their counterparts for IPv6, or unix.
func parseSocket(kind, line string) (inode, ends string, ok bool) {
	f := strings.Fields(line)
	if kind == "unix" {
		if len(f) < 8 {
			return "", "", false // it has no path
		}
		return f[6], "unix " + f[7], true
	}
	if len(f) < 10 {
		return "", "", false
	}
	local, ok1 := parseEnd(f[1])
	remote, ok2 := parseEnd(f[2])
	if !ok1 || !ok2 {
		return "", "", false
	}
	ends = strings.TrimSuffix(kind, "6") + " " + local.String()
	if remote.Port() != 0 {
		ends += " > " + remote.String()
	}
	return f[9], ends, true
}

// parseEnd reads an address and a port: "0100007F:1F90". Each word of the address has the
// bytes of this machine's order, which is little-endian.
func parseEnd(s string) (netip.AddrPort, bool) {
	words, port, _ := strings.Cut(s, ":")
	var addr []byte
	for ; len(words) >= 8; words = words[8:] {
		word, err := strconv.ParseUint(words[:8], 16, 32)
		if err != nil {
			return netip.AddrPort{}, false
		}
		addr = binary.LittleEndian.AppendUint32(addr, uint32(word))
	}
	n, err := strconv.ParseUint(port, 16, 16)
	a, ok := netip.AddrFromSlice(addr)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), ok && err == nil
}

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
