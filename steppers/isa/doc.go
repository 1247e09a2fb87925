// Package isa decodes machine instructions as far as a stack walk needs them:
// how long an instruction is, where execution goes on after it, and what it
// does to the stack pointer, to general registers and to memory that the
// stack pointer or another register points at. An [Inst] is the same for all
// architectures: a flow and a few operations in the DWARF register numbers of
// package procstate.
//
// What an instruction computes beyond moving, adding and storing stack
// addresses is of no interest: its results are [Clobber].
//
// Decoding is by tables over bytes that may be hostile. It never panics, does
// not allocate, and says of bytes that are no instruction that they are none.
// All functions may be called by any goroutine.
package isa
