// Package bash tells which functions of a script run, in GNU bash. All that is known of its
// releases is here: what it keeps of them where, and in which frames of C they run.
//
// A [Stepper] is what a Walker asks. What it needs of a process at the moment of a capture,
// besides the stack of C, a [Collector] copies.
//
// A Stepper keeps no state of a process, and belongs to one goroutine at a time.
package bash
