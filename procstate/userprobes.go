package procstate

// ReplacedReturn is a return address that the kernel has replaced on the
// stack, or in the link register, by the address of its trampoline, since a
// uretprobe is on the function that was called.
type ReplacedReturn struct {
	Stack uint64 // SP when the function was entered
	RA    uint64 // the original return address
}

// UserProbes is what the kernel's uprobes and uretprobes have changed in a
// thread. The zero value is nothing.
type UserProbes struct {
	// Trampoline is the run-time address that functions under a uretprobe
	// return to; 0 when there is none.
	Trampoline uint64

	// Returns are the return addresses replaced, the innermost call first.
	// Calls that were left by longjmp may still be among them.
	Returns []ReplacedReturn

	// Breakpoint is the address of a breakpoint instruction that a thread in
	// the kernel stands at, or one byte behind: it may be a uprobe's, and the
	// kernel may be about to execute the probed instruction in the thread's
	// place. 0 for all other threads.
	Breakpoint uint64

	// Slot, when not 0, is the run-time address at which the thread executes a
	// copy of the instruction that belongs where the breakpoint is.
	Slot uint64
}

// UprobesMapping is the Path of the page that the kernel maps into a process
// that has met a uprobe: functions under a uretprobe return to its start, and
// copies of probed instructions are executed in it.
const UprobesMapping = "[uprobes]"

// UprobeCallsMapping is what the Path of a page begins with that the kernel maps into a
// process for uprobes that have become calls of it (x86-64, Linux 6.18). It is all that
// the side-band has of the name.
const UprobeCallsMapping = "[uprobes-trampo"

// ProbedState is implemented by a ProcessState that knows what uprobes have
// changed in the thread that is being walked. That is in the kernel alone:
// nothing in the memory of the process tells it. The result is valid until
// the next walk.
type ProbedState interface {
	// UserProbes returns what they have changed; it is never nil.
	UserProbes() *UserProbes
}

// liveProbes asks the kernel, for each walk, what uretprobes have replaced.
type liveProbes struct {
	ask func() map[ThreadID]UserProbes // nil: it is not asked
	now UserProbes                     // of the thread being walked
}

// look asks about a thread that stands still.
func (p *liveProbes) look(tid ThreadID) {
	if p.ask != nil {
		p.now = p.ask()[tid]
	}
}
