// Package swbpf walks call stacks of Linux processes, exactly: of the calling
// goroutine, of other processes under ptrace, of core files. It is the front
// of an interface modelled on the StackwalkerAPI of the Paradyn project;
// docs/STACKWALKERAPI.md compares them method by method.
//
// An [unwind.Walker] walks the stacks of one process. This package makes
// Walkers with default parts:
//
//	w, err := swbpf.ForPID(4711)
//	...
//	defer swbpf.Detach(w)
//	frames, err := w.WalkStack(nil, procstate.DefaultThread)
//	for i := range frames {
//		sym, _ := w.Name(&frames[i])
//		fmt.Printf("%#x %s+%#x\n", frames[i].PC(), sym.Name, sym.Offset)
//	}
//
// [Lines] has source lines and inlined calls besides, and what frames of Java, Python and
// other runtimes run; [Variables] reads the variables of frames.
//
// The parts are replaceable: [With] makes a Walker of a caller's own
// [procstate.ProcessState], [unwind.StepperGroup] and [unwind.SymbolLookup],
// with the defaults in place of those that are nil.
//
// [WalkProcess] is for a look at a whole process: it stops all threads for as
// long as it takes to copy their registers and live stacks, sets them going,
// and walks the copies.
//
// A goroutine that waits has no thread. [procstate.ReadGoroutines] reads those of
// a program in Go, and [WalkGoroutine] walks them. Nor has a virtual thread of Java:
// [WalkOptions] can ask for these, and [WalkVirtualThread] walks them.
//
// # Concurrency
//
// The functions of this package may be called by any goroutine. A Walker
// belongs to one goroutine at a time, and Walkers that share a ProcessState to the same one.
package swbpf
