package profile

import (
	"cmp"
	"slices"
	"strings"
)

// Finish names the frames and returns the profile, and then is Reset. It gives up what is
// needed no more before frames are named, most of the Builder's memory.
func (b *Builder) Finish(meta Meta, sym Symbolizer) *Profile {
	b.init()
	b.path, b.stacks.children, b.index = Path{}, nil, nil
	p := &Profile{Meta: meta, squaresKnown: !b.squaresGuessed}
	p.Meta.Lost = slices.Clone(meta.Lost)
	p.Meta.Target = validText(meta.Target)
	sortTallies(p.Meta.Lost)
	b.tally(p)
	p.Meta.Help = p.helpNeeded()
	modules := b.orderModules(p)
	locs, byNode := b.distinctLocs()
	parents := b.stacks.parents()
	b.stacks = stacks{}
	b.resolve(p, modules, sym, locs, byNode)
	nodes := orderNodes(p, parents, byNode)
	threads := b.orderThreads(p, b.orderLabels(p))

	p.samples = make([]sample, b.samples.count)
	for i := range p.samples {
		s := b.sampleAt(uint32(i))
		s.node, s.thread = nodes[s.node], threads[s.thread]
		p.samples[i] = s
	}
	slices.SortFunc(p.samples, func(x, y sample) int {
		return cmp.Or(cmp.Compare(x.node, y.node), cmp.Compare(x.thread, y.thread))
	})
	b.samples, b.weights = list[stackCount]{}, list[stackWeight]{}
	p.times = b.orderTimes(nodes, threads)
	b.Reset()
	return p
}

// helpNeeded are the explanations of the reasons that there are.
func (p *Profile) helpNeeded() map[string]string {
	var help map[string]string
	for _, t := range slices.Concat(p.Truncated, p.Meta.Lost) {
		if text, ok := p.Meta.Help[t.Name]; ok {
			if help == nil {
				help = map[string]string{}
			}
			help[t.Name] = text
		}
	}
	return help
}

// validText returns UTF-8, as formats ask for. The kernel and ELF files know
// bytes alone, and cut a thread's name in the middle of a character. The text is
// no longer than it was.
func validText(s string) string { return strings.ToValidUTF8(s, "?") }

// tally counts the samples by how their walk ended.
func (b *Builder) tally(p *Profile) {
	// roots[n] is the root frame of node n. Parents come before children.
	roots := make([]uint32, b.stacks.count)
	for i, n := range b.stacks.frames() {
		roots[i] = i
		if n.parent != 0 {
			roots[i] = roots[n.parent]
		}
	}
	byRoot := map[uint32]int64{}
	for i := range b.samples.count {
		s := b.sampleAt(uint32(i))
		p.Samples += s.count
		p.Value += s.value
		byRoot[roots[s.node]] += s.count
	}
	p.Complete = p.Samples
	for reason, root := range b.truncated {
		if n := byRoot[root]; n != 0 {
			p.Truncated = append(p.Truncated, Tally{reason, n})
			p.Complete -= n
		}
	}
	sortTallies(p.Truncated)
}

func sortTallies(t []Tally) {
	slices.SortFunc(t, func(x, y Tally) int {
		return cmp.Or(cmp.Compare(y.N, x.N), cmp.Compare(x.Name, y.Name))
	})
}

