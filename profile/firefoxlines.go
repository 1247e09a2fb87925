package profile

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// firefoxKey is a thread under one name: it may have another after an exec.
type firefoxKey struct {
	pid, tid int32
	comm     [16]byte
}

// threads returns a time line for each thread. There is at least one
// with a sample, if without a stack, as the Firefox Profiler wants it.
func (f *firefoxWriter) threads() []firefoxThread {
	p := f.p
	lines, byThread := f.lines()
	if len(p.times) > 0 {
		f.zero = p.times[0].time
		if p.Meta.Clock > 0 && p.Meta.Clock < f.zero {
			f.zero = p.Meta.Clock
		}
		for i := range p.times {
			line := byThread[p.times[i].thread]
			line.times = append(line.times, &p.times[i])
		}
		for _, line := range lines {
			line.addTimes(f)
		}
	} else {
		for i := range p.samples {
			s := &p.samples[i]
			line := byThread[s.thread]
			line.add(f, &s.tally, line.end)
			per := cmp.Or(f.perSample(), 1e6)
			if p.Meta.ByValue && p.Meta.Value.Unit == "nanoseconds" {
				line.end += float64(s.value) / 1e6
			} else {
				line.end += float64(s.count) * float64(per) / 1e6
			}
		}
	}
	if len(lines) == 0 {
		line := newFirefoxLine(&Thread{}, f.product())
		line.Samples.Length, line.Samples.Stack, line.Samples.Time = 1, []*int{nil}, []float64{0}
		lines = append(lines, line)
	}
	// Of several main threads of a process the Firefox Profiler would show one.
	main := map[int32]*firefoxLine{}
	for _, line := range lines {
		if line.IsMainThread && (main[line.pid] == nil || main[line.pid].end < line.end) {
			main[line.pid] = line
		}
	}
	if p.Meta.ByValue {
		f.visible = heaviest(lines)
	}
	threads := make([]firefoxThread, 0, len(lines))
	for _, line := range lines {
		line.IsMainThread = main[line.pid] == line
		if !line.weighted {
			line.Samples.Weight = nil
		}
		threads = append(threads, line.firefoxThread)
	}
	return threads
}

// heaviest returns which threads to show at first: those that the Firefox Profiler
// would take if it went by weight instead of time on the CPU, the heaviest ones
// without those of less than 5 % of the first.
func heaviest(lines []*firefoxLine) []int {
	order := make([]int, len(lines))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(lines[y].weight, lines[x].weight) })
	n := 0
	for n < min(len(order), 15) && lines[order[n]].weight >= lines[order[0]].weight/20 {
		n++
	}
	return order[:n]
}

// lines makes a line of each thread under each of its names, and tells which
// is that of a thread of the profile.
func (f *firefoxWriter) lines() (lines, byThread []*firefoxLine) {
	var names flameTree
	names.nameProcesses(f.p)
	ids := map[firefoxKey]*firefoxLine{}
	earlier := map[int32]int{} // lines by TID
	byThread = make([]*firefoxLine, len(f.p.threads))
	for i := range f.p.threads {
		t := &f.p.threads[i]
		key := firefoxKey{t.PID, t.TID, t.Comm}
		line := ids[key]
		if line == nil {
			line = newFirefoxLine(t, names.processes[names.threads[i].process])
			ids[key] = line
			if n := earlier[t.TID]; n > 0 {
				line.TID += firefoxID(fmt.Sprintf(".%d", n)) // no two have the same
			}
			earlier[t.TID]++
			lines = append(lines, line)
		}
		byThread[i] = line
	}
	return lines, byThread
}

// firefoxLine is a thread to which samples are added in order of time.
type firefoxLine struct {
	firefoxThread
	pid      int32
	times    []*moment
	end      float64 // of what was added, ms
	weight   float64 // of its samples
	ran      []int   // samples up to which it ran, since the last one on the CPU
	weighted bool    // samples count for other than 1
}

// addTimes adds the samples of l.times. One of a thread that waited was taken
// at the end of that, and a sample without weight says when it began: on the
// time line there is the stack of the nearest sample.
func (l *firefoxLine) addTimes(f *firefoxWriter) {
	for i := 0; i < len(l.times); {
		// A wait in several states has its parts at one time, in their order.
		n, start := i, l.times[i].time
		for ; n < len(l.times) && l.times[n].time == l.times[i].time; n++ {
			if f.waits(&l.times[n].tally) {
				start -= l.times[n].value
			}
		}
		for _, m := range l.times[i:n] {
			at := m.time
			if f.waits(&m.tally) {
				// What stands for others would have begun before the one before.
				l.add(f, &tally{node: m.node, thread: m.thread}, max(f.ms(start), l.end))
				start += m.value
				at = start
			}
			l.end = max(f.ms(at), l.end)
			l.add(f, &m.tally, l.end)
		}
		i = n
	}
}

