package swbpf

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/steppers/hotspot"
	"github.com/swbpf/swbpf/steppers/python"
	"github.com/swbpf/swbpf/unwind"
)

// ThreadStack is the stack of one thread of a process that was walked whole.
type ThreadStack struct {
	procstate.Thread
	Frames []unwind.Frame // the innermost first

	// Err is nil when the stack is complete. A Reason says why Frames ends
	// early; anything else why there are none.
	Err error

	// Blocked: the thread waits in the kernel uninterruptibly and could not
	// be stopped. Only its PC and SP were known.
	Blocked bool

	// Java is what Java knows of the thread, where it is in Java; else nil.
	Java *hotspot.Thread

	// Work is what the thread works on, where its program tells profilers that, or it executes a statement of SQL
	// in a server of PostgreSQL; else nil.
	Work *procstate.ThreadWork

	// Walker has what belongs to Frames: names, libraries, steppers. It is nil
	// where the thread could not be captured.
	Walker *unwind.Walker
}

// ProcessStacks are the stacks of a process at one moment.
type ProcessStacks struct {
	PID        int
	Executable string
	Arch       *procstate.Arch
	Stacks     []ThreadStack // the initial thread first

	// Goroutines are those of a program in Go; see WalkOptions. Walks of them
	// are made by WalkGoroutine and GoroutineWalker. GoroutinesErr tells why they
	// are not known; it wraps procstate.ErrNoPclntab when the program is not in Go.
	Goroutines      procstate.Goroutines
	GoroutinesErr   error
	GoroutineWalker *unwind.Walker

	// VirtualThreads are those of Java; see WalkOptions. Walks of them are made by
	// WalkVirtualThread and VirtualWalker, which is nil where none are known.
	VirtualThreads hotspot.VirtualThreads
	VirtualWalker  *unwind.Walker

	// PythonLocks are those of the interpreters of CPython, and PythonTasks its tasks; see WalkOptions.
	PythonLocks []PythonLock
	PythonTasks PythonTaskList

	// Context is what the process tells profilers of itself.
	Context procstate.ProcessContext

	// Stopped is for how long the process, or part of it, stood still.
	Stopped time.Duration
}

// WalkOptions say what WalkProcess does. The zero value is useful.
type WalkOptions struct {
	// Threads are those to walk; empty means all.
	Threads []procstate.ThreadID

	// StackBytes limits what is copied of each stack at a time. Of a stack that is
	// longer the rest is copied by further stops, a few at most. 0 stands for
	// procstate.DefaultStackBytes, and for more at further stops and of goroutines:
	// 256 MiB of all stacks together.
	StackBytes int

	// MaxFrames is the number of frames after which the walk of a stack stops with
	// unwind.TooManyFrames; 0 stands for unwind.DefaultMaxFrames. A frame takes some
	// 400 bytes: what stacks have beyond that default is bounded by a million frames,
	// all stacks together.
	MaxFrames int

	// Goroutines asks for those of a program in Go, all of which are copied while
	// it stands. With Threads there are none.
	Goroutines bool

	// VirtualThreads asks for those of Java (21 and later),
	// whose stacks in the heap are copied while it stands. With Threads there are none.
	VirtualThreads bool

	// PythonTasks asks for the tasks of asyncio, and greenlets, which are read while the process stands. With Threads
	// there are none.
	PythonTasks bool

	// Group makes the steppers; nil stands for DefaultGroup.
	Group func() unwind.StepperGroup

	// Probes tells what uretprobes have replaced on the stacks of the threads,
	// which only the kernel knows; see procstate.CaptureOptions. When it is nil,
	// a stack under a uretprobe ends there.
	Probes func() map[procstate.ThreadID]procstate.UserProbes

	// Space is what the process has mapped, if procstate.SpaceOfProcess was just asked
	// for that; nil has WalkProcess and WalkStopped ask.
	Space *procstate.AddressSpace

	// StopLimit is how long WalkStopped holds a process that it has walked; 0
	// is as long as it takes.
	StopLimit time.Duration
}

// maxDeepFrames bounds what stacks have beyond unwind.DefaultMaxFrames each, for the
// memory that frames take.
const maxDeepFrames = 1_000_000

// FrameBudget is what WalkProcess and WalkStopped leave, with these MaxFrames, to further
// walks whose frames are kept as well, as those of goroutines, after the stacks given.
func FrameBudget(maxFrames int, stacks []ThreadStack) unwind.FrameBudget {
	b := unwind.FrameBudget{Each: maxFrames, Deep: maxDeepFrames}
	for i := range stacks {
		b.Keep(len(stacks[i].Frames))
	}
	return b
}

