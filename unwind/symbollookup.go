package unwind

import "github.com/swbpf/swbpf/procstate"

// Symbol names the code at an address.
type Symbol = procstate.Symbol

// SymbolLookup names run-time addresses of one process. One that embeds the default one,
// *symbols.Lookup, and replaces SymbolAt alone keeps its source lines and variables.
type SymbolLookup interface {
	// SymbolAt names the function that holds addr. ok is false when there is
	// no name for it.
	SymbolAt(addr uint64) (sym Symbol, ok bool)
}