// ms converts a time of a sample to that of the file.
func (f *firefoxWriter) ms(ns int64) float64 { return float64(ns-f.zero) / 1e6 }

// waits reports whether a sample is the time that a thread has waited.
func (f *firefoxWriter) waits(s *tally) bool {
	p := f.p
	if !p.Meta.ByValue || p.Meta.Value.Unit != "nanoseconds" {
		return false
	}
	name := func(n pathNode) string {
		if ln := &p.locations[n.location].lines[0]; ln.kind == Marker {
			return p.functions[ln.function].name
		}
		return ""
	}
	leaf := p.nodes[s.node]
	for n := s.node; n != 0; n = p.nodes[n].parent {
		if p.isWaker(p.nodes[n].location) {
			leaf = p.nodes[p.nodes[n].parent]
			break
		}
	}
	return s.node != 0 && name(leaf) != "" && waits(name(leaf)) &&
		(leaf.parent == 0 || name(p.nodes[leaf.parent]) != notSampled)
}

func newFirefoxLine(t *Thread, process string) *firefoxLine {
	id := func(n int32) firefoxID { return firefoxID(strconv.Itoa(int(n))) }
	line := &firefoxLine{pid: t.PID, firefoxThread: firefoxThread{
		Name: cmp.Or(t.CommString(), process), ProcessName: process, ProcessType: "default", IsMainThread: t.PID == t.TID,
		PID: id(t.PID), TID: id(t.TID), Paused: []struct{}{},
		Markers: firefoxMarkers{Data: []any{}, Name: []int{}, StartTime: []float64{}, EndTime: []float64{}, Phase: []int{}, Category: []int{}},
		Samples: firefoxSamples{Stack: []*int{}, Time: []float64{}, Weight: []float64{}, WeightType: "samples"},
	}}
	return line
}

func (l *firefoxLine) add(f *firefoxWriter, s *tally, ms float64) {
	m := &f.p.Meta
	weight := float64(s.count)
	if m.ByValue {
		weight = float64(s.value)
		switch m.Value.Unit {
		case "nanoseconds":
			l.Samples.WeightType, weight = "tracing-ms", weight/1e6
		case "bytes":
			l.Samples.WeightType = "bytes"
		}
	}
	l.weight += weight
	l.weighted = l.weighted || weight != 1 || m.ByValue
	l.Samples.Length++
	l.Samples.Stack = append(l.Samples.Stack, f.stacks[s.node])
	l.Samples.Time = append(l.Samples.Time, ms)
	l.Samples.Weight = append(l.Samples.Weight, weight)
	// Without it, a thread seems to have run all the time from one sample to
	// the next.
	if len(f.p.times) > 0 && m.Value.Unit == "nanoseconds" && (m.Wall || !m.ByValue) {
		l.addCPU(float64(s.value), f.runs(s))
	}
}

// addCPU adds what a sample says of the time on the CPU. A thread that did not
// wait for the ns of a sample has run for as long since its last such: in what
// is between two samples, but not in its waits.
func (l *firefoxLine) addCPU(ns float64, running bool) {
	s := &l.Samples
	s.CPU = append(s.CPU, 0)
	i := len(s.CPU) - 1
	if !running && ns > 0 {
		return
	}
	l.ran = append(l.ran, i) // up to here, or up to the wait that begins here
	if !running {
		return
	}
	length := func(i int) float64 { return (s.Time[i] - s.Time[max(i-1, 0)]) * 1e6 }
	all := 0.0
	for _, i := range l.ran {
		all += length(i)
	}
	rest := ns
	for _, i := range l.ran {
		s.CPU[i] = math.Floor(length(i) * min(1, ns/max(all, 1)))
		rest -= s.CPU[i]
	}
	s.CPU[i] += rest
	l.ran = l.ran[:0]
}

// runs reports whether the thread of a sample was on the CPU.
func (f *firefoxWriter) runs(s *tally) bool {
	return !slices.ContainsFunc(f.p.labels[f.p.threads[s.thread].Labels], func(l Label) bool {
		return l.Key == "state" && l.Value != "running"
	})
}
