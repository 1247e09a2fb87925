package unwind

import (
	"errors"

	"github.com/swbpf/swbpf/procstate"
)

// Reason says why a walk stopped before the bottom of the stack. It is an
// error; the zero Reason is none. Each has one name, used by counters and
// output alike, and one line of help.
type Reason uint8

// The reasons.
const (
	ReasonNone        Reason = iota
	StackCut                 // the captured stack ends here; it was copied up to a limit
	MemoryUnreadable         // memory that the walk needs cannot be read
	NoRegister               // a register that the rule needs is not known
	NoMapping                // the PC is in no executable mapping
	NoFile                   // the mapped file could not be opened or read
	NoUnwindInfo             // no stepper knows how to walk the code here
	BadUnwindInfo            // the unwind information is malformed
	UnsupportedUnwind        // the unwind information uses what is not supported
	NoProgress               // the caller's frame would not be further down the stack
	BadPC                    // the return address cannot be code
	TooManyFrames            // the limit on frames was reached
	ProcessUnknown           // its mappings were never read
	StepperFailed            // a stepper gave up for a reason of its own
	ThreadEnded              // the thread, or its process, has
	ReturnReplaced           // instrumentation, as a uretprobe, has replaced the return address; the original is not known
	StackChanged             // the thread ran while its stack was copied: the copy is not used
	NumReasons
)

var reasonText = [NumReasons]struct{ name, help string }{
	ReasonNone:        {"none", "the walk is complete"},
	StackCut:          {"stack-cut", "the stack is longer than what was copied of it; raise --stack-bytes"},
	MemoryUnreadable:  {"memory-unreadable", "memory that the walk needs could not be read; that of other users' processes needs root or CAP_SYS_PTRACE"},
	NoRegister:        {"register-unknown", "a register that the unwind rule needs was not recovered"},
	NoMapping:         {"no-mapping", "the program counter is in no known executable mapping"},
	NoFile:            {"no-file", "the file mapped at the program counter could not be read; those that only others may read need root or CAP_DAC_READ_SEARCH, deleted programs CAP_SYS_PTRACE, and deleted libraries both and CAP_CHECKPOINT_RESTORE"},
	NoUnwindInfo:      {"no-unwind-info", "no unwind information and no frame pointer for the code"},
	BadUnwindInfo:     {"bad-unwind-info", "the unwind information of the file is malformed"},
	UnsupportedUnwind: {"unsupported-unwind", "the unwind information uses an unknown operation"},
	NoProgress:        {"no-progress", "the caller's frame is not further down the stack"},
	BadPC:             {"bad-pc", "the return address is not in code"},
	TooManyFrames:     {"too-many-frames", "the limit on frames was reached"},
	ProcessUnknown:    {"process-unknown", "the mappings of the process are not known: it ended before they were read, or they may not be read"},
	StepperFailed:     {"stepper-failed", "a frame stepper reported an error of its own"},
	ThreadEnded:       {"thread-ended", "the thread or its process ended before it was walked"},
	ReturnReplaced:    {"return-replaced", "a uretprobe or a function tracer has replaced the return address, and what it was is not known here"},
	StackChanged:      {"stack-changed", "the thread was waiting and ran while its stack was copied, so that the copy is not used"},
}

// String returns the name, as in counters and output: "stack-cut".
func (r Reason) String() string {
	if r >= NumReasons {
		return "unknown"
	}
	return reasonText[r].name
}

// Help returns one line that explains the reason to a user.
func (r Reason) Help() string {
	if r >= NumReasons {
		return ""
	}
	return reasonText[r].help
}

// Error implements error.
func (r Reason) Error() string { return r.String() }

// ReasonOf returns the Reason that err is or wraps, ReasonNone for nil, ThreadEnded for
// the errors of ProcessState that say so, and StepperFailed for any other error.
func ReasonOf(err error) Reason {
	if err == nil {
		return ReasonNone
	}
	if r, ok := err.(Reason); ok {
		return r
	}
	var r Reason
	if errors.As(err, &r) {
		return r
	}
	for _, ended := range []error{procstate.ErrNoThread, procstate.ErrTerminated, procstate.ErrNoProcess} {
		if errors.Is(err, ended) {
			return ThreadEnded
		}
	}
	return StepperFailed
}
