package loader

import (
	"github.com/swbpf/swbpf/procstate"
)

// Process is one process of the table. It belongs to the goroutine that calls
// [Processes.Advance].
type Process struct {
	PID  int32
	Comm string // of the initial thread
	Exe  string // path of the program as the process sees it; "" when not known

	// Arch is that of the program; that of the machine when not known.
	Arch *procstate.Arch

	// Space holds the executable mappings. exec replaces it by a new one.
	Space *procstate.AddressSpace

	KernelThread bool

	// Exited says that the initial thread has ended, at ExitTime
	// (CLOCK_MONOTONIC, ns). Others may go on.
	Exited   bool
	ExitTime uint64

	refresh uint64 // CLOCK_MONOTONIC ns from which on a Refresh reads again
	isSlow  bool   // the last one took long

	// Data is for the user of the table. It is nil in a new process and after
	// an exec: what was attached described another program.
	Data any
}

// fork returns the process that p becomes the parent of.
func (p *Process) fork(pid int32) *Process {
	return &Process{
		PID: pid, Comm: p.Comm, Exe: p.Exe, Arch: p.Arch,
		Space: p.Space.Clone(), KernelThread: p.KernelThread,
	}
}

// exec makes p a process that has just got an empty address space.
func (p *Process) exec(comm string) {
	*p = Process{PID: p.PID, Comm: comm, Arch: procstate.HostArch(), Space: new(procstate.AddressSpace)}
}

// insert adds an executable mapping, of the program itself when it is the
// first of a file since exec. One that is there already changes nothing:
// programs that write code toggle its protection all the time.
func (p *Process) insert(m *procstate.Mapping) {
	old := p.Space.MappingAt(m.Start)
	if old != nil && old.Start == m.Start && old.End == m.End && old.Offset == m.Offset &&
		old.Path == m.Path && old.Image == m.Image {
		return
	}
	p.Space.Insert(m)
	if procstate.HasFile(m.Path) && (p.Exe == "" || p.Exe == m.Path) {
		p.Exe = m.Path
		if m.Image != nil {
			p.Arch = m.Image.Arch()
		}
	}
}
