package unwind

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// fakeStepper answers as told and records whom it met.
type fakeStepper struct {
	name     string
	priority Priority
	verdict  Verdict
	err      error
	step     func(in, out *Frame)
	joined   []StepperGroup
	changes  []LibraryChange
}

func (s *fakeStepper) Name() string             { return s.name }
func (s *fakeStepper) Priority() Priority       { return s.priority }
func (s *fakeStepper) JoinGroup(g StepperGroup) { s.joined = append(s.joined, g) }

func (s *fakeStepper) LibraryChanged(_ *Walker, _ procstate.Library, c LibraryChange) {
	s.changes = append(s.changes, c)
}

func (s *fakeStepper) CallerFrame(_ *Walker, in, out *Frame) (Verdict, error) {
	if s.step != nil {
		s.step(in, out)
	}
	return s.verdict, s.err
}

// order lists the names of the steppers that a group offers for addr.
func order(g StepperGroup, addr uint64) string {
	var names []string
	var last FrameStepper
	for {
		s, ok := g.StepperFor(addr, last)
		if !ok {
			return strings.Join(names, " ")
		}
		names = append(names, s.Name())
		last = s
	}
}

func TestGroupOrder(t *testing.T) {
	a := &fakeStepper{name: "a", priority: 10}
	b := &fakeStepper{name: "b", priority: 20}
	b2 := &fakeStepper{name: "b2", priority: 20}
	c := &fakeStepper{name: "c", priority: 30}
	g := NewGroup(c, b, a, b2)
	if got := order(g, 0x1000); got != "a b b2 c" {
		t.Errorf("order = %q, want by priority, equals in order of addition", got)
	}
	if err := g.AddStepper(b); err != nil || len(g.Steppers()) != 4 {
		t.Errorf("adding a stepper twice: err %v, %d steppers", err, len(g.Steppers()))
	}
	if len(b.joined) != 1 {
		t.Errorf("stepper was told %d times of joining, want once", len(b.joined))
	}
	stranger := &fakeStepper{name: "x"}
	if _, ok := g.StepperFor(0, stranger); ok {
		t.Error("a stepper follows one that is not in the group")
	}
	if _, ok := NewGroup().StepperFor(0, nil); ok {
		t.Error("an empty group offers a stepper")
	}
}

func TestGroupRanges(t *testing.T) {
	all := &fakeStepper{name: "all", priority: 50}
	r1 := &fakeStepper{name: "r1", priority: 10}
	r2 := &fakeStepper{name: "r2", priority: 60}
	r3 := &fakeStepper{name: "r3", priority: 20}
	g := NewGroup(all)
	must := func(s FrameStepper, start, end uint64) {
		t.Helper()
		if err := g.AddStepperRange(s, start, end); err != nil {
			t.Fatal(err)
		}
	}
	must(r1, 0x1000, 0x2000)
	must(r2, 0x1800, 0x3000)
	must(r3, 0x0800, 0x4000)
	must(r3, 0x5000, 0x5001)
	if err := g.AddStepperRange(r1, 5, 5); err == nil {
		t.Error("an empty range was accepted")
	}
	for _, tc := range []struct {
		addr uint64
		want string
	}{
		{0x07ff, "all"},
		{0x0800, "r3 all"},
		{0x0fff, "r3 all"},
		{0x1000, "r1 r3 all"},
		{0x17ff, "r1 r3 all"},
		{0x1800, "r1 r3 all r2"},
		{0x1fff, "r1 r3 all r2"},
		{0x2000, "r3 all r2"},
		{0x2fff, "r3 all r2"},
		{0x3000, "r3 all"},
		{0x3fff, "r3 all"},
		{0x4000, "all"},
		{0x4fff, "all"},
		{0x5000, "r3 all"},
		{0x5001, "all"},
		{^uint64(0), "all"},
	} {
		if got := order(g, tc.addr); got != tc.want {
			t.Errorf("order(%#x) = %q, want %q", tc.addr, got, tc.want)
		}
	}
	late := &fakeStepper{name: "late", priority: 40}
	if err := g.AddStepper(late); err != nil {
		t.Fatal(err)
	}
	if got := order(g, 0x1800); got != "r1 r3 late all r2" {
		t.Errorf("after a late addition: %q", got)
	}
}

