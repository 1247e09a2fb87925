package procstate

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Pause stops a thread, or with DefaultThread all threads, those included
// that are born later. It returns when they stand; a thread that waits in the
// kernel uninterruptibly stops as soon as it comes out. Walks leave a paused
// thread paused. Pausing twice is the same as once.
func (p *ProcDebug) Pause(tid ThreadID) (err error) {
	p.e.do(func() {
		var ts []*tracee
		if ts, err = p.chosen(tid); err != nil {
			return
		}
		if tid == DefaultThread {
			p.pausedAll = true
		}
		hold(ts)
		ts, late := p.e.stop(p, ts, tid == DefaultThread)
		for _, t := range ts {
			t.paused = true
		}
		p.e.release(ts)
		p.still = p.still || tid == DefaultThread && len(late) == 0
	})
	return err
}

// Resume sets a paused thread going, or with DefaultThread all paused ones. It
// is an error when no thread was paused.
func (p *ProcDebug) Resume(tid ThreadID) (err error) {
	p.e.do(func() {
		var ts []*tracee
		if ts, err = p.chosen(tid); err != nil {
			return
		}
		if tid == DefaultThread {
			p.pausedAll = false
		}
		any := false
		for _, t := range ts {
			if t.paused {
				any, t.paused = true, false
				p.e.settle(t)
			}
		}
		if !any {
			err = fmt.Errorf("process %d: %w is paused", p.pid, ErrNoThread)
		}
	})
	return err
}

// chosen returns one thread, or all of them for DefaultThread.
func (p *ProcDebug) chosen(tid ThreadID) ([]*tracee, error) {
	if tid == DefaultThread {
		return p.all(), p.alive()
	}
	t, err := p.find(tid)
	return []*tracee{t}, err
}

// Detach lets the target go. Paused threads go on. Nothing more can be asked
// of p; a thread that waits in the kernel uninterruptibly is let go when it
// comes out. Detaching twice, or from a process that has ended, is harmless.
func (p *ProcDebug) Detach() {
	p.libs.dropTrap(false)
	p.e.do(func() {
		p.letGone.Store(true)
		if p.alive() == nil {
			p.e.abandon(p)
		}
	})
	p.closeTrap(p.libs.dropTrap(false)) // one that was just being set, too
}

// closeTrap frees a trap that dropTrap has returned, on the engine's goroutine.
func (p *ProcDebug) closeTrap(tr *libraryTrap) {
	if tr == nil {
		return
	}
	p.e.do(func() {
		tr.close()
		l := &p.libs
		l.mu.Lock()
		if l.trap == tr {
			l.trap = nil
		}
		l.mu.Unlock()
	})
}

// IsTerminated reports whether the target has ended.
func (p *ProcDebug) IsTerminated() (ended bool) {
	p.e.do(func() { ended = len(p.threads) == 0 && !p.detaching })
	return ended
}

// Done returns a channel that is closed when the target has ended or was
// detached.
func (p *ProcDebug) Done() <-chan struct{} {
	if p.ended == nil { // the zero value
		p = &ProcDebug{ended: make(chan struct{})}
		close(p.ended)
	}
	return p.ended
}

// ExitStatus returns how the target ended; ok is false while it has not. It is
// not known, and neither Exited nor Signaled, of a child of this process whom
// the parent has reaped first, before Linux 6.15.
func (p *ProcDebug) ExitStatus() (ws unix.WaitStatus, ok bool) {
	p.e.do(func() { ws, ok = p.exitStatus, len(p.threads) == 0 && !p.detaching })
	return ws, ok
}

// Arch implements ProcessState.
func (p *ProcDebug) Arch() *Arch { return p.arch }

// PID implements ProcessState.
func (p *ProcDebug) PID() int { return p.pid }

// ExecutablePath implements ProcessState. It follows exec.
func (p *ProcDebug) ExecutablePath() string {
	if exe := p.exe.Load(); exe != nil {
		return *exe
	}
	return ""
}

// Threads implements ProcessState: the live threads, the initial one first, or while that
// has exited before others the one that is the default in its place.
func (p *ProcDebug) Threads() (tids []ThreadID, err error) {
	var first ThreadID
	p.e.do(func() {
		if err = p.alive(); err != nil {
			return
		}
		for tid, t := range p.threads {
			if t.state != traceeExited {
				tids = append(tids, tid)
			}
		}
		first = p.first().tid
	})
	slices.Sort(tids)
	if i := slices.Index(tids, first); i > 0 {
		tids = slices.Insert(slices.Delete(tids, i, i+1), 0, first)
	}
	return tids, err
}

// Registers implements ProcessState. It stops the thread for the moment if it
// runs.
func (p *ProcDebug) Registers(tid ThreadID, regs *Regs) error {
	var err error
	p.e.do(func() { _, err = p.readRegisters(tid, regs) })
	return err
}

