// Package perl tells which subroutines of Perl run. All that is known of its interpreter is
// here: contexts, of which there is one for each subroutine, loop and eval, and the ops that
// it executes.
//
// A [Stepper] is what a Walker asks. What it needs of a process at the moment of a capture,
// besides the stack of C, a [Collector] copies.
//
// A Stepper keeps no state of a process, and belongs to one goroutine at a time.
package perl
