// Package postgres tells which functions in PL/pgSQL and SQL run, in a server process of PostgreSQL. All that is known
// of its releases is here.
//
// A [Stepper] is what a Walker asks. What it needs of a process at the moment of a capture,
// besides the stack of C, a [Collector] copies.
//
// A Stepper keeps no state of a process, and belongs to one goroutine at a time.
package postgres
