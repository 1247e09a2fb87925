package swbpf

import (
	"slices"
	"sync"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/hotspot"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
	"github.com/swbpf/swbpf/variables"
)

// WalkStopped walks the threads of a process as WalkProcess does, but the
// process itself and not a copy: it stands still until look, which gets the
// stacks, has returned. What look reads of the process's memory, as the values
// of variables, belongs to the stacks. With opts.Threads only those threads
// stand, and the others may change what they share with them. When the process
// has stood for opts.StopLimit and is walked, it goes on, whatever look is at,
// and its memory cannot be read any more. Another tracer is given a second to end.
// Without a look, which may be nil, it goes on when it is walked.
func WalkStopped(pid int, opts WalkOptions, look func(*ProcessStacks)) (*ProcessStacks, error) {
	group := opts.Group
	if group == nil {
		group = DefaultGroup
	}
	inState := func(state procstate.ThreadState) func(procstate.Thread) bool {
		return func(t procstate.Thread) bool { return t.State == state }
	}
	space := opts.Space
	if space == nil {
		space = procstate.SpaceOfProcess(pid)
	}
	works := worksOfProcess(pid, space)
	var infos []procstate.Thread
	var p *procstate.ProcDebug
	err := afterTracer(func() (err error) {
		infos, _ = procstate.ProcessThreads(pid) // Attach knows better why not
		if p, err = procstate.Attach(pid); err == nil && slices.ContainsFunc(infos, inState(procstate.StateTraced)) {
			infos, _ = procstate.ProcessThreads(pid) // without the tracer before
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	defer p.Detach()
	p.SetProbes(opts.Probes)
	w := With(p, group(), nil)
	begin := time.Now()
	tids := opts.Threads
	if len(tids) == 0 {
		if err := p.Pause(procstate.DefaultThread); err != nil {
			return nil, err
		}
		if tids, err = p.Threads(); err != nil {
			return nil, err
		}
	}
	var now []procstate.Thread // with those that still wait, and were not stopped
	if slices.ContainsFunc(infos, inState(procstate.StateDiskWait)) {
		if now, err = procstate.ProcessThreads(pid); err != nil {
			return nil, err
		}
	}
	ps := &ProcessStacks{PID: pid, Executable: p.ExecutablePath(), Arch: p.Arch(), Context: works.Process()}
	budget := FrameBudget(opts.MaxFrames, nil)
	if first := procstate.ThreadID(pid); len(opts.Threads) == 0 && !slices.Contains(tids, first) {
		s := ThreadStack{Thread: findThread(infos, first), Err: procstate.ErrThreadExited}
		s.State = procstate.StateZombie
		ps.Stacks = append(ps.Stacks, s)
	}
	for _, tid := range tids {
		if len(opts.Threads) > 0 {
			if err := p.Pause(tid); err != nil {
				return nil, err
			}
		}
		s := ThreadStack{Thread: findThread(infos, tid), Walker: w}
		s.Blocked = findThread(now, tid).State == procstate.StateDiskWait
		w.MaxFrames = budget.Limit()
		s.Frames, s.Err = w.WalkStack(nil, tid)
		budget.Keep(len(s.Frames))
		var regs procstate.Regs
		if works.tell() && p.Registers(tid, &regs) == nil {
			s.Work = works.Of(p, tid, &regs)
		}
		ps.Stacks = append(ps.Stacks, s)
	}
	if opts.Goroutines && len(opts.Threads) == 0 {
		ps.readGoroutines(w, opts.MaxFrames)
	}
	ps.PythonLocks = PythonLocks(p)
	if opts.PythonTasks && len(opts.Threads) == 0 {
		ps.PythonTasks = *PythonTasks(p)
	}
	if heap := hotspot.NewHeap(pid, p, p.Libraries()); heap != nil {
		java := heap.At(p)
		for i := range ps.Stacks {
			ps.Stacks[i].Java = java.Thread(ps.Stacks[i].TID)
		}
		if opts.VirtualThreads && len(opts.Threads) == 0 {
			ps.takeVirtual(w, java.VirtualThreads(nil), opts.MaxFrames)
		}
	}
	release := sync.OnceValue(func() time.Duration {
		p.Detach()
		return time.Since(begin)
	})
	if opts.StopLimit > 0 {
		timer := time.AfterFunc(opts.StopLimit-time.Since(begin), func() { release() })
		defer timer.Stop()
	}
	if look != nil {
		look(ps)
	}
	ps.Stopped = release() // not before: look has ps
	return ps, nil
}

// findThread returns what a list in order of ID has of a thread.
func findThread(list []procstate.Thread, tid procstate.ThreadID) procstate.Thread {
	i, ok := slices.BinarySearchFunc(list, tid, func(t procstate.Thread, tid procstate.ThreadID) int { return int(t.TID - tid) })
	if !ok {
		return procstate.Thread{TID: tid}
	}
	return list[i]
}

// Variables returns what reads the variables of a Walker's frames, and nil
// for a Walker whose SymbolLookup does not know debug information, and for none.
func Variables(w *unwind.Walker) *variables.Reader {
	if w == nil {
		return nil
	}
	l, ok := w.SymbolLookup().(interface{ Symbolizer() *symbols.Symbolizer })
	if !ok {
		return nil
	}
	s := l.Symbolizer()
	if s == nil {
		return nil
	}
	return variables.New(w, s)
}
