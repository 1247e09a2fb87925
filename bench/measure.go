package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// figures are those of recordings of one workload, a value a run.
type figures struct {
	samples, lost series
	expected      series // percent of the target's CPU time times the rate; empty when not known
	complete      series // percent of user stacks
	bytes         series // copied a sample
	live          series // bytes copied by those that were live
	sent          series // through the ring a sample
	bpf           series // ns of BPF run time a sample, skipped events included
	unwind        series // ns a frame
	recording     series // us of the recorder's CPU time a sample, without its start and the naming at the end
	cpu           series // the same with both
	rss           series // MB
}

// records measures recordings of all workloads.
func records(r *report, b *builder, c *config) error {
	swbpf := b.swbpf()
	loads := workloads(b)
	if b.err != nil {
		return b.err
	}
	r.machine(c.command("-records"))
	r.header("workload", "Hz", "samples", "of those expected", "complete", "lost", "stack bytes a sample",
		"by those live", "bytes sent", "BPF ns a sample", "unwind ns a frame", "CPU us a sample while recording",
		"start and end included", "peak MB")
	for _, w := range loads {
		if !strings.Contains(w.name, c.only) {
			continue
		}
		for _, hz := range c.rates {
			var f figures
			for range c.runs {
				if err := f.measure(swbpf, b.dir, w, hz); err != nil {
					return fmt.Errorf("%s at %d Hz: %w", w.name, hz, err)
				}
			}
			r.row(w.name, strconv.Itoa(hz), f.samples.cell("%.0f"), f.expected.cell("%.1f %%"), f.complete.cell("%.2f %%"),
				f.lost.cell("%.0f"), f.bytes.cell("%.0f"), f.live.cell("%.2f"), f.sent.cell("%.0f"), f.bpf.cell("%.0f"),
				f.unwind.cell("%.0f"), f.recording.cell("%.1f"), f.cpu.cell("%.0f"), f.rss.cell("%.0f"))
		}
	}
	r.printf("\n")
	return nil
}

// measure records a workload once.
func (f *figures) measure(swbpf, dir string, w workload, hz int) error {
	statsFile := filepath.Join(dir, "stats.json")
	args := []string{"record", "-F", strconv.Itoa(hz), "-o", filepath.Join(dir, "p.pb.gz"), "--stats", statsFile, "--stats-detail"}
	if w.command != nil {
		args = append(append(args, "--"), w.command...)
	} else {
		pid, stop, err := w.start()
		if err != nil {
			return err
		}
		defer stop()
		if pid != 0 {
			args = append(args, "-p", strconv.Itoa(pid))
		}
		args = append(args, "-d", "5")
	}
	cmd := exec.Command(swbpf, args...)
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%.2000s", err, msg)
	}
	s, err := readRecordStats(statsFile)
	if err != nil {
		return err
	}
	own := s.CPUUser + s.CPUSystem
	n := float64(max(1, s.Samples))
	f.samples.add(float64(s.Samples))
	f.complete.add(100 * float64(s.Complete) / float64(max(1, s.User)))
	f.lost.add(float64(s.Lost))
	f.bytes.add(float64(s.Copied) / n)
	if s.Live > 0 {
		f.live.add(float64(s.LiveCopied) / float64(s.Live))
	}
	f.sent.add(float64(s.Sent) / n)
	f.bpf.add(float64(s.RunNS) / n)
	f.unwind.add(float64(s.Unwind) / float64(max(1, s.Frames)))
	f.recording.add(s.CPURecording * 1e6 / n)
	f.cpu.add(own * 1e6 / n)
	f.rss.add(float64(s.RSS) / (1 << 20))
	if w.command != nil {
		ru := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		total := time.Duration(ru.Utime.Nano() + ru.Stime.Nano()).Seconds()
		f.expected.add(100 * float64(s.Samples) / ((total - own) * float64(hz)))
	}
	return nil
}
