package profile

import (
	"cmp"
	"slices"
	"strings"
)

// TopEntry is a function and what ran in it.
type TopEntry struct {
	Function string
	Module   string // Path of its module, or ""
	Kind     Kind
	// Self is what ran in the function itself, Total that and what it called;
	// a stack counts once however often the function is in it. Both are
	// samples, or Meta.Value if Meta.ByValue is set.
	Self, Total int64
}

// Top returns the n functions with the largest Self, largest first. Markers are
// none: what was counted in them is their callers'. All are returned if n is
// negative.
func (p *Profile) Top(n int) []TopEntry { return p.top(n, false) }

// TopUser is Top for code of user space alone: a Self includes what ran in the
// kernel on the function's behalf.
func (p *Profile) TopUser(n int) []TopEntry { return p.top(n, true) }

func (p *Profile) top(n int, userOnly bool) []TopEntry {
	// Functions that differ only in their symbol, like the constructors of C++,
	// are one. They are next to each other, and known by the first.
	names := p.byName()
	type key struct{ name, module int }
	type entry struct {
		TopEntry
		counted uint32 // last stack, numbered from 1, for which Total was counted
	}
	// A stack's samples, one per thread, are together.
	byKey := map[key]*entry{}
	var stack []uint32
	for i := 0; i < len(p.samples); {
		node, weight := p.samples[i].node, int64(0)
		for ; i < len(p.samples) && p.samples[i].node == node; i++ {
			weight += p.weight(&p.samples[i].tally)
		}
		stack = p.withoutWaker(p.stack(stack[:0], node))
		isLeaf := true
		for _, id := range stack {
			loc := &p.locations[id]
			if loc.module == noModule || userOnly && loc.lines[0].kind == Kernel {
				continue
			}
			for j, ln := range loc.lines {
				k := key{names[ln.function], loc.module}
				e := byKey[k]
				if e == nil {
					e = &entry{TopEntry: TopEntry{Function: p.functions[ln.function].name,
						Module: p.modules[loc.module].Path, Kind: ln.kind}}
					byKey[k] = e
				}
				if isLeaf && j == 0 {
					e.Self += weight
				}
				if e.counted != uint32(i) {
					e.Total += weight
					e.counted = uint32(i)
				}
			}
			isLeaf = false
		}
	}
	top := make([]TopEntry, 0, len(byKey))
	for _, e := range byKey {
		top = append(top, e.TopEntry)
	}
	slices.SortFunc(top, func(x, y TopEntry) int {
		return cmp.Or(cmp.Compare(y.Self, x.Self), cmp.Compare(y.Total, x.Total),
			cmp.Compare(x.Function, y.Function), cmp.Compare(x.Module, y.Module))
	})
	if n >= 0 && n < len(top) {
		top = top[:n]
	}
	return top
}

// TopStack is the inner end of stacks, and what they come to.
type TopStack struct {
	Functions []string // innermost first
	Value     int64    // samples, or Meta.Value if Meta.ByValue is set
}

// TopStacks returns the n inner ends of stacks, of so many functions at most, that come to most, most first: where the
// innermost functions are the same few for all, as those that allocate memory. Markers are left out.
func (p *Profile) TopStacks(n, functions int) []TopStack {
	byEnd := map[string]int64{}
	var stack []uint32
	var end []string
	for i := range p.samples {
		stack, end = p.withoutWaker(p.stack(stack[:0], p.samples[i].node)), end[:0]
		for _, id := range stack {
			if p.locations[id].module == noModule {
				continue
			}
			for _, ln := range p.locations[id].lines {
				end = append(end, p.functions[ln.function].name)
			}
		}
		byEnd[strings.Join(end[:min(len(end), functions)], "\x00")] += p.weight(&p.samples[i].tally)
	}
	top := make([]TopStack, 0, len(byEnd))
	for end, value := range byEnd {
		if end != "" && value > 0 {
			top = append(top, TopStack{strings.Split(end, "\x00"), value})
		}
	}
	slices.SortFunc(top, func(x, y TopStack) int {
		return cmp.Or(cmp.Compare(y.Value, x.Value), slices.Compare(x.Functions, y.Functions))
	})
	return top[:min(len(top), n)]
}
