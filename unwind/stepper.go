package unwind

// Verdict is a stepper's answer for one frame.
type Verdict uint8

// The verdicts.
const (
	NotMe       Verdict = iota // not a frame of this stepper's kind: ask the next
	Success                    // the caller's frame was found
	StackBottom                // this frame is the bottom: it has no caller
	Failed                     // the walk stops here, but see FrameStepper; the error says why
	Mended                     // in was not what it seemed, and is now: ask all anew
)

// String returns the verdict in a word or two: "not me".
func (v Verdict) String() string {
	if names := [...]string{"not me", "success", "bottom", "error", "mended"}; int(v) < len(names) {
		return names[v]
	}
	return "unknown"
}

// Priority orders steppers that cover the same address: lower runs earlier.
// Among equals the one added first runs first.
type Priority uint32

// The priorities of the steppers that come with this module. All but those of the Go
// stepper, which knows more of its code than CFI tells, and of BadCall, are those
// of Dyninst's StackwalkerAPI.
const (
	PriorityBottom          Priority = 0x10000
	PriorityInstrumentation Priority = 0x10010
	PrioritySignalHandler   Priority = 0x10020
	PriorityGo              Priority = 0x10030
	PriorityDebug           Priority = 0x10040
	PriorityFrame           Priority = 0x10050
	PriorityAnalysis        Priority = 0x10058
	PriorityBadCall         Priority = 0x1005c
	PriorityWanderer        Priority = 0x10060
)

// FrameStepper knows how to walk through one kind of frame.
//
// A stepper that keeps no state of a process can serve many Walkers of one
// goroutine; all it needs to know of the process comes through w. Groups tell
// steppers apart by ==: a pointer is a good stepper, a struct that holds a slice
// or a map is none.
type FrameStepper interface {
	// Name is shown beside frames and in reports: "debug", "frame-pointer".
	Name() string

	// Priority orders steppers; it never changes.
	Priority() Priority

	// CallerFrame finds the frame that called in. On Success it has set out's
	// PC, SP and FP, every register that it can tell, and the locations that
	// it knows. The Walker clears out before, and sets Thread and Stepper
	// after. It refuses a caller whose PC cannot be code, and one whose SP is
	// not further down the stack than in's, unless out is marked StackSwitched.
	// With NotMe out must be left clear for the next stepper.
	//
	// The error is nil except with Failed; it should be or wrap a Reason. After
	// NoRegister, not wrapped, and after a caller that was refused for its SP,
	// the steppers that follow are asked: one may do without what was missing.
	//
	// With Mended the stepper has put right what instrumentation had changed
	// of in, such as its PC; all steppers are asked again, once.
	//
	// The stepper may set Flags: on out, Interrupted when in is a Signal
	// frame and so on; on in, Signal when in turns out to be a trampoline.
	CallerFrame(w *Walker, in, out *Frame) (Verdict, error)
}

// GroupMember is implemented by steppers that want to know the groups they
// are added to, for example to register address ranges.
type GroupMember interface {
	// JoinGroup is called by g when the stepper is added to it. A stepper that
	// registers ranges for itself then is asked in these alone, and in those that
	// it registers later, as when the process has loaded a library. One that is to be
	// asked nowhere until then registers [0, 1), where no code is.
	JoinGroup(g StepperGroup)
}
