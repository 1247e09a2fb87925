package profile

import "cmp"

// mergeSides puts two profiles into one in which the process ID tells the side.
// Their values are the weights, times perBefore and perAfter. What is the same
// function on both sides has the file and line that it has after.
func mergeSides(before, after *Profile, perBefore, perAfter float64) *Profile {
	m := sideMerger{b: NewBuilder(), paths: map[string]Module{}, named: map[sideFunction]Line{}}
	m.b.places = make([]place, 0, 64)
	for _, p := range []*Profile{after, before} {
		m.learn(p)
	}
	m.add(before, beforeSide, perBefore)
	m.add(after, afterSide, perAfter)
	meta := Meta{
		Target: cmp.Or(before.Meta.Target, "before") + " → " + cmp.Or(after.Meta.Target, "after"),
		Tool:   after.Meta.Tool, Event: after.Meta.Event, ByValue: true, Counted: after.Meta.Counted,
		Value: ValueType{"share", "diff"},
	}
	return m.b.Build(meta, nil)
}

// sideFunction is what a function is known by on both sides.
type sideFunction struct{ name, module string }

type sideMerger struct {
	b     *Builder
	paths map[string]Module // modules by base name, with path and kind
	named map[sideFunction]Line
}

// learn notes what things are called; the first to tell is right.
func (m *sideMerger) learn(p *Profile) {
	for i := range p.modules {
		base := baseName(p.modules[i].Path)
		if _, ok := m.paths[base]; !ok {
			m.paths[base] = Module{Path: p.modules[i].Path, Kind: p.modules[i].Kind}
		}
	}
	for i := range p.locations {
		loc := &p.locations[i]
		for _, ln := range loc.lines {
			f := &p.functions[ln.function]
			key := sideFunction{f.name, p.baseOf(loc)}
			if _, ok := m.named[key]; !ok {
				m.named[key] = Line{Function: f.name, File: f.file, StartLine: f.startLine, Kind: ln.kind, byAddress: !ln.named}
			}
		}
	}
}

func (p *Profile) baseOf(loc *location) string {
	if loc.module == noModule {
		return ""
	}
	return baseName(p.modules[loc.module].Path)
}

func (m *sideMerger) add(p *Profile, side int32, per float64) {
	locs := make([]Loc, len(p.locations))
	for i := range p.locations {
		loc := &p.locations[i]
		module := uint32(markerModule)
		if loc.module != noModule {
			base := baseName(p.modules[loc.module].Path)
			module = m.b.Module(m.paths[base])
		}
		var lines []Line
		for _, ln := range loc.lines {
			// That it is inlined is left out: it may be so on one side only.
			lines = append(lines, m.named[sideFunction{p.functions[ln.function].name, p.baseOf(loc)}])
		}
		if module == markerModule {
			locs[i] = Loc{module, uint64(len(m.b.markers))}
			m.b.markers = append(m.b.markers, lines[0].Function)
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
		thread := Thread{PID: side, TID: side, Comm: Comm(process), Labels: labels[p.threads[s.thread].Labels]}
		m.b.add(thread, frames, "", s.count, int64(float64(p.weight(&s.tally))*per+0.5), squares*per*per)
	}
}
