// Package dataflow finds out, from the instructions of a function alone, how
// to leave it: at each instruction, where the canonical frame address (CFA)
// is, and where the return address (RA) and the registers that a call
// preserves are kept. It serves code that has no unwind tables and no frame
// pointer, in files that may be stripped.
//
// # Method
//
// A [Code] is the code of one ELF file. Its functions are found from symbols,
// from the search table in .eh_frame_hdr, and from the targets of direct
// calls; what lies between known functions is told apart by trying what it
// could be. Each function is analysed when one of its addresses is first
// asked for: an abstract interpretation forward over its control flow graph,
// in which a register or stack slot holds either an address at a known
// distance from the CFA, or at a known distance from an address that was
// aligned or allocated at run time, or the value that a register had at the
// entry, or a constant, or something unknown. What is known at an instruction
// is what all paths to it agree on.
//
// Three things are not in the instructions and are inferred: whether a call
// returns (from its target, and from whether what follows can be reached with
// another stack height), where the code that only an indirect jump or an
// exception reaches begins, and with which state of the stack. Guesses are
// tried and judged by what must hold in the end: a return finds SP right
// below the CFA and all preserved registers with their values of the entry,
// and paths that join agree. Where no guess holds there is no [Rule]: a wrong
// frame is worse than a missing one.
//
// # Words
//
// vaddr is a link-time address. A region is the code from one known function
// start to the next. A leader is an instruction that some branch targets.
//
// # Concurrency
//
// A Code belongs to one goroutine at a time.
package dataflow
