package profile

import (
	"cmp"
	"slices"
)

// FunctionView is what a profile knows of one function, by name and module.
// All weights are samples, or Meta.Value if Meta.ByValue is set; a stack counts
// once for each however often it has it.
type FunctionView struct {
	TopEntry
	// Callers are the functions that called this one, and Callees those that it
	// called, the heaviest first. Their Self is 0, and their Total what ran in
	// this function when they called it, or in them when it called them.
	Callers, Callees []TopEntry
	Sources          []SourceView // the heaviest first
}

// SourceView is what ran in the lines of a file.
type SourceView struct {
	File        string
	StartLine   int // on which the function begins; 0 when not known
	Self, Total int64
	Lines       []LineView // by line
}

// LineView is what ran in a line of source.
type LineView struct {
	Line        int
	Self, Total int64
}

// expanded is a frame of a stack in which inlined functions are apart.
type expanded struct{ function, module, line int }

// expand appends the frames of a stack to dst, leaf first. A function is the
// first of its name.
func (p *Profile) expand(dst []expanded, leaf uint32, names []int) []expanded {
	for n := leaf; n != 0; n = p.nodes[n].parent {
		loc := &p.locations[p.nodes[n].location]
		for _, ln := range loc.lines {
			dst = append(dst, expanded{names[ln.function], loc.module, ln.line})
		}
	}
	return dst
}

// byName returns for each function the first of the same name.
func (p *Profile) byName() []int {
	names := make([]int, len(p.functions))
	for i := range names {
		names[i] = i
		if i > 0 && p.functions[i].name == p.functions[i-1].name {
			names[i] = names[i-1]
		}
	}
	return names
}

// edgeKey is a function in a module.
type edgeKey struct{ function, module int }

// tallyOnce sums weights by key, each key once a stack.
type tallyOnce[K comparable] struct {
	weight map[K]int64
	last   map[K]int
}

func newTallyOnce[K comparable]() tallyOnce[K] {
	return tallyOnce[K]{map[K]int64{}, map[K]int{}}
}

func (t *tallyOnce[K]) add(k K, stack int, weight int64) {
	if last, ok := t.last[k]; !ok || last != stack {
		t.last[k] = stack
		t.weight[k] += weight
	}
}

type sourceKey struct {
	file  string
	start int
}

type lineKey struct {
	sourceKey
	line int
}

// Function returns what is known of a function, and whether there is one.
// module is the Path of its module.
func (p *Profile) Function(name, module string) (*FunctionView, bool) {
	names := p.byName()
	function := slices.IndexFunc(p.functions, func(f function) bool { return f.name == name })
	if function < 0 {
		return nil, false
	}
	v := &FunctionView{TopEntry: TopEntry{Function: name, Module: module}}
	found := false
	callers, callees := newTallyOnce[edgeKey](), newTallyOnce[edgeKey]()
	sources, lines := newTallyOnce[sourceKey](), newTallyOnce[lineKey]()
	sourceSelf, lineSelf := map[sourceKey]int64{}, map[lineKey]int64{}
	var stack []uint32
	var frames []expanded
	for i := 0; i < len(p.samples); {
		node, weight := p.samples[i].node, int64(0)
		for ; i < len(p.samples) && p.samples[i].node == node; i++ {
			weight += p.weight(&p.samples[i].tally)
		}
		stack = p.stack(stack[:0], node)
		frames = p.expand(frames[:0], node, names)
		at, here := 0, false
		for _, id := range stack {
			loc := &p.locations[id]
			for _, ln := range loc.lines {
				k := at
				at++
				if names[ln.function] != function || loc.module == noModule || p.modules[loc.module].Path != module {
					continue
				}
				if !here {
					here, found = true, true
					v.Total += weight
				}
				v.Kind = ln.kind
				f := &p.functions[ln.function]
				source := sourceKey{f.file, f.startLine}
				line := lineKey{source, ln.line}
				sources.add(source, i, weight)
				lines.add(line, i, weight)
				if k == 0 {
					v.Self += weight
					sourceSelf[source] += weight
					lineSelf[line] += weight
				} else {
					callees.add(edgeKey{frames[k-1].function, frames[k-1].module}, i, weight)
				}
				if k+1 < len(frames) {
					callers.add(edgeKey{frames[k+1].function, frames[k+1].module}, i, weight)
				}
			}
		}
	}
	v.Callers, v.Callees = p.edges(callers.weight), p.edges(callees.weight)
	for s, total := range sources.weight {
		v.Sources = append(v.Sources, SourceView{File: s.file, StartLine: s.start, Self: sourceSelf[s], Total: total})
	}
	slices.SortFunc(v.Sources, func(x, y SourceView) int {
		return cmp.Or(cmp.Compare(y.Total, x.Total), cmp.Compare(x.File, y.File), cmp.Compare(x.StartLine, y.StartLine))
	})
	for k, total := range lines.weight {
		i := slices.IndexFunc(v.Sources, func(s SourceView) bool { return s.File == k.file && s.StartLine == k.start })
		v.Sources[i].Lines = append(v.Sources[i].Lines, LineView{k.line, lineSelf[k], total})
	}
	for i := range v.Sources {
		slices.SortFunc(v.Sources[i].Lines, func(x, y LineView) int { return cmp.Compare(x.Line, y.Line) })
	}
	return v, found
}

func (p *Profile) edges(weights map[edgeKey]int64) []TopEntry {
	var out []TopEntry
	for k, w := range weights {
		e := TopEntry{Function: p.functions[k.function].name, Total: w, Kind: Marker}
		if k.module != noModule {
			e.Module, e.Kind = p.modules[k.module].Path, p.modules[k.module].Kind
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(x, y TopEntry) int {
		return cmp.Or(cmp.Compare(y.Total, x.Total), cmp.Compare(x.Function, y.Function), cmp.Compare(x.Module, y.Module))
	})
	return out
}

// SourceFiles returns the source files that the profile names.
func (p *Profile) SourceFiles() map[string]bool {
	files := map[string]bool{}
	for i := range p.functions {
		if f := p.functions[i].file; f != "" {
			files[f] = true
		}
	}
	return files
}

// Whole returns the weight of all samples, and what it is: "samples",
// "off-cpu".
func (p *Profile) Whole() (int64, string) {
	if p.Meta.ByValue {
		return p.Value, p.weightName()
	}
	return p.Samples, p.weightName()
}

// Share prints a part of the whole as a percentage that is 100 % only when it
// is: "12.5 %".
func Share(part, whole int64) string { return share(part, whole) }
