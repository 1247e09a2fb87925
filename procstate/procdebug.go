package procstate

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ProcDebug is the ProcessState of a live process under ptrace.
//
// The target runs except while it is walked or captured, or paused. It is
// attached with PTRACE_SEIZE, which sends it no signal: its own signals are
// passed on as they come, a job control stop stays one, and when the tracer
// dies, by SIGKILL too, the kernel detaches it and it goes on.
//
// A walk (BeforeWalk to AfterWalk) stops the one thread and reads its memory
// as it is then. [ProcDebug.Capture] instead stops all threads for as long as
// it takes to copy their registers and stacks.
//
// A child of this very process that is traced gives its stops to whoever waits
// for it: wait for its end, with os/exec say, after Detach, or use Done.
//
// Pause, Resume, Detach, IsTerminated, Threads, Registers and Capture may be
// called from any goroutine at any time; the rest by one goroutine at a time.
// The zero value is of no process: ErrNoProcess.
type ProcDebug struct {
	pid    int
	e      *engine
	arch   *Arch
	mem    pageCache
	libs   liveLibraries
	gate   walkGate
	probes liveProbes

	exe       atomic.Pointer[string]
	walked    ThreadID    // see WalkedThread
	otherArch atomic.Bool // exec has changed the architecture
	letGone   atomic.Bool // by Detach

	ended    chan struct{} // closed when the target has ended or was let go
	dropOnce sync.Once

	// These belong to the engine's goroutine.
	threads    map[ThreadID]*tracee
	skipped    map[ThreadID]bool // had exited before they could be seized
	second     ThreadID          // see first
	born       int               // threads that came without being seized
	pausedAll  bool
	still      bool // all threads stand, and none was set going since Pause
	mapsRead   bool // and a walk has read the mappings since
	detaching  bool
	launched   bool // it is a child of this process
	dropCont   bool // the next SIGCONT is ours
	silent     bool // nobody knows of it: it causes no events
	exitStatus unix.WaitStatus
}

// Errors of Attach, with context around them.
var (
	ErrNoProcess    = errors.New("no such process")
	ErrZombie       = errors.New("has ended and is a zombie: it has no stack any more")
	ErrKernelThread = errors.New("is a thread of the kernel: it has no user stack")
	ErrNotPermitted = errors.New("may not be traced")
	ErrTraced       = errors.New("is being traced already")
	ErrDetached     = errors.New("has been detached")

	// ErrThreadExited is of a thread that is still listed: the initial one,
	// which stays until the last has ended.
	ErrThreadExited = errors.New("thread has exited")

	errTooManyThreads = errors.New("threads are born faster than they can be attached")
)

// Attach starts to trace a process. It does not stop it. The errors wrap one
// of those above where they apply.
func Attach(pid int) (*ProcDebug, error) { return AttachWithExecutable(pid, "") }

