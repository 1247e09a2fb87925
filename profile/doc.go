// Package profile aggregates stacks, writes and reads profiles, and compares
// them. It is a package of its own because both the recorder and the viewers
// need it, and it needs neither of them.
//
// A [Builder] takes samples while recording. It keeps each distinct stack
// once, as a path in a tree that starts at the thread's first frame, so that
// its memory grows with distinct stacks and threads and not with time. At the
// end [Builder.Finish] names every address once and returns a [Profile], which
// does not change any more and writes itself in the wanted formats: pprof, an
// interactive flame graph (a page of HTML), a picture (SVG), folded stacks,
// the formats of speedscope, the Firefox Profiler and perf script, and what
// servers of OpenTelemetry's protocol are sent. The Firefox Profiler's and
// perf's have the time of each sample, which the Builder keeps on demand
// alone: see [Builder.KeepTimes].
//
// [Read] takes back all of these but the picture and what is for servers, and
// what other tools wrote.
// [Profile.Top] and [Profile.Function] answer questions about functions;
// [Compare] tells what changed from one profile to another by more than the
// error of sampling, and draws that.
//
// # Words
//
// A [Module] is a piece of code with link-time addresses of its own: an ELF
// file, the kernel, memory with generated code. A [Loc] is a place in a
// module; a [Line] is a function at a Loc, of which there are several when
// functions were inlined. A marker is a frame that stands for no code, but
// says something about the stack, as "[truncated: stack-cut]" at the root of
// a stack of which the part next to the root is missing. A [Label] is a fact
// about a sample beside its process and thread, by which a profile can be cut.
//
// The leaf of a stack is the frame that ran, the root the thread's first.
//
// # Concurrency
//
// A Builder belongs to one goroutine at a time. A Profile may be used by any
// number of goroutines at once.
package profile
