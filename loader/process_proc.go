package loader

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// Bootstrap reads the processes that already run from /proc: those to be
// followed, or all. The side-band must be open, so that nothing is missed; an
// event that is also in /proc does no harm. It is also how the table recovers
// when records were lost: mappings are read anew, and processes that are no
// more count as exited. Where that takes more than ten seconds, the rest is read when it
// is sampled.
func (p *Processes) Bootstrap() error {
	if p.procs == nil {
		return errNotOpen
	}
	return p.bootstrap(10 * time.Second)
}

// bootstrap is Bootstrap within a time. Processes in the table that there was none for
// are stale.
func (p *Processes) bootstrap(within time.Duration) error {
	began := monotonic()
	pids, err := p.bootstrapPIDs()
	if err != nil {
		return err
	}
	alive := make(map[int32]bool, len(pids))
	for _, pid := range pids {
		alive[pid] = true
		if monotonic()-began >= uint64(within) {
			if old := p.procs[pid]; old != nil {
				p.stale[old] = true
			}
			continue
		}
		fresh := p.load(pid)
		if fresh == nil {
			continue
		}
		if old := p.procs[pid]; old == nil {
			p.procs[pid] = fresh
		} else if len(fresh.Space.Mappings()) > 0 {
			old.replace(fresh)
		}
	}
	for pid, proc := range p.procs {
		if !alive[pid] && !proc.Exited && !exists(pid) {
			p.applyExit(&SidebandEvent{PID: pid, TID: pid, Time: monotonic()})
		}
	}
	return nil
}

// bootstrapPIDs lists the processes that are to be read: all, or the roots
// with what descends from the processes in the table.
func (p *Processes) bootstrapPIDs() ([]int32, error) {
	if p.only == nil {
		return listProcesses()
	}
	pids := slices.Collect(maps.Keys(p.only))
	if len(p.procs) == 0 {
		return pids, nil
	}
	return WithDescendants(slices.AppendSeq(pids, maps.Keys(p.procs)))
}

// listProcesses returns all processes that /proc shows.
func listProcesses() ([]int32, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int32
	for _, name := range names {
		if pid, err := strconv.ParseInt(name, 10, 32); err == nil {
			pids = append(pids, int32(pid))
		}
	}
	return pids, nil
}

// replace takes over what was read of the same process again. While it is the
// same program, its address space only comes up to date.
func (p *Process) replace(fresh *Process) {
	if p.Exe != fresh.Exe {
		*p = *fresh
		return
	}
	p.Comm = fresh.Comm
	p.Space.Clear()
	for _, m := range fresh.Space.Mappings() {
		p.Space.Insert(m)
	}
}

// Refresh looks in /proc for executable mappings of a process at addresses
// where none is known, as of moved memory (mremap), and for programs that were unpacked
// into anonymous memory: nothing else tells. It is meant for when a sample's PC is in no
// mapping, or there is code of no file; within a second of the last
// time it does nothing. It reports whether mappings were added.
func (p *Processes) Refresh(proc *Process) bool {
	began := monotonic()
	if p.procs == nil || proc.KernelThread || proc.Exited || began < proc.refresh || proc.isSlow && began < p.reread {
		return false
	}
	space, err := p.images.LoadAddressSpace(proc.PID)
	proc.refresh = afterRest(began, refreshEvery)
	if proc.isSlow = monotonic()-began > slowRead; proc.isSlow {
		p.reread = afterRest(began, 0)
	}
	if err != nil {
		return false
	}
	added := false
	for _, m := range space.Mappings() {
		known := proc.Space.MappingAt(m.Start)
		isUnpacked := m.Image != nil && known != nil && known.Image == nil && known.ImageErr == nil
		if !isUnpacked && proc.Space.Overlaps(m.Start, m.End) {
			continue
		}
		p.announce(proc.PID, m.Image, m.Start, m.Offset)
		p.add(proc, m)
		added = true
	}
	return added
}

// refreshEvery bounds how often a process is looked at again. Those for which that took
// longer than slowRead, as they have tens of thousands of mappings, have to share a
// twentieth of the time.
const (
	refreshEvery = uint64(time.Second)
	slowRead     = uint64(5 * time.Millisecond)
)

// load reads a process from /proc. It returns nil when there is none.
func (p *Processes) load(pid int32) *Process {
	st, err := readStat(pid)
	if err != nil {
		return nil
	}
	proc := p.empty(pid)
	proc.Comm, proc.KernelThread = st.comm, st.kernelThread
	if st.kernelThread {
		return proc
	}
	if space, err := p.images.LoadAddressSpace(pid); err == nil {
		proc.Space = space
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
		proc.Exe = exe
	}
	for _, m := range proc.Space.Mappings() {
		if proc.Exe == "" && procstate.HasFile(m.Path) {
			proc.Exe = m.Path // the initial thread has ended; programs lie below libraries
		}
		p.announce(pid, m.Image, m.Start, m.Offset)
		if m.Image != nil && m.Path == proc.Exe {
			proc.Arch = m.Image.Arch()
		}
	}
	return proc
}

// kernelThreadFlag is PF_KTHREAD of <linux/sched.h>.
const kernelThreadFlag = 0x00200000

// taskStat is what is used of a task's stat file: proc_pid_stat(5).
type taskStat struct {
	comm         string
	ppid         int32
	kernelThread bool
}

var errBadStat = errors.New("malformed stat file")

func readStat(pid int32) (taskStat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return taskStat{}, err
	}
	return parseStat(b)
}

// ParentOf returns the process that has forked one, or 1 or a subreaper when that has ended.
func ParentOf(pid int32) (int32, error) {
	st, err := readStat(pid)
	return st.ppid, err
}

// parseStat parses a stat file. The name, in parentheses, may hold any byte.
func parseStat(b []byte) (taskStat, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return taskStat{}, errBadStat
	}
	// After the name: state ppid pgrp session tty_nr tpgid flags.
	fields := strings.Fields(string(b[end+1:]))
	if len(fields) < 7 {
		return taskStat{}, errBadStat
	}
	ppid, err1 := strconv.ParseInt(fields[1], 10, 32)
	flags, err2 := strconv.ParseUint(fields[6], 10, 32)
	if err1 != nil || err2 != nil {
		return taskStat{}, errBadStat
	}
	return taskStat{
		comm: string(b[open+1 : end]), ppid: int32(ppid), kernelThread: flags&kernelThreadFlag != 0,
	}, nil
}

// exists reports whether a process still has a thread, or waits to be reaped.
// The runtime is not told of the system call; see monotonic.
func exists(pid int32) bool {
	_, _, e := unix.RawSyscall(unix.SYS_KILL, uintptr(pid), 0, 0)
	return e != unix.ESRCH
}
