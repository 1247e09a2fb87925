// Package profile aggregates stacks and writes them out: as pprof, folded
// stacks or an interactive flame graph. It is a package of its own because
// both the recorder and the viewers need it, and it needs neither of them.
//
// A [Builder] takes samples while recording. It keeps each distinct stack
// once, as a path in a tree that starts at the thread's first frame, so that
// its memory grows with distinct stacks and threads and not with time. At the
// end [Builder.Build] names every address once and returns a [Profile], which
// does not change any more and writes itself in the wanted formats.
//
// # Words
//
// A [Module] is a piece of code with link-time addresses of its own: an ELF
// file, the kernel, memory with generated code. A [Loc] is a place in a
// module; a [Line] is a function at a Loc, of which there are several when
// functions were inlined. A marker is a frame that stands for no code, but
// says something about the stack, as "[truncated: stack-cut]" at the root of
// a stack of which the part next to the root is missing.
//
// The leaf of a stack is the frame that ran, the root the thread's first.
//
// # Concurrency
//
// A Builder belongs to one goroutine at a time. A Profile may be used by any
// number of goroutines at once.
package profile
