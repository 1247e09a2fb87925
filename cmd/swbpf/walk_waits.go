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

	stackwalk "github.com/swbpf/swbpf"
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
	ending procstate.ThreadID // whose end is waited for; 0: no thread's
	isGIL  bool               // the lock is that of an interpreter of CPython

	// ownLock says that the thread itself seems to be the holder, which it may be by now.
	ownLock bool
}

// isTimedFutex reports whether arguments may be those of a futex that is waited for until some time.
func (w *wait) isTimedFutex() bool {
	const wait, waitBits, flags = 0, 9, 128 | 256 // FUTEX_WAIT and FUTEX_WAIT_BITSET; private, of the real time
	op := w.args[1] &^ flags
	return w.args[0] > maxHead && w.args[0]%4 == 0 && w.args[1] != 0 && (op == wait || op == waitBits) && w.args[3] != 0
}

// ends reports whether a wait for a lock has an end of its own.
func (w *wait) ends() bool { return w.args[3] != 0 && !w.isGIL }

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
// still. For one of many walks it does not look for the other ends of pipes.
func (p *processWalk) takeWaits(waits map[procstate.ThreadID]*wait, watching bool) {
	r := waitReader{pid: p.pid, arch: p.arch, python: p.python, pointers: make(map[procstate.ThreadID]uint64), watching: watching}
	for i := range p.threads {
		t := &p.threads[i]
		r.tids = append(r.tids, t.tid)
		if len(t.stack) > 0 {
			r.pointers[t.tid] = t.stack[0].Regs.ThreadPointer
		}
	}
	for i := range p.threads {
		t := &p.threads[i]
		if w := waits[t.tid]; w.isOf(t) && r.describe(t, w) {
			t.wait = w
		}
	}
	p.findDeadlocks(&r)
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
	p.findDeadlocks(nil)
}

// waitReader finds out what calls of a process's threads are about. It asks the process
// as it is now: what it says is of the thread that still waits.
type waitReader struct {
	pid      int
	arch     *procstate.Arch
	python   []stackwalk.PythonLock
	tids     []procstate.ThreadID
	pointers map[procstate.ThreadID]uint64 // bases of their local storage; 0 is not known
	foreign  *bool                         // whether the process has numbers of another PID namespace; nil before it is looked at
	numbered map[uint32]procstate.ThreadID // the threads by the numbers that the process has for them; nil before it is made
	sockets  map[string]string             // by inode; nil before they are read
	pipes    map[string]*pipeEnds          // by name; nil before they are read
	watching bool                          // it is one of many walks, for which pipes are not looked for
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
		// It has its arguments still, and a function of its name; but for futex, for which C has none.
		isCall := func(c waitCall) bool { return c.name == w.call }
		w.call = strings.TrimLeft(strings.TrimPrefix(t.frames[0].function, "__GI_"), "_")
		if i = slices.IndexFunc(waitCalls[:], isCall); i < 0 && w.isTimedFutex() {
			w.call = "futex"
			i = slices.IndexFunc(waitCalls[:], isCall)
		}
		if i < 0 {
			return false
		}
	}
	switch arg := w.args[waitCalls[i].arg]; waitCalls[i].about {
	case aboutFile:
		w.on = r.file(int32(arg))
	case aboutPath:
		w.on = r.path(tid, arg)
	case aboutFiles:
		w.on = r.polled(tid, arg, w.args[1])
	case aboutProcess:
		const any = -1
		if int32(arg) == any {
			w.on = r.children()
		} else if pid := r.child(int32(arg)); pid > 0 {
			w.on = fmt.Sprintf("process %d", pid)
		}
	case aboutLock:
		if w.describeGIL(tid, r.python, arg); w.isGIL {
			break
		}
		if w.describeRWLock(r, t, arg); w.holder == 0 {
			r.describeLock(tid, w, arg)
		}
	}
	return true
}

// file names a descriptor: "3 /var/log/syslog".
func (r *waitReader) file(fd int32) string {
	path := fmt.Sprintf("/proc/%d/fd/%d", r.pid, fd)
	name, err := os.Readlink(path)
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
	if strings.HasPrefix(name, pipePrefix) {
		name += r.otherEnds(path, name)
	}
	return fmt.Sprintf("%d %s", fd, name)
}

// child returns the child for which the process has a number; 0 where that is not known.
func (r *waitReader) child(number int32) int {
	if !r.isForeign() {
		return int(number)
	}
	for _, pid := range r.childrenNow() {
		if procstate.ThreadInNamespace(pid) == int(number) {
			return pid
		}
	}
	return 0
}