// orderModules puts the modules in which most samples fell first, since pprof
// names a profile after the first that is a program, and leaves out those
// without frames. It returns the new numbers by old ones.
func (b *Builder) orderModules(p *Profile) []int {
	used := b.UsedModules()
	self := make([]int64, len(b.modules))
	for _, s := range b.samples.all() {
		if loc := b.stacks.loc(s.node); s.node != 0 && loc.Module != markerModule {
			self[b.moduleOf(loc.Module)] += s.count
		}
	}
	var order []int
	for i := 1; i < len(used); i++ {
		if used[i] {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(x, y int) int {
		mx, my := &b.modules[x], &b.modules[y]
		return cmp.Or(cmp.Compare(self[y], self[x]), cmp.Compare(mx.Path, my.Path),
			cmp.Compare(mx.BuildID, my.BuildID), cmp.Compare(mx.Start, my.Start),
			cmp.Compare(mx.Limit, my.Limit), cmp.Compare(mx.Offset, my.Offset), cmp.Compare(mx.Kind, my.Kind))
	})
	p.modules = append(p.modules, Module{})
	renumbered := make([]int, len(b.modules))
	for _, old := range order {
		renumbered[old] = len(p.modules)
		m := b.modules[old]
		m.Path = validText(m.Path)
		p.modules = append(p.modules, m)
	}
	return renumbered
}

// UsedModules reports by the numbers of modules which have frames.
func (b *Builder) UsedModules() []bool {
	b.init()
	used := make([]bool, len(b.modules))
	for _, n := range b.stacks.frames() {
		if n.Module != markerModule {
			used[b.moduleOf(n.Module)] = true
		}
	}
	return used
}

// moduleOf takes numbers that no call of Module returned for no module.
func (b *Builder) moduleOf(id uint32) uint32 {
	if id >= uint32(len(b.modules)) {
		return 0
	}
	return id
}

// resolve makes the locations of places and names them. The index of a place, which
// byNode has, becomes the location's number.
func (b *Builder) resolve(p *Profile, modules []int, sym Symbolizer, locs []Loc, byNode []uint32) {
	if len(locs) == 0 {
		return
	}
	order := b.orderLocs(modules, locs)
	r := resolver{p: p, functions: map[function]uint32{}}
	p.locations = make([]location, 0, len(locs))
	expecter, _ := sym.(Expecter)
	for at, i := range order {
		loc := locs[i]
		if expecter != nil && b.places == nil && loc.Module != markerModule && (at == 0 || locs[order[at-1]].Module != loc.Module) {
			expecter.Expect(loc.Module, addrsOf(loc.Module, locs, order[at:]))
		}
		if loc.Module == markerModule {
			r.add(location{module: noModule, addr: loc.Addr}, Line{Function: b.markerText(loc), Kind: Marker})
			continue
		}
		r.lines = r.lines[:0]
		addr := b.addrOf(loc)
		if b.places != nil {
			r.lines = append(r.lines, b.places[loc.Addr].lines...)
		} else if sym != nil {
			r.lines = sym.Symbolize(r.lines, loc)
		}
		if len(r.lines) == 0 {
			r.lines = append(r.lines, Line{Start: addr})
		}
		r.add(location{module: modules[b.moduleOf(loc.Module)], addr: addr}, r.lines...)
	}
	if expecter != nil {
		expecter.Named()
	}
	r.sortFunctions()
	renumbered := make([]uint32, len(locs))
	for n, i := range order {
		renumbered[i] = uint32(n)
	}
	for i := 1; i < len(byNode); i++ {
		byNode[i] = renumbered[byNode[i]]
	}
}

// orderLocs returns the indices of places in the order of their locations, in which a
// Symbolizer is asked, too: by module and address; markers, by their text, come last.
func (b *Builder) orderLocs(modules []int, locs []Loc) []uint32 {
	order := make([]uint32, len(locs))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(i, j uint32) int {
		x, y := locs[i], locs[j]
		switch xm, ym := x.Module == markerModule, y.Module == markerModule; {
		case xm && ym:
			return cmp.Or(cmp.Compare(b.markerText(x), b.markerText(y)), cmp.Compare(x.Addr, y.Addr))
		case xm:
			return 1
		case ym:
			return -1
		}
		return cmp.Or(cmp.Compare(modules[b.moduleOf(x.Module)], modules[b.moduleOf(y.Module)]),
			cmp.Compare(b.addrOf(x), b.addrOf(y)), cmp.Compare(x.Module, y.Module), cmp.Compare(x.Addr, y.Addr))
	})
	return order
}

// addrOf returns the address of a frame.
func (b *Builder) addrOf(loc Loc) uint64 {
	if b.places != nil {
		return b.places[loc.Addr].addr
	}
	return loc.Addr
}

// markerText returns the text of a marker, also of one that no call of Marker returned.
func (b *Builder) markerText(loc Loc) string {
	if text, ok := b.MarkerText(loc); ok {
		return text
	}
	return "[unknown marker]"
}

// addrsOf returns the addresses of a module, which is the first one in order.
func addrsOf(module uint32, locs []Loc, order []uint32) (addrs []uint64) {
	for _, i := range order {
		if locs[i].Module != module {
			break
		}
		addrs = append(addrs, locs[i].Addr)
	}
	return addrs
}

// distinctLocs returns the places that frames are in, and by node the index of
// its own.
func (b *Builder) distinctLocs() (locs []Loc, byNode []uint32) {
	t := &b.stacks
	byNode = make([]uint32, t.count)
	index := make([]uint32, minTable) // hash table of locs; 0 is free, else index + 1
	slot := func(loc Loc) *uint32 {
		mask := uint32(len(index) - 1)
		i := uint32(mix(loc.Addr, uint64(loc.Module))) & mask
		for index[i] != 0 && locs[index[i]-1] != loc {
			i = (i + 1) & mask
		}
		return &index[i]
	}
	for i, n := range t.frames() {
		at := slot(n.Loc)
		if *at == 0 {
			locs = append(locs, n.Loc)
			*at = uint32(len(locs))
		}
		byNode[i] = *at - 1
		if len(locs) > len(index)/2 {
			index = make([]uint32, 2*len(index))
			for k, loc := range locs {
				*slot(loc) = uint32(k + 1)
			}
		}
	}
	return locs, byNode
}