// maxSecondLooks bounds how often threads are captured again because the
// first capture did not hold all that their walk needs.
const maxSecondLooks = 6

// WalkProcess walks all threads of a process. They are stopped together, for
// as long as it takes to copy their registers and live stacks, and go on
// while the copies are walked. A thread whose walk finds that something more
// is needed, the stack that a signal interrupted say, is captured anew, all
// of it, for itself. The errors are those of procstate.CaptureProcess; that a
// stack is not complete is said by its ThreadStack.
func WalkProcess(pid int, opts WalkOptions) (*ProcessStacks, error) {
	group := opts.Group
	if group == nil {
		group = DefaultGroup
	}
	if opts.Space == nil {
		opts.Space = procstate.SpaceOfProcess(pid)
	}
	copts := procstate.CaptureOptions{Threads: opts.Threads, StackBytes: opts.StackBytes, Space: opts.Space,
		Probes: opts.Probes, Goroutines: opts.Goroutines}
	java := hotspot.NewHeap(pid, procstate.ProcessMemory(pid), opts.Space)
	javaThreads := make(map[procstate.ThreadID]*hotspot.Thread)
	var locks []python.Lock
	workOf := worksOfProcess(pid, opts.Space)
	works := make(map[procstate.ThreadID]*procstate.ThreadWork)
	// Of each capture: what a Collector has taken of all threads at once it does not take again.
	collect := func() procstate.Collector {
		c := collector(pid, opts.Space, java, javaThreads, &locks)
		if !workOf.tell() {
			return c
		}
		return procstate.JoinCollectors(c, func(m procstate.Memory, tid procstate.ThreadID, regs *procstate.Regs, _ func(addr uint64, n int)) {
			works[tid] = workOf.Of(m, tid, regs)
		})
	}
	var virtual *hotspot.VirtualThreads
	var tasks *python.TaskList
	var taskReader *python.Tasks
	if opts.PythonTasks && len(opts.Threads) == 0 {
		if taskReader = python.NewTasks(opts.Space); taskReader != nil {
			taskReader.Rehearse(procstate.ProcessMemory(pid))
		}
	}
	wantsVirtual := opts.VirtualThreads && java != nil
	if wantsVirtual || taskReader != nil {
		copts.CollectShared = func(m procstate.Memory, add func(addr uint64, n int)) {
			if wantsVirtual {
				virtual = java.At(m).VirtualThreads(add)
			}
			if taskReader != nil {
				tasks = taskReader.Read(m)
			}
		}
	}
	var c *procstate.Capture
	capture := func() (err error) {
		copts.Collect = collect()
		c, err = procstate.CaptureProcess(pid, copts)
		return err
	}
	if err := afterTracer(capture); err != nil {
		return nil, err
	}
	ps := &ProcessStacks{PID: pid, Executable: c.ExecutablePath(), Arch: c.Arch(), Context: workOf.Process()}
	stacks := make(map[procstate.ThreadID]*ThreadStack)
	ps.Stacks = make([]ThreadStack, len(c.CapturedThreads()))
	for i, t := range c.CapturedThreads() {
		ps.Stacks[i] = ThreadStack{Thread: t.Thread, Err: t.Err, Blocked: t.Blocked}
		stacks[t.TID] = &ps.Stacks[i]
	}
	ps.PythonLocks = pythonLocks(c, locks)
	if tasks != nil {
		ps.PythonTasks = *pythonTasks(c, tasks)
	}
	copts.Also = make(map[procstate.ThreadID][]uint64)
	copts.Goroutines, copts.CollectShared = false, nil
	copts.Space = nil // the process has gone on
	budget := FrameBudget(opts.MaxFrames, nil)
	shared := group()
	if opts.Goroutines && len(opts.Threads) == 0 {
		ps.readGoroutines(With(c, shared, nil), opts.MaxFrames)
	}
	if virtual != nil {
		ps.takeVirtual(With(c, shared, nil), virtual, opts.MaxFrames)
	}
	for look := 0; ; look++ {
		ps.Stopped += c.Stopped
		w := With(c, shared, nil)
		copts.Threads = copts.Threads[:0:0]
		cut := false
		for i := range c.CapturedThreads() {
			t := &c.CapturedThreads()[i]
			s := stacks[t.TID]
			if s == nil || t.Err != nil {
				continue
			}
			budget.Drop(len(s.Frames))
			w.MaxFrames = budget.Limit()
			frames, err := w.WalkStack(nil, t.TID)
			if look == 0 || len(frames) > 0 {
				s.Frames, s.Err, s.Walker, s.Blocked, s.Java, s.Work = frames, err, w, t.Blocked, javaThreads[t.TID], works[t.TID]
			}
			budget.Keep(len(s.Frames))
			if at, ok := c.Missed(); ok && err != nil {
				cut = cut || isCut(at, s.Frames, copts.Also[t.TID])
				copts.Also[t.TID] = append(copts.Also[t.TID], at)
				copts.Threads = append(copts.Threads, t.TID)
			}
		}
		if len(copts.Threads) == 0 || look == maxSecondLooks {
			return ps, nil
		}
		if cut && opts.StackBytes == 0 {
			copts.StackBytes = min(16*cmp.Or(copts.StackBytes, procstate.DefaultStackBytes), maxStackBytes)
		}
		if afterTracer(capture) != nil {
			return ps, nil // what there is stays true
		}
	}
}

