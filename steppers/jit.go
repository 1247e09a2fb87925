package steppers

import (
	"errors"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/javacode"
	"github.com/swbpf/swbpf/unwind"
)

// JIT walks through code that was made at run time, by the call frame information
// in the object files that the process has registered with debuggers, or that it has
// registered with libgcc (see [procstate.JITObjects]). It is read from the process
// while it runs, also for a Snapshot of it. What is known of a process is kept with its
// Walker.
type JIT struct {
	buf [maxGlue]byte
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
	interrupted := in.Flags&unwind.Interrupted != 0
	if o == nil && interrupted {
		return s.between(w, m, t, in, out)
	}
	if o == nil || o.Frames.Arch() != w.Arch() {
		return unwind.NotMe, nil
	}
	r := t.table(o).Rule(in.LookupPC())
	if o.Generated && interrupted && s.hasPushed(w, m, o, in) {
		if raised, ok := r.Raised(int64(w.Arch().AddressWidth), r); ok {
			r = raised
		}
	}
	v, err := r.CallerFrame(w, in, out)
	if v == unwind.Failed && errors.Is(err, unwind.BadUnwindInfo) {
		*out = unwind.Frame{}
		return unwind.NotMe, nil // LuaJIT registers its code, and tells nothing of its frames
	}
	if v == unwind.Success && out.Flags&unwind.Interrupted == 0 && !javacode.MayReturnTo(w, out.PC(), s.buf[:]) {
		*out = unwind.Frame{}
		return unwind.NotMe, nil // it was of other code at the same place, before or after the sample
	}
	return v, err
}

// between is CallerFrame for code of which no object tells, which may be on the
// way into generated code or out of it.
func (s *JIT) between(w *unwind.Walker, m *procstate.Mapping, t *jitTables, in, out *unwind.Frame) (unwind.Verdict, error) {
	start, ok := t.objects.Above(in.PC(), maxGlue)
	if !ok || !m.Contains(start) {
		return unwind.NotMe, nil
	}
	o := t.objects.At(start)
	if o == nil || !o.Generated || o.Frames.Arch() != w.Arch() {
		return unwind.NotMe, nil
	}
	row, _, _, err := t.table(o).Row(start)
	if err != nil || !s.glue(w, m, &row, in, out) {
		*out = unwind.Frame{}
		return unwind.NotMe, nil
	}
	return unwind.Success, nil
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
