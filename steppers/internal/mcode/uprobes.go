package mcode

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// NoProbes is where there are none, or none that are known. It is read only.
var NoProbes procstate.UserProbes

// minPage is the smallest page that there is.
const minPage = 4096

// InUprobesPage reports whether pc is in the trampoline, and how far behind
// its start. Where the kernel was not asked, the page has a name.
func InUprobesPage(w *unwind.Walker, probes *procstate.UserProbes, pc uint64) (offset uint64, ok bool) {
	if probes.Trampoline != 0 {
		offset = pc - probes.Trampoline
		return offset, offset < trampolineBytes
	}
	if offset = pc % minPage; offset >= trampolineBytes {
		return 0, false
	}
	m := w.MappingAt(pc)
	return offset, m != nil && m.Path == procstate.UprobesMapping && m.Start == pc-offset
}

// UserProbes returns what uretprobes have replaced in the stack that w
// walks, nil when nothing is.
func UserProbes(w *unwind.Walker) *procstate.UserProbes {
	p, ok := w.ProcessState().(procstate.ProbedState)
	if !ok {
		return nil
	}
	if r := p.UserProbes(); r != nil && r.Trampoline|r.Breakpoint != 0 {
		return r
	}
	return nil
}

// IsReturnTrampoline reports whether pc is the address that functions under a
// uretprobe return to.
func IsReturnTrampoline(w *unwind.Walker, pc uint64) bool {
	probes := UserProbes(w)
	if probes == nil {
		probes = &NoProbes
	}
	offset, ok := InUprobesPage(w, probes, pc)
	return ok && offset == 0
}

// trampolineBytes is more than the trampolines of all architectures.
const trampolineBytes = 32
