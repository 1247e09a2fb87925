package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/endsignals"
)

// topOptions are the flags of top.
type topOptions struct {
	record recordOptions // those that it shares with record
	window durationValue
}

const (
	defaultTopWindow = 10 * time.Second
	minTopWindow     = time.Second
	maxTopWindow     = 10 * time.Minute

	topRefresh = time.Second
)

func newTopCommand() *cobra.Command {
	o := &topOptions{window: durationValue(defaultTopWindow)}
	c := &cobra.Command{
		Use:   "top [-p PID[,PID...] | -t TID[,TID...] | -u USER | --cgroup NAME]",
		Short: "Show live which functions, processes and threads are hottest",
		Long: `Top samples as record does and shows what was hottest in the last seconds: by
function (in itself, and with what it called), by process and by thread. Enter
shows the stacks of the selected line; ? shows all keys.

Kernel functions, Go and generated code have colours of their own, unless the
environment has NO_COLOR.

Exit status: 0 when it was left by q, Ctrl-C or a signal; 1 when something went
wrong on the way, 2 for wrong usage, without a terminal, or where the kernel or
the privileges do not allow sampling.`,
		Example: `  swbpf top                     the whole machine
  swbpf top -p 4711             one process
  swbpf top -p 4711 --children  and all that it has started
  swbpf top -t 4715             one thread
  swbpf top -u www-data         one user
  swbpf top -C 0-3              what runs on some CPUs
  swbpf top --cgroup nginx      a service, or a container by its ID
  swbpf top -e page-faults      who touches new memory
  swbpf top --off-cpu -p 4711   what one process waits for
  swbpf top --off-cpu --wakers  ... and who ends that
  swbpf top --wall              on and off the CPU together
  swbpf top --window 60s        the last minute`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			if w := time.Duration(o.window); w < minTopWindow || w > maxTopWindow {
				return withCode(exitCannot, fmt.Errorf("--window %v is not between %v and %v", w, minTopWindow, maxTopWindow))
			}
			if err := o.record.check(-1); err != nil {
				return withCode(exitCannot, err)
			}
			if len(o.record.also) > 0 {
				return withCode(exitCannot, errors.New("top shows one event; record takes several"))
			}
			return runTop(o)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.VarP(&o.record.pids, "pid", "p", "sample these processes only, threads born later included")
	f.BoolVar(&o.record.children, "children", false, "with -p: also their children and what these fork, those that run and those born later")
	f.VarP(&o.record.tids, "tid", "t", "sample these threads only, and no others of their processes")
	f.VarP(&o.record.user, "uid", "u", "sample only what runs with the effective rights of this user")
	f.StringArrayVar(&o.record.cgroups, "cgroup", nil, "sample what runs in the cgroup of this `name` only: a path, a unit of systemd, a container's ID; may be repeated")
	f.VarP(&o.record.cpus, "cpu", "C", "sample on these CPUs only; not with --off-cpu and --wall, as what waits is on none")
	f.VarP(eventFlag{&o.record.eventsOptions, func(e *eventOptions) pflag.Value { return &e.frequency }}, "freq", "F", fmt.Sprintf("samples a second on each CPU (default %d for CPU events; others: every event)", defaultFrequency))
	f.VarP(eventValue{&o.record.eventsOptions}, "event", "e", "`event` by perf's name (default "+defaultEvent+", for which cpu-clock stands in without hardware counters)")
	f.VarP(eventFlag{&o.record.eventsOptions, func(e *eventOptions) pflag.Value { return &e.period }}, "count", "c", "in place of -F: a sample each this many events, or after as much of their --weight")
	f.Var(eventFlag{&o.record.eventsOptions, func(e *eventOptions) pflag.Value { return (*textValue)(&e.weight) }}, "weight", "count events by a `field` of the tracepoint or an argument of the probe, as record does")
	f.Var(eventFlag{&o.record.eventsOptions, func(e *eventOptions) pflag.Value { return (*textValue)(&e.filter) }}, "filter", "only events of which this `condition` holds, as record does")
	f.BoolVar(&o.record.offCPU, "off-cpu", false, "show where threads wait, by time")
	f.BoolVar(&o.record.wall, "wall", false, "show time on and off the CPU together")
	f.BoolVar(&o.record.wakers, "wakers", false, "with --off-cpu or --wall: on top of what a thread waits in, also the stack of what woke it up")
	f.Var(&o.record.minOffCPU, "min-off-cpu", "leave out times off the CPU that are shorter (default 1µs)")
	f.Var(&o.window, "window", "the time that the figures are of, 1s to 10m")
	f.BoolVar(&o.record.noKernel, "no-kernel", false, "leave out kernel frames")
	o.record.symbols.add(f)
	return c
}

// top is a running live view. The screen and the keys belong to one goroutine,
// sampling to another one, and names to a third.
type top struct {
	term   *terminal
	rec    *recorder
	window *topWindow
	namer  *topNamer
	view   *topView

	stop   chan struct{}
	failed chan error // a goroutine's end, with what went wrong
	done   chan struct{}
}

func runTop(o *topOptions) (err error) {
	term, err := openTerminal(os.Stdin, os.Stdout)
	if err != nil {
		return withCode(exitCannot, err)
	}
	// Whatever happens here; other goroutines report to failed. It is the last
	// thing done, so that what is typed next is for the shell.
	defer term.restore()
	rec, err := startRecorder(&o.record, endsignals.Channel(), false)
	if err != nil {
		return withCode(exitCannot, err)
	}
	defer rec.close()
	t := &top{
		term: term, rec: rec, namer: newTopNamer(o.record.names),
		window: newTopWindow(time.Duration(o.window), rec.modules),
		stop:   make(chan struct{}), done: make(chan struct{}), failed: make(chan error, 3),
	}
	rec.sink = t.window
	event := rec.session.Event()
	byTime := event.IsOffCPU() || event.IsWall()
	t.window.values = byTime || rec.session.Samplings()[0].Weight.Name != ""
	t.view = newTopView(topStatus{
		target: o.record.target(), event: event.Name,
		frequency: rec.session.Frequency(), isTimer: event.IsTimer(), byTime: byTime,
	}, os.Getenv("NO_COLOR") == "")

	signals := terminalSignals()
	if err := term.take(); err != nil {
		return err
	}
	keys := make(chan key)
	t.guard(func() error { term.readKeys(keys); return nil })
	t.guard(func() error { t.namer.run(t.stop); return nil })
	t.guard(func() error { defer close(t.done); return t.sample() })
	err = t.interact(keys, signals)
	close(t.stop)
	<-t.done
	return err
}

// guard runs f in a goroutine of its own. An error or a panic ends the view.
func (t *top) guard(f func() error) {
	go func() {
		defer func() {
			if v := recover(); v != nil {
				t.failed <- fmt.Errorf("panic: %v\n%s", v, debug.Stack())
			}
		}()
		if err := f(); err != nil {
			t.failed <- err
		}
	}()
}

// sample fills the window until it is told to stop.
func (t *top) sample() error {
	poll := time.NewTicker(t.rec.newPace().least)
	defer poll.Stop()
	generated := time.NewTicker(topRefresh)
	defer generated.Stop()
	for {
		select {
		case <-t.stop:
			return nil
		case <-generated.C:
			t.window.nameGenerated()
		case <-poll.C:
			if err := t.rec.poll(t.rec.procs.Collect()); err != nil {
				return err
			}
		}
	}
}

// interact answers keys, signals and the clock until it is time to leave.
func (t *top) interact(keys <-chan key, signals <-chan os.Signal) error {
	refresh := time.NewTicker(topRefresh)
	defer refresh.Stop()
	first := time.After(topRefresh / 4) // not to begin with a second of nothing
	for {
		if err := t.term.draw(t.view.render(t.term.size())); err != nil {
			return fmt.Errorf("draw: %w", err)
		}
		select {
		case <-first:
			t.refresh()
		case <-refresh.C:
			t.refresh()
		case a := <-t.namer.answers:
			t.view.names.learn(a.named, &t.view.now)
			if a.done { // before that, the next refresh shows them
				t.namer.busy = false
				t.namer.ask()
				t.view.update()
			}
		case k, ok := <-keys:
			if !ok {
				return errors.New("the terminal is gone")
			}
			_, height := t.term.size()
			if k == keyRedraw {
				t.term.forget()
			} else if t.view.press(k, listLines(height)) {
				return nil
			}
		case s := <-signals:
			if err := t.signal(s, signals); err != nil {
				return err
			}
		case <-t.rec.signals:
			return nil
		case err := <-t.failed:
			return err
		}
	}
}

// signal answers a signal of the terminal.
func (t *top) signal(s os.Signal, more <-chan os.Signal) error {
	switch s {
	case unix.SIGTSTP:
		return t.term.suspend(more)
	case unix.SIGCONT: // a shell may have changed the terminal meanwhile
		return t.term.take()
	case unix.SIGWINCH:
		t.term.forget()
	}
	return nil
}

// refresh shows what has come since.
func (t *top) refresh() {
	if st, err := t.rec.session.Stats(); err == nil {
		t.view.status.lost = st.Lost()
	}
	t.namer.ask(t.view.show(t.window.roll(time.Now()))...)
}
