package procstate

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Thread is what /proc tells of a thread.
type Thread struct {
	TID   ThreadID
	Name  string // comm, at most 15 bytes
	State ThreadState
}

// ThreadState is the state letter of /proc/PID/stat.
type ThreadState byte

// The states that matter here; proc(5) has all of them.
const (
	StateRunning  ThreadState = 'R'
	StateSleeping ThreadState = 'S'
	StateDiskWait ThreadState = 'D' // in the kernel, not to be interrupted
	StateStopped  ThreadState = 'T' // by a job control signal
	StateTraced   ThreadState = 't' // by a tracer
	StateZombie   ThreadState = 'Z'
	StateDead     ThreadState = 'X'
	StateIdle     ThreadState = 'I' // kernel threads only
)

// String returns the state as a word: "sleeping".
func (s ThreadState) String() string {
	switch s {
	case StateRunning:
		return "running"
	case StateSleeping:
		return "sleeping"
	case StateDiskWait:
		return "uninterruptible"
	case StateStopped:
		return "stopped"
	case StateTraced:
		return "traced"
	case StateZombie:
		return "zombie"
	case StateDead:
		return "dead"
	case StateIdle:
		return "idle"
	}
	return "unknown"
}

// taskStat is the part of /proc/PID/task/TID/stat that is used.
type taskStat struct {
	name  string
	state ThreadState
	flags uint64 // PF_ bits of the kernel's task
}

const pfKthread = 0x00200000 // PF_KTHREAD of include/linux/sched.h

var errBadStat = errors.New("malformed stat file")

// parseStat reads the one line of a stat file. The name stands in parentheses
// and may itself hold parentheses and spaces; it ends at the last one.
func parseStat(b []byte) (taskStat, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open || end+3 >= len(b) {
		return taskStat{}, errBadStat
	}
	s := taskStat{name: string(b[open+1 : end]), state: ThreadState(b[end+2])}
	f := bytes.Fields(b[end+2:])
	if len(f) < 7 {
		return taskStat{}, errBadStat
	}
	var err error
	if s.flags, err = strconv.ParseUint(string(f[6]), 10, 64); err != nil {
		return taskStat{}, errBadStat
	}
	return s, nil
}

// taskDir reads /proc/PID/task. It keeps the directory open, so that it never
// speaks of another process that was given the same ID later.
type taskDir struct {
	dir *os.File
	buf [1024]byte
}

func openTaskDir(pid int) (*taskDir, error) {
	d, err := os.Open("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return nil, ErrTerminated
		}
		return nil, err
	}
	return &taskDir{dir: d}, nil
}

func (d *taskDir) close() { d.dir.Close() }

// list returns the IDs of all threads, zombies included, in order.
func (d *taskDir) list() ([]ThreadID, error) {
	if _, err := d.dir.Seek(0, 0); err != nil {
		return nil, err
	}
	names, err := d.dir.Readdirnames(-1)
	if err != nil && len(names) == 0 {
		if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) {
			return nil, ErrTerminated
		}
		return nil, err
	}
	tids := make([]ThreadID, 0, len(names))
	for _, n := range names {
		if t, err := strconv.ParseInt(n, 10, 32); err == nil {
			tids = append(tids, ThreadID(t))
		}
	}
	slices.Sort(tids) // they come as the threads were made, and IDs are used again
	return tids, nil
}

// stat reads the stat file of a thread; ErrNoThread when it is gone, EMFILE or
// ENFILE when no more files can be open.
func (d *taskDir) stat(tid ThreadID) (taskStat, error) {
	name := strconv.AppendInt(d.buf[:0], int64(tid), 10)
	name = append(name, "/stat"...)
	fd, err := unix.Openat(int(d.dir.Fd()), string(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == unix.EMFILE || err == unix.ENFILE {
		return taskStat{}, err
	}
	if err != nil {
		return taskStat{}, ErrNoThread
	}
	n, err := unix.Read(fd, d.buf[:])
	unix.Close(fd)
	if err != nil || n <= 0 {
		return taskStat{}, ErrNoThread
	}
	return parseStat(d.buf[:n])
}

// ProcessThreads returns the threads of a process as /proc shows them, in
// order of ID.
func ProcessThreads(pid int) ([]Thread, error) {
	d, err := openTaskDir(pid)
	if err != nil {
		return nil, fmt.Errorf("threads of process %d: %w", pid, err)
	}
	defer d.close()
	tids, err := d.list()
	if err != nil {
		return nil, fmt.Errorf("threads of process %d: %w", pid, err)
	}
	out := make([]Thread, 0, len(tids))
	for _, tid := range tids {
		if s, err := d.stat(tid); err == nil {
			out = append(out, Thread{TID: tid, Name: s.name, State: s.state})
		}
	}
	return out, nil
}

// statusField returns a field of /proc/ID/status, "" when there is none.
func statusField(id int, field string) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(id) + "/status")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if name, v, ok := strings.Cut(line, ":"); ok && name == field {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// statusInt is statusField for a decimal number; -1 when there is none. Of
// several numbers it takes the first.
func statusInt(id int, field string) int {
	f := strings.Fields(statusField(id, field))
	if len(f) == 0 {
		return -1
	}
	n, err := strconv.Atoi(f[0])
	if err != nil {
		return -1
	}
	return n
}

// readableTask returns a thread of a process that is not a zombie, through
// which its memory can be asked for: the initial one, or another when that
// has exited.
func readableTask(pid int) ThreadID {
	d, err := openTaskDir(pid)
	if err != nil {
		return ThreadID(pid)
	}
	defer d.close()
	if s, err := d.stat(ThreadID(pid)); err == nil && s.state != StateZombie {
		return ThreadID(pid)
	}
	tids, _ := d.list()
	for _, tid := range tids {
		if s, err := d.stat(tid); err == nil && s.state != StateZombie && s.state != StateDead {
			return tid
		}
	}
	return ThreadID(pid)
}

// ThreadsInNamespace returns the numbers that the threads of a process have in its PID namespace, by those
// that they have here; nil where they are the same.
func ThreadsInNamespace(pid int) map[ThreadID]ThreadID {
	if ThreadInNamespace(pid) == pid {
		return nil
	}
	d, err := openTaskDir(pid)
	if err != nil {
		return nil
	}
	defer d.close()
	tids, _ := d.list()
	own := make(map[ThreadID]ThreadID, len(tids))
	for _, tid := range tids {
		own[tid] = ThreadID(ThreadInNamespace(int(tid)))
	}
	return own
}

// ThreadInNamespace returns the number that a thread, or a process, has for itself, in its PID
// namespace; the number that it has here when that cannot be read.
func ThreadInNamespace(tid int) int {
	ids := strings.Fields(statusField(tid, "NSpid"))
	if len(ids) == 0 {
		return tid
	}
	id, err := strconv.Atoi(ids[len(ids)-1])
	if err != nil {
		return tid
	}
	return id
}
