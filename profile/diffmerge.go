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
	m := sideMerger{b: NewBuilder(), paths: map[string]Module{}, homes: map[string]home{}, named: map[sideFunction]Line{}}
	m.wasCalled, m.isCalled = renamedProgram(before, after)
	m.b.places = make([]place, 0, 64)
	m.learnHomes(before)
	m.learnHomes(after)
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

// sideFunction is what a function is known by on both sides: its name, as folded stacks have it,
// and the base name of its module.
type sideFunction struct{ name, module string }

// home is where functions of one name are.
type home struct {
	module  string // the base name of the only one that they are in, "" if there are several or none
	known   bool   // there is a module
	without bool   // some have none
}

type sideMerger struct {
	b     *Builder
	paths map[string]Module // modules by base name, with path and kind
	homes map[string]home   // by names of functions
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

// learnHomes notes where the functions of a side are.
func (m *sideMerger) learnHomes(p *Profile) {
	for i := range p.locations {
		loc := &p.locations[i]
		if loc.module == noModule {
			continue
		}
		module := m.called(sideModule(p.modules[loc.module].Path))
		for _, ln := range loc.lines {
			name := foldedName(p.functions[ln.function].name)
			h := m.homes[name]
			switch {
			case module == "":
				h.without = true
			case !h.known:
				h.module, h.known = module, true
			case h.module != module:
				h.module = ""
			}
			m.homes[name] = h
		}
	}
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
			key := m.functionOf(p, loc, f.name)
			if _, ok := m.named[key]; !ok {
				m.named[key] = Line{Function: f.name, File: f.file, StartLine: f.startLine, Kind: ln.kind, byAddress: !ln.named}
			}
		}
	}
}

// functionOf returns what a function of a location is known by. Where some of its name have no
// module, as in folded stacks, the name must do.
func (m *sideMerger) functionOf(p *Profile, loc *location, name string) sideFunction {
	f := sideFunction{name: foldedName(name)}
	if loc.module == noModule {
		return f
	}
	if h := m.homes[f.name]; h.without {
		f.module = h.module
	} else {
		f.module = m.called(sideModule(p.modules[loc.module].Path))
	}
	return f
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
	locs := make([][]Loc, len(p.locations))
	for i := range p.locations {
		loc := &p.locations[i]
		for _, ln := range loc.lines {
			// That it is inlined is left out: it may be so on one side only.
			f := m.functionOf(p, loc, p.functions[ln.function].name)
			if loc.module == noModule {
				locs[i] = append(locs[i], m.b.Marker(m.named[f].Function))
				continue
			}
			m.b.places = append(m.b.places, place{loc.addr, []Line{m.named[f]}})
			locs[i] = append(locs[i], Loc{m.b.Module(m.paths[f.module]), uint64(len(m.b.places) - 1)})
		}
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
			frames = append(frames, locs[id]...)
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
