// Package variables reads the parameters and local variables of the frames of
// a walk, with the debug information (DWARF) of the program.
//
// It stands above package symbols, which knows what the debug information
// says, and package unwind, which knows the registers of each frame: a
// variable is where an expression says, in terms of both.
//
//	r := variables.New(w, symbolizer)
//	fns, err := r.Functions(&frames[i])
//	for _, fn := range fns { // calls inlined there, innermost first
//		for _, v := range fn.Variables {
//			value, err := r.Value(frames, i, v)
//			...
//		}
//	}
//
// # What is exact
//
// A frame's registers are those that the walk recovered for it, the
// callee-saved ones at the values that they had there. A variable in a
// register that was not recovered is ErrNotSaved; no stale value of another
// frame is shown for it. The value that a parameter had on entry is taken from
// the caller's frame only where the call is proved to be the one that entered
// the function: by its instruction, or by its name or pointer, and by the
// absence of jumps that could have entered it anew.
//
// Memory is read when a [Value] is asked for its bytes or its text. With a
// core file or a capture that holds the memory there is no haste. Of a live
// process the values belong to the frames only while it stands still: pause it
// before the walk ([procstate.ProcDebug.Pause]), and resume it after the
// values were read.
//
// The registers for floating point and vectors are known of the frame that
// runs ([procstate.FloatState]), as calls do not preserve them. Thread-local
// variables of a library are found by the relocations that tell its own code
// where they are, descriptors included; a variable is not found where the
// thread has not got its storage yet, or where another file defines the same
// name. A type that the unit of the function only declares is that which
// another unit of the same file describes under its name; between files it is
// not looked for. What a Go interface holds is written where the debug
// information has its type. Not written is what has no counterpart in C, C++,
// Rust or Go.
//
// # Standard libraries
//
// Strings, containers, smart pointers and the like of C++'s libraries (libstdc++
// and libc++), and strings, vectors and slices of Rust, are written by what they
// hold, as gdb does with the pretty-printers that come with the libraries
// ([Format].Raw: as they are made). They are recognised by their names and members,
// where these lie is taken from the debug information; one that is not as its
// library makes it, such as one that is not constructed yet, is written as the
// struct that it is, where that can be told. Of a string no more than
// Format.Elements characters are read, of a container as many elements, and a
// chain of nodes ends there though it be a circle. Of containers whose nodes the
// debug information does not describe it is the number of elements alone.
//
// # Concurrency
//
// A Reader, and the Values that come from it, belong to the goroutine of its
// Walker.
package variables
