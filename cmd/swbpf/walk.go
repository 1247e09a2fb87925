package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	stackwalk "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/hotspot"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
	"golang.org/x/sys/unix"
)

// Exit codes of walk beyond those of all verbs.
const (
	exitNoProcess    = 3 // no such process or thread, or it has ended meanwhile
	exitZombie       = 4
	exitKernelThread = 5
	exitNotPermitted = 6
	exitTraced       = 7 // another tracer has the process
	exitIncomplete   = 8 // output was written, but a thread could not be stopped or walked at all
)

// maxWalkFrames are the frames that are shown of a stack at most.
const maxWalkFrames = 1_000_000

// walkOptions are the flags of walk.
type walkOptions struct {
	pids    []int
	cgroups []string
	tids    tidsValue
	json    bool
	symbols string
	core    string
	exe     string
	watch   durationValue
	noGroup bool
	goes    string // goroutines
	virtual string // virtual threads
	tasks   string // of asyncio, and greenlets
	args    bool
	locals  bool
	stop    durationValue // the limit; 0 when not given
	names   symbolFlags

	symbolizer *symbols.Symbolizer // for as long as the program runs
}

func newWalkCommand() *cobra.Command {
	o := &walkOptions{symbols: "yes", goes: "yes", virtual: "yes", tasks: "yes"}
	c := &cobra.Command{
		Use:   "walk PID... | -t TID | --cgroup NAME | --core FILE",
		Short: "Print the stacks of running processes or of a core file",
		Long: `Walk stops all threads of a process together, for as long as it takes to copy
their registers and live stacks, sets them going again, and then walks the
copies. The time the process stood still is printed, and its command line where
that tells more than the program's name; JSON has the whole of it.

Threads of the same state, stack and name, but for numbers in it, are shown
together. A frame that was not found by plain call frame information shows the
stepper that found it. Each stack is complete or says why it ends early: it has
a million frames at most, and beyond 32,768 each all stacks of a process have a
million together. Frames that come again and again, up to 16 in turns, are
shown once with their number, unless --no-group; JSON has them all. Methods of
Java, of .NET (8 and 10) and of Ruby (CRuby 2.7 to 3.4), functions of Python
(CPython 3.7 to 3.15), of PHP (7.4 to 8.5), of Lua (5.1 to 5.5, LuaJIT 2.1), of
R (4.0 to 4.6), of bash (5.1 to 5.3), of JavaScript (Node 18, 20 and 22 to 26,
Deno 2, Chromium 141 to 156, Bun 1.2.21 to 1.4, Firefox 153, gjs), of
WebAssembly (wazero 1.8 to 1.12, Node), of PL/pgSQL and SQL (PostgreSQL 13 to
18), of Erlang and of Scheme (Chez) and subroutines of Perl (5.30 to 5.42) stand
where they run, with their lines (of R, SQL, Scheme and WebAssembly none, of
.NET where there is a PDB, of Bun those of calls, of Chromium few):
"interpreted" where it is not their own code that does, or where that is not
known. On arm64 it is those of Java, Python, Ruby, PHP, Perl, Lua (not LuaJIT),
PostgreSQL and Node.

A thread that waits in a system call has that, and what it is about: a file, the
ends of a socket, who has the other end of a pipe (not with --watch), a process,
the thread that holds a lock (of glibc or musl, or one with priority
inheritance), or whose end is waited for. A thread of Java (from JDK 8)
has its whole name and, in brackets, what it does and waits for, and which
thread has that: of monitors, locks, futures and Thread.join. Of CPython (3.7 to
3.15) it is told which thread has the GIL, and which wait for it. Where the
program tells profilers which trace and span a thread works on (OpenTelemetry's
thread context), that is said as well, and of a server of PostgreSQL the text of
the statement that it executes. A deadlock comes first: threads each of which
waits for what the next one has, and none of which gives up by itself.

Goroutines of a Go program (1.20 to 1.27, stripped or not) that wait for
something or for a thread have none: they are shown after the threads, those of
the same stack, state and creator together, most first, with how long they wait
since a garbage collection first found them so. A goroutine on a thread is
named there. Those of the runtime itself are only counted, unless
--goroutines=all. Their stacks are copied whole with those of the threads, up
to 256 MB of them all, and the longest are cut where that is too little. In
JSON, "goroutines" has an object for each group: its "ids", those that created
them ("parents") and nanoseconds that they wait ("waiting_ns"), in the same
order; "state", "locked", "system", "created_by", and the frames of the first.

Virtual threads of Java (JDK 21 and 25) that are on no thread come next, those
that run the same lines, are in the same state and wait for the same together,
most first. One on a thread is named there. The process stands for some 6 us
longer for each, and for a second at most. In JSON, "virtual_threads" has an
object for each group: its "ids", "names", "state", "blocker", "owner",
"owner_tid", and the frames of the first.

Tasks of asyncio in Python (CPython 3.7 to 3.15) come then, those that run the
same lines, are in the same state and wait for the same together, most first:
their coroutines, down to the future that they wait for, which tasks, where that
is one, or a gather, wait or TaskGroup of some, or which connection, of its
streams. One that a thread runs is named there. Greenlets that are on no thread
(greenlet 2.0 and later), those of gevent and eventlet too, are among them by
their class, with their functions of Python; "main" is what their thread has
begun with. The process stands for some 8 us longer for each, and for a second
at most. In JSON, "tasks" has an object for each group: its "kind", which is
"task" or "greenlet", "ids", "names", "state", "blocker", "waits_for",
"sockets", and the frames of the first.

With --args or --locals the process stands still a second time, until the
values are read, so that they belong to the stacks; what that needs of the
debug information is read before, or between two stops. After --stop-limit the
process goes on, and what was not read by then says so; to stop it and to set
it going takes time beyond that, as does what is being read just then. With
--tid the other threads go on, and may change what they share with the one that
stands.

Exit status: 0; 1 when something went wrong on the way, 2 for wrong usage, 3
when there is no such process, 4 for a zombie, 5 for a thread of the kernel, 6
when the process may not be traced, 7 when another program has traced it for a
second, 8 when a thread could not be stopped, being in an uninterruptible wait,
or not walked.`,
		Example: `  swbpf walk 4711                      all threads of a process
  swbpf walk -t 4715                   one thread; only that one is stopped
  swbpf walk 4711 --symbols functions  in a quarter of the time, without lines
  swbpf walk 4711 --json               for programs
  swbpf walk --cgroup nginx            all processes of a service or container
  swbpf walk 4711 --watch 1s           what is it stuck in?
  swbpf walk 4711 --goroutines=no      only threads, of a Go program
  swbpf walk 4711 --locals             with parameters and local variables
  swbpf walk --core core.4711          a core file`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if err := o.check(args); errors.Is(err, procstate.ErrNoThread) {
				return walkError(err)
			} else if err != nil {
				return withCode(exitCannot, err)
			}
			return o.run(os.Stdout)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.VarP((*pidsValue)(&o.pids), "pid", "p", "walk these processes, as without the flag")
	f.StringArrayVar(&o.cgroups, "cgroup", nil, "walk the processes that are in the cgroup of this `name`: a path, a unit of systemd, a container's ID; may be repeated")
	f.VarP(&o.tids, "tid", "t", "walk these threads only; the process need not be named")
	f.BoolVar(&o.json, "json", false, "write one JSON object per process")
	f.StringVar(&o.symbols, "symbols", "yes", "`what` to look up: yes, functions (no lines, no inlined calls) or no, which is faster")
	f.StringVar(&o.core, "core", "", "walk the threads of a core `file`, which zstd or gzip may have compressed")
	f.StringVar(&o.exe, "exe", "", "the program `file` of the core, when it is not where it was")
	f.Var(&o.watch, "watch", "repeat at this interval until Ctrl-C, each distinct stack in one line")
	f.BoolVar(&o.noGroup, "no-group", false, "show each thread and goroutine by itself, and each frame of a recursion")
	f.StringVar(&o.goes, "goroutines", "yes", "`which` goroutines of a Go program to show: yes, all (those of the runtime too) or no")
	f.StringVar(&o.virtual, "virtual-threads", "yes", "whether to show virtual threads of Java that are on no thread: yes or no")
	f.StringVar(&o.tasks, "tasks", "yes", "whether to show tasks of Python's asyncio, and greenlets: yes or no")
	f.BoolVar(&o.args, "args", false, "show the parameters of each function")
	f.BoolVar(&o.locals, "locals", false, "show parameters and local variables; the process stands until they are read")
	f.Var(&o.stop, "stop-limit", "how long the process may stand for --args and --locals (default 1s), without the time to stop it and to set it going; looked at between reads: what is not read by then says so")
	o.names.add(f)
	return c
}

// check completes the options.
func (o *walkOptions) check(args []string) error {
	for _, a := range args {
		pid, err := strconv.Atoi(a)
		if err != nil || pid <= 0 {
			err := fmt.Errorf("%q is not a process ID", a)
			if _, statErr := os.Stat(a); statErr == nil {
				err = fmt.Errorf("%w; a core file is given as --core %s", err, shellQuote(a))
			}
			return err
		}
		if !slices.Contains(o.pids, pid) {
			o.pids = append(o.pids, pid)
		}
	}
	switch {
	case o.symbols != "yes" && o.symbols != "functions" && o.symbols != "no":
		return fmt.Errorf("--symbols is yes, functions or no, not %q", o.symbols)
	case o.goes != "yes" && o.goes != "all" && o.goes != "no":
		return fmt.Errorf("--goroutines is yes, all or no, not %q", o.goes)
	case o.virtual != "yes" && o.virtual != "no":
		return fmt.Errorf("--virtual-threads is yes or no, not %q", o.virtual)
	case o.tasks != "yes" && o.tasks != "no":
		return fmt.Errorf("--tasks is yes or no, not %q", o.tasks)
	case o.core != "" && len(o.pids) > 0:
		return errors.New("a process ID or --core, not both")
	case len(o.cgroups) > 0 && (o.core != "" || len(o.pids) > 0):
		return errors.New("--cgroup excludes process IDs and --core")
	case o.core == "" && len(o.pids) == 0 && len(o.cgroups) == 0 && len(o.tids) == 0:
		return errors.New("which process? Give its ID, or --core FILE\nSee 'swbpf walk --help'")
	case o.core == "" && o.exe != "":
		return errors.New("--exe goes with --core")
	case o.core != "" && o.watch > 0:
		return errors.New("a core file does not change: --watch goes with a process ID")
	case (o.args || o.locals) && o.watch > 0:
		return errors.New("--args and --locals do not go with --watch")
	case (o.args || o.locals) && o.symbols != "yes":
		return fmt.Errorf("--args and --locals do not go with --symbols=%s", o.symbols)
	case !o.args && !o.locals && o.stop != 0:
		return errors.New("--stop-limit goes with --args or --locals")
	case o.core != "" && o.stop != 0:
		return errors.New("a core file does not stand still: --stop-limit goes with a process ID")
	case len(o.tids) > 0 && o.goes == "all":
		return errors.New("--tid leaves out goroutines: it excludes --goroutines=all")
	case len(o.tids) > 0 && (len(o.pids) > 1 || len(o.cgroups) > 0):
		return errors.New("--tid goes with one process ID")
	}
	if err := o.findProcesses(); err != nil {
		return err
	}
	names, err := o.names.options()
	if err != nil {
		return err
	}
	names.NoDebugInfo = o.symbols == "functions"
	o.symbolizer = symbols.New(names)
	stackwalk.SetSymbolReader(func(p procstate.ProcessState) unwind.SymbolLookup { return o.symbolizer.Process(p) })
	return nil
}

// findProcesses looks for the processes of --cgroup.
func (o *walkOptions) findProcesses() (err error) {
	if len(o.tids) > 0 && len(o.pids) == 0 && o.core == "" {
		var tids []int
		for _, tid := range o.tids {
			tids = append(tids, int(tid))
		}
		if o.pids, err = loader.ProcessesOf(tids); err == nil && len(o.pids) > 1 {
			err = errors.New("--tid: the threads are of several processes")
		}
		return err
	}
	if len(o.cgroups) == 0 {
		return nil
	}
	cgroups, err := loader.OpenCgroups()
	if err != nil {
		return err
	}
	defer cgroups.Close()
	ids, err := cgroupsOf(cgroups, o.cgroups)
	if err != nil {
		return err
	}
	if o.pids = cgroups.PIDs(ids); len(o.pids) == 0 {
		return fmt.Errorf("cgroup %s: there is no process in it", strings.Join(o.cgroups, ", "))
	}
	return nil
}

// hasLeft reports whether an error says that a process that was found by its cgroup has
// ended since.
func (o *walkOptions) hasLeft(err *exitError) bool {
	return len(o.cgroups) > 0 && (err.code == exitNoProcess || err.code == exitZombie)
}

func (o *walkOptions) run(w io.Writer) (err error) {
	collectLater()
	if o.core == "" {
		raiseNice()
	}
	defer func() {
		if note := missingNames(o.symbolizer); note != "" {
			fmt.Fprintln(os.Stderr, "note:", printable(note))
		}
	}()
	if o.watch > 0 {
		return o.runWatch(w, time.Duration(o.watch))
	}
	out := bufio.NewWriter(w)
	defer func() {
		if failed := out.Flush(); err == nil {
			err = failed
		}
	}()
	if o.core != "" {
		pw, err := walkCore(o)
		if err != nil {
			return walkError(err)
		}
		defer pw.close()
		if err := o.write(out, pw); err != nil {
			return err
		}
		return pw.failure()
	}
	var first error
	written := false
	for _, pid := range o.pids {
		pw, err := walkLive(o, pid)
		if err != nil {
			failed := walkError(err)
			if o.hasLeft(failed) {
				continue
			}
			err = failed
		} else {
			if written && !o.json {
				fmt.Fprintln(out)
			}
			written = true
			if err := o.write(out, pw); err != nil {
				return err
			}
			err = pw.failure()
		}
		switch {
		case err == nil:
		case first == nil:
			first = err
		default: // the last error is printed by main, the others here
			fmt.Fprintf(os.Stderr, "swbpf: %s\n", printableLines(err.Error()))
		}
	}
	return first
}

func (o *walkOptions) write(out io.Writer, pw *processWalk) error {
	pw.locals, pw.whole = o.locals, o.noGroup
	if o.json {
		return writeWalkJSON(out, pw)
	}
	return writeWalkText(out, pw, !o.noGroup)
}

// walkError gives an error the exit code of its cause.
func walkError(err error) *exitError {
	for _, c := range []struct {
		cause error
		code  int
	}{
		{procstate.ErrNoProcess, exitNoProcess}, {procstate.ErrTerminated, exitNoProcess},
		{procstate.ErrNoThread, exitNoProcess}, {procstate.ErrZombie, exitZombie},
		{procstate.ErrKernelThread, exitKernelThread}, {procstate.ErrNotPermitted, exitNotPermitted},
		{unix.EACCES, exitNotPermitted}, {procstate.ErrTraced, exitTraced},
		{procstate.ErrNotSupported, exitCannot}, {procstate.ErrNotCore, exitCannot},
	} {
		if errors.Is(err, c.cause) {
			return &exitError{c.code, err}
		}
	}
	return &exitError{exitFailure, err}
}

// userProbes tells what uretprobes have replaced on the stacks of a process.
// It asks the kernel, if the process has met a uprobe at all: then it has a
// page for the trampoline.
type userProbes struct{ reader *loader.ProbeReader } // nil: nothing to ask

// openProbes looks for uretprobes in a process, and says where it may not.
func openProbes(pid int, space *procstate.AddressSpace) userProbes {
	p := userProbes{}
	if !slices.ContainsFunc(space.Mappings(), func(m *procstate.Mapping) bool { return m.Path == procstate.UprobesMapping }) {
		return p
	}
	var err error
	if p.reader, err = loader.OpenProbeReader(pid); err != nil {
		fmt.Fprintf(os.Stderr, "stacks end at functions with a uretprobe: %v\n", err)
	}
	return p
}

// read is a function for WalkOptions.
func (p *userProbes) read() map[procstate.ThreadID]procstate.UserProbes {
	if p.reader == nil {
		return nil
	}
	found, _ := p.reader.Read() // else stacks end there, which shows
	return found
}

func (p *userProbes) close() {
	if p.reader != nil {
		p.reader.Close()
	}
}

// walkLive walks a running process.
func walkLive(o *walkOptions, pid int) (*processWalk, error) {
	if o.args || o.locals {
		return walkLiveVariables(o, pid)
	}
	return walkLiveOnce(o, pid)
}

// walkLiveOnce walks a copy of a running process.
func walkLiveOnce(o *walkOptions, pid int) (*processWalk, error) {
	begin := time.Now()
	space := procstate.SpaceOfProcess(pid)
	probes := openProbes(pid, space)
	defer probes.close()
	opts := stackwalk.WalkOptions{Space: space, Threads: o.tids, Probes: probes.read, Goroutines: o.wantsGoroutines(), VirtualThreads: o.wantsVirtual(),
		PythonTasks: o.wantsTasks(), MaxFrames: maxWalkFrames}
	waits := readWaits(pid)
	before := descriptorsBefore(pid, space)
	ps, err := stackwalk.WalkProcess(pid, opts)
	if err != nil {
		return nil, err
	}
	pw := &processWalk{pid: pid, stopped: ps.Stopped, live: true}
	pw.tasks.before = before
	pw.take(context.Background(), ps, o)
	pw.nameFrames(o.symbols != "no")
	pw.takeWaits(waits, o.watch > 0)
	pw.took = time.Since(begin)
	return pw, nil
}

// take takes over the stacks and tasks of a process, and walks its goroutines and virtual threads
// until ctx is done.
func (p *processWalk) take(ctx context.Context, ps *stackwalk.ProcessStacks, o *walkOptions) {
	p.exe, p.command, p.arch, p.context = ps.Executable, procstate.CommandLine(ps.PID), ps.Arch, ps.Context
	for i := range ps.Stacks {
		s := &ps.Stacks[i]
		t := threadWalk{
			tid: s.TID, name: s.Name, state: s.State.String(), blocked: s.Blocked,
			stackWalk: stackWalk{walker: s.Walker, stack: s.Frames, err: s.Err},
		}
		t.takeJava(s.Java)
		t.work = s.Work
		p.threads = append(p.threads, t)
	}
	p.takePython(ps.PythonLocks)
	p.frames = stackwalk.FrameBudget(maxWalkFrames, ps.Stacks)
	p.takeGoroutines(ctx, ps.GoroutineWalker, &ps.Goroutines, ps.GoroutinesErr, o)
	p.takeVirtual(ctx, ps.VirtualWalker, &ps.VirtualThreads, o)
	p.takeTasks(&ps.PythonTasks, o)
}

// walkCore walks the threads of a core file.
func walkCore(o *walkOptions) (*processWalk, error) {
	begin := time.Now()
	w, err := stackwalk.ForCore(o.core, o.exe)
	if err != nil {
		return nil, err
	}
	core := w.ProcessState().(*procstate.Core)
	if core.Lacks > 0 {
		fmt.Fprintf(os.Stderr, "%s is cut short: it lacks its last %s, and stacks that were there end early\n", o.core, amount(int64(core.Lacks), "bytes"))
	}
	if n := len(core.Damaged); n > 0 {
		fmt.Fprintf(os.Stderr, "%s is damaged: %s (from 0: %s) cannot be right, and what they tell of is left out\n", o.core, plural(n, "program header"), ranges(slices.Clone(core.Damaged)))
	}
	pw := &processWalk{pid: core.PID(), exe: core.ExecutablePath(), arch: core.Arch(), closer: core, frames: stackwalk.FrameBudget(maxWalkFrames, nil)}
	if core.CommandLine != "" {
		pw.command = []string{core.CommandLine}
	}
	tids, err := w.Threads()
	if err != nil {
		core.Close()
		return nil, err
	}
	works := stackwalk.WorksOf(core)
	pw.context = works.Process()
	var java *hotspot.Moment
	if heap := hotspot.NewHeap(0, core, core.Libraries()); heap != nil {
		java = heap.At(core)
	}
	for i, tid := range tids {
		if len(o.tids) > 0 && !slices.Contains(o.tids, tid) {
			continue
		}
		t := threadWalk{tid: tid, name: core.Name, state: "dumped", stackWalk: stackWalk{walker: w}}
		if i == 0 && core.Signal != 0 {
			t.state = unix.SignalName(unix.Signal(core.Signal))
		}
		w.MaxFrames = pw.frames.Limit()
		t.stack, t.err = w.WalkStack(nil, tid)
		pw.frames.Keep(len(t.stack))
		if java != nil {
			t.takeJava(java.Thread(tid))
		}
		var regs procstate.Regs
		if core.Registers(tid, &regs) == nil {
			t.work = works.Of(core, tid, &regs)
		}
		pw.threads = append(pw.threads, t)
	}
	if len(pw.threads) == 0 {
		core.Close()
		return nil, fmt.Errorf("%s: thread %s: %w", o.core, &o.tids, procstate.ErrNoThread)
	}
	if o.wantsGoroutines() {
		gs, err := procstate.ReadGoroutines(core)
		pw.takeGoroutines(context.Background(), w, gs, err, o)
	}
	pw.takePython(stackwalk.PythonLocks(core))
	if o.wantsTasks() {
		pw.takeTasks(stackwalk.PythonTasks(core), o)
	}
	if java != nil && o.wantsVirtual() {
		pw.takeVirtual(context.Background(), w, java.VirtualThreads(nil), o)
	}
	pw.findDeadlocks(nil)
	pw.nameFrames(o.symbols != "no")
	if o.args || o.locals {
		pw.readVariables(context.Background())
	}
	pw.took = time.Since(begin)
	return pw, nil
}
