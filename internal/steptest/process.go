package steptest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// Process is a traced program. All of its threads are stopped except within
// its methods that let them run.
type Process struct {
	pid     int
	exe     string
	arch    *procstate.Arch
	mem     *os.File
	threads map[int]bool // tid: stopped
	libs    *procstate.AddressSpace
	images  map[string]*procstate.Image
	exited  bool

	walking bool
	page    [4096]byte // of memory, what ReadWord has read last in this walk
	pageAt  uint64     // its address, noPage if there is none

	// Signals counts the signals that were delivered in Step.
	Signals int
}

const noPage = 1

// Start runs a program until it has executed its first instruction, under
// ptrace, and ends it with the test. It has a process group of its own, since all its
// threads are waited for, and this thread may have started programs of others before.
func Start(t testing.TB, path string, args ...string) *Process {
	t.Helper()
	runtime.LockOSThread()
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		runtime.UnlockOSThread()
		t.Fatalf("start %s: %v", path, err)
	}
	p := &Process{pid: cmd.Process.Pid, exe: path, threads: map[int]bool{}, images: map[string]*procstate.Image{}}
	t.Cleanup(func() { p.close(); _ = cmd.Process.Release(); runtime.UnlockOSThread() })
	var ws unix.WaitStatus
	if _, err := unix.Wait4(p.pid, &ws, unix.WALL, nil); err != nil || !ws.Stopped() {
		t.Fatalf("%s did not stop at its start: %v", path, err)
	}
	if err := unix.PtraceSetOptions(p.pid, unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL); err != nil {
		t.Fatalf("trace %s: %v", path, err)
	}
	p.threads[p.pid] = true
	var err error
	if p.mem, err = os.Open(fmt.Sprintf("/proc/%d/mem", p.pid)); err != nil {
		t.Fatal(err)
	}
	if err := p.UpdateMappings(); err != nil {
		t.Fatal(err)
	}
	p.arch = procstate.HostArch()
	for _, im := range p.images {
		p.arch = im.Arch() // all have the same
	}
	return p
}

// StartToTrap is Start up to where a thread executes a breakpoint instruction, and returns which. The others go on.
func StartToTrap(t testing.TB, path string, args ...string) (*Process, procstate.ThreadID) {
	t.Helper()
	p := Start(t, path, args...)
	tid, err := p.ContinueToTrap()
	if err != nil {
		t.Fatal(err)
	}
	return p, tid
}

