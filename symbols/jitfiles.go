package symbols

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"golang.org/x/sys/unix"
)

var errJITDump = errors.New("bad jitdump")

// jitFiles are the files in which a process tells of the code that it
// generates: perf-PID.map in its /tmp, and a jitdump file that it maps as a
// sign to profilers.
type jitFiles struct {
	pid   int       // as we see it
	nspid int       // as the process sees itself
	uid   uint32    // of the process
	began time.Time // when the process did, zero where that is not known
	table jitTable

	root *os.File // the process's root directory, kept for when it has exited

	perfMap struct {
		perfMap
		f   *os.File
		err error // it is of no use
	}
	dumps map[string]*openDump
	last  uint64 // when the perf map was read to its end last, in ns of CLOCK_MONOTONIC

	all     *atomic.Int64 // charged to all processes; nil without
	charged int64         // to this one: bytes read, and what entries take
	noted   bool          // that a file is of no use
	renewed int           // how often the perf map was replaced or written anew
}

type openDump struct {
	jitDump
	f   *os.File
	err error // it is of no use
}

// Bounds on what is read at a time, and altogether of all processes.
const (
	maxJITFirst = 1 << 18
	maxJITLook  = 1 << 20
	maxJITAll   = 512 << 20
)

// jitEntryCost is what an entry of the table takes in bytes.
const jitEntryCost = 48

var errJITAll = errors.New("all together tell too much of generated code")

// openJITFiles prepares to read the files of a process. It does not fail:
// what cannot be found gives no names.
func openJITFiles(pid int) *jitFiles {
	j := &jitFiles{pid: pid, nspid: pid, uid: ^uint32(0), dumps: map[string]*openDump{}}
	j.readStatus()
	j.began = processBegan(pid)
	// A directory handle outlives the process, its /proc entry does not.
	// What was mounted below it is gone with the process's namespace.
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		j.root = os.NewFile(uintptr(fd), "root")
	}
	return j
}

// readStatus learns the process's ID in its own namespace, and its user.
func (j *jitFiles) readStatus() {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", j.pid))
	if err != nil {
		return
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		w := strings.Fields(sc.Text())
		if len(w) < 2 {
			continue
		}
		n, err := strconv.ParseUint(w[len(w)-1], 10, 32)
		switch {
		case w[0] == "NSpid:" && err == nil:
			j.nspid = int(n)
		case w[0] == "Uid:" && len(w) == 5:
			if euid, err := strconv.ParseUint(w[2], 10, 32); err == nil {
				j.uid = uint32(euid)
			}
		}
	}
}

// update reads what was written since the last time, up to some bytes. It reports
// whether there is more, and as an error, once, that a file is of no use.
func (j *jitFiles) update(libs procstate.LibraryState, bytes int64) (more bool, err error) {
	if j.all != nil {
		if free := maxJITAll - j.all.Load(); free <= 0 {
			return false, j.note("files", errJITAll)
		} else {
			bytes = min(bytes, free)
		}
	}
	left, entries := bytes, len(j.table.entries)
	now := procstate.Monotonic()
	err = j.updatePerfMap(&left)
	if more = j.perfMap.more; !more {
		j.last = now // what is left then is not older than what was read
	}
	if m, ok := libs.(interface{ Mappings() []*procstate.Mapping }); ok {
		for _, m := range m.Mappings() {
			if m.Image == nil && isJITDumpName(m.Path) {
				unfinished, e := j.updateDump(m.Path, &left)
				more, err = more || unfinished, cmp.Or(err, e)
			}
		}
	}
	j.charge(bytes - left + jitEntryCost*int64(len(j.table.entries)-entries))
	return more, err
}

func (j *jitFiles) charge(n int64) {
	if j.all != nil {
		j.charged += n
		j.all.Add(n)
	}
}

// renew takes note that another perf map is in the place of the one that was read.
func (j *jitFiles) renew() {
	j.renewed++
	j.charge(-j.perfMap.off)
}

// note returns an error that tells of a file, the first time.
func (j *jitFiles) note(name string, err error) error {
	if j.noted || err == nil {
		return nil
	}
	j.noted = true
	return fmt.Errorf("%s of process %d: %w", name, j.pid, err)
}

