// Package luajit tells which functions of Lua run in LuaJIT, and walks from traces, which are
// what its compiler makes. All that is known of its stacks, prototypes and traces is here.
//
// A [Stepper] is what a Walker asks. What it needs of a process at the moment of a capture,
// besides the stack of C, a [Collector] copies.
//
// A Stepper keeps no state of a process, and belongs to one goroutine at a time.
package luajit
