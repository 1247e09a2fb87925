package swbpf

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/python"
)

// PythonLock is the lock that a thread has while it runs functions of an interpreter of CPython (the GIL): its memory,
// in which others wait for it, and the thread that has it, 0 for none.
type PythonLock struct {
	Start, End uint64
	Holder     procstate.ThreadID
}

// PythonLocks reads the locks of the interpreters of CPython, as those of WalkProcess, of a process that is paused or of
// a core file.
func PythonLocks(ps procstate.ProcessState) []PythonLock {
	p := python.NewLocks(ps.Libraries())
	if p == nil {
		return nil
	}
	return pythonLocks(ps, p.Read(ps))
}

// pythonLocks finds which threads of a process have some locks.
func pythonLocks(ps procstate.ProcessState, locks []python.Lock) []PythonLock {
	if len(locks) == 0 {
		return nil
	}
	tids, _ := ps.Threads()
	var own map[procstate.ThreadID]procstate.ThreadID
	if _, isCore := ps.(*procstate.Core); !isCore { // which has the process's own numbers
		own = procstate.ThreadsInNamespace(ps.PID())
	}
	all := make([]PythonLock, len(locks))
	for i, l := range locks {
		all[i] = PythonLock{Start: l.Start, End: l.End}
		for _, tid := range tids {
			id := uint64(tid)
			if own[tid] != 0 {
				id = uint64(own[tid])
			}
			if l.IsPointer {
				var regs procstate.Regs
				if ps.Registers(tid, &regs) != nil {
					continue
				}
				id = regs.ThreadPointer
			}
			if id == l.Holder && id != 0 {
				all[i].Holder = tid
			}
		}
	}
	return all
}
