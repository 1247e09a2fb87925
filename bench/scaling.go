package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/pprof/profile"
)

// point is one size of what grows.
type point struct {
	label string
	flags []string // of swbpf record, beyond -d and -o
	// start sets up what is recorded and returns how to end it.
	start func() (end func(), err error)
}

// axis is something that grows, over several points.
type axis struct {
	name, grows string
	points      []point
}

// scaleFigures are those of one recording of the whole machine.
type scaleFigures struct {
	startup, finish, idle, rss, fds series
	samples, lost, complete         series
	bpf, copied, sent               series // a sample; bpf in ns a run
	unwind                          series // ns a frame
	cpu                             series // us a sample, without start and naming, as idle
	processes                       series
}

const scaleSeconds = 3

// scaling records the whole machine while one thing after another grows.
func scaling(r *report, b *builder, c *config) error {
	axes := scaleAxes(b, c.short)
	swbpf := b.swbpf()
	if b.err != nil {
		return b.err
	}
	r.machine(c.command("-scaling"))
	r.printf("Each line is a recording of the whole machine for %d s, at 99 Hz unless it says otherwise.\n\n", scaleSeconds)
	for _, a := range axes {
		if !strings.Contains(a.name, c.only) {
			continue
		}
		r.printf("**%s**\n\n", a.name)
		r.header(a.grows, "first sample possible after ms", "done after ms", "CPU % of a core while recording", "CPU us a sample",
			"samples", "lost", "complete", "BPF ns a run", "bytes copied a sample", "sent", "unwind ns a frame",
			"peak MB", "descriptors", "processes sampled")
		for _, p := range a.points {
			f := &scaleFigures{}
			for range c.runs {
				if err := f.measure(swbpf, b.dir, p); err != nil {
					return fmt.Errorf("%s, %s: %w", a.name, p.label, err)
				}
			}
			r.row(p.label, f.startup.cell("%.0f"), f.finish.cell("%.0f"), f.idle.cell("%.2f"), f.cpu.cell("%.0f"),
				f.samples.cell("%.0f"), f.lost.cell("%.0f"), f.complete.cell("%.2f %%"), f.bpf.cell("%.0f"),
				f.copied.cell("%.0f"), f.sent.cell("%.0f"), f.unwind.cell("%.0f"), f.rss.cell("%.0f"),
				f.fds.cell("%.0f"), f.processes.cell("%.0f"))
		}
		r.printf("\n")
	}
	return nil
}

func scaleAxes(b *builder, short bool) []axis {
	crowdProgram, deep, churn := b.c("crowd"), b.c("deep"), b.c("churn")
	libs := b.libraries(50)
	crowdOf := func(args ...string) func() (func(), error) {
		return func() (func(), error) {
			c, err := startCrowd(crowdProgram, args...)
			if err != nil {
				return nil, err
			}
			return c.end, nil
		}
	}
	commands := func(n int, command ...string) func() (func(), error) {
		return func() (func(), error) { return startCommands(n, command) }
	}
	busy := func(levels int) func() (func(), error) {
		return commands(runtime.NumCPU(), deep, strconv.Itoa(levels), "60")
	}
	first := func(p []point) []point {
		if short {
			return append(p[:1:1], p[len(p)-1])
		}
		return p
	}
	var sleepers, workers, threads, mappings, churns, depths, rates []point
	for _, n := range []string{"10", "100", "1000", "3000"} {
		sleepers = append(sleepers, point{label: n, start: crowdOf("-p", n)})
	}
	for _, n := range []string{"10", "100", "1000"} {
		workers = append(workers, point{label: n, start: crowdOf("-p", n, "-w", "2000", "-d", "30")})
		threads = append(threads, point{label: n, start: crowdOf("-t", n, "-w", "2000", "-d", "30")})
		mappings = append(mappings, point{label: n, start: crowdOf("-p", n, "-w", "2000", "-l", libs, "-n", "50")})
	}
	for _, n := range []string{"10", "100", "1000"} {
		churns = append(churns, point{label: n, start: commands(1, churn, n, "60", "/bin/true")})
	}
	for _, n := range []int{10, 30, 100, 1000, 5000} {
		depths = append(depths, point{label: strconv.Itoa(n), flags: []string{"--stack-bytes", "1M"}, start: busy(n)})
	}
	for _, n := range []string{"99", "499", "997", "1999", "4999"} {
		rates = append(rates, point{label: n, flags: []string{"-F", n}, start: busy(28)})
	}
	return []axis{
		{"processes that sleep", "processes", first(sleepers)},
		{"processes that work a little", "processes", first(workers)},
		{"threads of one process", "threads", first(threads)},
		{"processes of 50 libraries", "processes", first(mappings)},
		{"processes that come and go", "starts a second", first(churns)},
		{"depth, all CPUs busy", "frames of 144 bytes", first(depths)},
		{"rate, all CPUs busy, 4 KB of stack", "Hz", first(rates)},
	}
}

// startCommands runs n copies of each command, in process groups of their own.
func startCommands(n int, commands ...[]string) (end func(), err error) {
	var all []*exec.Cmd
	end = func() {
		for _, c := range all {
			syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
			c.Wait()
		}
	}
	for range n {
		for _, command := range commands {
			c := exec.Command(command[0], command[1:]...)
			c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := c.Start(); err != nil {
				end()
				return nil, err
			}
			all = append(all, c)
		}
	}
	return end, nil
}

func (f *scaleFigures) measure(swbpf, dir string, p point) error {
	end, err := p.start()
	if err != nil {
		return err
	}
	defer end()
	stats, prof := filepath.Join(dir, "stats.json"), filepath.Join(dir, "p.pb.gz")
	args := append([]string{"record", "-a", "-d", strconv.Itoa(scaleSeconds), "-o", prof, "--stats", stats, "--stats-detail"}, p.flags...)
	w := newWatch()
	began := time.Now()
	_, _, err = runWatched(w, append([]string{swbpf}, args...), nil)
	if err != nil {
		return err
	}
	ended := time.Now()
	s, err := readRecordStats(stats)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(prof)
	if err != nil {
		return err
	}
	pp, err := profile.Parse(bytes.NewReader(b))
	if err != nil {
		return err
	}
	start := time.Unix(0, pp.TimeNanos)
	n := float64(max(1, s.Samples))
	f.startup.add(start.Sub(began).Seconds() * 1e3)
	f.finish.add((ended.Sub(start).Seconds() - s.Duration) * 1e3)
	f.idle.add(100 * s.CPURecording / s.Duration)
	f.cpu.add(s.CPURecording * 1e6 / n)
	f.samples.add(float64(s.Samples))
	f.lost.add(float64(s.Lost))
	f.complete.add(100 * float64(s.Complete) / float64(max(1, s.User)))
	f.bpf.add(float64(s.RunNS) / float64(max(1, s.Runs)))
	f.copied.add(float64(s.Copied) / n)
	f.sent.add(float64(s.Sent) / n)
	f.unwind.add(float64(s.Unwind) / float64(max(1, s.Frames)))
	f.rss.add(float64(s.RSS) / (1 << 20))
	f.fds.add(float64(w.fds))
	f.processes.add(float64(s.Processes))
	return nil
}
