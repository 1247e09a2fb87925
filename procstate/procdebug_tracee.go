package procstate

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tracee is one traced thread. It belongs to the engine's goroutine.
type tracee struct {
	tid  ThreadID
	proc *ProcDebug

	state traceeState
	sig   unix.Signal // to be delivered when it goes on; 0 for none
	group bool        // stopped by job control: it must stay so
	code  int32       // si_code of sig

	// What keeps it stopped.
	paused bool // by Pause
	holds  int  // walks, captures, library changes that are being told

	letGo bool // detach as soon as it is stopped

	ran time.Time // when it was last seen not to have stopped, which it was waited for to do
}

type traceeState uint8

const (
	traceeRunning   traceeState = iota
	traceeStopped               // in a ptrace stop that was waited for
	traceeListening             // in job control's stop, which SIGCONT will end
	traceeExited                // a leader that has exited before its threads
	traceeGone
)

// A thread that has been interrupted stops at once when it runs or sleeps.
// One that waits in the kernel without being interruptible stops later; it is
// not waited for. Any other gets stopLimit: it competes for the processor.
const (
	stopGrace = 2 * time.Millisecond
	stopLimit = time.Second
)

// observe takes in a status that was waited for.
func (e *engine) observe(tid ThreadID, ws unix.WaitStatus) {
	t := e.tracees[tid]
	if t == nil {
		if !ws.Stopped() {
			return
		}
		if t = e.adopt(tid); t == nil {
			return
		}
	}
	if ws.Exited() || ws.Signaled() {
		e.gone(t, ws)
		return
	}
	if !ws.Stopped() {
		return
	}
	t.state, t.sig, t.group = traceeStopped, 0, false
	sig := ws.StopSignal()
	switch event := int(ws) >> 16; event {
	case unix.PTRACE_EVENT_STOP:
		t.group = sig != unix.SIGTRAP
		e.interrupted(t)
	case unix.PTRACE_EVENT_CLONE, unix.PTRACE_EVENT_FORK, unix.PTRACE_EVENT_VFORK:
		e.born(t, ptraceEventMessage(tid), event)
	case unix.PTRACE_EVENT_EXEC:
		e.execed(t)
	case 0:
		t.sig = sig
		t.code, _ = ptraceSigCode(tid)
		e.signalled(t)
	}
	e.settle(t)
}

// adopt finds out to whom a thread belongs that came without having been
// seized: to a target, as a new thread, or to nobody here, as the child of a
// fork, and then it is let go. It is stopped.
func (e *engine) adopt(tid ThreadID) *tracee {
	if p := e.targets[statusInt(int(tid), "Tgid")]; p != nil {
		e.tell(Event{Process: p, Kind: ThreadBorn, Thread: tid})
		return e.enlist(p, tid)
	}
	ptraceDetach(tid, 0)
	return nil
}

// enlist adds a thread to its target.
func (e *engine) enlist(p *ProcDebug, tid ThreadID) *tracee {
	t := &tracee{tid: tid, proc: p, paused: p.pausedAll, letGo: p.detaching}
	e.tracees[tid] = t
	p.threads[tid] = t
	p.born++
	return t
}

// born handles the stop of a thread that has made another, or a process.
func (e *engine) born(parent *tracee, child ThreadID, event int) {
	p := parent.proc
	if child == 0 || e.tracees[child] != nil {
		return
	}
	if event == unix.PTRACE_EVENT_CLONE {
		switch statusInt(int(child), "Tgid") {
		case p.pid:
			e.enlist(p, child) // it begins in a stop of its own
			e.tell(Event{Process: p, Kind: ThreadBorn, Thread: child})
			return
		case -1: // it has been adopted before, and has ended
			return
		}
	}
	e.tell(Event{Process: p, Kind: Forked, Thread: parent.tid, Child: int(child)})
}

// execed handles a target that runs another program now: one thread is left,
// and it has the ID of the first.
func (e *engine) execed(t *tracee) {
	p := t.proc
	for tid, o := range p.threads {
		if o != t {
			o.state = traceeGone
			delete(p.threads, tid)
			delete(e.tracees, tid)
		}
	}
	e.tell(Event{Process: p, Kind: Execed, Thread: t.tid})
	p.programChanged(t)
}

// gone removes a thread that has ended.
func (e *engine) gone(t *tracee, ws unix.WaitStatus) {
	p := t.proc
	t.state = traceeGone
	delete(e.tracees, t.tid)
	delete(p.threads, t.tid)
	if int(t.tid) != p.pid && len(p.threads) > 0 {
		e.tell(Event{Process: p, Kind: ThreadDied, Thread: t.tid})
		return
	}
	e.terminated(p, ws)
}

