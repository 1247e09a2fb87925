// Package unwind walks call stacks.
//
// A [Walker] owns three replaceable parts: a [procstate.ProcessState] that
// gives registers and memory, a [StepperGroup] that picks the [FrameStepper]
// for a code address, and a [SymbolLookup] that names addresses. Walking is
// asking the group for a stepper for the current [Frame], asking the stepper
// for the caller's frame, and going on until a stepper says that this was the
// bottom of the stack.
//
// The package also holds the engine for DWARF call frame information: a
// [Table] is the CFI of one image, found and compiled lazily; [Tables] shares
// them between processes. Steppers live in package steppers.
//
// # Words
//
// The top of a stack is the frame that runs now, the bottom the thread's
// first. PC is the address at which a frame's execution goes on: the program
// counter in the top frame, the return address (RA) in all others. CFA is the
// canonical frame address, the value of SP in the caller after the return; a
// frame's SP is its callee's CFA. LookupPC is the address by which tables and
// names are looked up: PC-1 for a frame that is in a call, since PC may be
// past the end of its function, and PC itself for one that was interrupted.
//
// # Results
//
// A walk is complete when a stepper recognised the bottom. Every walk that is
// not returns the frames it has and the [Reason] why there are no more.
//
// # Concurrency
//
// A Walker, its group and its steppers belong to one goroutine at a time.
// Tables may be shared by all.
package unwind
