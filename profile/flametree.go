package profile

import (
	"cmp"
	"slices"
)

// flameTree is what a flame graph shows: the stacks by function instead of by
// address, with inlined functions as frames of their own, below a frame for
// the name of each process.
type flameTree struct {
	functions []flameFunction
	processes []string
	threads   []flameThread // numbered as in the Profile
	nodes     []flameNode   // in preorder, the heaviest child first; node 0 is above all
	samples   []sample      // by node and thread
}

// flameFunction is a function as a frame shows it. Symbols that only differ
// in their system name are one.
type flameFunction struct {
	name, module, file string
	startLine          int
	kind               Kind // Unknown for code without name, the kernel's excepted
	inlined, process   bool
}

type flameThread struct {
	Thread
	process int // index of processes
}

type flameNode struct {
	parent, function uint32
	line             int // most sampled line of its function, or of calls in it; or 0
	weight           int64
}

func (p *Profile) flameTree() *flameTree {
	t := &flameTree{}
	t.nameProcesses(p)
	g := flameGrower{t: t, p: p, functionIDs: map[flameFunction]uint32{}, tree: newStacks()}
	g.grow()
	t.sortByWeight()
	return t
}

// nameProcesses gives each thread a process. A process is called as its main
// thread is; a program that was replaced by exec leaves two names. Where the
// main thread was not sampled, the name is that of the thread itself.
func (t *flameTree) nameProcesses(p *Profile) {
	weights := make([]int64, len(p.threads))
	for i := range p.samples {
		weights[p.samples[i].thread] += p.weight(&p.samples[i].tally)
	}
	type main struct {
		name   string
		weight int64
	}
	mains := map[int32]main{}
	for i := 0; i < len(p.threads); {
		th, weight := p.threads[i], int64(0)
		// Those that differ in labels are next to each other.
		for ; i < len(p.threads) && p.threads[i].same(&th); i++ {
			weight += weights[i]
		}
		if m, ok := mains[th.PID]; th.TID == th.PID && (!ok || weight > m.weight) {
			mains[th.PID] = main{th.CommString(), weight}
		}
	}
	names := make([]string, len(p.threads))
	for i := range p.threads {
		th := &p.threads[i]
		names[i] = th.CommString()
		if m, ok := mains[th.PID]; ok && th.TID != th.PID {
			names[i] = m.name
		}
		if names[i] == "" {
			names[i] = cmp.Or(p.program, "[unknown]")
		}
	}
	t.processes = slices.Compact(slices.Sorted(slices.Values(names)))
	for i, name := range names {
		process, _ := slices.BinarySearch(t.processes, name)
		t.threads = append(t.threads, flameThread{p.threads[i], process})
	}
}

// flameGrower makes a flameTree from a Profile.
type flameGrower struct {
	t           *flameTree
	p           *Profile
	functionIDs map[flameFunction]uint32
	tree        stacks // the nodes; a Loc's address is a function
	lines       []flameLine
}

// flameLine is what ran in, or was called from, a line of a node.
type flameLine struct {
	node   uint32
	line   int
	weight int64
}

func (g *flameGrower) grow() {
	p, t := g.p, g.t
	byLocation := make([][]uint32, len(p.locations))
	for i := range p.locations {
		byLocation[i] = g.functionsAt(&p.locations[i])
	}
	byProcess := make([][]sample, len(t.processes))
	for _, s := range p.samples {
		process := t.threads[s.thread].process
		byProcess[process] = append(byProcess[process], s)
	}
	// Of the Profile's nodes: those of the flame graph, and weights.
	ids := make([]uint32, len(p.nodes))
	weights := make([]int64, len(p.nodes))
	inProcess := make([]int, len(p.nodes)) // the last process with the node, plus 1
	var used []uint32
	for process, samples := range byProcess {
		ids[0] = g.tree.child(0, Loc{Addr: uint64(g.function(flameFunction{name: t.processes[process], process: true}))})
		used = used[:0]
		for i := range samples {
			s := &samples[i]
			weights[s.node] += p.weight(&s.tally)
			for n := s.node; n != 0 && inProcess[n] != process+1; n = p.nodes[n].parent {
				inProcess[n] = process + 1
				used = append(used, n)
			}
		}
		slices.Sort(used) // parents before children
		for _, n := range used {
			id := ids[p.nodes[n].parent]
			for _, f := range byLocation[p.nodes[n].location] {
				id = g.tree.child(id, Loc{Addr: uint64(f)})
			}
			ids[n] = id
		}
		for _, n := range slices.Backward(used) {
			g.addLines(ids[n], &p.locations[p.nodes[n].location], weights[n])
			weights[p.nodes[n].parent] += weights[n]
			weights[n] = 0
		}
		weights[0] = 0
		for _, s := range samples {
			s.node = ids[s.node]
			t.samples = append(t.samples, s)
		}
	}
	t.nodes = make([]flameNode, g.tree.count)
	for i, parent := range g.tree.parents() {
		t.nodes[i].parent = parent
	}
	for i, n := range g.tree.frames() {
		t.nodes[i].function = uint32(n.Addr)
	}
	for i := range t.samples {
		t.nodes[t.samples[i].node].weight += p.weight(&t.samples[i].tally)
	}
	for _, n := range slices.Backward(t.nodes[1:]) {
		if n.parent != noParent {
			t.nodes[n.parent].weight += n.weight
		}
	}
	g.pickLines()
}

