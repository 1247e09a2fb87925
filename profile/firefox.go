package profile

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// firefoxCategories are what frames are coloured by: by Kind, and the reasons of
// waiting after these. One of them has to be grey.
var firefoxCategories = [...]firefoxCategory{
	Unknown: {"Unknown", "grey", []string{"Other"}},
	Native:  {"Native", "orange", []string{"Other"}},
	Go:      {"Go", "green", []string{"Other"}},
	Kernel:  {"Kernel", "lightblue", []string{"Other"}},
	JIT:     {"JIT", "magenta", []string{"Other"}},
	Marker:  {"Incomplete", "darkgrey", []string{"Other"}},
	waiting: {"Waiting", "purple", []string{"Other", "sleep", "disk", "lock", "stopped", "uninterruptible", "runnable"}},
}

// waiting is the category of the markers that tell why a thread waits.
const waiting = int(numKinds)

// firefoxCategoryOf returns the category and subcategory of a frame.
func firefoxCategoryOf(kind Kind, name string) (category, sub int) {
	if kind != Marker || !waits(name) {
		return int(kind), 0
	}
	return waiting, max(0, slices.Index(firefoxCategories[waiting].Subcategories, strings.Trim(name, "[]")))
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
	threads := f.threads()
	out := firefoxFile{Meta: f.meta(), Libs: f.libs(), Pages: []struct{}{}, Threads: threads, Shared: f.tables}
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
	zero    int64  // time of a sample that is 0 in the file
	visible []int  // threads to show at first, or nil for the Firefox Profiler's choice
}

func (f *firefoxWriter) meta() firefoxMeta {
	m := &f.p.Meta
	out := firefoxMeta{
		Version: 24, Preprocessed: firefoxVersion, Interval: 1, Product: f.product(),
		OSCPU: m.Kernel, LogicalCPUs: m.CPUs, Stackwalk: 1, Symbolicated: true, OneStackType: true, NotOnSearchfox: true,
		Categories: firefoxCategories[:], MarkerSchema: []struct{}{},
		Visible:     f.visible,
		SampleUnits: map[string]string{"time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns"},
	}
	if ns := f.perSample(); ns > 0 {
		out.Interval = float64(ns) / 1e6
	}
	if !m.Start.IsZero() {
		out.StartTime = float64(m.Start.UnixMicro()) / 1e3
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

func (f *firefoxWriter) product() string {
	name := cmp.Or(f.p.Meta.Target, "profile")
	if len(f.p.times) == 0 && f.p.Samples > 0 {
		name += " (times unknown: samples end to end)"
	}
	return name
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
			key := inModule{int(ln.function), loc.module}
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
			t.FrameTable.add(id, addr, depth, ln.kind, fn.name, positive(ln.line))
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

func (t *firefoxFrames) add(fn int, addr float64, depth int, kind Kind, name string, line *int) {
	zero := 0
	category, sub := firefoxCategoryOf(kind, name)
	t.Length++
	t.Func, t.Address, t.InlineDepth = append(t.Func, fn), append(t.Address, addr), append(t.InlineDepth, depth)
	t.Category, t.Subcategory = append(t.Category, &category), append(t.Subcategory, &sub)
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
