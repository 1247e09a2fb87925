package profile

// Kind says what sort of code a frame runs.
type Kind uint8

// The kinds.
const (
	Unknown Kind = iota // in no known module, or of a kind that is not known
	Native              // compiled to machine code ahead of time
	Go                  // compiled by the Go tool chain
	Kernel              // the kernel and its modules
	JIT                 // generated at run time
	Marker              // no code: says something about the stack
	numKinds
)

var kindNames = [numKinds]string{"unknown", "native", "go", "kernel", "jit", "marker"}

// String returns the name in lower case: "native".
func (k Kind) String() string {
	if k >= numKinds {
		return kindNames[Unknown]
	}
	return kindNames[k]
}