// resolver collects locations and their functions.
type resolver struct {
	p         *Profile
	functions map[function]uint32 // index of p.functions
	lines     []Line              // scratch
	room      []line              // for the lines of locations to come
}

func (r *resolver) add(loc location, lines ...Line) {
	if cap(r.room)-len(r.room) < len(lines) {
		r.room = make([]line, 0, max(listChunk, len(lines)))
	}
	first := len(r.room)
	for _, l := range lines {
		named := l.Function != "" && !l.byAddress
		if l.Function == "" {
			l.Function = r.p.modules[loc.module].unnamed(l.Start)
		}
		f := function{validText(l.Function), validText(l.SystemName), validText(l.File), l.StartLine}
		if f.systemName == "" {
			f.systemName = f.name
		}
		id, ok := r.functions[f]
		if !ok {
			id = uint32(len(r.p.functions))
			r.functions[f] = id
			r.p.functions = append(r.p.functions, f)
		}
		if l.Kind == Unknown && loc.module != noModule {
			l.Kind = r.p.modules[loc.module].Kind
		}
		r.room = append(r.room, line{l.Line, id, l.Kind, l.Inlined, named})
	}
	loc.lines = r.room[first:len(r.room):len(r.room)]
	r.p.locations = append(r.p.locations, loc)
}

// sortFunctions brings the functions into their final order.
func (r *resolver) sortFunctions() {
	p := r.p
	r.functions = nil
	functions := make([]uint32, len(p.functions))
	for i := range functions {
		functions[i] = uint32(i)
	}
	slices.SortFunc(functions, func(x, y uint32) int {
		fx, fy := &p.functions[x], &p.functions[y]
		return cmp.Or(cmp.Compare(fx.name, fy.name), cmp.Compare(fx.systemName, fy.systemName),
			cmp.Compare(fx.file, fy.file), cmp.Compare(fx.startLine, fy.startLine))
	})
	newID := make([]uint32, len(functions))
	sorted := make([]function, len(functions))
	for i, old := range functions {
		newID[old] = uint32(i)
		sorted[i] = p.functions[old]
	}
	p.functions = sorted
	for i := range p.locations {
		lines := p.locations[i].lines
		for j := range lines {
			lines[j].function = newID[lines[j].function]
		}
	}
}

// orderNodes lays the tree of nodes, given by their parents and locations, out in
// preorder, children by location. It returns the new numbers by old ones.
func orderNodes(p *Profile, parents, locs []uint32) []uint32 {
	first, children := childLists(len(parents), func(n int) uint32 { return parents[n] })
	renumbered := make([]uint32, len(parents))
	p.nodes = make([]pathNode, 0, len(children)+1)
	todo := []uint32{0}
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		renumbered[n] = uint32(len(p.nodes))
		p.nodes = append(p.nodes, pathNode{renumbered[parents[n]], locs[n]})
		c := children[first[n]:first[n+1]]
		slices.SortFunc(c, func(x, y uint32) int { return cmp.Compare(locs[y], locs[x]) }) // last in, first out
		todo = append(todo, c...)
	}
	return renumbered
}

// childLists returns the children of each of n nodes, of which node 0 is
// above all and those of noParent are left out: children[first[i]:first[i+1]] are those
// of node i.
func childLists(n int, parent func(int) uint32) (first, children []uint32) {
	first = make([]uint32, n+1)
	for i := 1; i < n; i++ {
		if p := parent(i); p != noParent {
			first[p]++
		}
	}
	for i := 1; i <= n; i++ {
		first[i] += first[i-1]
	}
	children = make([]uint32, first[n])
	for i := n - 1; i > 0; i-- { // first are the ends, and become the starts
		if p := parent(i); p != noParent {
			first[p]--
			children[first[p]] = uint32(i)
		}
	}
	return first, children
}

// orderThreads returns the threads' new numbers by old ones. labels are the
// new numbers of sets of labels.
func (b *Builder) orderThreads(p *Profile, labels []uint32) []uint32 {
	order := make([]uint32, len(b.threads.all))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(x, y uint32) int {
		tx, ty := &b.threads.all[x], &b.threads.all[y]
		return cmp.Or(cmp.Compare(tx.PID, ty.PID), cmp.Compare(tx.TID, ty.TID),
			slices.Compare(tx.Comm[:], ty.Comm[:]), cmp.Compare(tx.Event, ty.Event), cmp.Compare(labels[b.labelsOf(tx)], labels[b.labelsOf(ty)]))
	})
	renumbered := make([]uint32, len(order))
	for i, old := range order {
		renumbered[old] = uint32(i)
		t := b.threads.all[old]
		if int(t.Event) > len(p.Meta.Also) {
			t.Event = 0 // there is none of the number
		}
		t.Comm, t.Labels = Comm(validText(t.CommString())), labels[b.labelsOf(&t)]
		p.threads = append(p.threads, t)
	}
	return renumbered
}
