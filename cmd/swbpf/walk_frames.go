package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	stackwalk "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/hotspot"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// processWalk is what walk has found of one process or core.
type processWalk struct {
	pid     int
	exe     string
	command []string // its arguments; of a core all in one
	arch    *procstate.Arch
	live    bool
	stopped time.Duration
	took    time.Duration // all in all, names included
	threads []threadWalk
	closer  io.Closer

	goroutines goroutineWalks
	virtual    virtualWalks
	tasks      taskWalks
	context    procstate.ProcessContext // what it tells profilers of itself
	deadlocks  []deadlock
	python     []stackwalk.PythonLock

	variables bool // were read
	locals    bool // shall be written, beside parameters
	whole     bool // recursion shall be written frame by frame

	frames unwind.FrameBudget // what is left for further stacks
}

// stackWalk is one stack.
type stackWalk struct {
	walker *unwind.Walker
	stack  []unwind.Frame
	err    error
	frames []walkFrame
}

// threadWalk is the stack of one thread.
type threadWalk struct {
	stackWalk
	tid       procstate.ThreadID
	name      string
	state     string
	blocked   bool
	wait      *wait                   // the system call that it waits in; nil where that is not known
	goroutine *procstate.Goroutine    // that is on it; nil where that is not known
	virtual   *hotspot.VirtualThread  // the same
	java      *hotspot.Thread         // what Java knows of it; nil where it is not Java's
	hasGIL    bool                    // it has the lock of an interpreter of CPython
	tasks     []*stackwalk.PythonTask // of asyncio that are on it, innermost first
	work      *procstate.ThreadWork   // what it works on, as its program tells; nil where it does not
}

// walkFrame is a logical frame: a frame of the stack, or a call that was
// inlined into it, which comes before it.
type walkFrame struct {
	frame     *unwind.Frame
	function  string // "" when there is no name
	offset    uint64 // PC minus the start of the function
	module    string // path; "" for code of no file
	moduleOff uint64 // link-time address of PC in the module
	buildID   string
	file      string
	line      int
	inlined   bool
	bytecode  bool // it has no machine code that is told of, and so no offset
	compiled  bool // it has some
	stepper   string

	described bool // the debug information has the function
	late      bool // its variables were not read in time
	variables []walkVariable
}

// stacks returns all stacks.
func (p *processWalk) stacks() []*stackWalk {
	all := make([]*stackWalk, 0, len(p.threads)+len(p.goroutines.stacks))
	for i := range p.threads {
		all = append(all, &p.threads[i].stackWalk)
	}
	for _, g := range p.virtual.groups {
		all = append(all, &g.stackWalk)
	}
	return append(all, p.goroutines.stacks...)
}

// complete reports whether the walk reached the first frame of the stack.
func (t *stackWalk) complete() bool { return t.err == nil && len(t.stack) > 0 }

// reason says in a word why the walk ended early.
func (t *stackWalk) reason() string {
	switch {
	case t.complete():
		return ""
	case len(t.stack) == 0 && t.err != nil:
		return t.err.Error()
	}
	return unwind.ReasonOf(t.err).String()
}

// failure is an error when a thread has no stack, or could not be stopped.
func (p *processWalk) failure() error {
	for i := range p.threads {
		t := &p.threads[i]
		if t.state == procstate.StateZombie.String() {
			continue // it has ended before the others: nothing is missing
		}
		switch {
		case len(t.stack) == 0:
			return withCode(exitIncomplete, fmt.Errorf("process %d: thread %d: %w", p.pid, t.tid, t.err))
		case t.blocked:
			return withCode(exitIncomplete, fmt.Errorf("process %d: thread %d waits in the kernel uninterruptibly and could not be stopped; its stack was read as it waits", p.pid, t.tid))
		}
	}
	return nil
}

func (p *processWalk) close() {
	if p.closer != nil {
		p.closer.Close()
	}
}

// lineNamer is a SymbolLookup that knows inlined calls and source lines.
type lineNamer interface {
	Lines(dst []symbols.Line, addr uint64) []symbols.Line
}

// namer makes the logical frames of one Walker's frames. A program's threads
// share most of their frames: each address is looked up once.
type namer struct {
	w     *unwind.Walker
	lines lineNamer
	names *symbols.Symbolizer // nil where lines are from elsewhere
	known map[uint64]*nameAt
}

// nameAt is all that depends on the address alone.
type nameAt struct {
	named   bool // lines have been looked up
	lines   []symbols.Line
	image   *procstate.Image // nil for code of no file
	module  string
	bias    uint64
	buildID string
}

