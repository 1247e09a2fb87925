package profile

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/swbpf/swbpf/internal/testenv"
)

// deepStack returns a stack of n frames that ends in leaf.
func deepStack(n int, leaf uint64) []Loc {
	stack := make([]Loc, n)
	for i := range stack {
		stack[i] = Loc{1, uint64(0x1000 + i)}
	}
	stack[0].Addr = leaf
	return stack
}

func TestAddSeenAllocatesNothing(t *testing.T) {
	b := NewBuilder()
	m := b.Module(Module{Path: "/bin/a"})
	var stacks [][]Loc
	for i := range 100 {
		s := deepStack(40, uint64(i))
		for j := range s {
			s[j].Module = m
		}
		stacks = append(stacks, s)
	}
	threads := []Thread{{PID: 1, TID: 1, Comm: Comm("a")}, {PID: 1, TID: 2, Comm: Comm("b")}}
	reasons := []string{"", "stack-cut", "no-mapping"}
	add := func() {
		for _, s := range stacks {
			for _, th := range threads {
				for _, r := range reasons {
					b.Add(th, s, r, 1, 10)
				}
			}
		}
		b.Module(Module{Path: "/bin/a"})
	}
	add()
	if n := testing.AllocsPerRun(10, add); n != 0 {
		t.Errorf("%v allocations for what was seen before", n)
	}
	if b.samples.count != len(stacks)*len(threads)*len(reasons) {
		t.Errorf("%d samples, want %d", b.samples.count, len(stacks)*len(threads)*len(reasons))
	}
}

// A stack that was added before is added again, in another thread and as of another event too.
func TestAddStack(t *testing.T) {
	folded := func(add func(b *Builder, p *Path, t Thread, stack []Loc, truncated string, value int64)) string {
		b := new(Builder)
		m := b.Module(Module{Path: "/bin/a"})
		var p Path
		for i, truncated := range []string{"", "stack-cut", ""} {
			b.AddAlong(&p, Thread{PID: 1}, []Loc{{m, 1}, {m, uint64(2 + i)}}, 0, truncated, 1, 5)
			add(b, &p, Thread{PID: 1, Event: 1}, []Loc{{m, 1}, {m, uint64(2 + i)}}, truncated, 7)
			add(b, &p, Thread{PID: 2, TID: 3}, []Loc{{m, 1}, {m, uint64(2 + i)}}, truncated, 9)
		}
		var out bytes.Buffer
		for _, p := range b.Finish(Meta{ByValue: true, Also: []Event{{Name: "other", ByValue: true}}}, nil).Events() {
			if err := p.WriteFolded(&out); err != nil {
				t.Error(err)
			}
		}
		return out.String()
	}
	again := folded(func(b *Builder, p *Path, t Thread, _ []Loc, _ string, value int64) {
		b.AddStack(t, p.Stack(), 1, value)
	})
	anew := folded(func(b *Builder, p *Path, t Thread, stack []Loc, truncated string, value int64) {
		b.AddAlong(new(Path), t, stack, 0, truncated, 1, value)
	})
	if again != anew || strings.Count(again, "\n") != 6 {
		t.Errorf("%s\nwant %s", again, anew)
	}
}

