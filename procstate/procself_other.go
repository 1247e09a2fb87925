//go:build !amd64

package procstate

// threadPointer is known on x86-64 only. On arm64 a register holds the
// goroutine.
func threadPointer() uint64 { return 0 }
