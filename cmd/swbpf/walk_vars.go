package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	stackwalk "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
	"github.com/swbpf/swbpf/variables"
)

// walkVariable is a parameter or local variable of a logical frame.
type walkVariable struct {
	name      string
	typ       string
	parameter bool
	line      int
	value     string // as gdb writes it
	short     string // in one word, for the line of the frame
	address   uint64 // 0: not in memory
	err       error  // why there is no value
}

// variableReader reads the variables of the frames of one Walker.
type variableReader struct {
	r      *variables.Reader
	format variables.Format
}

func newVariableReader(w *unwind.Walker) *variableReader {
	v := &variableReader{r: stackwalk.Variables(w)}
	v.format.Code = symbolText(w.SymbolLookup().SymbolAt)
	if l, ok := w.SymbolLookup().(*symbols.Lookup); ok {
		v.format.Data = symbolText(l.ObjectAt)
	}
	return v
}

// symbolText makes what writes "name+offset" of a look-up.
func symbolText(at func(addr uint64) (procstate.Symbol, bool)) func(addr uint64) string {
	return func(addr uint64) string {
		sym, ok := at(addr)
		switch {
		case !ok:
			return ""
		case sym.Offset == 0:
			return sym.Name
		}
		return fmt.Sprintf("%s+%d", sym.Name, sym.Offset)
	}
}

// readVariables reads the variables of all frames, which have their names,
// until ctx is done.
func (p *processWalk) readVariables(ctx context.Context) {
	readers := make(map[*unwind.Walker]*variableReader)
	for _, t := range p.stacks() {
		if t.walker == nil {
			continue
		}
		r := readers[t.walker]
		if r == nil {
			r = newVariableReader(t.walker)
			readers[t.walker] = r
		}
		if r.r != nil {
			r.r.Until(ctx)
			r.stack(t)
		}
	}
	p.variables = true
}

// stack reads the variables of a stack. What a runtime tells of a frame has none:
// those that the debug information has there are of the interpreter.
func (r *variableReader) stack(t *stackWalk) {
	frames := t.frames
	for i := range t.stack {
		n := 0
		for n < len(frames) && frames[n].frame == &t.stack[i] {
			n++
		}
		if t.stack[i].Code != 0 {
			frames = frames[n:]
			continue
		}
		fns, err := r.r.Functions(&t.stack[i])
		if err == nil {
			r.match(t.stack, i, frames[:n], fns)
		}
		for j := range frames[:n] {
			frames[j].late = errors.Is(err, variables.ErrLate)
		}
		frames = frames[n:]
	}
}

// match gives the logical frames of one frame their variables. The names of a
// Go program come from another table, which can have fewer inlined calls.
func (r *variableReader) match(walk []unwind.Frame, i int, frames []walkFrame, fns []*symbols.Function) {
	equal := len(frames) == len(fns)
	for j, k := len(frames)-1, len(fns)-1; j >= 0 && k >= 0; k-- {
		if f := &frames[j]; equal || f.function == fns[k].Name || k == len(fns)-1 {
			f.variables = r.read(walk, i, fns[k].Variables)
			f.described = true
			j--
		}
	}
}

// read reads variables of frame i of a walk.
func (r *variableReader) read(walk []unwind.Frame, i int, vars []*symbols.Variable) []walkVariable {
	out := make([]walkVariable, 0, len(vars))
	for _, v := range vars {
		wv := walkVariable{name: v.Name, typ: v.Type().String(), parameter: v.Parameter, line: v.Line}
		value, err := r.r.Value(walk, i, v)
		if moved, ok := strings.CutPrefix(v.Name, "&"); ok && err == nil { // by Go, to the heap
			if target, err := value.Target(); err == nil {
				if at, _ := target.Address(); at != 0 {
					value, wv.name, wv.typ = target, moved, target.Type.String()
				}
			}
		}
		if err != nil {
			wv.err, wv.value = err, variables.Unknown(err)
			wv.short = wv.value
		} else {
			wv.address, _ = value.Address()
			wv.value = value.Format(r.format)
			standard := value.Standard()
			switch wv.short = wv.value; {
			case !standard && value.Aggregate():
				wv.short = "..."
			case standard || strings.HasPrefix(wv.value, "{"): // an interface, with what it holds
				brief := r.format
				brief.Depth = -1
				if wv.short = value.Format(brief); wv.short == "{...}" {
					wv.short = "..."
				}
			}
		}
		out = append(out, wv)
	}
	return out
}

// arguments writes the parameters in one line: "(input=0x7f00, depth=3)".
func (f *walkFrame) arguments() string {
	var b strings.Builder
	b.WriteByte('(')
	for i := range f.variables {
		v := &f.variables[i]
		if !v.parameter {
			continue
		}
		if b.Len() > 1 {
			b.WriteString(", ")
		}
		b.WriteString(v.name + "=" + v.short)
	}
	return b.String() + ")"
}

