// Package pe is the stepper for code of Windows programs and libraries (Portable Executables) for x86-64, as Wine runs
// them: it walks by the tables that they have for their exceptions, and has the names of what they export and of their symbols.
//
// What a file has is read once for all processes that have it, and from memory where there is none; what is told of how a
// function is left is in memory, however it was loaded. The format is documented by Microsoft ("PE Format", "x64 exception
// handling").
package pe
