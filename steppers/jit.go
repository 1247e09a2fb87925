package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// JIT walks through code that was made at run time, by the call frame information
// in the object files that the process has registered with debuggers (see
// [procstate.JITObjects]). They are read from the process while it runs, also for
// a Snapshot of it. What is known of a process is kept with its Walker.
type JIT struct {
	buf [maxCallLen]byte
}

// NewJIT makes a JIT.
func NewJIT() *JIT { return &JIT{} }

// jitTables are the object files of a process and their tables.
type jitTables struct {
	objects *procstate.JITObjects
	tables  map[*procstate.JITObject]*unwind.Table
	walk    uint64 // the last one
}

// maxJITTables is how many tables a process has at most before they are made anew:
// most of those may be of objects that are no more.
const maxJITTables = 1024

// Name implements unwind.FrameStepper.
func (s *JIT) Name() string { return "jit" }

// Priority implements unwind.FrameStepper.
func (s *JIT) Priority() unwind.Priority { return unwind.PriorityDebug }

// CallerFrame implements unwind.FrameStepper. Code of files is NotMe, and so is code
// of which no object tells.
func (s *JIT) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image != nil || w.Arch().AddressWidth != 8 {
		return unwind.NotMe, nil
	}
	t := s.tables(w)
	o := t.objects.At(in.LookupPC())
	if o == nil || o.Frames.Arch() != w.Arch() {
		return unwind.NotMe, nil
	}
	return t.table(o).Rule(in.LookupPC()).CallerFrame(w, in, out)
}

// RuleAt implements unwind.RuleStepper.
func (s *JIT) RuleAt(_ *unwind.Walker, m *procstate.Mapping, _ uint64, _ bool) (*unwind.Rule, bool) {
	return unwind.RuleNotMe, m.Image != nil
}

// tables returns what is known of the process that w walks.
func (s *JIT) tables(w *unwind.Walker) *jitTables {
	t, _ := w.Kept(s).(*jitTables)
	if t == nil {
		t = &jitTables{objects: procstate.JITObjectsOf(w.ProcessState()), tables: map[*procstate.JITObject]*unwind.Table{}}
		w.Keep(s, t)
	}
	if t.walk != w.Walks() {
		t.walk = w.Walks()
		t.objects.Begin()
	}
	return t
}

// table returns the table of an object.
func (t *jitTables) table(o *procstate.JITObject) *unwind.Table {
	table := t.tables[o]
	if table == nil {
		if len(t.tables) >= maxJITTables {
			clear(t.tables)
		}
		table = unwind.NewTable(o.Frames)
		t.tables[o] = table
	}
	return table
}
