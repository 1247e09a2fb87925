package unwind

import (
	"fmt"

	"github.com/swbpf/swbpf/procstate"
)

// LocationKind tells where a value of a frame was found.
type LocationKind uint8

// The kinds of location.
const (
	LocationUnknown  LocationKind = iota
	LocationAddress               // in memory, at Location.Addr
	LocationRegister              // in register Location.Reg of the thread
)

// Location is where a register value of a frame was found when the stack was
// walked: writing there changes the frame.
type Location struct {
	Kind LocationKind
	Reg  procstate.Reg // for LocationRegister
	Addr uint64        // for LocationAddress: a run-time address
}

// InRegister is the Location of a value in a register.
func InRegister(r procstate.Reg) Location { return Location{Kind: LocationRegister, Reg: r} }

// InMemory is the Location of a value at a run-time address.
func InMemory(addr uint64) Location { return Location{Kind: LocationAddress, Addr: addr} }

// String is "at 0x7ffe00001000", "in register 6", by its DWARF number, or "unknown".
func (l Location) String() string {
	switch l.Kind {
	case LocationAddress:
		return fmt.Sprintf("at %#x", l.Addr)
	case LocationRegister:
		return fmt.Sprintf("in register %d", l.Reg)
	}
	return "unknown"
}

// FrameFlags describe how a frame came to be.
type FrameFlags uint8

// The flags.
const (
	Top             FrameFlags = 1 << iota // the frame that runs
	Bottom                                 // the first frame of the thread
	Interrupted                            // not in a call: PC is the next instruction itself
	Signal                                 // the signal trampoline; its caller was interrupted
	StackSwitched                          // on another stack than its callee: SP may be lower
	Heuristic                              // found by search, not by rule
	Instrumentation                        // stands for instrumentation, not for a call
)

// StepperID identifies, within a StepperGroup, the stepper that made a frame;
// 0 is none (the top frame), or one that the group does not list. StepperGroup.Steppers()[id-1] is the stepper.
type StepperID uint8

// Frame is one stack frame, a snapshot that stays true after the process has
// moved on. It is a plain value without pointers: it can be copied, compared
// with == and stored. Name, library and stepper are asked of the Walker that
// made it.
type Frame struct {
	// Regs are the registers as this frame sees them: at the moment of the
	// walk for the top frame, after the return from its callee for others.
	// Only what could be recovered is known.
	Regs procstate.Regs

	pc, sp, fp uint64

	// Where PC, SP and FP were found; an SP that was computed has no location.
	PCLocation, SPLocation, FPLocation Location

	// Thread is whose stack the frame is on. It is DefaultThread in first-party walks, as a
	// goroutine has no thread of its own, and for a goroutine that is on none.
	Thread  procstate.ThreadID
	Flags   FrameFlags
	Stepper StepperID // that found the frame
	_       [2]byte

	// Code is the number of what the frame runs by what a runtime of the process says,
	// in Walker.Codes; 0: there is nothing but its address.
	Code uint32
	_    [4]byte
}

// PC is the address at which the frame's execution goes on: the program
// counter of the top frame, the return address (RA) of others.
func (f *Frame) PC() uint64 { return f.pc }

// SP is the stack pointer: for a frame that called, its value after the
// return, which is the CFA of the callee.
func (f *Frame) SP() uint64 { return f.sp }

// FP is the value of the frame pointer register in the frame.
func (f *Frame) FP() uint64 { return f.fp }

// SetPC sets the PC, in the frame and in Regs.
func (f *Frame) SetPC(a *procstate.Arch, v uint64) { f.pc = v; f.Regs.Set(a.PC, v) }

// SetSP sets the stack pointer.
func (f *Frame) SetSP(a *procstate.Arch, v uint64) { f.sp = v; f.Regs.Set(a.SP, v) }

// SetFP sets the frame pointer.
func (f *Frame) SetFP(a *procstate.Arch, v uint64) { f.fp = v; f.Regs.Set(a.FP, v) }

// NewFrame makes a frame from the three values alone, of the default thread and
// in a call: pc is a return address, unless the caller sets the flag Interrupted.
// Its locations are unknown.
func NewFrame(a *procstate.Arch, pc, sp, fp uint64) Frame {
	var f Frame
	f.SetPC(a, pc)
	f.SetSP(a, sp)
	f.SetFP(a, fp)
	return f
}

// Load sets the frame's registers, as those of a thread that was stopped or
// interrupted there: a top frame.
func (f *Frame) Load(a *procstate.Arch, regs *procstate.Regs) {
	*f = Frame{Regs: *regs, Flags: Top | Interrupted}
	f.pc, f.sp, f.fp = regs.Raw(a.PC), regs.Raw(a.SP), regs.Raw(a.FP)
	f.PCLocation, f.SPLocation, f.FPLocation = InRegister(a.PC), InRegister(a.SP), InRegister(a.FP)
}

// LookupPC is the address that stands for the frame in tables: within the
// call instruction for a frame that is in a call. A signal trampoline was
// never called: its handler returns to its first instruction.
func (f *Frame) LookupPC() uint64 {
	if f.Flags&(Interrupted|Signal) != 0 {
		return f.pc
	}
	return f.pc - 1
}

// IsTop reports whether the frame is the one that runs.
func (f *Frame) IsTop() bool { return f.Flags&Top != 0 }

// IsBottom reports whether the frame was recognised as the thread's first.
func (f *Frame) IsBottom() bool { return f.Flags&Bottom != 0 }

// NonCall reports whether the frame is something other than a function that
// is in a call: interrupted, a signal trampoline, or instrumentation.
func (f *Frame) NonCall() bool { return f.Flags&(Interrupted|Signal|Instrumentation) != 0 }
