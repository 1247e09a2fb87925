// Package chez walks the stacks of Chez Scheme, and so of Racket. All that is known of what
// its compiler makes is here: the registers that it has for itself, the headers before places
// of return, segments of the stack, continuations, and what functions are called.
//
// A [Stepper] is what a Walker asks. What it needs of a process at the moment of a capture,
// besides the stack of C, a [Collector] copies.
//
// A Stepper keeps no state of a process, and belongs to one goroutine at a time.
package chez