// chooser is a stepper that registers ranges when it joins a group.
type chooser struct {
	*fakeStepper
	ranges [][2]uint64
}

func (c *chooser) JoinGroup(g StepperGroup) {
	for _, r := range c.ranges {
		if err := g.AddStepperRange(c, r[0], r[1]); err != nil {
			panic(err)
		}
	}
}

// TestGroupMemberChooses: a stepper is asked where it has said on joining, and
// one that has said nothing everywhere.
func TestGroupMemberChooses(t *testing.T) {
	all := &fakeStepper{name: "all", priority: 1}
	some := &chooser{&fakeStepper{name: "some"}, [][2]uint64{{0x1000, 0x2000}, {0x3000, 0x3001}}}
	silent := &chooser{&fakeStepper{name: "silent", priority: 2}, nil}
	g := NewGroup(all, some, silent)
	if len(g.Steppers()) != 3 {
		t.Errorf("%d steppers", len(g.Steppers()))
	}
	expect := func(addr uint64, want string) {
		t.Helper()
		if got := order(g, addr); got != want {
			t.Errorf("order(%#x) = %q, want %q", addr, got, want)
		}
	}
	expect(0xfff, "all silent")
	expect(0x1000, "some all silent")
	expect(0x1fff, "some all silent")
	expect(0x2000, "all silent")
	expect(0x3000, "some all silent")
	if err := g.AddStepperRange(some, 0x4000, 0x5000); err != nil {
		t.Fatal(err)
	}
	expect(0x4000, "some all silent")
	expect(0x5000, "all silent")
	if err := g.AddStepper(some); err != nil { // after all
		t.Fatal(err)
	}
	expect(0x5000, "some all silent")
}

// TestGroupRangesAgainstList compares the range table with a plain list of
// what was added, on every address of a small space.
func TestGroupRangesAgainstList(t *testing.T) {
	type added struct {
		s          *fakeStepper
		start, end uint64
	}
	seed := uint32(1)
	random := func(n uint32) uint32 {
		seed = seed*1664525 + 1013904223
		return (seed >> 8) % n
	}
	for round := range 200 {
		g := NewGroup()
		var list []added
		for i := range 8 {
			start := uint64(random(60))
			a := added{&fakeStepper{name: fmt.Sprint(i), priority: Priority(random(4))}, start, start + 1 + uint64(random(20))}
			if err := g.AddStepperRange(a.s, a.start, a.end); err != nil {
				t.Fatal(err)
			}
			list = append(list, a)
		}
		sorted := slices.Clone(list)
		slices.SortStableFunc(sorted, func(a, b added) int { return int(a.s.priority) - int(b.s.priority) })
		for addr := range uint64(90) {
			var want []string
			for _, a := range sorted {
				if addr >= a.start && addr < a.end {
					want = append(want, a.s.name)
				}
			}
			if got := order(g, addr); got != strings.Join(want, " ") {
				t.Fatalf("round %d, address %d: %q, want %q", round, addr, got, want)
			}
		}
	}
}

// BenchmarkAddStepperRange registers the functions of a large program.
func BenchmarkAddStepperRange(b *testing.B) {
	const functions = 20000
	for b.Loop() {
		g := NewGroup(&fakeStepper{name: "all"})
		s := &fakeStepper{name: "functions"}
		for i := range uint64(functions) {
			if err := g.AddStepperRange(s, 0x10000+i*0x100, 0x10000+i*0x100+0x80); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/functions, "ns/range")
}

func TestGroupLimit(t *testing.T) {
	g := NewGroup()
	for i := range 255 {
		if err := g.AddStepper(&fakeStepper{name: fmt.Sprint(i)}); err != nil {
			t.Fatalf("stepper %d: %v", i, err)
		}
	}
	if err := g.AddStepper(&fakeStepper{}); err != ErrStepperLimit {
		t.Errorf("stepper 256: %v, want ErrStepperLimit", err)
	}
}

func TestGroupLibraryNews(t *testing.T) {
	s := &fakeStepper{name: "s"}
	g := NewGroup(s)
	g.LibraryChanged(nil, procstate.Library{}, LibraryLoaded)
	g.LibraryChanged(nil, procstate.Library{}, LibraryUnloaded)
	if !slices.Equal(s.changes, []LibraryChange{LibraryLoaded, LibraryUnloaded}) {
		t.Errorf("changes = %v", s.changes)
	}
}
