package procstate

import "fmt"

// DecodeRegset stores in regs the general registers of b, a register block
// NT_PRSTATUS as PTRACE_GETREGSET returns it for a task of architecture a.
func DecodeRegset(a *Arch, b []byte, regs *Regs) error {
	r := regsetFor(a)
	if r == nil || len(b) < r.size() {
		return fmt.Errorf("register block of %d bytes for %s: %w", len(b), a.Name, ErrNotSupported)
	}
	r.decode(b, regs)
	return nil
}
