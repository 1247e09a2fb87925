package profile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxPerfSamples bounds the text of WritePerfScript, which has a paragraph
// for each sample.
const maxPerfSamples = 10_000_000

// ErrTooManySamples is returned by WritePerfScript when its text would not be
// of reasonable size.
var ErrTooManySamples = errors.New("too many samples for the text of perf script, which repeats the stack of each")

// WritePerfScript writes the samples as perf script does:
//
//	comm pid/tid [cpu] seconds:  period event:
//		address function (module)
//
// With the times of samples (Builder.KeepTimes) they are in order of time;
// without, samples of a stack follow each other, no time is told, and each
// has an equal part of the stack's value for its period. Addresses are
// link-time, for what the function is called does not depend on them. A frame
// without name is "[unknown]", inlined functions have "inlined" for their
// module, and generated code has perf's map for its own.
func (p *Profile) WritePerfScript(w io.Writer) error {
	if p.Samples > maxPerfSamples {
		return fmt.Errorf("%w: %d", ErrTooManySamples, p.Samples)
	}
	out := perfWriter{w: bufio.NewWriterSize(w, 1<<16), p: p, event: strings.ReplaceAll(p.Meta.Event, " ", "_")}
	if out.event == "" {
		out.event = "samples"
	}
	out.setFrames()
	for i := range p.times {
		if out.write(&p.times[i].tally, p.times[i].time, 1) != nil {
			break
		}
	}
	for i := range p.samples {
		if len(p.times) > 0 || out.write(&p.samples[i].tally, -1, p.samples[i].count) != nil {
			break
		}
	}
	if err := out.w.Flush(); err != nil {
		return fmt.Errorf("writing perf script: %w", err)
	}
	return nil
}

type perfWriter struct {
	w      *bufio.Writer
	p      *Profile
	event  string
	frames []string // by location
	stack  []uint32
}

// perfNames are names as lines can have them.
var perfNames = strings.NewReplacer("\n", " ", "\r", " ", "\t", " ")

// setFrames makes the lines of each location.
func (o *perfWriter) setFrames() {
	o.frames = make([]string, len(o.p.locations))
	for i := range o.p.locations {
		loc := &o.p.locations[i]
		module := "[unknown]"
		if loc.module != noModule {
			module = perfModule(&o.p.modules[loc.module])
		}
		var text strings.Builder
		for j, ln := range loc.lines {
			name, in := "[unknown]", module
			if ln.named || loc.module == noModule {
				name = perfNames.Replace(o.p.functions[ln.function].name)
			}
			if j < len(loc.lines)-1 {
				in = "inlined"
			}
			addr := loc.addr
			if loc.module == noModule {
				addr = 0
			}
			fmt.Fprintf(&text, "\t%16x %s (%s)\n", addr, name, in)
		}
		o.frames[i] = text.String()
	}
}

// perfModule returns the module's path as perf has it.
func perfModule(m *Module) string {
	if pid, ok := strings.CutPrefix(m.Path, "[jit of "); ok {
		return "/tmp/perf-" + strings.TrimSuffix(pid, "]") + ".map"
	}
	if m.Path == "" {
		return "[unknown]"
	}
	return perfNames.Replace(m.Path)
}

// write writes a stack n times, with its value in equal parts.
func (o *perfWriter) write(s *tally, time, n int64) error {
	t := &o.p.threads[s.thread]
	comm := perfNames.Replace(t.CommString())
	if strings.TrimSpace(comm) == "" {
		comm = fmt.Sprintf(":%d", t.TID)
	}
	head := fmt.Sprintf("%s %d/%d ", comm, t.PID, t.TID)
	for _, l := range o.p.labels[t.Labels] {
		if l.Key == "cpu" && len(l.Value) <= 3 {
			head += fmt.Sprintf("[%03s] ", l.Value)
		}
	}
	if time >= 0 {
		head += fmt.Sprintf("%d.%09d: ", time/1e9, time%1e9)
	}
	o.stack = o.p.stack(o.stack[:0], s.node)
	for i := range n {
		o.w.WriteString(head)
		if o.p.Meta.Value.Type != "" {
			// The first ones take what does not divide evenly.
			period := s.value / n
			if i < s.value%n {
				period++
			}
			fmt.Fprintf(o.w, "%10d ", period)
		}
		o.w.WriteString(o.event)
		o.w.WriteString(":\n")
		for _, id := range o.stack {
			o.w.WriteString(o.frames[id])
		}
		if err := o.w.WriteByte('\n'); err != nil {
			return err
		}
	}
	return nil
}
