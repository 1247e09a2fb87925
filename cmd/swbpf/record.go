package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/swbpf/swbpf/internal/endsignals"
	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/symbols"
)

// recordOptions are the flags of record, checked.
type recordOptions struct {
	all      bool
	pids     pidsValue
	children bool // and what descends from pids
	tids     threadsValue
	user     userValue
	cgroups  []string
	command  []string  // recorded, unless there is one of the above: then it says for how long
	cpus     cpusValue // empty: all
	eventsOptions
	offCPU      bool
	wall        bool
	minOffCPU   durationValue
	wakers      bool
	heap        bool
	labels      labelsValue
	sampleCPU   bool
	delay       delayValue
	duration    durationValue // of sampling
	every       durationValue // 0: one profile of all
	keepParts   countValue    // of the profiles of --every; 0: all
	outputs     []string
	format      string     // of all outputs; "" for those of their extensions
	stackBytes  bytesValue // 0 when not given
	noKernel    bool
	times       bool // an output has the times of samples
	stats       string
	statsDetail bool
	symbols     symbolFlags
	names       symbols.Options // what the flags of symbols come to
}

const (
	defaultEvent     = "cycles"
	defaultFrequency = 99
	defaultOutput    = "swbpf.pb.gz"
	minStackBytes    = 1 << 10
	maxStackBytes    = loader.MaxStackBytes
)