// AttachWithExecutable is Attach for a process whose program file cannot be
// reached where the process says it is; exe is a copy of that file. It is not
// used when the program can be reached.
func AttachWithExecutable(pid int, exe string) (*ProcDebug, error) {
	p, dir, err := newProcDebug(pid)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	defer dir.close()
	if exe != "" {
		if p.libs.exe, err = openStandIn(exe); err != nil {
			p.e.do(p.drop)
			return nil, fmt.Errorf("process %d: %w", pid, err)
		}
	}
	p.e.do(func() {
		if err = p.e.seize(p, dir, nil); err != nil {
			p.e.abandon(p)
		}
	})
	if err == nil {
		err = p.learnArch()
	}
	if err != nil {
		p.Detach()
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return p, nil
}

// newProcDebug checks what can be known before a process is attached.
func newProcDebug(pid int) (*ProcDebug, *taskDir, error) {
	if HostArch() == nil {
		return nil, nil, fmt.Errorf("tracing on %s: %w", runtime.GOARCH, ErrNotSupported)
	}
	if err := checkTarget(pid); err != nil {
		return nil, nil, err
	}
	dir, err := openTaskDir(pid)
	if err != nil {
		return nil, nil, err
	}
	p := newDebug(pid)
	p.learnExe()
	return p, dir, nil
}

func newDebug(pid int) *ProcDebug {
	p := &ProcDebug{
		pid: pid, e: engineFor(pid), libs: liveLibraries{pid: pid}, ended: make(chan struct{}),
		threads: make(map[ThreadID]*tracee), skipped: make(map[ThreadID]bool),
	}
	p.mem.source = liveProcess(readableTask(pid))
	p.gate.init()
	return p
}

// drop gives the engine back; there will be nothing more to trace.
func (p *ProcDebug) drop() {
	p.dropOnce.Do(func() {
		theWatcher.drop(p.e)
		close(p.ended)
	})
}

// checkTarget tells why a process cannot be a target, as far as /proc says.
func checkTarget(pid int) error {
	if pid <= 0 {
		return ErrNoProcess
	}
	if pid == os.Getpid() {
		return fmt.Errorf("%w: it is this one, which only ProcSelf can look into", ErrNotPermitted)
	}
	self, err := os.Readlink("/proc/self")
	if err != nil {
		return fmt.Errorf("%w: there is no /proc here (%w); mount it: mount -t proc proc /proc", ErrNotSupported, err)
	}
	if self != strconv.Itoa(os.Getpid()) {
		return fmt.Errorf("%w: /proc here shows the processes of another PID namespace, and would mix up two of them; mount one of this namespace", ErrNotSupported)
	}
	tgid := statusInt(pid, "Tgid")
	if tgid < 0 {
		return whyUnknown(pid)
	}
	if tgid != pid {
		return fmt.Errorf("%w; it is a thread of process %d", ErrNoProcess, tgid)
	}
	dir, err := openTaskDir(pid)
	if err != nil {
		return err
	}
	defer dir.close()
	s, err := dir.stat(ThreadID(pid))
	if errors.Is(err, ErrNoThread) {
		return ErrTerminated
	}
	if err != nil {
		return err
	}
	if s.flags&pfKthread != 0 {
		return ErrKernelThread
	}
	if s.state == StateZombie || s.state == StateDead { // but others may live
		ts, err := ProcessThreads(pid)
		if err != nil {
			return err
		}
		if !anyAlive(ts) {
			return ErrZombie
		}
	}
	return tracedBy(pid)
}

// anyAlive reports whether one of the threads of a process has not ended. The
// first one can end before the others.
func anyAlive(ts []Thread) bool {
	return slices.ContainsFunc(ts, func(t Thread) bool { return t.State != StateZombie && t.State != StateDead })
}

// tracedBy returns an error when the process has another tracer.
func tracedBy(id int) error {
	tracer := statusInt(id, "TracerPid")
	if tracer <= 0 {
		return nil
	}
	if isOurs(tracer) {
		return nil // the engine knows whether it is still wanted
	}
	if unix.Kill(tracer, 0) == unix.ESRCH {
		return nil // it has ended meanwhile
	}
	if tgid := statusInt(tracer, "Tgid"); tgid > 0 { // it can be any of its threads
		tracer = tgid
	}
	return fmt.Errorf("%w by process %d (%s)", ErrTraced, tracer, statusField(tracer, "Name"))
}

// isOurs reports whether a thread, such as a tracer, belongs to this process.
func isOurs(tid int) bool { return statusInt(tid, "Tgid") == os.Getpid() }

// whyNotSeized explains a refusal, on the engine's goroutine. nil: the thread is
// this engine's, attached by the kernel when it was born.
func whyNotSeized(pid int, tid ThreadID, dir *taskDir) error {
	s, err := dir.stat(tid)
	if err != nil || s.state == StateZombie || s.state == StateDead {
		return ErrThreadExited
	}
	switch tracer := statusInt(int(tid), "TracerPid"); {
	case tracer == unix.Gettid():
		return nil
	case tracer > 0 && isOurs(tracer):
		return fmt.Errorf("%w by this process", ErrTraced)
	case tracer > 0:
		if err := tracedBy(int(tid)); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: %s", ErrNotPermitted, whyRefused(pid))
}

func (p *ProcDebug) learnExe() {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", readableTask(p.pid)))
	if err != nil {
		path = ""
	}
	p.exe.Store(&path)
}

// archOfProgram reads the architecture of a process from its program file;
// nil when that cannot be read.
func archOfProgram(pid int) *Arch {
	f, err := os.Open(fmt.Sprintf("/proc/%d/exe", readableTask(pid)))
	if err != nil {
		return nil
	}
	defer f.Close()
	var h [20]byte
	if n, _ := f.ReadAt(h[:], 0); n < len(h) || string(h[:4]) != elf.ELFMAG {
		return nil
	}
	return ArchByMachine(elf.Machine(binary.LittleEndian.Uint16(h[18:])))
}

// learnArch finds the architecture from the registers of a thread. The target may execute
// another program meanwhile.
func (p *ProcDebug) learnArch() (err error) {
	program := archOfProgram(p.pid) // for a thread that cannot be stopped now
	p.e.do(func() {
		var regs Regs
		p.arch = program
		a, rerr := p.readRegisters(DefaultThread, &regs)
		switch {
		case rerr == nil:
			p.setArch(a)
			p.otherArch.Store(false)
		case p.arch != nil && !errors.Is(rerr, ErrTerminated) && !errors.Is(rerr, ErrNoThread):
			p.setArch(p.arch) // it cannot be stopped now, but may be later
		default:
			err = rerr
		}
	})
	return err
}

func (p *ProcDebug) setArch(a *Arch) {
	p.arch = a
	p.mem.width = a.AddressWidth
}

// programChanged follows an exec. It runs on the engine's goroutine, with the
// one thread t stopped.
func (p *ProcDebug) programChanged(t *tracee) {
	p.learnExe()
	var regs Regs
	a, err := ptraceRegs(t.tid, &p.e.regs, &regs)
	p.otherArch.Store(err == nil && p.arch != nil && a != p.arch)
	p.tellLibraries(t, true)
}

// all returns the threads in order of ID; on the engine's goroutine.
func (p *ProcDebug) all() []*tracee {
	ts := make([]*tracee, 0, len(p.threads))
	for _, t := range p.threads {
		ts = append(ts, t)
	}
	slices.SortFunc(ts, func(a, b *tracee) int { return int(a.tid) - int(b.tid) })
	return ts
}

// find returns a thread by ID; on the engine's goroutine.
func (p *ProcDebug) find(tid ThreadID) (*tracee, error) {
	if err := p.alive(); err != nil {
		return nil, err
	}
	if tid == DefaultThread {
		return p.first(), nil
	}
	if t := p.threads[tid]; t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("thread %d of process %d: %w", tid, p.pid, ErrNoThread)
}

// first returns the default thread: the initial one or, when that has exited before
// others, one of these, and the same as long as it lives. There must be threads; on the
// engine's goroutine.
func (p *ProcDebug) first() *tracee {
	for _, tid := range []ThreadID{ThreadID(p.pid), p.second} {
		if t := p.threads[tid]; t != nil && t.state != traceeExited {
			return t
		}
	}
	ts := p.all()
	i := max(0, slices.IndexFunc(ts, func(t *tracee) bool { return t.state != traceeExited }))
	p.second = ts[i].tid
	return ts[i]
}

// stopOne stops a thread, which stays held until release, and returns it; late is set when
// it cannot be stopped now. That the default thread has exited may come out only then: another
// is it, or the process has ended. On the engine's goroutine.
func (p *ProcDebug) stopOne(tid ThreadID) (t *tracee, late bool, err error) {
	for again := tid == DefaultThread; ; again = false {
		if t, err = p.find(tid); err != nil {
			return nil, false, err
		}
		ts := []*tracee{t}
		hold(ts)
		_, l := p.e.stop(p, ts, false)
		if t.state != traceeExited && t.state != traceeGone {
			return t, len(l) > 0, nil
		}
		p.e.release(ts)
		switch {
		case tid == DefaultThread && t.state == traceeExited && p.first() == t:
			return nil, false, fmt.Errorf("process %d: %w", p.pid, ErrTerminated)
		case !again:
			return nil, false, fmt.Errorf("thread %d of process %d: %w", t.tid, p.pid, ErrNoThread)
		}
	}
}

// alive returns why there is nothing to trace any more; on the engine's
// goroutine.
func (p *ProcDebug) alive() error {
	switch {
	case p.e == nil:
		return ErrNoProcess
	case p.detaching:
		return fmt.Errorf("process %d %w", p.pid, ErrDetached)
	case len(p.threads) == 0:
		return fmt.Errorf("process %d: %w", p.pid, ErrTerminated)
	}
	return nil
}
