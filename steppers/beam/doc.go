// Package beam walks the stacks of processes in Erlang and Elixir. All that is known of their
// runtime system, the BEAM, is here: where its schedulers are, which process they run, what
// its compiler (BeamAsm) makes of functions, and what those are called.
//
// An Erlang process is not one of the kernel's: it runs on the thread of a scheduler, with a
// stack of its own.
//
// A [Stepper] is what a Walker asks. What it needs of a process at the moment of a capture,
// besides the stack of C, a [Collector] copies.
//
// A Stepper keeps no state of a process, and belongs to one goroutine at a time.
package beam
