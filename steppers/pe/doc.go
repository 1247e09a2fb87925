// Package pe is the stepper for code of Windows programs and libraries (Portable Executables) for x86-64, as Wine runs
// them: it walks by the tables that they have for their exceptions, and has the names of what they export.
//
// They are read from memory, where a program has them however it was loaded. The format is documented by Microsoft ("PE
// Format", "x64 exception handling").
package pe
