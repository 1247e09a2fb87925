package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// peerFigures are those of one workload, rate and profiler, a value per run.
type peerFigures struct {
	wall, cpu     series // of the program, s
	ratio         series // its CPU time, by that of the same round with an empty program
	recorded      series // percent of the CPU time times the rate
	lost          series
	complete      series // percent of user stacks
	correct       series
	bpf           series // ns a sample
	recorder      series // us of CPU time a sample, from start to text
	bytes         series // a sample
	rss           series // MB, of whatever needs most
	startup, wait series // ms before the program starts, and after its end until the text exists
}

// single runs one profiler once.
type single struct {
	startup, wall, cpu, wait, recorder, rss float64
	bpf                                     progRuns
	out                                     outcome
	gaveUp                                  bool // past the limit
}

// limit bounds each command. What a profiler does after the program's end may
// take longer: then it has no result.
const limit = time.Minute

// peers runs all workloads that have a fixed amount of work under all
// profilers, one after the other, over and over.
func peers(r *report, b *builder, c *config) error {
	timed, swbpf := b.c("timed"), b.swbpf()
	loads := workloads(b)
	if b.err != nil {
		return b.err
	}
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return fmt.Errorf("have the kernel time BPF programs: %w", err)
	}
	defer stats.Close()
	r.machine(c.command("-peers"))
	r.printf("%s, %s.\n\n", toolVersion("perf"), toolVersion("bpftrace"))
	for _, w := range loads {
		if w.fixed == nil || !strings.Contains(w.name, c.only) {
			continue
		}
		for _, hz := range c.rates {
			all := map[string]*peerFigures{}
			for range c.runs {
				if err := peersRound(b.dir, swbpf, timed, w, hz, all); err != nil {
					return fmt.Errorf("%s at %d Hz: %w", w.name, hz, err)
				}
			}
			r.peerTable(w, hz, all)
		}
	}
	return nil
}

// peersRound runs each profiler once. The program is run once before, so that
// none of them finds it colder than the others.
func peersRound(dir, swbpf, timed string, w workload, hz int, all map[string]*peerFigures) error {
	if err := exec.Command(w.fixed[0], w.fixed[1:]...).Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(w.fixed, " "), err)
	}
	var empty float64
	for _, p := range profilers() {
		runDir, err := os.MkdirTemp(dir, "run-*")
		if err != nil {
			return err
		}
		j := &job{dir: runDir, swbpf: swbpf, hz: hz, comm: w.comm, judge: w.judge}
		j.command = append([]string{timed, j.file("timed")}, w.fixed...)
		s, err := runProfiler(p, j)
		os.RemoveAll(runDir)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if empty == 0 && p.around != nil { // the empty program, the first such
			empty = s.cpu
		}
		f := all[p.name]
		if f == nil {
			f = &peerFigures{}
			all[p.name] = f
		}
		f.add(&s, w, hz, empty, p.read != nil)
	}
	return nil
}

func (f *peerFigures) add(s *single, w workload, hz int, empty float64, records bool) {
	f.wall.add(s.wall)
	f.cpu.add(s.cpu)
	if empty > 0 {
		f.ratio.add(s.cpu / empty)
	}
	if !records {
		if s.bpf.n > 0 {
			f.bpf.add(float64(s.bpf.ns) / float64(s.bpf.n))
		}
		return
	}
	f.rss.add(s.rss)
	f.startup.add(s.startup * 1e3)
	f.wait.add(s.wait * 1e3)
	if s.gaveUp {
		return
	}
	n := max(1, s.out.samples)
	f.recorded.add(100 * s.out.samples / (s.cpu * float64(hz)))
	if s.out.lost >= 0 {
		f.lost.add(s.out.lost)
	}
	v := s.out.verdict
	f.complete.add(100 * float64(v.complete) / float64(max(1, v.stacks)))
	if w.judge.chain != "" {
		f.correct.add(100 * float64(v.correct) / float64(max(1, v.stacks)))
	}
	switch {
	case s.out.bpfNS >= 0:
		f.bpf.add(s.out.bpfNS / n)
	case s.bpf.n > 0:
		f.bpf.add(float64(s.bpf.ns) / n)
	}
	f.recorder.add(s.recorder * 1e6 / n)
	if s.out.bytes >= 0 {
		f.bytes.add(s.out.bytes / n)
	}
}

// runProfiler runs a profiler and what comes after it.
func runProfiler(p profiler, j *job) (s single, err error) {
	w := newWatch()
	if p.around != nil {
		e, err := p.around(j.hz)
		if err != nil {
			return s, err
		}
		defer func() {
			s.bpf = e.runs()
			err = errors.Join(err, e.close())
		}()
	}
	began := time.Now()
	recorder, rss, err := runWatched(w, p.record(j), nil)
	if err != nil {
		return s, err
	}
	s.bpf = w.bpf()
	var start, end, us int64
	text, err := os.ReadFile(j.file("timed"))
	if err != nil {
		return s, err
	}
	if _, err := fmt.Sscan(string(text), &start, &end, &us); err != nil {
		return s, fmt.Errorf("time of the program: %w", err)
	}
	s.startup = time.Unix(0, start).Sub(began).Seconds()
	s.wall, s.cpu = time.Duration(end-start).Seconds(), float64(us)/1e6
	if p.post != nil {
		out, err := os.Create(j.file(textFile))
		if err != nil {
			return s, err
		}
		defer out.Close()
		cpu, peak, err := runWatched(newWatch(), p.post(j), out)
		recorder, rss = recorder+cpu, max(rss, peak)
		if errors.Is(err, context.DeadlineExceeded) {
			s.gaveUp = true
		} else if err != nil {
			return s, err
		}
	}
	s.wait = time.Since(time.Unix(0, end)).Seconds()
	s.recorder, s.rss = max(0, recorder-s.cpu), rss
	if p.read != nil && !s.gaveUp {
		s.out, err = p.read(j)
	}
	return s, err
}

// runWatched runs a command to its end and returns the CPU time (s) of it and
// its children, and its own peak memory (MB).
func runWatched(w *watch, command []string, stdout io.Writer) (cpu, rss float64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var message strings.Builder
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = stdout, &message
	cmd.Env = append(os.Environ(), "DEBUGINFOD_URLS=")
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	w.follow(cmd.Process.Pid)
	err = cmd.Wait()
	w.end()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w\n%.1000s", filepath.Base(command[0]), err, message.String())
	}
	ru := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano()).Seconds(), w.rss, err
}

func (r *report) peerTable(w workload, hz int, all map[string]*peerFigures) {
	r.printf("**%s, %d Hz**\n\n", w.name, hz)
	r.header("under", "program's CPU s", "by that under an empty program", "samples of those due", "lost", "complete",
		"correct chain", "BPF ns a sample", "profiler's CPU us a sample", "bytes a sample", "peak MB",
		"starts after ms", "done after ms")
	for _, p := range profilers() {
		f := all[p.name]
		r.row(p.name, f.cpu.cell("%.2f"), f.ratio.cell("%.3f"), f.recorded.cell("%.1f %%"), f.lost.cell("%.0f"),
			f.complete.cell("%.1f %%"), f.correct.cell("%.1f %%"), f.bpf.cell("%.0f"), f.recorder.cell("%.0f"),
			f.bytes.cell("%.0f"), f.rss.cell("%.0f"), f.startup.cell("%.0f"), f.wait.cell("%.0f"))
	}
	r.printf("\n")
}