// nameFrames makes the logical frames of all stacks.
func (p *processWalk) nameFrames(names bool) {
	namers := make(map[*unwind.Walker]*namer)
	namerOf := func(w *unwind.Walker) *namer {
		n := namers[w]
		if n == nil {
			n = &namer{w: w, known: make(map[uint64]*nameAt)}
			if names {
				n.lines, _ = w.SymbolLookup().(lineNamer)
				if l, ok := n.lines.(*symbols.Lookup); ok {
					n.names = l.Symbolizer()
				}
			}
			namers[w] = n
		}
		return n
	}
	stacks := p.stacks()
	for _, t := range stacks {
		if t.walker == nil {
			continue
		}
		n := namerOf(t.walker)
		for j := range t.stack {
			n.place(t.stack[j].LookupPC())
		}
	}
	nameFiles(namers)
	for _, g := range p.goroutines.groups {
		if g.first.CreatedPC != 0 {
			g.created = namerOf(g.walker).at(g.first.CreatedPC - 1)
		}
	}
	for _, t := range stacks {
		if t.walker == nil {
			continue
		}
		n := namerOf(t.walker)
		t.frames = make([]walkFrame, 0, len(t.stack))
		for j := range t.stack {
			t.frames = n.name(t.frames, &t.stack[j])
		}
	}
}

// name appends the logical frames of a frame, innermost call first.
func (n *namer) name(dst []walkFrame, f *unwind.Frame) []walkFrame {
	at := n.at(f.LookupPC())
	wf := walkFrame{frame: f, module: at.module, buildID: at.buildID}
	if at.module != "" {
		wf.moduleOff = f.PC() - at.bias
	}
	if s := n.w.Stepper(f); s != nil {
		wf.stepper = s.Name()
	}
	if f.Code != 0 && n.lines != nil {
		return n.nameCodes(dst, wf)
	}
	if len(at.lines) == 0 {
		return append(dst, wf)
	}
	for i := range at.lines {
		l := &at.lines[i]
		wf.function, wf.file, wf.line, wf.inlined = l.Function, l.File, l.Line, l.Inlined
		wf.offset = f.PC() - l.FunctionStart
		dst = append(dst, wf)
	}
	return dst
}

// nameCodes is name for a frame of which a runtime tells what it runs.
func (n *namer) nameCodes(dst []walkFrame, wf walkFrame) []walkFrame {
	codes, mode := n.w.Codes(), symbols.DemangleSimple
	if n.names != nil {
		mode = n.names.Demangling()
	}
	for code := wf.frame.Code; code != 0; code = codes.Outer(code) {
		start, lines := codes.Start(code), codes.Lines(code)
		wf.bytecode, wf.offset = start == 0, 0
		if !wf.bytecode {
			wf.offset = wf.frame.PC() - start
		}
		for i, l := range lines {
			wf.function, wf.file, wf.line, wf.compiled = codeName(l.CodeFunction, mode), l.File, l.Line, l.IsCompiled
			wf.inlined = i < len(lines)-1 || codes.Outer(code) != 0
			dst = append(dst, wf)
		}
	}
	return dst
}

// maxNamingAtOnce is how many files are read at the same time for the names in them.
const maxNamingAtOnce = 4

// nameFiles looks up the addresses that are in files: those of each file in order, as then
// little more is read for all of them than for the last, and several files at the same time.
func nameFiles(namers map[*unwind.Walker]*namer) {
	type file struct {
		names *symbols.Symbolizer
		image *procstate.Image
	}
	type place struct {
		at    *nameAt
		vaddr uint64
	}
	files := make(map[file][]place)
	for _, n := range namers {
		if n.names == nil {
			continue
		}
		for addr, a := range n.known {
			if a.image != nil {
				f := file{n.names, a.image}
				files[f] = append(files[f], place{a, addr - a.bias})
			}
		}
	}
	var naming sync.WaitGroup
	room := make(chan struct{}, maxNamingAtOnce)
	for f, places := range files {
		room <- struct{}{}
		naming.Go(func() {
			defer func() { <-room }()
			slices.SortFunc(places, func(x, y place) int { return cmp.Compare(x.vaddr, y.vaddr) })
			vaddrs := make([]uint64, len(places))
			for i, p := range places {
				vaddrs[i] = p.vaddr
			}
			f.names.Expect(f.image, slices.Compact(vaddrs))
			for _, p := range places {
				p.at.lines, p.at.named = f.names.Lines(nil, f.image, p.vaddr), true
				for i := range p.at.lines {
					p.at.lines[i].FunctionStart += p.at.bias
				}
			}
		})
	}
	naming.Wait()
}

// place finds what an address is in.
func (n *namer) place(addr uint64) *nameAt {
	if a := n.known[addr]; a != nil {
		return a
	}
	a := &nameAt{}
	if m := n.w.ProcessState().Libraries().MappingAt(addr); m != nil {
		a.module, a.bias, a.image = m.Path, m.Bias, m.Image
		if m.Image != nil {
			a.buildID = m.Image.BuildID()
		} else {
			a.bias = m.Start - m.Offset
		}
	}
	n.known[addr] = a
	return a
}

// at looks up an address.
func (n *namer) at(addr uint64) *nameAt {
	a := n.place(addr)
	if !a.named && n.lines != nil {
		a.lines = n.lines.Lines(nil, addr)
	}
	a.named = true
	return a
}