func newRecordCommand() *cobra.Command {
	o := &recordOptions{}
	c := &cobra.Command{
		Use:   "record [-a | -p PID[,PID...] | -t TID[,TID...] | -u USER | --cgroup NAME] [-- CMD ARGS...]",
		Short: "Profile the machine, some processes or a command",
		Long: `Record samples stacks in the kernel, unwinds them while it records, and writes
a profile. Without -p, -t, -u, --cgroup or a command it records the whole
machine until Ctrl-C, which always leaves a complete file; a second Ctrl-C, half
a second later or more, leaves none.

CMD is recorded from its first instruction on, with all that descends from it.
With -a, -p, -t, -u or --cgroup it only says how long these are recorded, as
with perf, and is in the profile where it is among them. A recording of -p or -t
also ends when all of these have ended; with --children when all that descends
from them has, too: a server that replaces itself by a child goes on. What a
process had started whose parent has ended since is not known as that.

--off-cpu records where threads leave the CPU: each time is a sample with the
stack at that moment, and weighs as long as it took. Stacks end in the reason:
[sleep] (a timer, a pipe, a socket), [lock] (a futex), [disk], [uninterruptible]
(otherwise in the kernel: a vfork child, a lock of its own), [stopped], or
[runnable], waiting for a CPU, which is a part of its own after the others. Of
too many a part is sampled, and stands for the others. --wall has the time on
the CPU too, so that all times of a thread add up to the time that passed.
Threads that wait since before the recording, or still do at its end, count for
as long as it lasted. With --wakers a stack goes on after its state: with
[woken by NAME] and what that thread did to end the wait, as giving back a lock
or writing to a pipe; or with [woken by an interrupt], of a timer, a disk or a
network. Of a thread that is not recorded that is its kernel part. What a
network's interrupt is put off to is the thread's that it then runs in.

--heap records where memory is allocated (malloc and its like, of the C library,
jemalloc, tcmalloc and others; operator new of C++), what of it is still held at
the end, or was by a process that has ended at its end, and what was held when
that was most, or a fiftieth less. One byte in 524,288 is sampled, or in as many
as -c says; with -c 1 it is every block. Each call of an allocator costs the
program some microseconds: what does little else is ten times slower. An
allocator that is part of a program, as Chromium's, is known of CMD and of what
runs at the beginning; of a program started later, from some milliseconds after
its first start on (Linux 6.6; with -p 6.11). What programs take from the kernel
themselves is not seen, as the heaps of Go and Java and, unless
PYTHONMALLOC=malloc is in its environment, Python's small objects.

Several -e, or one with commas as perf has them, are recorded together. -F, -c,
--weight and --filter are for the -e before them, and -F and -c before the first
for all; with one -e their order does not matter. A file of pprof or perf has
all events, and so has what a server is sent; of other formats there is a file
for each event, x.html and x.page-faults.html.

--every writes a profile each time so long, and begins anew: memory does not
grow with time. The files are named after the time at which a part began, in
UTC: cpu-20260203T040506Z.pb.gz for -o cpu.pb.gz. One that cannot be written is
told of; the recording goes on, and the exit status is 1. What a server does not
take at once is sent again, and waits in memory meanwhile, up to 16 MB for each
server. --keep also removes files of earlier recordings. Time off the CPU counts
in the part in which it ends.

--cgroup takes a path as in /sys/fs/cgroup, a unit of systemd, where .service
may be left out, or the ID of a container: it is what runs in it and below, at
any time of the recording.

Samples carry labels, by which pprof and 'swbpf view' can filter: pid, tid,
comm; state, with --off-cpu and --wall; cgroup, container and unit (of systemd),
where there are; cpu, with --sample-cpu; those that a goroutine has given itself
(pprof.Do, from Go 1.24 on), 16 at most; trace_id, span_id and attributes of
what a thread works on, and service.name and the like of its process, where the
program tells profilers (OpenTelemetry's thread context and process context);
and those of --label.

` + formatHelp + `
With -o - what CMD prints goes to standard error.

Exit status: that of CMD where there is one; else 0, 1 when something
went wrong on the way, 2 for wrong usage or where the kernel or the privileges
do not allow recording.`,
		Example: `  swbpf record -d 10 -o profile.pb.gz -o profile.html    the whole machine for 10 s
  swbpf record -p 4711 -F 997 -d 5 -o hot.html            one process, ~1,000 Hz
  swbpf record -p 4711 --children -d 10                   a server and its workers
  swbpf record -p 4711 -- ./request.sh                    one process, while a command runs
  swbpf record -t 4715,4716 -d 5                          two threads
  swbpf record -u www-data -d 10                          all of a user
  swbpf record -C 0-3,8 -d 5                              what runs on some CPUs
  swbpf record --cgroup nginx -d 10                       a service, or a container by its ID
  swbpf record -- make -j8                                a command and its children
  swbpf record --delay 5s -d 10 -- ./server               ... without its start-up
  swbpf record --every 1m --keep 60 -o /var/tmp/cpu.pb.gz always on: the last hour, by minutes
  swbpf record --every 10s -o http://collector:4318       ... sent to a server
  swbpf record -e page-faults -p 4711 -d 10               who touches new memory
  swbpf record -e cache-misses:u -p 4711 -d 10            who misses the caches, outside the kernel
  swbpf record -e cpu-clock -F 499 -e page-faults -- CMD  two events at a time
  swbpf record --off-cpu -p 4711 -d 10 -o off.html        where a process waits, and how long
  swbpf record --off-cpu --wakers -d 10 -o off.html       ... and who ends that
  swbpf record --wall --label build=42 -- ./request.sh    where a request's time goes
  swbpf record --heap -p 4711 -d 60 -o heap.html          who allocates memory and keeps it
  swbpf record -e sched:sched_switch -c 100 -d 2          every 100th switch on a CPU
  swbpf record -e uprobe:libc:malloc -p 4711 -d 10        who calls a function
  swbpf record -e kprobe:tcp_retransmit_skb -d 60         ... of the kernel
  swbpf record -e uprobe:libc:malloc --weight arg1:bytes -- CMD
                                                          and for how many bytes
  swbpf record -e usdt:libstdc++:throw -p 4711 -d 10      who throws exceptions: a static probe (USDT)
  swbpf record -e syscalls:sys_exit_read --weight ret:bytes -d 10
                                                          who reads how much`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			o.command = args
			if err := o.check(c.ArgsLenAtDash()); err != nil {
				return withCode(exitCannot, err)
			}
			return record(o)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.all, "all", "a", false, "record every process (the default without -p, -t, -u, --cgroup and CMD)")
	f.VarP(&o.pids, "pid", "p", "record these processes, threads born later included; children are not, unless --children (perf: those born later are)")
	f.BoolVar(&o.children, "children", false, "with -p: also their children and what these fork, those that run and those born later")
	f.VarP(&o.tids, "tid", "t", "record these threads, and no others of their processes")
	f.VarP(&o.user, "uid", "u", "record what runs with the effective rights of this user")
	f.StringArrayVar(&o.cgroups, "cgroup", nil, "record what runs in the cgroup of this `name`: a path, a unit of systemd, a container's ID; may be repeated")
	f.VarP(&o.cpus, "cpu", "C", "record on these CPUs only; not with --off-cpu and --wall, as what waits is on none")
	f.VarP(eventFlag{&o.eventsOptions, func(e *eventOptions) pflag.Value { return &e.frequency }}, "freq", "F", fmt.Sprintf("samples a second on each CPU (default %d for CPU events; others: every event)", defaultFrequency))
	f.VarP(eventFlag{&o.eventsOptions, func(e *eventOptions) pflag.Value { return &e.period }}, "count", "c", "in place of -F: a sample each this many events, or after as much of their --weight")
	f.VarP(eventValue{&o.eventsOptions}, "event", "e", "`event` by perf's name, with its modifiers u, k, p and P; or uprobe:FILE:FUNCTION, uretprobe:FILE:FUNCTION, usdt:FILE:PROVIDER:NAME, kprobe:FUNCTION, kretprobe:FUNCTION; may be repeated (default "+defaultEvent+", for which cpu-clock stands in without hardware counters)")
	f.Var(eventFlag{&o.eventsOptions, func(e *eventOptions) pflag.Value { return (*textValue)(&e.weight) }}, "weight", "count events of -e by a `field` of the tracepoint, an argument (arg1 to arg6) of the uprobe or kprobe, what the uretprobe or kretprobe returns (ret), an argument (arg1, arg2 and so on) of the usdt probe; with :bytes, :nanoseconds or another unit where the name does not tell")
	f.Var(eventFlag{&o.eventsOptions, func(e *eventOptions) pflag.Value { return (*textValue)(&e.filter) }}, "filter", "only events of -e of which this `condition` holds, of what --weight can name, or of text where an argument of a system call, a function or a usdt probe points to: 'ret == -ENOENT', 'arg1 >= 4096 && arg2 & 1', \"filename == '/etc/hosts' || flags & 64\"")
	f.BoolVar(&o.offCPU, "off-cpu", false, "record where threads leave the CPU, why, and for how long, in place of an event")
	f.BoolVar(&o.wall, "wall", false, "record time on and off the CPU together: a thread's adds up to the time that passes")
	f.Var(&o.minOffCPU, "min-off-cpu", "leave out times off the CPU that are shorter (default 1µs); --wall adds them to the thread's next one")
	f.BoolVar(&o.wakers, "wakers", false, "with --off-cpu or --wall: on top of what a thread waits in, also the stack of what woke it up")
	f.BoolVar(&o.heap, "heap", false, "record where memory is allocated, and what of it is still held at the end, in place of an event; -c is in bytes (default 524288)")
	f.Var(&o.labels, "label", "give all samples a label; may be repeated")
	f.BoolVar(&o.sampleCPU, "sample-cpu", false, "label samples with the CPU that they were taken on")
	f.VarP(&o.delay, "delay", "D", "sample only from this time after the start on: 1.5s, 500ms (perf: a number of ms)")
	f.VarP(&o.duration, "duration", "d", "stop after this time, from --delay on: 10, 1.5s, 2m (default until Ctrl-C, or the end of CMD or of all -p or -t)")
	f.Var(&o.every, "every", "write a profile each time this long, and begin anew: the time is put into the names of the files")
	f.Var(&o.keepParts, "keep", "with --every: keep only the last n files of each -o, and remove older ones")
	f.StringArrayVarP(&o.outputs, "output", "o", nil, "write the profile to this `file`; may be repeated (default "+defaultOutput+")")
	f.StringVar(&o.format, "format", "", "write in this `format`, whatever the extension: pprof, html, svg, folded, speedscope, firefox, perf")
	f.Var(&o.stackBytes, "stack-bytes", "copy at most this much of a user stack, up to 1M (default 64K, and 256K where that has all of it)")
	f.BoolVar(&o.noKernel, "no-kernel", false, "leave out kernel frames")
	f.StringVar(&o.stats, "stats", "", "write figures of the recording to this JSON `file`")
	f.BoolVar(&o.statsDetail, "stats-detail", false, "with --stats: also times off the CPU by state, how much of the stacks was live, and the CPU time of recording and naming")
	o.symbols.add(f)
	return c
}