// TestReset checks that a Builder that was reset counts as a new one, along paths
// from before, too, and keeps its modules' numbers.
func TestReset(t *testing.T) {
	var p Path
	add := func(b *Builder, m, labels uint32, same int) {
		th := Thread{PID: 1, TID: 2, Labels: labels}
		b.KeepTimes()
		b.SetTime(int64(m))
		b.AddAlong(&p, th, []Loc{{m, 16}, {m, 32}, b.Marker("[lock]")}, same, "", 1, 10)
		b.AddAlong(&p, th, []Loc{{m, 16}, {m, 48}}, 1, "stack-cut", 1, 7)
		b.Add(Thread{PID: 3}, []Loc{{m, 16}}, "stack-cut", 2, 3)
	}
	written := func(b *Builder) string {
		var out bytes.Buffer
		prof := b.Finish(Meta{}, nil)
		for _, write := range []func(io.Writer) error{prof.WriteFolded, prof.WritePerfScript} {
			if err := write(&out); err != nil {
				t.Fatal(err)
			}
		}
		return out.String()
	}
	fresh := NewBuilder()
	fresh.Module(Module{Path: "old"})
	add(fresh, fresh.Module(Module{Path: "new"}), fresh.Labels(Label{"a", "b"}), 0)
	want := written(fresh)

	b := new(Builder)
	b.Reset() // of nothing
	old := b.Module(Module{Path: "old"})
	b.Labels(Label{"a", "gone"})
	for i := range uint64(3 * listChunk) {
		b.AddAlong(&p, Thread{PID: int32(i)}, []Loc{{old, i}, {old, i + 1}}, 0, "no-mapping", 1, 1)
	}
	b.Reset()
	if again := b.Module(Module{Path: "old"}); again != old || len(b.labels) != 1 || len(b.labelIDs) != 1 {
		t.Errorf("after a reset module %d is %d, and there are labels %v", old, again, b.labels)
	}
	if empty := written(b); strings.Contains(empty, "old") {
		t.Errorf("after a reset there is %q", empty)
	}
	m := b.Module(Module{Path: "new"})
	add(b, m, b.Labels(Label{"a", "b"}), 1)
	if used := b.UsedModules(); used[old] || !used[m] {
		t.Errorf("modules used: %v", used)
	}
	if got := written(b); got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// A file may have as many markers as it likes, each of which is the same frame again.
func TestManyMarkers(t *testing.T) {
	const n = 1 << 17
	var b Builder
	began := testenv.CPUTime(t)
	for round := range 2 {
		for i := range n {
			loc := b.Marker(fmt.Sprintf("[marker %8d]", i))
			if text, ok := b.MarkerText(loc); loc.Addr != uint64(i) || !ok || text != fmt.Sprintf("[marker %8d]", i) {
				t.Fatalf("round %d: marker %d is %d, %q", round, i, loc.Addr, text)
			}
		}
	}
	if took := testenv.CPUTime(t) - began; took > 10*time.Second {
		t.Errorf("%d markers take %v", n, took)
	}
}

// A module that was forgotten gives its number to another.
func TestForgetModule(t *testing.T) {
	var b Builder
	b.ForgetModule(1) // there is none
	x, y := b.Module(Module{Path: "x"}), b.Module(Module{Path: "y"})
	for range 2 {
		b.ForgetModule(x)
	}
	b.ForgetModule(0)
	z := b.Module(Module{Path: "z"})
	if again := b.Module(Module{Path: "x"}); z != x || again == x || again == y || b.Module(Module{Path: "y"}) != y {
		t.Errorf("x and y are %d and %d, z in place of x %d, and x again %d", x, y, z, again)
	}
	b.Add(Thread{}, []Loc{{z, 1}}, "", 1, 1)
	var out bytes.Buffer
	if err := b.Finish(Meta{}, nil).WriteFolded(&out); err != nil || !strings.Contains(out.String(), "z+0x1") {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// TestAgainstMap adds random stacks, with prefixes and suffixes of each other
// among them, along paths or without one, and compares with a map from their text.
func TestAgainstMap(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	b := NewBuilder()
	mods := []uint32{0, b.Module(Module{Path: "a"}), b.Module(Module{Path: "b"})}
	odd := []Loc{ // that fit in a word, or not
		{mods[1], 1<<47 - 1}, {mods[1], 1 << 47}, {mods[1], 1<<48 - 1}, {mods[1], 1 << 48}, {mods[1], 1<<64 - 1<<47}, {mods[1], 1<<64 - 1},
		{0xfffb, 1}, {0xfffc, 1}, {0xfffd, 1}, {0xfffe, 1}, {0xffff, 1}, {1<<32 - 2, 1},
	}
	reasons := []string{"", "x", "y"}
	type total struct{ count, value int64 }
	want := map[string]total{}
	paths := make([]Path, 3)
	along := make([][]Loc, len(paths)) // what was added with these, callers first
	ends := make([]string, len(paths))
	for range 50_000 {
		n := rnd.IntN(6)
		stack := make([]Loc, n)
		for i := range stack {
			stack[i] = Loc{mods[rnd.IntN(3)], uint64(rnd.IntN(4))}
			if rnd.IntN(20) == 0 {
				stack[i] = odd[rnd.IntN(len(odd))]
			}
		}
		th := Thread{PID: int32(rnd.IntN(3)), TID: int32(rnd.IntN(2))}
		reason := reasons[rnd.IntN(3)]
		count, value := int64(rnd.IntN(3)), int64(rnd.IntN(100))
		if i := rnd.IntN(len(paths) + 1); i < len(paths) {
			callers := slices.Clone(stack)
			slices.Reverse(callers)
			same := 0
			for reason == ends[i] && same < min(len(callers), len(along[i])) && callers[same] == along[i][same] {
				same++
			}
			if same > 0 {
				same = rnd.IntN(same + 1)
			}
			b.AddAlong(&paths[i], th, callers, same, reason, count, value)
			along[i], ends[i] = callers, reason
		} else {
			b.Add(th, stack, reason, count, value)
		}
		k := fmt.Sprint(th.PID, th.TID, stack, reason)
		w := want[k]
		want[k] = total{w.count + count, w.value + value}
	}
	got := map[string]total{}
	for i := range b.samples.count {
		s := b.sampleAt(uint32(i))
		var stack []Loc
		reason := ""
		for n := s.node; n != 0; n = b.stacks.parent(n) {
			loc := b.stacks.loc(n)
			if loc.Module == markerModule {
				reason = b.markers[loc.Addr]
				continue
			}
			stack = append(stack, loc)
		}
		if reason != "" {
			reason = reason[len("[truncated: ") : len(reason)-1]
		}
		th := b.threads.all[s.thread]
		k := fmt.Sprint(th.PID, th.TID, stack, reason)
		if _, dup := got[k]; dup {
			t.Fatalf("stack %s is there twice", k)
		}
		got[k] = total{s.count, s.value}
	}
	if len(got) != len(want) {
		t.Fatalf("%d distinct samples, want %d", len(got), len(want))
	}
	for k, w := range want {
		if got[k] != w {
			t.Fatalf("%s: %v, want %v", k, got[k], w)
		}
	}
}

// Values and their squares are summed the same while all are equal, from the first one
// on that is not, and after Reset.
func TestWeightsOfSamples(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	b := NewBuilder()
	m := b.Module(Module{Path: "/bin/x", Kind: Native})
	for _, equal := range []int{0, 1, 2, 100, 5000, 1 << 30} {
		type total struct {
			count, value int64
			squares      float64
		}
		want := map[tally]*total{}
		for i := range 6000 {
			addr, tid := 1+uint64(rnd.IntN(2000)), int32(1+rnd.IntN(3))
			count := int64(1 + rnd.IntN(2))
			value := count * 1003009
			if i >= equal {
				value = rnd.Int64N(1 << 30)
			}
			b.Add(Thread{PID: 1, TID: tid}, []Loc{{m, addr}}, "", count, value)
			k := tally{node: uint32(addr), thread: uint32(tid)}
			if want[k] == nil {
				want[k] = &total{}
			}
			want[k].count += count
			want[k].value += value
			want[k].squares += float64(value) * float64(value) / float64(count)
		}
		if even := b.weights.count == 0; even != (equal > 6000) {
			t.Errorf("%d equal values of 6000: weights kept for %d of %d samples", equal, b.weights.count, b.samples.count)
		}
		for i := range b.samples.count {
			s := b.sampleAt(uint32(i))
			k := tally{node: uint32(b.stacks.loc(s.node).Addr), thread: uint32(b.threads.all[s.thread].TID)}
			w := want[k]
			if w == nil || s.count != w.count || s.value != w.value || math.Abs(s.squares-w.squares) > 1e-9*w.squares {
				t.Fatalf("%d equal values: %+v, want %+v", equal, s, w)
			}
			delete(want, k)
		}
		if len(want) > 0 {
			t.Errorf("%d equal values: %d samples are missing", equal, len(want))
		}
		b.Reset()
	}
}

// A stack that was added as part of a longer one is still a stack of its own.
func TestPrefixOfStack(t *testing.T) {
	b := NewBuilder()
	m := b.Module(Module{Path: "a"})
	long := []Loc{{m, 3}, {m, 2}, {m, 1}}
	th := Thread{PID: 1, TID: 1}
	b.Add(th, long, "", 1, 1)
	b.Add(th, long[1:], "", 2, 2)
	b.Add(th, nil, "", 4, 4)
	b.Add(th, nil, "lost", 8, 8)
	p := b.Finish(Meta{}, nil)
	if p.Samples != 15 || p.Complete != 7 || !slices.Equal(p.Truncated, []Tally{{"lost", 8}}) {
		t.Errorf("samples %d, complete %d, truncated %v", p.Samples, p.Complete, p.Truncated)
	}
	if len(p.samples) != 4 || len(p.nodes) != 5 {
		t.Errorf("%d samples, %d nodes, want 4 and 5", len(p.samples), len(p.nodes))
	}
}

func TestComm(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "sh": "sh", "exactly-15-byte": "exactly-15-byte", "sixteen-bytes-16": "sixteen-bytes-1",
	} {
		th := Thread{Comm: Comm(in)}
		if got := th.CommString(); got != want {
			t.Errorf("Comm(%q) = %q, want %q", in, got, want)
		}
	}
	full := Thread{Comm: [16]byte([]byte("no-nul-at-end-16"))}
	if got := full.CommString(); got != "no-nul-at-end-16" {
		t.Errorf("without NUL: %q", got)
	}
}

func BenchmarkAddSeen(b *testing.B) {
	for _, depth := range []int{10, 40, 160} {
		b.Run(fmt.Sprintf("depth%d", depth), func(b *testing.B) {
			bld := NewBuilder()
			var stacks [][]Loc
			for i := range 1000 {
				stacks = append(stacks, deepStack(depth, uint64(i)))
			}
			th := Thread{PID: 1, TID: 1, Comm: Comm("bench")}
			for _, s := range stacks {
				bld.Add(th, s, "", 1, 1)
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				bld.Add(th, stacks[i], "", 1, 1)
				if i++; i == len(stacks) {
					i = 0
				}
			}
		})
	}
}

// BenchmarkAddNew adds stacks that share all but their last eight frames.
func BenchmarkAddNew(b *testing.B) {
	bld := NewBuilder()
	stack := deepStack(40, 0)
	th := Thread{PID: 1, TID: 1, Comm: Comm("bench")}
	i := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		for j := range 8 {
			stack[j].Addr = i
		}
		i++
		bld.Add(th, stack, "", 1, 1)
	}
	b.ReportMetric(float64(bld.stacks.count*int(unsafe.Sizeof(word(0))))/float64(bld.samples.count), "node-bytes/stack")
}
