package loader

import "github.com/swbpf/swbpf/procstate"

// Recorded is the table of processes of a recording that was made before, perhaps elsewhere: all
// that is known of them is in its events, and nothing is asked of processes that run here. It
// belongs to one goroutine.
type Recorded struct {
	procs map[int32]*Process
	arch  *procstate.Arch
	ended []*Process // those that have ended last, the first first
}

// maxRecordedEnded is how many processes are kept that have ended: their other threads may have gone on,
// and samples be taken while they end.
const maxRecordedEnded = 1 << 10

// NewRecorded makes an empty table, of programs of an architecture unless their files say otherwise.
func NewRecorded(arch *procstate.Arch) *Recorded {
	return &Recorded{procs: make(map[int32]*Process), arch: arch}
}

// Apply changes the table as an event says, which is none of SidebandMmap: see Map. Events come in
// order of time. A fork by nobody, whose PPID is 0, is of a process that ran before the recording:
// its mappings follow.
func (r *Recorded) Apply(e *SidebandEvent) {
	if e.isOfThread() {
		return
	}
	switch e.Kind {
	case SidebandFork:
		if parent := r.procs[e.PPID]; parent != nil {
			r.procs[e.PID] = parent.fork(e.PID)
		} else {
			r.procs[e.PID] = r.empty(e.PID)
		}
	case SidebandExec:
		proc := r.of(e.PID)
		proc.exec(e.Comm)
		proc.Arch = r.arch
	case SidebandComm:
		r.of(e.PID).Comm = e.Comm
	case SidebandExit:
		r.applyExit(e.PID)
	}
}

func (r *Recorded) applyExit(pid int32) {
	proc := r.procs[pid]
	if proc == nil || proc.Exited {
		return
	}
	proc.Exited = true
	if r.ended = append(r.ended, proc); len(r.ended) <= maxRecordedEnded {
		return
	}
	// An exec of another thread has made it go on, or its number is another's by now.
	if old := r.ended[0]; r.procs[old.PID] == old && old.Exited {
		delete(r.procs, old.PID)
	}
	r.ended = r.ended[1:]
}

// Map adds a mapping to the process of ref: from an offset on of a file, of memory without one
// where im and err are nil, or of a file that cannot be used because of err.
func (r *Recorded) Map(ref *procstate.FileRef, offset uint64, im *procstate.Image, err error) {
	proc := r.of(ref.PID)
	if n := proc.Space.Len(); n >= 2*maxMappings || n >= maxMappings && !proc.Space.Overlaps(ref.Start, ref.End) {
		return
	}
	proc.insert(procstate.NewFileMapping(ref, offset, im, err))
}

// of returns a process, which is new if no event told of it.
func (r *Recorded) of(pid int32) *Process {
	proc := r.procs[pid]
	if proc == nil {
		proc = r.empty(pid)
		r.procs[pid] = proc
	}
	return proc
}

func (r *Recorded) empty(pid int32) *Process {
	return &Process{PID: pid, Arch: r.arch, Space: new(procstate.AddressSpace)}
}

// Process returns a process, or nil when no event told of it.
func (r *Recorded) Process(pid int32) *Process { return r.procs[pid] }

// Refresh reports false: there is nothing else to be asked.
func (r *Recorded) Refresh(*Process) bool { return false }
