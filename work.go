package swbpf

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/postgres"
)

// queryAttribute is what OpenTelemetry calls the text of a statement.
const queryAttribute = "db.query.text"

// Works finds what threads of a process work on.
type Works struct {
	contexts *procstate.Contexts
	query    *postgres.Query
	first    procstate.ThreadID // of the process
}

// WorksOf returns what finds it, as ThreadStack.Work has it, in a process that is paused or in a core file. The
// zero Works is of one that tells nothing.
func WorksOf(ps procstate.ProcessState) *Works {
	return &Works{procstate.ContextsOf(ps), postgres.NewQuery(ps.Libraries()), procstate.ThreadID(ps.PID())}
}

// worksOfProcess is WorksOf a process that runs, which has mapped what space has.
func worksOfProcess(pid int, space *procstate.AddressSpace) *Works {
	return &Works{procstate.ContextsOfProcess(pid, space), postgres.NewQuery(space), procstate.ThreadID(pid)}
}

// Process is what the process tells profilers of itself.
func (w *Works) Process() procstate.ProcessContext {
	if w.contexts == nil {
		return procstate.ProcessContext{}
	}
	return w.contexts.Process
}

// tell reports whether there may be something that a thread works on.
func (w *Works) tell() bool { return w.contexts != nil || w.query != nil }

// Of returns what a thread works on, by its registers; nil where that is not known.
func (w *Works) Of(m procstate.Memory, tid procstate.ThreadID, regs *procstate.Regs) *procstate.ThreadWork {
	work := w.contexts.Of(m, regs)
	if w.query == nil || tid != w.first { // which executes them all
		return work
	}
	text := w.query.Read(m)
	if text == "" {
		return work
	}
	if work == nil {
		work = new(procstate.ThreadWork)
	}
	work.Attributes = append(work.Attributes, procstate.ContextAttribute{Key: queryAttribute, Value: text})
	return work
}
