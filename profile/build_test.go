package profile

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
)

// orderSymbolizer names every place and records the questions.
type orderSymbolizer struct{ asked []Loc }

func (s *orderSymbolizer) Symbolize(dst []Line, loc Loc) []Line {
	s.asked = append(s.asked, loc)
	return append(dst, Line{Function: "f"})
}

func TestSymbolizeOrder(t *testing.T) {
	b := NewBuilder()
	m1, m2 := b.Module(Module{Path: "b"}), b.Module(Module{Path: "a"})
	b.Add(Thread{}, []Loc{{m2, 5}, {m1, 9}, {0, 7}, {m1, 3}}, "cut", 1, 1)
	b.Add(Thread{}, []Loc{{m2, 4}, {m1, 9}, {m1, 3}}, "", 1, 1)
	var s orderSymbolizer
	b.Finish(Meta{}, &s)
	want := []Loc{{0, 7}, {m2, 4}, {m2, 5}, {m1, 3}, {m1, 9}} // m2 has the leaves
	if !slices.Equal(s.asked, want) {
		t.Errorf("asked for %v, want %v", s.asked, want)
	}
}

// toldSymbolizer is an orderSymbolizer that notes what it is told.
type toldSymbolizer struct {
	orderSymbolizer
	told []string
}

func (s *toldSymbolizer) Expect(module uint32, addrs []uint64) {
	s.told = append(s.told, fmt.Sprint(len(s.asked), " asked, next ", module, " ", addrs))
}

func (s *toldSymbolizer) Named() { s.told = append(s.told, fmt.Sprint(len(s.asked), " asked, named")) }

// A Symbolizer is told what it will be asked for, module by module, and when that was all.
func TestExpecter(t *testing.T) {
	b := NewBuilder()
	m1, m2 := b.Module(Module{Path: "b"}), b.Module(Module{Path: "a"})
	b.Add(Thread{}, []Loc{{m2, 5}, {m1, 9}, {m1, 3}}, "cut", 1, 1)
	b.Add(Thread{}, []Loc{{m2, 4}, {m1, 9}}, "", 1, 1)
	var s toldSymbolizer
	b.Finish(Meta{}, &s)
	want := []string{
		fmt.Sprint("0 asked, next ", m2, " [4 5]"), fmt.Sprint("2 asked, next ", m1, " [3 9]"), "4 asked, named",
	}
	if !slices.Equal(s.told, want) {
		t.Errorf("told %q, want %q", s.told, want)
	}
}

// After Finish recording goes on: the next profile has what was added since alone, and the one
// before stays what it is.
func TestFinishTwice(t *testing.T) {
	b := NewBuilder()
	m := b.Module(Module{Path: "a"})
	b.Add(Thread{PID: 1}, []Loc{{m, 1}}, "", 1, 1)
	b.Add(Thread{PID: 1}, []Loc{{m, 1}}, "", 1, 1)
	b.Add(Thread{PID: 1}, []Loc{{m, 0}}, "x", 1, 1)
	first := b.Finish(Meta{}, nil)
	b.Add(Thread{PID: 1}, []Loc{{m, 2}}, "", 1, 1)
	if p := b.Finish(Meta{}, nil); p.Samples != 1 || string(written(t, p.WriteFolded)) != "[unknown];a+0x2 1\n" {
		t.Errorf("after that %q", written(t, p.WriteFolded))
	}
	const want = "[unknown];[truncated: x];a+0x0 1\n[unknown];a+0x1 2\n"
	if got := string(written(t, first.WriteFolded)); first.Samples != 3 || first.Complete != 2 || len(first.samples) != 2 || got != want {
		t.Errorf("first %+v, %q", first, got)
	}
}

// Frames of a function without name are one if it is known where it begins.
func TestUnnamedFunction(t *testing.T) {
	b := NewBuilder()
	m := b.Module(Module{Path: "/lib/liba.so", Kind: Native})
	syms := symbols{{m, 0x110}: {{Start: 0x100}}, {m, 0x120}: {{Start: 0x100}}, {m, 0x210}: {{Function: "named"}}}
	for _, addr := range []uint64{0x110, 0x120, 0x210, 0x310} {
		b.Add(Thread{}, []Loc{{m, addr}}, "", 1, 1)
	}
	p := b.Finish(Meta{}, syms)
	var names []string
	for _, e := range p.Top(-1) {
		names = append(names, e.Function)
	}
	slices.Sort(names)
	if want := []string{"liba.so+0x100", "liba.so+0x310", "named"}; !slices.Equal(names, want) {
		t.Errorf("functions %v, want %v", names, want)
	}
	kinds := map[string]Kind{}
	for _, f := range p.flameTree().functions {
		kinds[f.name] = f.kind
	}
	if kinds["liba.so+0x100"] != Unknown || kinds["liba.so+0x310"] != Unknown || kinds["named"] != Native {
		t.Errorf("kinds %v", kinds)
	}
}

