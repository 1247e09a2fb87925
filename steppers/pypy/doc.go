// Package pypy tells which functions of Python run in PyPy, and walks from the code that its compiler makes. All that
// is known of PyPy is here: how the types of a build are learned from its file, its code objects, and what its
// compiler notes of code.
//
// A [Stepper] is what a Walker asks. It needs nothing of a process at the moment of a capture but the stacks.
//
// A Stepper keeps no state of a process, and belongs to one goroutine at a time.
package pypy
