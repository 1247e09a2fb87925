package procstate

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// engine is the tracer of targets. The kernel ties a tracee to the thread
// that seized it, so one goroutine, locked to its own thread, makes all ptrace
// calls: it runs what others send it, and handles the stops of tracees as they
// come.
//
// One engine serves all targets, except children of this process that
// somebody else here has started and will wait for: a tracer that reaps such
// a child takes its status away from the parent. A child has an engine of its
// own, which ends with it and leaves it unreaped: when its thread ends, the
// kernel gives the child back.
type engine struct {
	cmds    chan func()
	wake    chan struct{} // a tracee of some engine has changed state
	drained chan int      // how many changes have been handled
	started chan struct{} // closed when the engine has its thread
	ended   chan struct{} // closed when the engine of a child has ended
	child   int           // PID of the only target, which the parent will reap; 0 for none
	end     *os.File      // tells of the child's end; nil where nothing does
	users   int           // ProcDebugs that hold it; guarded by the watcher's mu

	// These belong to the engine's goroutine.
	tracees map[ThreadID]*tracee
	targets map[int]*ProcDebug // by PID
	regs    regsetBuffer

	late sync.Mutex // for those who come when it has ended
}

func newEngine(child int) *engine {
	e := &engine{
		cmds:    make(chan func()),
		wake:    make(chan struct{}),
		drained: make(chan int),
		started: make(chan struct{}),
		ended:   make(chan struct{}),
		child:   child,
		tracees: make(map[ThreadID]*tracee),
		targets: make(map[int]*ProcDebug),
	}
	if child != 0 {
		e.end = e.awaitEnd()
	}
	go e.run()
	return e
}

// engineFor returns the engine for a process. It stays at least until drop.
func engineFor(pid int) *engine {
	if pid != 0 && statusInt(pid, "PPid") != os.Getpid() {
		pid = 0
	}
	return theWatcher.engine(pid)
}

// run is the engine's goroutine. Were its thread to end, the kernel would
// detach all its tracees: the common engine lives as long as the process.
func (e *engine) run() {
	runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
	if unix.Gettid() == os.Getpid() {
		// The Go runtime keeps the main thread for ever. While this goroutine
		// has it, another one is given another thread.
		go e.run()
		<-e.started
		runtime.UnlockOSThread()
		return
	}
	close(e.started)
	// For short naps.
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	for {
		select {
		case f := <-e.cmds:
			f()
		case <-e.wake:
			n := e.drain()
			e.drained <- n
		}
		if e.child != 0 && len(e.tracees) == 0 && theWatcher.removeUnused(e) {
			close(e.ended)
			if e.end != nil {
				e.end.Close()
			}
			return
		}
	}
}

// drain handles all changes of state that wait and returns their number.
func (e *engine) drain() (n int) {
	for {
		tid := ThreadID(-1)
		if e.child != 0 {
			// Look before taking.
			var ws unix.WaitStatus
			var exited bool
			if tid, ws, exited = peek(-1); tid <= 0 {
				return n
			}
			if exited && int(tid) == e.child {
				if t := e.tracees[tid]; t != nil {
					e.gone(t, ws)
					n++
				}
				return n
			}
		}
		tid, ws, errno := e.wait(tid)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 || tid <= 0 {
			return n
		}
		e.observe(tid, ws)
		n++
	}
}

// wait takes in a change of state of a tracee, or of any. The end of a child is
// its parent's to wait for, and could come after any look for it.
func (e *engine) wait(tid ThreadID) (ThreadID, unix.WaitStatus, unix.Errno) {
	if e.child != 0 && int(tid) == e.child {
		return waitStopNow(tid)
	}
	return waitNow(tid)
}

// do runs f on the engine's goroutine and waits for it. When the engine has
// ended, or there is none, there is nothing to trace, which f will find.
//
// With a single CPU for goroutines, others get their turn afterwards: who does one thing
// after the other this way goes to and fro with the engine, and the runtime, which lets
// each of the two begin a new slice of time, would not look for others for minutes.
func (e *engine) do(f func()) {
	if e == nil {
		f()
		return
	}
	done := make(chan struct{})
	select {
	case e.cmds <- func() {
		defer close(done)
		f()
	}:
		<-done
		runtime.Gosched()
	case <-e.ended:
		e.late.Lock()
		defer e.late.Unlock()
		f()
	}
}

// watcher waits for tracees to change state, in a goroutine of its own so that
// the engines can be asked for something in the meantime.
type watcher struct {
	start   sync.Once
	traced  chan struct{} // there may be tracees again
	mu      sync.Mutex
	engines []*engine
}

var theWatcher = watcher{traced: make(chan struct{}, 1)}

// engine returns the engine of a child, or the common one for 0, making it
// when there is none.
func (w *watcher) engine(child int) *engine {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.start.Do(func() { go w.watch() })
	for _, e := range w.engines {
		if e.child == child {
			e.users++
			return e
		}
	}
	e := newEngine(child)
	e.users = 1
	w.engines = append(slices.Clone(w.engines), e)
	return e
}

