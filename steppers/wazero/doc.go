// Package wazero walks through WebAssembly that programs in Go run with wazero (github.com/tetratelabs/wazero),
// and tells which functions of it run, compiled or interpreted.
//
// Terms: a call engine is what a function of a module is called by from Go; it has the stack that compiled code runs
// on, and in it the execution context, by which compiled code and Go hand on to each other.
package wazero
