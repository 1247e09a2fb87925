// Package symbols names code addresses: function, inlined callers, file and
// line, from whatever the program left behind.
//
// A [Symbolizer] is shared by all processes and answers by file and link-time
// address ([Symbolizer.Lines]). For each [procstate.Image] it uses what there
// is, the best first:
//
//   - the Go function table, for Go code, with its inline tree;
//   - DWARF 2 to 5: functions, inlined calls and lines, also from compressed
//     sections, split files and packages (.dwo, .dwp), and files that dwz has
//     moved common entries out of;
//   - the ELF symbol tables, MiniDebugInfo, and the entries of the procedure
//     linkage table.
//
// DWARF and symbols may lie in a separate debug file: one found by build ID
// or .gnu_debuglink, or fetched (package debuginfod). Only a file that has the
// build ID of the program, or the checksum that the program names, is used.
//
// A [Lookup] answers for the run-time addresses of one process, generated
// code (JIT) included, from the files in which the process tells of it or the
// object files that it has in memory, and names what a pointer to data points to
// ([Lookup.ObjectAt]). A [Kernel] names kernel addresses, and a [BPFCode] those of
// BPF programs that have gone since.
//
// [Symbolizer.Functions] tells of the parameters and variables in scope at an
// address: their types, and the expressions that say where they are. Package
// variables evaluates these for a frame.
//
// Nothing is read before the first question about a file, so that a recording
// does not wait for names. Of debug information only the root entries are read
// then, and each unit when one of its addresses is asked for; what was read is
// dropped again when it takes more than Options.Memory.
//
// # Words
//
// A [Line] is one logical frame: several lines at one address are inlined
// calls, innermost first, and the function that they were inlined into, last.
// SystemName is a name as the file has it (mangled), Function the same for
// people (demangled). A sized symbol names exactly its own bytes: an address
// between symbols has no name. Symbols without a size, as assembly leaves
// them, reach to the next symbol or to the end of their section. The name of
// an ELF symbol is preferred to that of the function in DWARF when both mean
// the same code, as it tells clones apart (".cold", ".constprop.0").
//
// In the code of this package an offset counts from the start of a section,
// unless it is said to count from the base of the file's code: tables of code
// keep 32-bit offsets from the lowest executable address.
//
// # Errors
//
// A damaged or missing file costs its own names. What went wrong is kept in
// [Symbolizer.Errors].
//
// # Concurrency
//
// Symbolizer and Kernel are safe for concurrent use; a Lookup belongs to one
// goroutine at a time.
package symbols
