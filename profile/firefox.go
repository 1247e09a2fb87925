package profile

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
)

// firefoxCategories are what frames are coloured by, by Kind. One of them has
// to be grey.
var firefoxCategories = [numKinds]firefoxCategory{
	Unknown: {"Unknown", "grey", []string{"Other"}},
	Native:  {"Native", "orange", []string{"Other"}},
	Go:      {"Go", "green", []string{"Other"}},
	Kernel:  {"Kernel", "lightblue", []string{"Other"}},
	JIT:     {"JIT", "magenta", []string{"Other"}},
	Marker:  {"Remark", "purple", []string{"Other"}}, // waiting, or incomplete
}

// WriteFirefox writes the profile in the processed format of the Firefox
// Profiler, https://profiler.firefox.com, with a time line for each thread.
//
// It is true to time if the times of samples were kept (Builder.KeepTimes).
// Without them, the samples of a thread are laid end to end in no order, and
// the profile's name says so. Addresses are link-time, and those that a
// number of JavaScript cannot hold are left out.
func (p *Profile) WriteFirefox(w io.Writer) error {
	f := firefoxWriter{p: p, strings: columns{}, tables: &firefoxTables{}}
	f.setTables()
	out := firefoxFile{Meta: f.meta(), Libs: f.libs(), Pages: []struct{}{}, Threads: f.threads(), Shared: f.tables}
	f.tables.StringArray = append([]string{}, f.strings.list...)
	buffered := bufio.NewWriterSize(w, 1<<16)
	err := json.NewEncoder(buffered).Encode(&out)
	if err == nil {
		err = buffered.Flush()
	}
	if err != nil {
		return fmt.Errorf("writing Firefox profile: %w", err)
	}
	return nil
}

type firefoxWriter struct {
	p       *Profile
	strings columns
	tables  *firefoxTables
	stacks  []*int // by node
}

func (f *firefoxWriter) meta() firefoxMeta {
	m := &f.p.Meta
	out := firefoxMeta{
		Version: 24, Preprocessed: firefoxVersion, Interval: 1, Product: cmp.Or(m.Target, "profile"),
		OSCPU: m.Kernel, LogicalCPUs: m.CPUs, Stackwalk: 1, Symbolicated: true, OneStackType: true, NotOnSearchfox: true,
		Categories: firefoxCategories[:], MarkerSchema: []struct{}{},
		SampleUnits: map[string]string{"time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns"},
	}
	if ns := f.perSample(); ns > 0 {
		out.Interval = float64(ns) / 1e6
	}
	if !m.Start.IsZero() {
		out.StartTime = float64(m.Start.UnixMicro()) / 1e3
	}
	if len(f.p.times) == 0 {
		out.Product += " (times unknown: samples end to end)"
	}
	var facts []firefoxFact
	for _, fact := range f.p.facts() {
		facts = append(facts, firefoxFact{fact.Name, "string", fact.Text})
	}
	for _, t := range m.Lost {
		if t.N != 0 {
			facts = append(facts, firefoxFact{"Lost, " + t.Name, "string", thousands(t.N)})
		}
	}
	out.Extra = []firefoxExtra{{"Recording", facts}}
	return out
}

// perSample is the time that a sample stands for, or 0.
func (f *firefoxWriter) perSample() int64 {
	if f.p.Meta.Value.Unit == "nanoseconds" && !f.p.Meta.ByValue {
		return f.p.Meta.Period
	}
	return 0
}

func (f *firefoxWriter) libs() []firefoxLib {
	libs := []firefoxLib{}
	for _, m := range f.p.modules[min(1, len(f.p.modules)):] {
		lib := firefoxLib{Name: baseName(m.Path), Path: m.Path, DebugName: baseName(m.Path), DebugPath: m.Path}
		if m.BuildID != "" {
			lib.CodeID = &m.BuildID
		}
		libs = append(libs, lib)
	}
	return libs
}

