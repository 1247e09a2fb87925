package procstate

// Symbol names the code at an address.
type Symbol struct {
	Name   string // function name for people (demangled)
	Offset uint64 // address minus the start of the function
	Object any    // whatever the lookup associates with the name; may be nil
}
