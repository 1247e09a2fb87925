package symbols

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/swbpf/swbpf/procstate"
	"golang.org/x/sys/unix"
)

var errJITDump = errors.New("bad jitdump")

// jitFiles are the files in which a process tells of the code that it
// generates: perf-PID.map in its /tmp, and a jitdump file that it maps as a
// sign to profilers.
type jitFiles struct {
	pid   int    // as we see it
	nspid int    // as the process sees itself
	uid   uint32 // of the process
	table jitTable

	root *os.File // the process's root directory, kept for when it has exited

	perfMap struct {
		perfMap
		f *os.File
	}
	dumps map[string]*openDump
	last  uint64 // when the files were read last, in ns of CLOCK_MONOTONIC
}

type openDump struct {
	jitDump
	f   *os.File
	err error // it is of no use
}

// openJITFiles prepares to read the files of a process. It does not fail:
// what cannot be found gives no names.
func openJITFiles(pid int) *jitFiles {
	j := &jitFiles{pid: pid, nspid: pid, uid: ^uint32(0), dumps: map[string]*openDump{}}
	j.readStatus()
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

// update reads what was written since the last time.
func (j *jitFiles) update(libs procstate.LibraryState) {
	since := j.last
	j.last = procstate.Monotonic()
	j.updatePerfMap(since)
	if m, ok := libs.(interface{ Mappings() []*procstate.Mapping }); ok {
		for _, m := range m.Mappings() {
			if m.Image == nil && isJITDumpName(m.Path) {
				j.updateDump(m.Path)
			}
		}
	}
}

func (j *jitFiles) updatePerfMap(since uint64) {
	p := &j.perfMap
	name := fmt.Sprintf("tmp/perf-%d.map", j.nspid)
	if f := j.open(name); f != nil {
		if p.f != nil && !sameFile(p.f, f) {
			// The rest of the old file, then the new one from its start.
			j.readPerfMap(since)
			p.f.Close()
			p.perfMap, p.f = perfMap{}, f
		} else if p.f != nil {
			f.Close()
		} else {
			p.f = f
		}
	}
	j.readPerfMap(since)
}

func (j *jitFiles) readPerfMap(since uint64) {
	p := &j.perfMap
	if p.f == nil {
		return
	}
	if st, err := p.f.Stat(); err == nil {
		// What was read stays; an unreadable rest has no names.
		_ = p.read(p.f, st.Size(), &j.table, since)
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

func (j *jitFiles) updateDump(path string) {
	d := j.dumps[path]
	if d == nil {
		if len(j.dumps) >= 16 {
			return
		}
		f := j.open(strings.TrimPrefix(path, "/"))
		if f == nil {
			return
		}
		d = &openDump{f: f}
		j.dumps[path] = d
	}
	if st, err := d.f.Stat(); err == nil && d.err == nil {
		d.err = d.read(d.f, st.Size(), &j.table)
	}
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
