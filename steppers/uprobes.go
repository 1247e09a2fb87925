package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

var noProbes procstate.UserProbes // read only

// minPage is the smallest page that there is.
const minPage = 4096

// inUprobesPage reports whether pc is in the trampoline, and how far behind
// its start. Where the kernel was not asked, the page has a name.
func inUprobesPage(w *unwind.Walker, probes *procstate.UserProbes, pc uint64) (offset uint64, ok bool) {
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

// userProbes returns what uretprobes have replaced in the stack that w
// walks, nil when nothing is.
func userProbes(w *unwind.Walker) *procstate.UserProbes {
	p, ok := w.ProcessState().(procstate.ProbedState)
	if !ok {
		return nil
	}
	if r := p.UserProbes(); r.Trampoline|r.Breakpoint != 0 {
		return r
	}
	return nil
}

// isReturnTrampoline reports whether pc is the address that functions under a
// uretprobe return to.
func isReturnTrampoline(w *unwind.Walker, pc uint64) bool {
	probes := userProbes(w)
	if probes == nil {
		probes = &noProbes
	}
	offset, ok := inUprobesPage(w, probes, pc)
	return ok && offset == 0
}

// trampolineBytes is more than the trampolines of all architectures.
const trampolineBytes = 32