// setTables makes a frame of each function at a location, and of each node a
// stack, or several where functions are inlined.
func (f *firefoxWriter) setTables() {
	p, t := f.p, f.tables
	t.setEmpty()
	for i := 1; i < len(p.modules); i++ {
		t.ResourceTable.add(i-1, f.strings.id(cmp.Or(baseName(p.modules[i].Path), "[unknown]")))
	}
	type inModule struct{ function, module int }
	funcs := map[inModule]int{}
	sources := map[string]int{}
	outermost := make([]int, len(p.locations)) // of the frames at a location, which the inlined ones follow
	for i := range p.locations {
		loc := &p.locations[i]
		outermost[i] = t.FrameTable.Length
		for depth := range loc.lines {
			ln := &loc.lines[len(loc.lines)-1-depth]
			fn := &p.functions[ln.function]
			key := inModule{ln.function, loc.module}
			id, ok := funcs[key]
			if !ok {
				id = t.FuncTable.Length
				funcs[key] = id
				var source *int
				if fn.file != "" {
					n, ok := sources[fn.file]
					if !ok {
						n = t.Sources.add(f.strings.id(fn.file))
						sources[fn.file] = n
					}
					source = &n
				}
				// Module 0 and markers have no resource.
				t.FuncTable.add(f.strings.id(fn.name), max(loc.module-1, -1), source, positive(fn.startLine))
			}
			addr := -1.0
			if loc.module > 0 && loc.addr < 1<<53 {
				addr = float64(loc.addr)
			}
			t.FrameTable.add(id, addr, depth, int(ln.kind), positive(ln.line))
		}
	}
	f.stacks = make([]*int, len(p.nodes))
	for i := 1; i < len(p.nodes); i++ {
		n := &p.nodes[i]
		prefix := f.stacks[n.parent]
		for j := range p.locations[n.location].lines {
			prefix = t.StackTable.add(outermost[n.location]+j, prefix)
		}
		f.stacks[i] = prefix
	}
}

// positive returns a pointer to n, or nil for a number that is not known.
func positive(n int) *int {
	if n <= 0 {
		return nil
	}
	return &n
}

// firefoxKey is a thread under one name: it may have another after an exec.
type firefoxKey struct {
	pid, tid int32
	comm     [16]byte
}