// readRegisters is Registers on the engine's goroutine. It tells the architecture, too.
func (p *ProcDebug) readRegisters(tid ThreadID, regs *Regs) (a *Arch, err error) {
	t, late, err := p.stopOne(tid)
	if err != nil {
		return nil, err
	}
	defer p.e.release([]*tracee{t})
	if late {
		return p.arch, blockedRegs(p.pid, t.tid, p.arch, regs)
	}
	a, err = ptraceRegs(t.tid, &p.e.regs, regs)
	if err == unix.ESRCH { // killed while it stood
		err = fmt.Errorf("thread %d of process %d: %w", t.tid, p.pid, ErrNoThread)
	}
	return a, err
}

// BeforeWalk implements ProcessState: it stops the thread. Libraries that come
// and go during the walk are told of after it.
func (p *ProcDebug) BeforeWalk(tid ThreadID) error {
	if p.e == nil {
		return ErrNoProcess
	}
	p.gate.enter()
	if err := p.stopForWalk(tid); err != nil {
		p.gate.leave()
		return err
	}
	walks := false
	defer func() { // when a listener, or what SetProbes was given, panics
		if !walks {
			_ = p.AfterWalk(p.walked)
		}
	}()
	if p.gate.alone() && p.libs.tell() {
		p.e.tell(Event{Process: p, Kind: LibrariesChanged})
	}
	p.probes.look(p.walked)
	walks = true
	return nil
}

// WalkedThread tells the Walker which thread BeforeWalk has stopped last, where the default
// one was asked for.
func (p *ProcDebug) WalkedThread() ThreadID { return p.walked }

// SetProbes has each walk, and each capture with no other source, ask what
// uretprobes have replaced on the stacks of the threads, which only the kernel
// knows: the reader for that is package loader's ProbeReader. Where nobody is
// asked, a stack under a uretprobe ends there. f is called with the thread
// stopped.
func (p *ProcDebug) SetProbes(f func() map[ThreadID]UserProbes) { p.probes.ask = f }

// UserProbes implements ProbedState.
func (p *ProcDebug) UserProbes() *UserProbes { return &p.probes.now }

func (p *ProcDebug) stopForWalk(tid ThreadID) (err error) {
	if p.otherArch.Load() {
		return fmt.Errorf("process %d now runs a program of another architecture: %w", p.pid, ErrNotSupported)
	}
	mapsRead := false
	p.e.do(func() {
		t, _, serr := p.stopOne(tid) // held until AfterWalk
		if err = serr; err != nil {
			return
		}
		mapsRead, p.mapsRead = p.mapsRead, p.still
		p.mem.source = liveProcess(t.tid)
		tid = t.tid
	})
	if err != nil {
		return err
	}
	p.walked = tid
	p.mem.reset(true)
	if !mapsRead {
		err = p.libs.refresh()
	}
	if err != nil {
		p.e.do(func() { p.mapsRead = false })
		p.letGo(tid)
		if !p.IsTerminated() { // the thread, and all that there are, ends for an exec
			err = fmt.Errorf("thread %d of process %d: %w", tid, p.pid, ErrNoThread)
		}
		return err
	}
	return nil
}

// letGo ends the hold of stopForWalk.
func (p *ProcDebug) letGo(tid ThreadID) {
	p.mem.reset(false)
	p.libs.again.Store(false)
	p.e.do(func() {
		if t, err := p.find(tid); err == nil && t.holds > 0 {
			p.e.release([]*tracee{t})
		}
	})
}

// AfterWalk implements ProcessState.
func (p *ProcDebug) AfterWalk(tid ThreadID) error {
	if p.e == nil {
		return ErrNoProcess
	}
	p.letGo(tid)
	p.gate.leave()
	return nil
}

// ReadMemory implements Memory. It reads what is there now; in a walk, what
// the walk has read already. From Detach on it is ErrDetached: what it returns
// of a paused process was there while that stood.
func (p *ProcDebug) ReadMemory(addr uint64, buf []byte) (int, error) {
	n, err := p.mem.ReadMemory(addr, buf)
	if p.letGone.Load() { // perhaps before all was read
		return 0, fmt.Errorf("process %d: %w", p.pid, ErrDetached)
	}
	return n, err
}

// ReadWord implements Memory. Like ReadMemory it reads nothing from Detach on.
func (p *ProcDebug) ReadWord(addr uint64) (uint64, bool) {
	v, ok := p.mem.ReadWord(addr)
	return v, ok && !p.letGone.Load()
}

// Libraries implements ProcessState.
func (p *ProcDebug) Libraries() LibraryState { return &p.libs }