// notes says what the options have left out, which is not seen in a profile.
func (o *recordOptions) notes() []string {
	var notes []string
	for _, e := range o.allEvents() {
		if e.filter == "" {
			continue
		}
		which := ""
		if len(o.also) > 0 {
			which = e.event + ": "
		}
		notes = append(notes, which+"only events of which "+strings.TrimSpace(e.filter))
	}
	return notes
}

// check completes the options; dash is the index of "--" among the arguments.
func (o *recordOptions) check(dash int) error {
	if len(o.command) > 0 && dash != 0 {
		return fmt.Errorf("unexpected argument %q; a command to record comes after --", o.command[0])
	}
	if len(o.command) == 0 && dash == 0 {
		return errors.New("there is no command after --")
	}
	if o.targets() > 1 {
		return errors.New("-a, -p, -t, -u and --cgroup exclude each other")
	}
	if o.children && len(o.pids) == 0 {
		return errors.New("--children goes with -p")
	}
	if err := o.settle(); err != nil {
		return err
	}
	switch {
	case o.offCPU && o.wall:
		return errors.New("--wall includes --off-cpu")
	case (o.offCPU || o.wall) && len(o.cpus) > 0:
		return errors.New("-C excludes --off-cpu and --wall: a thread that waits is on no CPU")
	case o.offCPU && (o.event != "" || o.frequency != 0 || o.period != 0):
		return errors.New("--off-cpu excludes -e, -F and -c")
	case o.wall && (o.event != "" || o.period != 0):
		return errors.New("--wall excludes -e and -c")
	case o.heap && (o.event != "" || o.frequency != 0 || o.offCPU || o.wall):
		return errors.New("--heap excludes -e, -F, --off-cpu and --wall")
	case o.frequency != 0 && o.period != 0:
		return errFrequencyAndPeriod
	case o.heap:
		o.event = loader.Heap.Name
	case o.offCPU:
		o.event = loader.OffCPU.Name
	case o.wall:
		o.event = loader.Wall.Name
	case o.event == "":
		o.event = defaultEvent
	}
	if o.event == loader.Heap.Name {
		if err := o.checkHeap(); err != nil {
			return err
		}
	}
	if o.statsDetail && o.stats == "" {
		return errors.New("--stats-detail goes with --stats")
	}
	if o.minOffCPU != 0 && o.event != loader.OffCPU.Name && o.event != loader.Wall.Name {
		return errors.New("--min-off-cpu goes with --off-cpu or --wall")
	}
	if o.wakers && o.event != loader.OffCPU.Name && o.event != loader.Wall.Name {
		return errors.New("--wakers goes with --off-cpu or --wall")
	}
	if o.wakers && o.noKernel {
		return errors.New("--wakers excludes --no-kernel: the kernel's stack tells threads from interrupts")
	}
	if o.stackBytes != 0 && (o.stackBytes < minStackBytes || o.stackBytes > maxStackBytes) {
		return fmt.Errorf("--stack-bytes %d is not between %d and %d", o.stackBytes, minStackBytes, maxStackBytes)
	}
	var err error
	if o.names, err = o.symbols.options(); err != nil {
		return err
	}
	if len(o.outputs) == 0 {
		o.outputs = []string{defaultOutput}
	}
	if o.stats == stdoutPath {
		return errors.New("--stats is written to a file, not to standard output")
	}
	if o.stats != "" && slices.Contains(o.outputs, o.stats) {
		return fmt.Errorf("output %s is given twice", o.stats)
	}
	return o.checkEvery()
}