func (f *firefoxWriter) threads() []firefoxThread {
	p := f.p
	var names flameTree
	names.nameProcesses(p)
	var out []*firefoxLine
	ids := map[firefoxKey]*firefoxLine{}
	earlier := map[int32]int{} // lines by TID
	byThread := make([]*firefoxLine, len(p.threads))
	for i := range p.threads {
		t := &p.threads[i]
		key := firefoxKey{t.PID, t.TID, t.Comm}
		if ids[key] == nil {
			process := names.processes[names.threads[i].process]
			ids[key] = newFirefoxLine(t, process)
			if n := earlier[t.TID]; n > 0 {
				ids[key].TID += firefoxID(fmt.Sprintf(".%d", n)) // no two have the same
			}
			earlier[t.TID]++
			out = append(out, ids[key])
		}
		byThread[i] = ids[key]
	}
	if len(p.times) > 0 {
		zero := p.times[0].time
		if p.Meta.Clock > 0 && p.Meta.Clock < zero {
			zero = p.Meta.Clock
		}
		for i := range p.times {
			m := &p.times[i]
			byThread[m.thread].add(f, &m.tally, float64(m.time-zero)/1e6)
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
	threads := make([]firefoxThread, 0, len(out))
	for _, line := range out {
		if !line.weighted {
			line.Samples.Weight = nil
		}
		threads = append(threads, line.firefoxThread)
	}
	return threads
}

// firefoxLine is a thread to which samples are added in order of time.
type firefoxLine struct {
	firefoxThread
	end      float64 // of what was laid end to end
	weighted bool    // samples count for other than 1
}

func newFirefoxLine(t *Thread, process string) *firefoxLine {
	id := func(n int32) firefoxID { return firefoxID(strconv.Itoa(int(n))) }
	line := &firefoxLine{firefoxThread: firefoxThread{
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
	l.weighted = l.weighted || weight != 1 || m.ByValue
	l.Samples.Length++
	l.Samples.Stack = append(l.Samples.Stack, f.stacks[s.node])
	l.Samples.Time = append(l.Samples.Time, ms)
	l.Samples.Weight = append(l.Samples.Weight, weight)
	// Without it, a thread seems to have run all the time from one sample to
	// the next.
	if len(f.p.times) > 0 && m.Value.Unit == "nanoseconds" {
		l.Samples.CPU = append(l.Samples.CPU, f.onCPU(s))
	}
}

// onCPU is the time on the CPU that a sample stands for, in nanoseconds.
func (f *firefoxWriter) onCPU(s *tally) float64 {
	if f.p.Meta.Value.Type == "off-cpu" {
		return 0
	}
	for _, l := range f.p.labels[f.p.threads[s.thread].Labels] {
		if l.Key == "state" && l.Value != "running" {
			return 0
		}
	}
	return float64(s.value)
}

func (t *firefoxTables) setEmpty() {
	*t = firefoxTables{
		StackTable: firefoxStacks{Frame: []int{}, Prefix: []*int{}},
		FrameTable: firefoxFrames{Address: []float64{}, InlineDepth: []int{}, Category: []*int{}, Subcategory: []*int{},
			Func: []int{}, NativeSymbol: []*int{}, WindowID: []*int{}, Line: []*int{}, Column: []*int{}},
		FuncTable: firefoxFuncs{Name: []int{}, IsJS: []bool{}, ForJS: []bool{}, Resource: []int{}, Source: []*int{},
			LineNumber: []*int{}, Column: []*int{}},
		ResourceTable: firefoxResources{Lib: []*int{}, Name: []int{}, Host: []*int{}, Type: []int{}},
		NativeSymbols: firefoxSymbols{Lib: []int{}, Address: []int{}, Name: []int{}, Size: []int{}},
		Sources:       firefoxSources{ID: []*string{}, Filename: []int{}, StartLine: []int{}, StartColumn: []int{}, MapURL: []*int{}},
	}
}

func (t *firefoxStacks) add(frame int, prefix *int) *int {
	id := t.Length
	t.Length++
	t.Frame, t.Prefix = append(t.Frame, frame), append(t.Prefix, prefix)
	return &id
}

func (t *firefoxFrames) add(fn int, addr float64, depth, category int, line *int) {
	zero := 0
	t.Length++
	t.Func, t.Address, t.InlineDepth = append(t.Func, fn), append(t.Address, addr), append(t.InlineDepth, depth)
	t.Category, t.Subcategory = append(t.Category, &category), append(t.Subcategory, &zero)
	t.NativeSymbol, t.WindowID = append(t.NativeSymbol, nil), append(t.WindowID, &zero)
	t.Line, t.Column = append(t.Line, line), append(t.Column, nil)
}

func (t *firefoxFuncs) add(name, resource int, source, line *int) {
	t.Length++
	t.Name, t.Resource, t.Source = append(t.Name, name), append(t.Resource, resource), append(t.Source, source)
	t.IsJS, t.ForJS = append(t.IsJS, false), append(t.ForJS, false)
	t.LineNumber, t.Column = append(t.LineNumber, line), append(t.Column, nil)
}

func (t *firefoxResources) add(lib, name int) {
	t.Length++
	t.Lib, t.Name, t.Host, t.Type = append(t.Lib, &lib), append(t.Name, name), append(t.Host, nil), append(t.Type, 1)
}

func (t *firefoxSources) add(name int) int {
	id := t.Length
	t.Length++
	t.ID, t.Filename, t.MapURL = append(t.ID, nil), append(t.Filename, name), append(t.MapURL, nil)
	t.StartLine, t.StartColumn = append(t.StartLine, 1), append(t.StartColumn, 1)
	return id
}
