// Package oracle judges steppers against the processor itself.
//
// It is a test tool of the project. It runs a real program one instruction at
// a time and keeps a [Shadow] of its call stack from nothing but what the
// program executes: calls, returns, signal deliveries and returns, jumps out
// of frames, switches of the stack. At every instruction it has the steppers
// under test walk the stack and compares every frame, PC and SP, down to the
// bottom. No unwind table and no symbol takes part in the truth.
//
// A [Config] names the steppers to judge, alone or together, and may hide
// parts of all files from them: without unwind tables and symbols, the
// ordinary programs of a distribution become the hardest cases.
//
// # Results
//
// At each instruction a walk is exact (each frame right and the bottom
// recognised), short (right as far as it goes, and says that it is not
// complete), or wrong (a frame that is not there, or a bottom that is none).
// Instructions in the middle of a jump out of frames or between two stacks,
// where no chain is the truth, are counted as unjudged.
//
// # Truth at the start
//
// From the entry point of a program the shadow stack is empty and everything
// is known. In a window opened in the middle of a long program, the frames
// that exist already are seeded by a walk with all steppers, and each of them
// is checked by the processor when it returns; a window whose seed turns out
// wrong is reported as such.
//
// # Concurrency
//
// ptrace binds a target to an OS thread: [Run] locks its goroutine to one.
package oracle