func (p *Process) close() {
	if p.mem != nil {
		_ = p.mem.Close()
	}
	_ = unix.Kill(p.pid, unix.SIGKILL)
	// The first thread ends last, and only when the others have been waited
	// for.
	for {
		var ws unix.WaitStatus
		tid, err := unix.Wait4(-p.pid, &ws, unix.WALL|unix.WNOTHREAD, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || tid == p.pid && !ws.Stopped() {
			return
		}
	}
}

// UpdateMappings reads the process's mappings again.
func (p *Process) UpdateMappings() error {
	entries, err := procstate.ReadMaps(fmt.Sprintf("/proc/%d/maps", p.pid), true)
	if err != nil {
		return err
	}
	p.libs = &procstate.AddressSpace{}
	for _, e := range entries {
		m := &procstate.Mapping{Start: e.Start, End: e.End, Offset: e.Offset, Path: e.Path}
		if m.Path != "" {
			m.Image, m.ImageErr = p.image(m)
		}
		p.libs.Insert(m)
	}
	return nil
}

// image opens the file of a mapping; that of the vdso is in memory.
func (p *Process) image(m *procstate.Mapping) (*procstate.Image, error) {
	if im := p.images[m.Path]; im != nil {
		return im, nil
	}
	var b []byte
	var err error
	if m.Path == "[vdso]" {
		b = make([]byte, m.End-m.Start)
		_, err = p.ReadMemory(m.Start, b)
	} else {
		b, err = os.ReadFile(m.Path)
	}
	if err != nil {
		return nil, err
	}
	im, err := procstate.NewImageBytes(b, m.Path)
	if err == nil {
		p.images[m.Path] = im
	}
	return im, err
}

// Exited reports whether the program has ended.
func (p *Process) Exited() bool { return p.exited }

// Step lets one thread execute one instruction. Signals that come are passed
// on.
func (p *Process) Step(tid int) error {
	if err := unix.PtraceSingleStep(tid); err != nil {
		return err
	}
	return p.wait(tid)
}

// wait waits until a thread has stopped.
func (p *Process) wait(tid int) error {
	for {
		var ws unix.WaitStatus
		if _, err := unix.Wait4(tid, &ws, unix.WALL, nil); err != nil {
			return err
		}
		if ws.Exited() || ws.Signaled() {
			delete(p.threads, tid)
			p.exited = p.exited || tid == p.pid
			return nil
		}
		if sig, ok := p.stopped(tid, ws); ok {
			return nil
		} else if sig != 0 {
			p.Signals++
			if err := ptraceStep(tid, sig); err != nil {
				return err
			}
		} else if err := unix.PtraceSingleStep(tid); err != nil {
			return err
		}
	}
}

// stopped classifies a stop: ok when the thread may stay stopped, else sig is
// a signal to deliver.
func (p *Process) stopped(tid int, ws unix.WaitStatus) (sig int, ok bool) {
	switch s := ws.StopSignal(); {
	case ws.TrapCause() == unix.PTRACE_EVENT_CLONE:
		if child, err := unix.PtraceGetEventMsg(tid); err == nil {
			p.adopt(int(child))
		}
		return 0, true
	case s == unix.SIGTRAP || s == unix.SIGSTOP:
		return 0, true
	default:
		return int(s), false
	}
}

// adopt waits for the first stop of a new thread.
func (p *Process) adopt(tid int) {
	var ws unix.WaitStatus
	if _, err := unix.Wait4(tid, &ws, unix.WALL, nil); err == nil && ws.Stopped() {
		p.threads[tid] = true
	}
}

// ptraceStep steps one instruction and delivers a signal with it.
func ptraceStep(tid, sig int) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SINGLESTEP, uintptr(tid), 0, uintptr(sig), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Run lets all threads run until stop returns, then stops them all again. It
// serves their events meanwhile by polling, so stop should take long enough
// for something to happen.
func (p *Process) Run(stop func()) error {
	for tid, stopped := range p.threads {
		if !stopped {
			continue
		}
		if err := unix.PtraceCont(tid, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		p.threads[tid] = false
	}
	done := make(chan struct{})
	go func() { stop(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		if err := p.poll(unix.WNOHANG, false); err != nil {
			return err
		}
	}
	for tid, stopped := range p.threads {
		if !stopped {
			_ = unix.Tgkill(p.pid, tid, unix.SIGSTOP)
		}
	}
	for !p.exited && slices.Contains(p.stopStates(), false) {
		if err := p.poll(0, true); err != nil {
			return err
		}
	}
	if p.exited {
		return nil
	}
	return p.UpdateMappings()
}

func (p *Process) stopStates() (s []bool) {
	for _, stopped := range p.threads {
		s = append(s, stopped)
	}
	return s
}

// poll serves one event of any thread. While stopping, threads stay stopped.
func (p *Process) poll(flags int, stopping bool) error {
	var ws unix.WaitStatus
	tid, err := unix.Wait4(-p.pid, &ws, unix.WALL|unix.WNOTHREAD|flags, nil)
	if err != nil || tid <= 0 {
		if errors.Is(err, unix.EINTR) {
			return nil
		}
		return err
	}
	return p.serve(tid, ws, stopping)
}

// serve deals with one event.
func (p *Process) serve(tid int, ws unix.WaitStatus, stopping bool) error {
	if ws.Exited() || ws.Signaled() {
		delete(p.threads, tid)
		p.exited = p.exited || tid == p.pid
		return nil
	}
	known := false
	if _, known = p.threads[tid]; !known {
		p.threads[tid] = false // its first stop came before the event of its parent
	}
	sig := 0
	switch s := ws.StopSignal(); {
	case ws.TrapCause() == unix.PTRACE_EVENT_CLONE:
		if child, err := unix.PtraceGetEventMsg(tid); err == nil {
			if _, seen := p.threads[int(child)]; !seen {
				p.threads[int(child)] = false
			}
		}
	case s == unix.SIGSTOP && stopping:
		p.threads[tid] = true
		return nil
	case s == unix.SIGSTOP || s == unix.SIGTRAP:
	default:
		sig = int(s)
	}
	if err := unix.PtraceCont(tid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// RunOthers lets all threads but one run, until the next Run stops them.
func (p *Process) RunOthers(but procstate.ThreadID) error {
	for tid, stopped := range p.threads {
		if tid == int(but) || !stopped {
			continue
		}
		if err := unix.PtraceCont(tid, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		p.threads[tid] = false
	}
	return nil
}

// ContinueToTrap lets all threads run until one executes a breakpoint
// instruction, and returns which. The others go on.
func (p *Process) ContinueToTrap() (procstate.ThreadID, error) {
	if err := p.RunOthers(0); err != nil {
		return 0, err
	}
	for !p.exited {
		var ws unix.WaitStatus
		tid, err := unix.Wait4(-p.pid, &ws, unix.WALL|unix.WNOTHREAD, nil)
		if err != nil {
			return 0, err
		}
		if ws.Stopped() && ws.StopSignal() == unix.SIGTRAP && ws.TrapCause() == 0 {
			p.threads[tid] = true
			return procstate.ThreadID(tid), p.UpdateMappings()
		}
		if err := p.serve(tid, ws, false); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("%s ended", p.exe)
}

// Images returns the files that the process maps, by path.
func (p *Process) Images() map[string]*procstate.Image { return p.images }

// Arch implements procstate.ProcessState.
func (p *Process) Arch() *procstate.Arch { return p.arch }

// PID implements procstate.ProcessState.
func (p *Process) PID() int { return p.pid }

// ExecutablePath implements procstate.ProcessState.
func (p *Process) ExecutablePath() string { s, _ := filepath.Abs(p.exe); return s }

// Threads implements procstate.ProcessState.
func (p *Process) Threads() ([]procstate.ThreadID, error) {
	tids := []procstate.ThreadID{procstate.ThreadID(p.pid)}
	for tid := range p.threads {
		if tid != p.pid {
			tids = append(tids, procstate.ThreadID(tid))
		}
	}
	return tids, nil
}

// Libraries implements procstate.ProcessState.
func (p *Process) Libraries() procstate.LibraryState { return p.libs }

// BeforeWalk implements procstate.ProcessState.
func (p *Process) BeforeWalk(procstate.ThreadID) error {
	p.walking, p.pageAt = true, noPage
	return nil
}

// AfterWalk implements procstate.ProcessState.
func (p *Process) AfterWalk(procstate.ThreadID) error {
	p.walking = false
	return nil
}

// ReadMemory implements procstate.Memory.
func (p *Process) ReadMemory(addr uint64, buf []byte) (int, error) {
	n, err := p.mem.ReadAt(buf, int64(addr))
	if n < len(buf) {
		return n, fmt.Errorf("%w: %v", procstate.ErrUnreadable, err)
	}
	return n, nil
}

// ReadWord implements procstate.Memory. A walk, which reads many words of few pages, reads each page once.
func (p *Process) ReadWord(addr uint64) (uint64, bool) {
	var b [8]byte
	if addr > 1<<63-9 {
		return 0, false
	}
	width := uint64(p.arch.AddressWidth)
	if at := addr % uint64(len(p.page)); p.walking && at+width <= uint64(len(p.page)) {
		if p.pageAt != addr-at {
			p.pageAt = addr - at
			if _, err := p.mem.ReadAt(p.page[:], int64(p.pageAt)); err != nil {
				p.pageAt = noPage
				return 0, false
			}
		}
		copy(b[:width], p.page[at:])
	} else if _, err := p.mem.ReadAt(b[:width], int64(addr)); err != nil {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[:]), true
}
