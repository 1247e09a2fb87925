package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
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
// inheritance and most of musl's have it.
const (
	futexWaiters = 1 << 31
	futexTID     = 1<<30 - 1
)

// isCount reports whether a number that has the place of a holder's in the word of a lock with
// waiters may be none: musl's ordinary mutexes have EBUSY there, and its own locks how many threads
// hold or want them.
func (r *waitReader) isCount(number uint32) bool {
	return number == uint32(unix.EBUSY) || uint64(number) <= uint64(len(r.tids))
}

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
		if owner = word & futexTID; r.isCount(owner) && !w.inheritsPriority() {
			return
		}
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

// inheritsPriority reports whether a futex is waited for as a lock with priority inheritance, whose
// word the kernel reads.
func (w *wait) inheritsPriority() bool {
	const lock, lock2, flags = 6, 13, 128 | 256 // FUTEX_LOCK_PI and FUTEX_LOCK_PI2; private, of the real time
	op := w.args[1] &^ flags
	return op == lock || op == lock2
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
