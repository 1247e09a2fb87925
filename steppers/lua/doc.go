// Package lua tells which functions of Lua run, in PUC-Rio's interpreter. All that is known of
// its releases is here: where they have what, and how that is learned from a file without
// symbols.
//
// Of LuaJIT, which has another interpreter, package luajit knows.
//
// A [Stepper] is what a Walker asks. What it needs of a process at the moment of a capture,
// besides the stack of C, a [Collector] copies.
//
// A Stepper keeps no state of a process, and belongs to one goroutine at a time.
package lua