// targets is how many flags say what is recorded; 0: it is the command, or else all.
func (o *recordOptions) targets() (given int) {
	for _, b := range []bool{o.all, len(o.pids) > 0, len(o.tids) > 0, o.user.id != nil, len(o.cgroups) > 0} {
		if b {
			given++
		}
	}
	return given
}

// recordsCommand reports whether it is the command that is recorded.
func (o *recordOptions) recordsCommand() bool { return len(o.command) > 0 && o.targets() == 0 }

// target says in a few words what is recorded.
func (o *recordOptions) target() string {
	if len(o.cpus) == 0 {
		return o.tasks()
	}
	on := "CPUs " + o.cpus.String()
	if len(o.cpus) == 1 {
		on = on[:3] + on[4:]
	}
	if tasks := o.tasks(); tasks != wholeMachine {
		on = tasks + " on " + on
	}
	return on
}

const wholeMachine = "whole machine"

// tasks is target without CPUs.
func (o *recordOptions) tasks() string {
	of := ""
	if o.children {
		of = " and children"
	}
	switch {
	case o.recordsCommand():
		return o.command[0]
	case len(o.pids) == 1:
		return fmt.Sprintf("pid %d%s", o.pids[0], of)
	case len(o.pids) > 1:
		return "pids " + o.pids.String() + of
	case len(o.tids) == 1:
		return fmt.Sprintf("thread %d", o.tids[0])
	case len(o.tids) > 1:
		return "threads " + o.tids.String()
	case o.user.id != nil:
		return "user " + o.user.name
	case len(o.cgroups) > 0:
		return "cgroup " + strings.Join(o.cgroups, ", ")
	}
	return wholeMachine
}