// childrenNow returns the children of all threads of the process.
func (r *waitReader) childrenNow() (pids []int) {
	for _, tid := range r.tids {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", r.pid, tid))
		for _, f := range strings.Fields(string(children)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// maxChildren is how many children are named of which any is waited for.
const maxChildren = 3

// children names those for any of which the process waits; "" where there is none.
func (r *waitReader) children() string {
	pids := r.childrenNow()
	switch n := len(pids); {
	case n == 0:
		return ""
	case n == 1:
		return fmt.Sprintf("process %d", pids[0])
	case n > maxChildren:
		return fmt.Sprintf("any of %d processes", n)
	}
	names := make([]string, len(pids))
	for i, pid := range pids {
		names[i] = strconv.Itoa(pid)
	}
	return "any of processes " + strings.Join(names, ", ")
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
// mutex has the word 2 when threads wait for it, and its holder behind; a
// thread's own word, which is cleared when it ends, has its number. A number counts only
// if it is one of the process's threads.
func (r *waitReader) describeLock(tid procstate.ThreadID, w *wait, addr uint64) {
	w.on = hex(addr)
	var b [mutexSize]byte
	n := procstate.ReadProcess(int(tid), addr, b[:])
	if n < 4 {
		return
	}
	word, owner, expected := binary.LittleEndian.Uint32(b[:]), uint32(0), uint32(w.args[2])
	if ending := r.other(tid, word); word == expected && ending != 0 && r.isInHead(addr, ending) {
		w.on, w.ending = fmt.Sprintf("end of thread %d", ending), ending
		return
	}
	switch {
	case word&futexWaiters != 0:
		if owner = word & futexTID; r.isCount(owner) && !w.inheritsPriority() {
			return
		}
	case word == 2 && expected == 2 && n == len(b):
		owner = mutexOwner(&b, r.arch)
	}
	if holder := r.other(tid, owner); holder != 0 {
		w.holder = holder
		w.on = fmt.Sprintf("lock of thread %d", holder)
	} else {
		w.ownLock = owner != 0 && r.numbered[owner] == tid
	}
}

// mutexSize is how much of glibc's pthread_mutex_t is looked at, in bytes.
const mutexSize = 20

// mutexOwner returns the number of the thread that holds a mutex of glibc's: behind the lock are
// its depth, the holder, how many use it, and its kind (on 32 bits, that before). It is 0 where
// these are none of a mutex that is held: Rust's has the same word, and then what it guards.
func mutexOwner(b *[mutexSize]byte, arch *procstate.Arch) uint32 {
	depth, owner, users, kind := binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:]),
		binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint32(b[16:])
	if arch.AddressWidth == 4 {
		users, kind = kind, users
	}
	const kinds, recursive = 0x3ff, 1 // type in two bits, robust, of priorities, shared, elision
	if kind > kinds || users == 0 || depth != 0 && kind&3 != recursive {
		return 0
	}
	return owner
}

// describeRWLock fills in which writer holds a read-write lock. In glibc's on 64 bits its
// number is four words behind the one that readers wait for, and three behind the
// one of other writers; both are 3 meanwhile. Those that read leave no number.
func (w *wait) describeRWLock(r *waitReader, t *threadWalk, addr uint64) {
	const writerHas = 3
	var behind uint64
	switch {
	case r.arch.AddressWidth != 8 || uint32(w.args[2]) != writerHas:
		return
	case t.isIn("pthread_rwlock_", "rdlock"):
		behind = 16
	case t.isIn("pthread_rwlock_", "wrlock"):
		behind = 12
	default:
		return
	}
	var b [16 + 4]byte
	if n := procstate.ReadProcess(int(t.tid), addr, b[:behind+4]); n < int(behind+4) || binary.LittleEndian.Uint32(b[:]) != writerHas {
		return
	}
	if holder := r.other(t.tid, binary.LittleEndian.Uint32(b[behind:])); holder != 0 {
		w.holder = holder
		w.on = fmt.Sprintf("lock of thread %d", holder)
	}
}

// isIn reports whether a thread has called a function of the C library whose name begins and ends
// so, but for underscores, and waits in what that itself calls.
func (t *threadWalk) isIn(begin, end string) bool {
	const most = 4 // futex_wait and the like, much of it inlined
	for i := range t.frames[:min(most, len(t.frames))] {
		name := strings.TrimLeft(strings.TrimPrefix(t.frames[i].function, "__GI_"), "_")
		if strings.HasPrefix(name, begin) && strings.HasSuffix(name, end) {
			return true
		}
	}
	return false
}

// maxHead bounds glibc's struct pthread, in bytes: it has some 2,300.
const maxHead = 4096

// isInHead reports whether an address may be in glibc's struct pthread of a thread, where its own
// word is: on x86 the struct begins at the base of the thread's local storage, on arm64 it ends
// there. A word that counts something may as well have a thread's number, which is a small one in
// a container.
func (r *waitReader) isInHead(addr uint64, tid procstate.ThreadID) bool {
	base := r.pointers[tid]
	if base == 0 {
		return false
	}
	if r.arch == procstate.ARM64 {
		return addr < base && base-addr <= maxHead
	}
	return addr >= base && addr-base < maxHead
}

// inheritsPriority reports whether a futex is waited for as a lock with priority inheritance, whose
// word the kernel reads.
func (w *wait) inheritsPriority() bool {
	const lock, lock2, flags = 6, 13, 128 | 256 // FUTEX_LOCK_PI and FUTEX_LOCK_PI2; private, of the real time
	op := w.args[1] &^ flags
	return op == lock || op == lock2
}

// other returns the thread, another one than tid, for which the process has a number; 0 where
// there is none. In another PID namespace, as a container's, that number is not ours.
func (r *waitReader) other(tid procstate.ThreadID, number uint32) procstate.ThreadID {
	if r.numbered == nil {
		r.numbered = make(map[uint32]procstate.ThreadID)
		for _, t := range r.tids {
			own := int(t)
			if r.isForeign() {
				own = procstate.ThreadInNamespace(own)
			}
			r.numbered[uint32(own)] = t
		}
	}
	if other := r.numbered[number]; other != tid {
		return other
	}
	return 0
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