// Frames of modules, and labels, that were never declared are not trusted.
func TestUndeclaredModule(t *testing.T) {
	b := NewBuilder()
	b.Add(Thread{Labels: 9}, []Loc{{77, 0x10}, {markerModule, 5}}, "", 1, 1)
	p := b.Finish(Meta{}, nil)
	var names []string
	for _, f := range p.functions {
		names = append(names, f.name)
	}
	if want := []string{"[unknown marker]", "[unknown]+0x10"}; !slices.Equal(names, want) {
		t.Errorf("functions %v, want %v", names, want)
	}
	if err := inPprof(t, p).CheckValid(); err != nil {
		t.Error(err)
	}
}

// A process is called as its main thread is, by its heaviest name if it had
// several, and by the thread's own where the main thread was not sampled.
func TestProcessNames(t *testing.T) {
	b := NewBuilder()
	add := func(pid, tid int32, comm string, n int64) {
		b.Add(Thread{PID: pid, TID: tid, Comm: Comm(comm)}, nil, "", n, n)
	}
	add(1, 1, "sh", 1)
	add(1, 1, "java", 5)
	add(1, 2, "GC Thread#0", 3)
	add(2, 3, "orphan", 1)
	add(4, 4, "", 1)
	p := b.Finish(Meta{}, nil)
	tree := p.flameTree()
	got := map[string]string{}
	for _, th := range tree.threads {
		got[th.CommString()] = tree.processes[th.process]
	}
	for comm, want := range map[string]string{
		"sh": "sh", "java": "java", "GC Thread#0": "java", "orphan": "orphan", "": "[unknown]",
	} {
		if got[comm] != want {
			t.Errorf("thread %q is of process %q, want %q", comm, got[comm], want)
		}
	}
	if !slices.IsSortedFunc(p.threads, func(x, y Thread) int { return cmp.Compare(x.PID, y.PID) }) {
		t.Errorf("threads are not in order: %v", p.threads)
	}
}

// The flame graph's tree adds up, and has each stack of the profile.
func TestFlameTreeSums(t *testing.T) {
	p := largeProfile(2000)
	tree := p.flameTree()
	if tree.nodes[0].weight != p.Samples {
		t.Errorf("weight %d, want %d", tree.nodes[0].weight, p.Samples)
	}
	below := make([]int64, len(tree.nodes))
	for i := range tree.samples {
		below[tree.samples[i].node] += tree.samples[i].count
	}
	for i := len(tree.nodes) - 1; i > 0; i-- {
		n := &tree.nodes[i]
		if n.parent >= uint32(i) {
			t.Fatalf("node %d comes before its parent %d", i, n.parent)
		}
		if below[i] != n.weight {
			t.Fatalf("node %d weighs %d, its parts %d", i, n.weight, below[i])
		}
		below[n.parent] += below[i]
	}
	stacks := func(path func(yield func(string, int64))) map[string]int64 {
		sums := map[string]int64{}
		path(func(s string, n int64) { sums[s] += n })
		return sums
	}
	want := stacks(func(yield func(string, int64)) {
		for i := range p.samples {
			s := &p.samples[i]
			text := ""
			for _, id := range p.stack(nil, s.node) {
				for _, ln := range p.locations[id].lines {
					text = p.functions[ln.function].name + ";" + text
				}
			}
			yield(p.threads[s.thread].CommString()+";"+text, s.count)
		}
	})
	got := stacks(func(yield func(string, int64)) {
		for i := range tree.samples {
			s := &tree.samples[i]
			text := ""
			for n := s.node; n != 0; n = tree.nodes[n].parent {
				text = tree.functions[tree.nodes[n].function].name + ";" + text
			}
			yield(text, s.count)
		}
	})
	if len(got) != len(want) {
		t.Errorf("%d stacks, want %d", len(got), len(want))
	}
	for stack, n := range want {
		if got[stack] != n {
			t.Fatalf("%s: %d samples, want %d", stack, got[stack], n)
		}
	}
}
