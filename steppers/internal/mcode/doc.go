// Package mcode reads machine code of files and processes around an address, and tells what little
// all steppers ask of it: whether an address follows a call, what the instructions on one path do
// to registers and to the stack ([PathState]), and which code is of one function ([FunctionParts]).
// [Windows] are the pieces of code that are met on a way through it. What was found is kept by file
// ([PerImage]) or by address ([VaddrCache]).
//
// It is apart from package steppers because those of virtual machines, in packages below that, need
// it as well. What a single instruction is, package isa knows.
//
// Addresses named vaddr are link-time addresses, others run-time addresses. All types belong to one
// goroutine at a time.
package mcode
