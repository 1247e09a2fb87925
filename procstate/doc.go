// Package procstate gives access to the state of a process whose stacks are
// walked: registers, memory, threads and loaded code.
//
// The interface is [ProcessState]. Its implementations differ only in where
// the bytes come from:
//
//   - [Snapshot]: what a sample carries (registers and the live top of the
//     stack), completed by the files that the process maps;
//   - [ProcDebug]: a live process under ptrace;
//   - [Capture]: a copy of the threads of one, made while they stood still;
//   - [ProcSelf]: the calling process itself;
//   - [Core]: an ELF core file.
//
// # Words
//
// An address is a number in one of three spaces that never share a name:
// addr, pc and sp are run-time addresses of the target; vaddr is a link-time
// address, as in the symbol table of an ELF file; off is an offset in a file.
// bias is run-time minus link-time, so addr = vaddr + bias.
//
// An [Image] is an ELF file, opened once and shared by all processes that map
// it; a [Mapping] is one executable mapping of a process; an [AddressSpace]
// is the ordered set of a process's mappings and the default [LibraryState].
// [Images] opens files and shares them by identity.
//
// The package also reads what programs keep of themselves: the function table and
// the goroutines of those in Go ([Pclntab], [ReadGoroutines]), code that they
// have made at run time ([JITObjects]), and what they tell profilers of themselves and of what their threads work
// on ([Contexts]).
//
// # Concurrency
//
// Arch values are immutable. An Image may be used by any goroutine at any
// time. An AddressSpace, and a ProcessState unless it says otherwise, belongs to
// one goroutine at a time.
package procstate
