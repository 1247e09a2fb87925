// Package ocaml knows where programs in OCaml 5 have their stacks. Their code is walked by its CFI;
// what that leads to is not all on the stack that a capture has: functions of OCaml run on a stack of
// their own, in the heap, and those of C that they call on the thread's.
//
// A [Stepper] is what a Walker asks. It keeps no state of a process, and belongs to one goroutine at a time.
package ocaml
