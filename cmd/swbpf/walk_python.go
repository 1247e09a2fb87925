package main

import (
	"fmt"

	stackwalk "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/python"
)

// takePython takes over the locks of CPython's interpreters.
func (p *processWalk) takePython(locks []stackwalk.PythonLock) {
	p.python = locks
	for i := range p.threads {
		for _, l := range locks {
			p.threads[i].hasGIL = p.threads[i].hasGIL || l.Holder == p.threads[i].tid
		}
	}
}

// describeGIL fills in who has the lock of an interpreter, if that is what a thread waits for. It does so for some
// milliseconds at a time, again and again.
func (w *wait) describeGIL(tid procstate.ThreadID, locks []stackwalk.PythonLock, addr uint64) {
	for _, l := range locks {
		if addr < l.Start || addr >= l.End {
			continue
		}
		if w.on, w.isGIL = "GIL", true; l.Holder != 0 && l.Holder != tid {
			w.holder = l.Holder
			w.on = fmt.Sprintf("GIL of thread %d", l.Holder)
		}
	}
}

// hasGILNow reports whether a thread has the lock of an interpreter whose memory an address is in, as the process is
// now.
func (r *waitReader) hasGILNow(holder procstate.ThreadID, addr uint64) bool {
	locks := python.NewLocks(procstate.SpaceOfProcess(r.pid))
	if locks == nil {
		return false
	}
	for _, l := range locks.Read(procstate.ProcessMemory(r.pid)) {
		switch {
		case addr < l.Start || addr >= l.End:
		case l.Holder.Pthread != 0:
			return l.Holder.Is(r.arch, 0, r.pointers[holder])
		default:
			return r.other(0, uint32(l.Holder.Number)) == holder
		}
	}
	return false
}
