package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"golang.org/x/sys/unix"
)

// watched remembers the stacks of the time before, to tell how long a thread
// has been in the same one.
type watched struct {
	since map[string]time.Time // of each line that was there the last time
}

// runWatch walks at an interval until a signal ends it, or the last process.
func (o *walkOptions) runWatch(w io.Writer, interval time.Duration) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGINT, unix.SIGTERM)
	defer signal.Stop(stop)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	seen := make(map[int]*watched)
	told := make(map[int]int) // by process, the exit code of the error that was told last
	gone := make(map[int]bool)
	out := bufio.NewWriter(w)
	for {
		var last *exitError
		alive := false
		for _, pid := range o.pids {
			if gone[pid] {
				continue
			}
			pw, err := walkLive(o, pid)
			if err != nil {
				last = walkError(err)
				if told[pid] != last.code {
					fmt.Fprintf(os.Stderr, "swbpf: %s\n", printableLines(err.Error()))
				}
				told[pid], gone[pid] = last.code, isGone(err)
				if seen[pid] != nil && errors.Is(err, procstate.ErrTraced) { // for as long as that takes
					alive = true
				}
				continue
			}
			alive = true
			if seen[pid] == nil {
				seen[pid] = &watched{since: make(map[string]time.Time)}
			}
			delete(told, pid)
			if o.json {
				err = writeWalkJSON(out, pw)
			} else {
				err = seen[pid].write(out, pw, time.Now())
			}
			if err == nil {
				err = out.Flush()
			}
			if err != nil {
				return err
			}
		}
		if !alive {
			if len(seen) > 0 && isGone(last) {
				return nil
			}
			return withCode(last.code, nil) // the error has been told
		}
		select {
		case <-stop:
			return nil
		case <-tick.C:
			if len(stop) > 0 { // when each walk takes as long as the interval, there is always a tick
				return nil
			}
		}
	}
}

// isGone reports whether an error is that there is no such process, or no more.
func isGone(err error) bool {
	return errors.Is(err, procstate.ErrNoProcess) || errors.Is(err, procstate.ErrTerminated) || errors.Is(err, procstate.ErrZombie)
}

// write writes a line for each distinct stack, that of the initial thread
// first, those of goroutines last.
func (s *watched) write(w io.Writer, p *processWalk, now time.Time) error {
	what := plural(len(p.threads), "thread")
	if n := p.goroutines.total; n > 0 {
		what += ", " + plural(n, "goroutine")
	}
	if n := p.virtual.total; n > 0 {
		what += ", " + plural(n, "virtual thread")
	}
	what += p.tasks.text()
	fmt.Fprintf(w, "%s  process %d  %s, stopped for %s\n", now.Format("15:04:05.000"), p.pid, what, duration(p.stopped))
	before := s.since
	s.since = make(map[string]time.Time)
	line := func(line string) error {
		line = printable(line)
		since, ok := before[line]
		if !ok {
			since = now
		}
		s.since[line] = since
		note := ""
		if d := now.Sub(since).Round(100 * time.Millisecond); ok && d > 0 {
			note = fmt.Sprintf("  [same for %s]", d)
		}
		_, err := fmt.Fprintf(w, "%s%s\n", line, note)
		return err
	}
	for _, d := range p.deadlocks {
		var parties []string
		for _, one := range d {
			parties = append(parties, p.partyText(one))
		}
		if err := line("      deadlock: " + strings.Join(parties, "; ")); err != nil {
			return err
		}
	}
	for _, g := range groupThreads(p, true) {
		t := g[0]
		if err := line(fmt.Sprintf("%5d x %-10s %s%s%s: %s", len(g), t.state, groupName(g), groupWait(g), javaNote(t), foldStack(&t.stackWalk))); err != nil {
			return err
		}
	}
	for _, g := range p.goroutines.groups {
		if g.first.System && !p.goroutines.all {
			continue
		}
		if err := line(fmt.Sprintf("%5d x [%s] goroutines: %s", len(g.ids), g.first.State(), foldStack(g.stackWalk))); err != nil {
			return err
		}
	}
	for _, g := range p.virtual.groups {
		if err := line(fmt.Sprintf("%5d x [%s] virtual threads: %s", len(g.ids), javaWait(&g.first.Thread), foldStack(&g.stackWalk))); err != nil {
			return err
		}
	}
	for _, g := range p.tasks.groups {
		if err := line(fmt.Sprintf("%5d x [%s] %ss: %s", len(g.tasks), p.tasks.waitOfAll(g), taskNoun(g.tasks), foldStack(&g.stackWalk))); err != nil {
			return err
		}
	}
	return nil
}

// foldStack writes a stack in one line, top first, recursion counted:
// "poll < loop x3 < main", and "(even < odd) x40" where more than one comes in turns.
func foldStack(t *stackWalk) string {
	if len(t.frames) == 0 {
		return t.reason()
	}
	var parts []string
	for i := 0; i < len(t.frames); {
		name := t.frames[i].function
		if name == "" {
			name = t.frames[i].label()
		}
		n := 1
		for i+n < len(t.frames) && t.frames[i+n].function == name {
			n++
		}
		if i += n; n > 1 {
			name += fmt.Sprintf(" x%d", n)
		}
		parts = append(parts, name)
	}
	parts = foldTurns(parts)
	if !t.complete() {
		parts = append(parts, "["+t.reason()+"]")
	}
	return strings.Join(parts, " < ")
}