// maxStackBytes bounds what is copied of a stack that is longer than the default: what
// CaptureOptions have for all stacks together.
const maxStackBytes = 256 << 20

// isCut reports whether what a walk has missed is the rest of a stack of which a copy has
// the beginning, and not another one.
func isCut(at uint64, frames []unwind.Frame, also []uint64) bool {
	const least = 32 << 10 // that is copied of a stack
	goesOn := func(from uint64) bool { return at > from && at-from >= least && at-from < 2*maxStackBytes }
	if len(frames) == 0 || at-frames[len(frames)-1].SP() > least {
		return false
	}
	return goesOn(frames[0].SP()) || slices.ContainsFunc(also, goesOn)
}

// collector picks what walks of a process need beside its stacks, and reads what Java knows of the threads, and the
// locks of CPython when it runs first.
func collector(pid int, space *procstate.AddressSpace, java *hotspot.Heap, threads map[procstate.ThreadID]*hotspot.Thread,
	locks *[]python.Lock) procstate.Collector {
	var collectors []procstate.Collector
	if java != nil {
		var read procstate.Memory
		var moment *hotspot.Moment
		collectors = append(collectors, func(m procstate.Memory, tid procstate.ThreadID, _ *procstate.Regs, add func(addr uint64, n int)) {
			if read != m {
				read, moment = m, java.At(m)
			}
			moment.Collect(tid, add)
			threads[tid] = moment.Thread(tid)
		})
	}
	if of := python.NewLocks(space); of != nil {
		done := false
		collectors = append(collectors, func(m procstate.Memory, _ procstate.ThreadID, _ *procstate.Regs, _ func(addr uint64, n int)) {
			if !done {
				*locks, done = of.Read(m), true
			}
		})
	}
	return procstate.JoinCollectors(append(collectors, steppers.Collector(pid, space))...)
}

// tracerLimit is how long a walk waits for another tracer to let the process go.
const tracerLimit = time.Second

// afterTracer calls trace, and again while another tracer is in its way: two
// that meet each have a part of the threads, and give them back.
func afterTracer(trace func() error) error {
	begin := time.Now()
	for nap := time.Millisecond; ; nap = min(2*nap, tracerLimit/20) {
		err := trace()
		if !errors.Is(err, procstate.ErrTraced) || time.Since(begin) > tracerLimit {
			return err
		}
		time.Sleep(nap/2 + rand.N(nap))
	}
}

// readGoroutines reads the goroutines of a Walker's process.
func (p *ProcessStacks) readGoroutines(w *unwind.Walker, maxFrames int) {
	w.MaxFrames = maxFrames
	gs, err := procstate.ReadGoroutines(w.ProcessState())
	if p.GoroutinesErr = err; err == nil {
		p.Goroutines, p.GoroutineWalker = *gs, w
	}
}

// takeVirtual takes over the virtual threads of a Walker's process.
func (p *ProcessStacks) takeVirtual(w *unwind.Walker, threads *hotspot.VirtualThreads, maxFrames int) {
	w.MaxFrames = maxFrames
	p.VirtualThreads, p.VirtualWalker = *threads, w
}

// String describes the process: "process 4711 (/usr/bin/x, amd64)".
func (p *ProcessStacks) String() string {
	return fmt.Sprintf("process %d (%s, %s)", p.PID, p.Executable, p.Arch.Name)
}
