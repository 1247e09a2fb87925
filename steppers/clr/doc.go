// Package clr walks code of .NET. All that is known of CoreCLR is here: where it keeps which
// code is which method's, its unwind information (of the forms of Windows), and the
// metadata of assemblies.
//
// A Stepper keeps no state of a process, and belongs to one goroutine at a time.
package clr