// terminated marks the end of a target.
func (e *engine) terminated(p *ProcDebug, ws unix.WaitStatus) {
	for tid, o := range p.threads {
		o.state = traceeGone
		delete(e.tracees, tid)
	}
	clear(p.threads)
	p.exitStatus = ws
	e.tell(Event{Process: p, Kind: Terminated, Thread: ThreadID(p.pid), Status: ws})
	e.forget(p)
	go func() { p.closeTrap(p.libs.dropTrap(false)) }()
}

// settle sets a stopped thread going again, unless something holds it.
func (e *engine) settle(t *tracee) {
	if t.state != traceeStopped || t.holds > 0 || (t.paused && !t.letGo) {
		return
	}
	t.proc.still, t.proc.mapsRead = false, false
	var errno unix.Errno
	switch {
	case t.letGo:
		errno = ptraceDetach(t.tid, t.sig)
		t.state = traceeGone
		delete(e.tracees, t.tid)
		delete(t.proc.threads, t.tid)
	case t.group:
		t.state = traceeListening
		errno = ptraceListen(t.tid)
	default:
		t.state = traceeRunning
		errno = ptraceCont(t.tid, t.sig)
	}
	// ESRCH: it was killed while it stood. Its end will be reported.
	if errno == 0 || errno == unix.ESRCH {
		t.sig = 0
	}
}

// poll takes in the next status of one thread, if there is one.
func (e *engine) poll(t *tracee) {
	if int(t.tid) == e.child {
		if _, ws, exited := peek(t.tid); exited {
			e.gone(t, ws)
			return
		}
	}
	switch tid, ws, errno := e.wait(t.tid); {
	case errno == unix.ECHILD:
		e.gone(t, 0)
	case tid == t.tid:
		e.observe(tid, ws)
	}
}

// hold keeps threads from being set going, until release.
func hold(ts []*tracee) {
	for _, t := range ts {
		t.holds++
	}
}

// release undoes hold and sets those going that nothing else holds.
func (e *engine) release(ts []*tracee) {
	for _, t := range ts {
		t.holds--
		e.settle(t)
	}
}

// stop stops threads that are held, and returns those that could not be. With
// whole set, ts are all threads of p, and those born meanwhile are held and
// appended.
func (e *engine) stop(p *ProcDebug, ts []*tracee, whole bool) (all, late []*tracee) {
	for _, t := range ts {
		if t.runs() {
			ptraceInterrupt(t.tid)
		}
	}
	born := p.born
	begin := time.Now()
	// All were interrupted, so each is waited for in turn.
	for i := 0; i < len(ts); i++ {
		if !e.waitStopped(ts[i], begin) {
			late = append(late, ts[i])
		}
		if whole && i == len(ts)-1 && p.born != born {
			born = p.born
			for _, t := range p.threads {
				if t.holds == 0 { // it begins in a stop
					t.holds++
					ts = append(ts, t)
				}
			}
		}
	}
	return ts, late
}

// stoodFrom returns from when on a thread may have stood of those that were all asked to
// stop at the time begin: on a busy machine they do when they get a CPU to do so.
func stoodFrom(ts []*tracee, begin time.Time) time.Time {
	from := time.Now()
	for _, t := range ts {
		switch {
		case t.ran.Before(begin):
			return begin
		case t.ran.Before(from):
			from = t.ran
		}
	}
	return from
}

// runs reports whether the thread is not known to stand or to have ended.
func (t *tracee) runs() bool { return t.state == traceeRunning || t.state == traceeListening }

// waitStopped waits for a thread that was interrupted at the time begin, and
// reports whether it stands or has ended.
func (e *engine) waitStopped(t *tracee, begin time.Time) bool {
	nextLook := stopGrace
	for {
		now := time.Now()
		if t.runs() {
			e.poll(t)
		}
		if !t.runs() {
			return true
		}
		t.ran = now
		if d := now.Sub(begin); d > nextLook {
			nextLook = d + stopGrace
			switch e.stateOf(t) {
			case StateZombie, StateDead:
				t.state = traceeExited
				return true
			case StateDiskWait:
				return false
			}
			if d > stopLimit {
				return false
			}
		}
		nap(min(5*time.Microsecond+now.Sub(begin)/64, 50*time.Microsecond)) // it may wait for this very CPU
	}
}

// stateOf asks /proc for the state of a thread.
func (e *engine) stateOf(t *tracee) ThreadState {
	d, err := openTaskDir(t.proc.pid)
	if err != nil {
		return StateDead
	}
	defer d.close()
	s, err := d.stat(t.tid)
	if err != nil {
		return StateDead
	}
	return s.state
}

// nap sleeps on the engine's own thread, for a moment: Go's scheduler is not told, which would
// have others of this program run meanwhile, and this one wait for them.
func nap(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
}
