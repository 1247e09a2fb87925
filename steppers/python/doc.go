// Package python tells which functions of Python run, and who has the interpreter's lock. All
// that is known of CPython is here: where each release has what, its frames, code objects and
// tables of lines.
//
// A [Stepper] is what a Walker asks. What it needs of a process at the moment of a capture,
// besides the stack of C, a [Collector] copies. [Locks] are for those who do not walk but look
// for who waits for whom, and [Tasks] for what those of asyncio are in, which is on no stack.
//
// A Stepper keeps no state of a process, and belongs to one goroutine at a time.
package python
