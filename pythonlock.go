package swbpf

import (
	"cmp"

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
	threads := pythonThreads(ps)
	all := make([]PythonLock, len(locks))
	for i, l := range locks {
		all[i] = PythonLock{l.Start, l.End, threads(l.Holder)}
	}
	return all
}

// pythonThreads tells which thread of a process CPython means; 0 is none.
func pythonThreads(ps procstate.ProcessState) func(id python.ThreadID) procstate.ThreadID {
	type thread struct {
		tid             procstate.ThreadID
		number, pointer uint64
	}
	var threads []thread
	return func(id python.ThreadID) procstate.ThreadID {
		if id == (python.ThreadID{}) {
			return 0
		}
		if threads == nil {
			tids, _ := ps.Threads()
			var own map[procstate.ThreadID]procstate.ThreadID
			if _, isCore := ps.(*procstate.Core); !isCore { // which has the process's own numbers
				own = procstate.ThreadsInNamespace(ps.PID())
			}
			for _, tid := range tids {
				var regs procstate.Regs
				_ = ps.Registers(tid, &regs) // without, a thread has its number alone
				threads = append(threads, thread{tid, uint64(cmp.Or(own[tid], tid)), regs.ThreadPointer})
			}
		}
		for _, t := range threads {
			if id.Is(ps.Arch(), t.number, t.pointer) {
				return t.tid
			}
		}
		return 0
	}
}