// updatePerfMap reads the perf map. Of one that was replaced it reads the rest, and then
// the new one from its start.
func (j *jitFiles) updatePerfMap(left *int64) error {
	p := &j.perfMap
	name := fmt.Sprintf("tmp/perf-%d.map", j.nspid)
	f := j.open(name)
	if f != nil && j.isOlder(f) {
		f.Close()
		f = nil
	}
	if f != nil && p.f != nil {
		if sameFile(p.f, f) {
			f.Close()
			f = nil
		} else if j.readPerfMap(left); p.more {
			f.Close()
			return nil
		} else {
			p.f.Close()
			j.renew()
			p.perfMap, p.f, p.err = perfMap{}, nil, nil
		}
	}
	if f != nil {
		p.f = f
	}
	j.readPerfMap(left)
	return j.note("/"+name, p.err)
}

// isOlder reports whether a file was written last before the process began: another one, which had
// its ID before, has left it.
func (j *jitFiles) isOlder(f *os.File) bool {
	const clocks = 2 * time.Second // between the clocks of files and of processes, and steps of the former
	st, err := f.Stat()
	return err == nil && !j.began.IsZero() && st.ModTime().Before(j.began.Add(-clocks))
}

// processBegan tells when a process began; zero where that cannot be told.
func processBegan(pid int) time.Time {
	const (
		startTime = 22 - 3 // of the fields behind the name, see proc_pid_stat(5)
		perSecond = 100    // USER_HZ
	)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	var now unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return time.Time{}
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) <= startTime {
		return time.Time{}
	}
	ticks, err := strconv.ParseInt(f[startTime], 10, 64)
	if err != nil || ticks < 0 || ticks > now.Nano()/(int64(time.Second)/perSecond) {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(ticks)*time.Second/perSecond - time.Duration(now.Nano()))
}

func (j *jitFiles) readPerfMap(left *int64) {
	p := &j.perfMap
	if p.f == nil || p.err != nil {
		return
	}
	st, err := p.f.Stat()
	if err != nil {
		return
	}
	if st.Size() < p.off {
		j.renew()
	}
	// What was read stays.
	if p.err = p.read(p.f, st.Size(), &j.table, j.last, left); p.err != nil {
		p.tail = nil
	}
}

// isJITDumpName reports whether a path is that of a jitdump file,
// jit-PID.dump.
func isJITDumpName(path string) bool {
	base := strings.TrimSuffix(filepath.Base(path), " (deleted)")
	digits, ok := strings.CutPrefix(base, "jit-")
	digits, ok2 := strings.CutSuffix(digits, ".dump")
	_, err := strconv.ParseUint(digits, 10, 32)
	return ok && ok2 && err == nil
}

func (j *jitFiles) updateDump(path string, left *int64) (more bool, err error) {
	d := j.dumps[path]
	if d == nil {
		if len(j.dumps) >= 16 {
			return false, nil
		}
		f := j.open(strings.TrimPrefix(path, "/"))
		if f == nil {
			return false, nil
		}
		d = &openDump{f: f}
		j.dumps[path] = d
	}
	if st, err := d.f.Stat(); err == nil && d.err == nil {
		d.err = d.read(d.f, st.Size(), &j.table, left)
	}
	return d.more && d.err == nil, j.note(path, d.err)
}

// open opens a file below the process's root; nil when it is not there. A
// regular file of the process's user or root is wanted: others could tell
// anything about its code.
func (j *jitFiles) open(name string) *os.File {
	const flags = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC
	var fd int
	var err error
	if j.root != nil {
		how := unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
		fd, err = unix.Openat2(int(j.root.Fd()), name, &how)
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
			fd, err = unix.Openat(int(j.root.Fd()), name, flags|unix.O_NOFOLLOW, 0)
		}
	} else {
		fd, err = unix.Open("/"+name, flags|unix.O_NOFOLLOW, 0)
	}
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), name)
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || !j.trusted(st) {
		f.Close()
		return nil
	}
	return f
}

func (j *jitFiles) trusted(st os.FileInfo) bool {
	s, ok := st.Sys().(*syscall.Stat_t)
	return ok && (s.Uid == 0 || s.Uid == j.uid || j.uid == ^uint32(0) && s.Uid == uint32(os.Geteuid()))
}

func sameFile(a, b *os.File) bool {
	x, err := a.Stat()
	if err != nil {
		return false
	}
	y, err := b.Stat()
	return err == nil && os.SameFile(x, y)
}

func (j *jitFiles) close() {
	j.charge(-j.charged)
	if j.root != nil {
		j.root.Close()
	}
	if j.perfMap.f != nil {
		j.perfMap.f.Close()
	}
	for _, d := range j.dumps {
		d.f.Close()
	}
}
