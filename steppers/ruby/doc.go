// Package ruby tells which methods of Ruby run. All that is known of CRuby and of its compiler
// YJIT is here: control frames, instruction sequences, and the owners of methods.
//
// A [Stepper] is what a Walker asks. What it needs of a process at the moment of a capture,
// besides the stack of C, a [Collector] copies.
//
// A Stepper keeps no state of a process, and belongs to one goroutine at a time.
package ruby
