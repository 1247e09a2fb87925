package profile

import (
	"cmp"
	"slices"
	"strings"
)

// mergeSides puts two profiles into one in which the process ID tells the side.
// Their values are the weights, times per. What is the same function on both
// sides has the file and line that it has after.
func mergeSides(before, after *Profile, per [2]float64) *Profile {
	m := sideMerger{b: NewBuilder(), paths: map[string]Module{}, named: map[sideFunction]Line{}}
	m.wasCalled, m.isCalled = renamedProgram(before, after)
	m.b.places = make([]place, 0, 64)
	for _, p := range []*Profile{after, before} {
		m.learn(p)
	}
	m.add(before, beforeSide, per[0])
	m.add(after, afterSide, per[1])
	meta := Meta{
		Target: cmp.Or(before.Meta.Target, "before") + " → " + cmp.Or(after.Meta.Target, "after"),
		Tool:   after.Meta.Tool, Event: after.Meta.Event, ByValue: true, Counted: after.Meta.Counted,
		Value: ValueType{"share", "diff"},
	}
	return m.b.Finish(meta, nil)
}

// sideFunction is what a function is known by on both sides.
type sideFunction struct{ name, module string }

type sideMerger struct {
	b     *Builder
	paths map[string]Module // modules by base name, with path and kind
	named map[sideFunction]Line

	wasCalled, isCalled string // the program before and after; "" if it is called the same
}

// renamedProgram returns what the command that was sampled is called on both
// sides, if it is one of two names, as builds to compare may have: each is on its
// own side alone.
func renamedProgram(before, after *Profile) (was, is string) {
	was, is = baseName(before.Meta.Target), baseName(after.Meta.Target)
	has := func(p *Profile, name string) bool {
		return slices.ContainsFunc(p.modules, func(m Module) bool { return baseName(m.Path) == name })
	}
	if was == is || !has(before, was) || !has(after, is) || has(before, is) || has(after, was) {
		return "", ""
	}
	return was, is
}

// called returns the name that a program or process of this name has after. Names
// of processes are cut to 15 bytes.
func (m *sideMerger) called(name string) string {
	if name != "" && (name == m.wasCalled || name == m.wasCalled[:min(len(m.wasCalled), 15)]) {
		return m.isCalled
	}
	return name
}

// learn notes what things are called; the first to tell is right.
func (m *sideMerger) learn(p *Profile) {
	for i := range p.modules {
		base := m.called(sideModule(p.modules[i].Path))
		if _, ok := m.paths[base]; !ok {
			m.paths[base] = Module{Path: p.modules[i].Path, Kind: p.modules[i].Kind}
		}
	}
	for i := range p.locations {
		loc := &p.locations[i]
		for _, ln := range loc.lines {
			f := &p.functions[ln.function]
			key := sideFunction{f.name, m.baseOf(p, loc)}
			if _, ok := m.named[key]; !ok {
				m.named[key] = Line{Function: f.name, File: f.file, StartLine: f.startLine, Kind: ln.kind, byAddress: !ln.named}
			}
		}
	}
}

func (m *sideMerger) baseOf(p *Profile, loc *location) string {
	if loc.module == noModule {
		return ""
	}
	return m.called(sideModule(p.modules[loc.module].Path))
}

// sideModule returns what a module is known by on both sides: what processes generate is not
// told apart by their numbers.
func sideModule(path string) string {
	if strings.HasPrefix(path, "[jit of ") {
		return "[jit]"
	}
	return baseName(path)
}

func (m *sideMerger) add(p *Profile, side int32, per float64) {
	locs := make([]Loc, len(p.locations))
	for i := range p.locations {
		loc := &p.locations[i]
		module := uint32(markerModule)
		if loc.module != noModule {
			module = m.b.Module(m.paths[m.baseOf(p, loc)])
		}
		var lines []Line
		for _, ln := range loc.lines {
			// That it is inlined is left out: it may be so on one side only.
			lines = append(lines, m.named[sideFunction{p.functions[ln.function].name, m.baseOf(p, loc)}])
		}
		if module == markerModule {
			locs[i] = m.b.Marker(lines[0].Function)
			continue
		}
		m.b.places = append(m.b.places, place{loc.addr, lines})
		locs[i] = Loc{module, uint64(len(m.b.places) - 1)}
	}
	labels := make([]uint32, len(p.labels))
	for i, set := range p.labels {
		labels[i] = m.b.Labels(set...)
	}
	var names flameTree
	names.nameProcesses(p)
	var stack []uint32
	var frames []Loc
	for i := range p.samples {
		s := &p.samples[i]
		stack, frames = p.stack(stack[:0], s.node), frames[:0]
		for _, id := range stack {
			frames = append(frames, locs[id])
		}
		process := names.processes[names.threads[s.thread].process]
		squares := s.squares
		if !p.Meta.ByValue {
			squares = float64(s.count)
		}
		thread := Thread{PID: side, TID: side, Comm: Comm(m.called(process)), Labels: labels[p.threads[s.thread].Labels]}
		m.b.add(thread, frames, "", s.count, int64(float64(p.weight(&s.tally))*per+0.5), squares*per*per)
	}
}