// locals writes the variables that are no parameters, one a line, after the
// parameters that the line of the frame has not got whole.
func (f *walkFrame) locals() string {
	var b strings.Builder
	for i := range f.variables {
		if v := &f.variables[i]; v.parameter && v.short != v.value {
			fmt.Fprintf(&b, "        %s = %s\n", v.name, v.value)
		}
	}
	for i := range f.variables {
		if v := &f.variables[i]; !v.parameter {
			fmt.Fprintf(&b, "        %s = %s\n", v.name, v.value)
		}
	}
	return b.String()
}

// jsonVariable is a variable of a frame in the JSON form.
type jsonVariable struct {
	Name      string `json:"name"`
	Type      string `json:"type"`
	Parameter bool   `json:"parameter"`
	Line      int    `json:"line"`
	Status    string `json:"status"`
	Value     string `json:"value"`
	Address   string `json:"address,omitempty"`
}

func jsonVariablesOf(f *walkFrame) []jsonVariable {
	out := make([]jsonVariable, 0, len(f.variables))
	for i := range f.variables {
		v := &f.variables[i]
		j := jsonVariable{Name: v.name, Type: v.typ, Parameter: v.parameter, Line: v.line, Status: v.status(), Value: v.value}
		if v.address != 0 {
			j.Address = hex(v.address)
		}
		out = append(out, j)
	}
	return out
}

// status says in a word whether there is a value, or why not.
func (v *walkVariable) status() string {
	switch {
	case v.err == nil:
		return "ok"
	case errors.Is(v.err, variables.ErrLate):
		return "not read in time"
	case errors.Is(v.err, variables.ErrNotSaved):
		return "not saved"
	case errors.Is(v.err, symbols.ErrOptimizedOut):
		return "optimized out"
	case errors.Is(v.err, procstate.ErrUnreadable):
		return "not readable"
	case errors.Is(v.err, symbols.ErrUnsupported):
		return "not supported"
	}
	return "bad debug information"
}

// warmLimit bounds the time for reading debug information before the process
// stands still.
const warmLimit = 10 * time.Second

// defaultStopLimit is how long a process may stand for its variables.
const defaultStopLimit = time.Second

// variableStops is how often a process is stopped at most for its variables:
// again when types turn out to be described somewhere else, for which all
// debug information of a program has to be read.
const variableStops = 3

// walkLiveVariables walks a running process and reads its variables while it
// stands still, for all stops together no longer than the limit. So that this
// does not take long, the debug information that it needs is read before, for
// the stacks of a moment ago.
func walkLiveVariables(o *walkOptions, pid int) (*processWalk, error) {
	begin := time.Now()
	before, err := walkLiveOnce(o, pid)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), warmLimit)
	before.readVariables(ctx)
	cancel()
	probes := openProbes(pid, procstate.SpaceOfProcess(pid))
	defer probes.close()
	left := cmp.Or(time.Duration(o.stop), defaultStopLimit)
	stopped := before.stopped
	for try := 1; ; try++ {
		pw, took, err := walkStoppedVariables(o, pid, &probes, left)
		if err != nil {
			return nil, err
		}
		stopped, left = stopped+took, left-took
		if again := o.symbolizer.ReadTypes(); !again || try == variableStops || left <= 0 {
			pw.stopped, pw.took = stopped, time.Since(begin)
			pw.keepWaits(before)
			return pw, nil
		}
	}
}

// walkStoppedVariables stops a process once, for as long as the limit allows,
// and reads its stacks and their variables.
func walkStoppedVariables(o *walkOptions, pid int, probes *userProbes, limit time.Duration) (*processWalk, time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	o.symbolizer.DeferTypes()
	pw := &processWalk{pid: pid, live: true}
	pw.tasks.before = descriptorsBefore(pid, procstate.SpaceOfProcess(pid))
	opts := stackwalk.WalkOptions{Threads: o.tids, Probes: probes.read, StopLimit: limit, Goroutines: o.wantsGoroutines(), VirtualThreads: o.wantsVirtual(),
		PythonTasks: o.wantsTasks(), MaxFrames: maxWalkFrames}
	ps, err := stackwalk.WalkStopped(pid, opts, func(ps *stackwalk.ProcessStacks) {
		end, _ := ctx.Deadline()
		walking, enough := context.WithTimeout(ctx, time.Until(end)/2) // the rest is for values
		pw.take(walking, ps, o)
		enough()
		pw.nameFrames(true)
		pw.readVariables(ctx)
	})
	if err != nil {
		return nil, 0, err
	}
	return pw, ps.Stopped, nil
}