// record runs a recording from beginning to end.
func record(o *recordOptions) error {
	signals := endsignals.Channel()
	var outs []*output
	var ps *parts
	var err error
	paths, events := byEvent(o.outputs, o.format, o.eventNames())
	if o.every > 0 {
		ps = &parts{every: time.Duration(o.every), keep: int(o.keepParts), paths: paths, events: events, format: o.format, own: map[string][]string{}, queues: map[string]*sendQueue{}}
		o.times, err = ps.check()
	} else {
		if outs, err = openOutputs(paths, o.format); err == nil {
			tellEvents(outs, paths, events, func(path string) string { return path })
			err = checkServers(outs, false)
		}
		o.times = anyTimed(outs)
	}
	if err != nil {
		return withCode(exitCannot, err)
	}
	defer discardOutputs(outs)
	var figures *outFile
	if o.stats != "" {
		if figures, err = newOutFile(o.stats); err == nil {
			err = checkOther(figures, o.stats, outs)
		}
		if err != nil {
			return withCode(exitCannot, err)
		}
		defer figures.discard()
	}
	if slices.ContainsFunc(outs, (*output).toStdout) {
		os.Stdout = os.Stderr // for the command, which inherits it
	}

	r, err := startRecorder(o, signals, true)
	if err != nil {
		return withCode(exitCannot, err)
	}
	defer r.close()
	var saved atomic.Bool
	opened := outs
	for _, out := range outs {
		if out.file != nil {
			out.file.awaits = &r.idle
		}
	}
	if figures != nil {
		figures.awaits = &r.idle
	}
	r.abort = func() {
		discardOutputs(opened)
		if !saved.Load() {
			fmt.Fprintln(os.Stderr, "swbpf: a signal ended it at once: what was recorded is not written")
		}
	}
	if ps != nil {
		r.parts, ps.due = ps, r.began.Add(ps.every)
	}
	if err := r.run(); err != nil {
		return err
	}
	p, err := r.finish()
	if err != nil {
		return err
	}
	var failed error
	if ps != nil {
		outs, failed = ps.finish(p)
	} else {
		outs, failed = saveOutputs(outs, p)
	}
	saved.Store(true)
	if o.stats != "" {
		r.stats.addOwnUsage()
		failed = errors.Join(failed, writeError(o.stats, r.stats.write(figures, o.statsDetail)))
	}
	printSummary(os.Stderr, r, p, outs)
	if failed != nil {
		return failed
	}
	status, err := r.commandStatus(os.Stderr)
	if err != nil {
		return err
	}
	if status != 0 {
		return withCode(status, nil)
	}
	return nil
}
