package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// walker is a program that prints the stacks of a process.
type walker struct {
	name    string
	command func(pid string) []string
	frame   *regexp.Regexp // matches at each frame printed
}

// walkTarget is a process to walk, whose number of frames is known.
type walkTarget struct {
	name string
	args []string // of bench/testdata/crowd.c
	// frames of the function that calls itself, in all threads together.
	links int
}

type walkFigures struct{ wall, cpu, stop, frames, links, rss series }

func walkers(swbpf string) []walker {
	return []walker{
		// --no-group prints each frame, as the others do.
		{"swbpf walk", func(pid string) []string { return []string{swbpf, "walk", "--no-group", pid} }, regexp.MustCompile(`(?m)^ +#\d+ `)},
		{"swbpf walk --symbols functions", func(pid string) []string {
			return []string{swbpf, "walk", "--no-group", "--symbols", "functions", pid}
		}, regexp.MustCompile(`(?m)^ +#\d+ `)},
		{"swbpf walk --symbols no", func(pid string) []string { return []string{swbpf, "walk", "--no-group", "--symbols", "no", pid} }, regexp.MustCompile(`(?m)^ +#\d+ `)},
		{"eu-stack", func(pid string) []string { return []string{"eu-stack", "-n", "0", "-p", pid} }, regexp.MustCompile(`(?m)^#\d+ `)},
		{"gdb", func(pid string) []string {
			return []string{"gdb", "-nx", "-batch", "-p", pid, "-ex", "thread apply all backtrace"}
		}, regexp.MustCompile(`(?m)^#\d+ `)},
	}
}

var walkTargets = []walkTarget{
	{"1 thread, depth 30", []string{"-d", "30"}, 30},
	{"200 threads, depth 30", []string{"-t", "200", "-d", "30"}, 6000},
	{"1,000 threads, depth 30", []string{"-t", "1000", "-d", "30"}, 30000},
	{"1 thread, depth 2,000", []string{"-d", "2000"}, 2000},
}

var linkName = regexp.MustCompile(`\bdeep\b`)

// walks compares programs that print the stacks of a live process.
func walks(r *report, b *builder, c *config) error {
	program, swbpf := b.c("crowd"), b.swbpf()
	if b.err != nil {
		return b.err
	}
	r.machine(c.command("-walks"))
	r.printf("%s; %s.\n\n", toolVersion("gdb"), toolVersion("eu-stack"))
	for _, t := range walkTargets {
		if !strings.Contains(t.name, c.only) {
			continue
		}
		all := map[string]*walkFigures{}
		for range c.runs {
			for _, w := range walkers(swbpf) {
				f := all[w.name]
				if f == nil {
					f = &walkFigures{}
					all[w.name] = f
				}
				if err := walkOnce(b.dir, program, t, w, f); err != nil {
					return fmt.Errorf("%s, %s: %w", t.name, w.name, err)
				}
			}
		}
		r.printf("**%s**\n\n", t.name)
		r.header("walker", "wall ms", "CPU ms", "longest gap of a thread ms", "frames printed", "of the frames known", "peak MB")
		for _, w := range walkers(swbpf) {
			f := all[w.name]
			r.row(w.name, f.wall.cell("%.0f"), f.cpu.cell("%.0f"), f.stop.cell("%.1f"), f.frames.cell("%.0f"),
				f.links.cell("%.1f %%"), f.rss.cell("%.0f"))
		}
		r.printf("\n")
	}
	return nil
}

func walkOnce(dir, program string, t walkTarget, w walker, f *walkFigures) error {
	gapFile := filepath.Join(dir, "gap")
	defer os.Remove(gapFile)
	target, err := startCrowd(program, append([]string{"-g", gapFile}, t.args...)...)
	if err != nil {
		return err
	}
	defer target.end()
	// What its start has cost is forgotten.
	if err := syscall.Kill(target.pid(), syscall.SIGUSR1); err != nil {
		return err
	}
	time.Sleep(20 * time.Millisecond)
	var out bytes.Buffer
	began := time.Now()
	cpu, rss, err := runWatched(newWatch(), w.command(strconv.Itoa(target.pid())), &out)
	// eu-stack fails when one thread of many could not be walked to its end.
	if err != nil && out.Len() == 0 {
		return err
	}
	f.wall.add(time.Since(began).Seconds() * 1e3)
	f.cpu.add(cpu * 1e3)
	f.rss.add(rss)
	frames := w.frame.FindAllIndex(out.Bytes(), -1)
	f.frames.add(float64(len(frames)))
	if links := len(linkName.FindAll(out.Bytes(), -1)); links > 0 {
		f.links.add(100 * float64(links) / float64(t.links))
	}
	time.Sleep(20 * time.Millisecond) // for the thread that measures to run again
	if text, err := os.ReadFile(gapFile); err == nil {
		if ns, err := strconv.ParseFloat(strings.Trim(string(text), "\x00 \n"), 64); err == nil {
			f.stop.add(ns / 1e6)
		}
	}
	return nil
}
