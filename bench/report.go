package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// series are the values of one figure over all runs.
type series []float64

func (s *series) add(v float64) { *s = append(*s, v) }

// median is 0 for an empty series, else the upper median.
func (s series) median() float64 {
	if len(s) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(s))
	return v[len(v)/2]
}

// cell shows the median with a printf verb, and, of several values, the least
// and the greatest, "-" when there is none.
func (s series) cell(format string) string {
	if len(s) == 0 {
		return "-"
	}
	out := fmt.Sprintf(format, s.median())
	if len(s) > 1 {
		out += fmt.Sprintf(" ("+format+"–"+format+")", slices.Min(s), slices.Max(s))
	}
	return out
}

// report collects what one mode prints: tables and remarks, as markdown.
type report struct {
	name string // of its block in a document
	out  io.Writer
	text bytes.Buffer
}

func (r *report) printf(format string, args ...any) {
	w := io.MultiWriter(r.out, &r.text)
	fmt.Fprintf(w, format, args...)
}

func (r *report) header(columns ...string) {
	r.row(columns...)
	r.row(slices.Repeat([]string{"---"}, len(columns))...)
}

func (r *report) row(cells ...string) {
	r.printf("| %s |\n", strings.Join(cells, " | "))
}

// machine writes where and when the figures come from. Load is that of before
// the run: on an idle machine the first number is close to zero.
func (r *report) machine(command string) {
	load, _ := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(load))
	r.printf("`%s` on %s, %d CPUs, %s, %s; load before the run: %s. Cells: median (least–greatest).\n\n",
		command, cpuModel(), runtime.NumCPU(), kernel(), time.Now().Format("2 January 2006"),
		strings.Join(fields[:min(3, len(fields))], " "))
}

// save puts the report into a document, between the lines
// "<!-- bench:NAME -->" and "<!-- /bench:NAME -->".
func (r *report) save(path string) error {
	doc, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := "<!-- bench:"+r.name+" -->\n", "<!-- /bench:"+r.name+" -->\n"
	head, rest, ok1 := strings.Cut(string(doc), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s has no lines %q and %q", path, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return os.WriteFile(path, []byte(head+begin+"\n"+strings.TrimSpace(r.text.String())+"\n\n"+end+tail), 0o644)
}

func kernel() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "Linux"
	}
	return "Linux " + strings.TrimSpace(string(b))
}

func cpuModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return runtime.GOARCH
}

// toolVersion is the first line that a program says of itself.
func toolVersion(name string) string {
	out, _ := exec.Command(name, "--version").Output()
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line)
}
