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
// With the times of samples (Builder.KeepTimes) they are in order of time.
// Without, samples of a stack follow each other, and each has an equal part of
// the stack's value for its period; those of a thread are laid end to end, as
// others read no samples without time, and a remark at the head says so. Addresses are
// link-time, for what the function is called does not depend on them. A frame
// without name is "[unknown]", inlined functions have "inlined" for their
// module, and generated code has perf's map for its own. What cannot be seen of
// names is "?".
func (p *Profile) WritePerfScript(w io.Writer) error {
	if p.Samples > maxPerfSamples {
		return fmt.Errorf("%w: %d", ErrTooManySamples, p.Samples)
	}
	out := perfWriter{w: bufio.NewWriterSize(w, 1<<16), p: p, ends: map[[2]int32]int64{}}
	events := p.Meta.events()
	for i, name := range uniqueNames(events) {
		out.events = append(out.events, scriptEvent{lineText(name, perfEvents), events[i].Value})
	}
	out.setFrames()
	out.writeHead()
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

// Lines of the head: where the times of samples are not known, and for each event, of several,
// in their order, as `perf script --header` has them.
const (
	perfUntimed   = "# times unknown: samples of a thread are laid end to end"
	perfEventLine = "# event : name = "
)

func (o *perfWriter) writeHead() {
	var head strings.Builder
	if len(o.p.times) == 0 {
		head.WriteString(perfUntimed + "\n")
	}
	if len(o.events) > 1 {
		for _, e := range o.events {
			head.WriteString(perfEventLine + e.name + "\n")
		}
	}
	if head.Len() > 0 {
		fmt.Fprintf(o.w, "# ========\n%s# ========\n#\n", head.String())
	}
}

type perfWriter struct {
	w      *bufio.Writer
	p      *Profile
	events []scriptEvent // by Thread.Event
	frames []string      // by location
	stack  []uint32
	ends   map[[2]int32]int64 // by PID and TID, of the samples laid end to end, ns
}

// scriptEvent is what lines tell of an event, and what its samples count.
type scriptEvent struct {
	name  string
	value ValueType
}

// Names, and those of events, as lines can have them.
var (
	perfNames  = strings.NewReplacer("\n", " ", "\r", " ", "\t", " ")
	perfEvents = strings.NewReplacer("\n", "_", "\r", "_", "\t", "_", " ", "_")
)

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
				name = lineText(o.p.functions[ln.function].name, perfNames)
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
		return lineText("/tmp/perf-"+strings.TrimSuffix(pid, "]")+".map", perfNames)
	}
	if m.Path == "" {
		return "[unknown]"
	}
	return lineText(m.Path, perfNames)
}

// write writes a stack n times, with its value in equal parts. A time below 0
// is not known.
func (o *perfWriter) write(s *tally, time, n int64) error {
	t := &o.p.threads[s.thread]
	comm := lineComm(t.CommString(), perfNames)
	if strings.TrimSpace(comm) == "" {
		comm = fmt.Sprintf(":%d", t.TID)
	}
	head := fmt.Sprintf("%s %d/%d ", comm, t.PID, t.TID)
	for _, l := range o.p.labels[t.Labels] {
		if l.Key == "cpu" && len(l.Value) <= 3 {
			head += fmt.Sprintf("[%03s] ", l.Value)
		}
	}
	event := &o.events[t.Event]
	o.stack = o.p.stack(o.stack[:0], s.node)
	id := [2]int32{t.PID, t.TID}
	for i := range n {
		// The first ones take what does not divide evenly.
		period := s.value / n
		if i < s.value%n {
			period++
		}
		at := time
		if at < 0 {
			at = o.ends[id]
			if event.value.Unit == "nanoseconds" {
				o.ends[id] += period
			} else {
				o.ends[id] += 1e6
			}
		}
		o.w.WriteString(head)
		fmt.Fprintf(o.w, "%d.%09d: ", at/1e9, at%1e9)
		if event.value.Type != "" {
			fmt.Fprintf(o.w, "%10d ", period)
		}
		o.w.WriteString(event.name)
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