// functionsAt returns the functions at a location, outermost first.
func (g *flameGrower) functionsAt(loc *location) []uint32 {
	var ids []uint32
	for _, ln := range slices.Backward(loc.lines) {
		f := &g.p.functions[ln.function]
		ff := flameFunction{name: f.name, file: f.file, startLine: f.startLine, kind: ln.kind, inlined: ln.inlined}
		if loc.module != noModule {
			ff.module = g.p.modules[loc.module].Path
			if !ln.named && ff.kind != Kernel {
				ff.kind = Unknown
			}
		}
		ids = append(ids, g.function(ff))
	}
	return ids
}

func (g *flameGrower) function(f flameFunction) uint32 {
	id, ok := g.functionIDs[f]
	if !ok {
		id = uint32(len(g.t.functions))
		g.t.functions = append(g.t.functions, f)
		g.functionIDs[f] = id
	}
	return id
}

// addLines notes the lines of a location, whose innermost function is that of
// the node.
func (g *flameGrower) addLines(node uint32, loc *location, weight int64) {
	for _, ln := range loc.lines {
		if ln.line != 0 {
			g.lines = append(g.lines, flameLine{node, ln.line, weight})
		}
		node = g.tree.parent(node)
	}
}

// pickLines gives each node its heaviest line.
func (g *flameGrower) pickLines() {
	slices.SortFunc(g.lines, func(x, y flameLine) int {
		return cmp.Or(cmp.Compare(x.node, y.node), cmp.Compare(x.line, y.line))
	})
	for i := 0; i < len(g.lines); {
		node, heaviest := g.lines[i].node, int64(-1)
		for i < len(g.lines) && g.lines[i].node == node {
			line, weight := g.lines[i].line, int64(0)
			for ; i < len(g.lines) && g.lines[i].node == node && g.lines[i].line == line; i++ {
				weight += g.lines[i].weight
			}
			if weight > heaviest {
				heaviest = weight
				g.t.nodes[node].line = line
			}
		}
	}
}

// sortByWeight lays the nodes out in preorder, children by falling weight,
// and merges samples of the same node and thread.
func (t *flameTree) sortByWeight() {
	first, children := childLists(len(t.nodes), func(i int) uint32 { return t.nodes[i].parent })
	renumbered := make([]uint32, len(t.nodes))
	sorted := make([]flameNode, 0, len(children)+1)
	todo := []uint32{0}
	for len(todo) > 0 {
		old := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		n := t.nodes[old]
		n.parent = renumbered[n.parent]
		renumbered[old] = uint32(len(sorted))
		sorted = append(sorted, n)
		c := children[first[old]:first[old+1]]
		slices.SortFunc(c, func(x, y uint32) int { // last in, first out
			nx, ny := &t.nodes[x], &t.nodes[y]
			if nx.weight != ny.weight {
				return cmp.Compare(nx.weight, ny.weight)
			}
			return compareFlameFunctions(&t.functions[ny.function], &t.functions[nx.function])
		})
		todo = append(todo, c...)
	}
	t.nodes = sorted
	for i := range t.samples {
		t.samples[i].node = renumbered[t.samples[i].node]
	}
	slices.SortFunc(t.samples, func(x, y sample) int {
		return cmp.Or(cmp.Compare(x.node, y.node), cmp.Compare(x.thread, y.thread))
	})
	merged := t.samples[:0]
	for _, s := range t.samples {
		if n := len(merged); n > 0 && merged[n-1].node == s.node && merged[n-1].thread == s.thread {
			merged[n-1].count += s.count
			merged[n-1].value += s.value
			merged[n-1].squares += s.squares
		} else {
			merged = append(merged, s)
		}
	}
	t.samples = merged
}

func compareFlameFunctions(x, y *flameFunction) int {
	return cmp.Or(cmp.Compare(x.name, y.name), cmp.Compare(x.module, y.module),
		cmp.Compare(x.file, y.file), cmp.Compare(x.startLine, y.startLine),
		cmp.Compare(x.kind, y.kind), compareBools(x.inlined, y.inlined), compareBools(x.process, y.process))
}

func compareBools(x, y bool) int {
	switch {
	case x == y:
		return 0
	case y:
		return -1
	}
	return 1
}
