// Package gnur tells which functions of R run, in the interpreter of the R project (GNU R). All that is known of
// its releases is here.
//
// A [Stepper] is what a Walker asks. What it needs of a process at the moment of a capture,
// besides the stack of C, a [Collector] copies.
//
// A Stepper keeps no state of a process, and belongs to one goroutine at a time.
package gnur