// drop undoes what engine has counted.
func (w *watcher) drop(e *engine) {
	w.mu.Lock()
	e.users--
	w.mu.Unlock()
}

// removeUnused takes an engine out that nobody uses.
func (w *watcher) removeUnused(e *engine) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.users > 0 {
		return false
	}
	if i := slices.Index(w.engines, e); i >= 0 {
		w.engines = slices.Delete(slices.Clone(w.engines), i, i+1)
	}
	return true
}

// tell has the watcher look for tracees again.
func (w *watcher) tell() {
	select {
	case w.traced <- struct{}{}:
	default:
	}
}

func (w *watcher) watch() {
	for {
		switch waitForTracee() {
		case unix.ECHILD:
			<-w.traced
		case 0:
			w.mu.Lock()
			engines := w.engines
			w.mu.Unlock()
			n := 0
			for _, e := range engines {
				select {
				case e.wake <- struct{}{}:
					n += <-e.drained
				case <-e.ended:
				}
			}
			if n == 0 { // a child that its engine is about to give back
				time.Sleep(100 * time.Microsecond)
			}
		}
	}
}

// maxRefused is how many refusals in a row, for which no tracer is to be seen, are
// taken for those by a tracer that has gone.
const maxRefused = 3

// seize seizes the threads named in only, or, when it is empty, all of p,
// those too that are born meanwhile. A thread that has exited is passed over.
func (e *engine) seize(p *ProcDebug, dir *taskDir, only []ThreadID) error {
	begin, refused := time.Now(), 0
	if e.targets[p.pid] != nil {
		return fmt.Errorf("%w by this process", ErrTraced)
	}
	e.targets[p.pid] = p
	theEvents.targetsChanged(1)
	for {
		e.drain()
		tids, err := only, error(nil)
		if len(only) == 0 {
			if tids, err = dir.list(); err != nil {
				return err
			}
		}
		added := false
		for _, tid := range tids {
			if t := e.tracees[tid]; t != nil && t.proc != p {
				// It was to be let go, but could not be stopped for that.
				t.proc, t.letGo, added = p, false, true
				p.threads[tid] = t
			}
			if e.tracees[tid] != nil || p.skipped[tid] {
				continue
			}
			if len(only) > 0 {
				if _, err := dir.stat(tid); err != nil { // it may be another process's
					return fmt.Errorf("thread %d: %w", tid, err)
				}
			}
			switch errno := ptraceSeize(tid); errno {
			case 0:
				added, refused = true, 0
				e.tracees[tid] = &tracee{tid: tid, proc: p}
				p.threads[tid] = e.tracees[tid]
			case unix.ESRCH:
			case unix.ENOSYS: // there is none in this kernel or sandbox, or a filter says so
				return fmt.Errorf("%w: the ptrace system call: %w; %s", ErrNotPermitted, errno, whyRefused(p.pid))
			case unix.EPERM, unix.EACCES:
				// A new thread of one that was seized is a tracee already; its
				// first stop tells so.
				if e.drain(); e.tracees[tid] != nil {
					break
				}
				switch err := whyNotSeized(p.pid, tid, dir); {
				case err == nil: // the engine's own: its stop will come
				case err == ErrThreadExited:
					p.skipped[tid] = true
				case errors.Is(err, ErrNotPermitted) && refused < maxRefused:
					refused++
					added = true // maybe: a tracer may just have let it go
				default:
					return err
				}
			default:
				return errno
			}
		}
		theWatcher.tell()
		if !added {
			break
		}
		if time.Since(begin) > stopLimit*10 {
			return errTooManyThreads
		}
	}
	switch {
	case len(p.threads) > 0:
		return nil
	case len(only) > 0:
		return fmt.Errorf("thread %d: %w", only[0], ErrNoThread)
	}
	return ErrTerminated
}

// abandon lets all threads of p go, after an error or for good. Threads that
// run have to be stopped for that; those that cannot be now are let go as
// soon as they stop.
func (e *engine) abandon(p *ProcDebug) {
	p.detaching = true
	ts := p.all()
	hold(ts)
	ts, late := e.stop(p, ts, true)
	for _, t := range ts {
		t.letGo = true
	}
	e.release(ts)
	for _, t := range p.threads { // exited leaders: reaped when all has ended
		t.letGo = true
	}
	if e.child != 0 {
		e.giveBack(late)
	}
	e.forget(p)
}

// giveBack waits, for a while, until threads of a child have been let go that
// could not be stopped in time: as long as they are traced, a parent that
// waits for the child in this process is given their stops.
func (e *engine) giveBack(late []*tracee) {
	begin := time.Now()
	for _, t := range late {
		for t.state != traceeGone && time.Since(begin) < stopLimit {
			e.poll(t)
			nap(time.Millisecond)
		}
	}
}

// forget ends the part of the engine in a target, which has ended or was let
// go. It may be called twice.
func (e *engine) forget(p *ProcDebug) {
	if e.targets[p.pid] == p {
		delete(e.targets, p.pid)
		theEvents.targetsChanged(-1)
		if p.launched && p.detaching {
			go reap(p.pid)
		}
	}
	p.drop()
}
