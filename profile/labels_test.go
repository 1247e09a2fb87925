package profile

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"
)

func TestLabelsOfBuilder(t *testing.T) {
	b := NewBuilder()
	if id := b.Labels(); id != 0 {
		t.Errorf("no labels are set %d", id)
	}
	cpu, unit := Label{"cpu", "3"}, Label{"unit", "a.service"}
	id := b.Labels(cpu, unit)
	for _, same := range [][]Label{{cpu, unit}, {unit, cpu}, {unit, cpu, unit}} {
		if got := b.Labels(same...); got != id || id == 0 {
			t.Errorf("%v is set %d and not %d", same, got, id)
		}
	}
	// Texts that only look the same when put together.
	sets := [][]Label{{{"a", "b"}}, {{"ab", ""}}, {{"a", `b""c"`}}, {{"a", "b"}, {"", "c"}}, {cpu}, {unit}}
	seen := map[uint32]bool{id: true}
	for _, set := range sets {
		n := b.Labels(set...)
		if seen[n] {
			t.Errorf("%q has the number %d of another set", set, n)
		}
		seen[n] = true
	}
}

// labelled is a profile of two threads on three CPUs, in one of two orders.
func labelled(reversed bool) *Profile {
	b := NewBuilder()
	m := b.Module(Module{Path: "a", Kind: Native})
	adds := []func(){
		func() { b.Add(Thread{PID: 1, TID: 1, Comm: Comm("a")}, []Loc{{m, 1}}, "", 5, 50) },
		func() {
			b.Add(Thread{PID: 1, TID: 1, Comm: Comm("a"), Labels: b.Labels(Label{"cpu", "1"})}, []Loc{{m, 1}}, "", 2, 20)
		},
		func() {
			b.Add(Thread{PID: 1, TID: 2, Comm: Comm("a"), Labels: b.Labels(Label{"cpu", "0"}, Label{"unit", "x.service"})}, []Loc{{m, 1}}, "", 1, 10)
		},
		func() { b.Labels(Label{"cpu", "unused"}) },
	}
	if reversed {
		slices.Reverse(adds)
	}
	for _, add := range adds {
		add()
	}
	return b.Finish(Meta{Target: "labelled", Value: ValueType{"cpu", "nanoseconds"}, Period: 10}, nil)
}

// Labels are the same by whatever way a profile came about, and go through
// pprof's format and back.
func TestLabelsOfProfile(t *testing.T) {
	want := "5 pid 1 tid 1 []; 2 pid 1 tid 1 [{cpu 1}]; 1 pid 1 tid 2 [{cpu 0} {unit x.service}]"
	text := func(p *Profile) string {
		var parts []string
		for _, s := range p.samples {
			th := p.threads[s.thread]
			parts = append(parts, fmt.Sprintf("%d pid %d tid %d %v", s.count, th.PID, th.TID, p.labels[th.Labels]))
		}
		return strings.Join(parts, "; ")
	}
	for _, reversed := range []bool{false, true} {
		p := labelled(reversed)
		if got := text(p); got != want || len(p.labels) != 3 {
			t.Errorf("reversed %v: %s, %d sets", reversed, got, len(p.labels))
		}
		var buf bytes.Buffer
		if err := p.WritePprof(&buf); err != nil {
			t.Fatal(err)
		}
		again, err := Read(&buf, ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := text(again); got != want {
			t.Errorf("read back: %s", got)
		}
		if facts := fmt.Sprint(p.facts()); !strings.Contains(facts, "{Processes 1} {Threads 2}") {
			t.Errorf("facts %s", facts)
		}
	}
}

// Labels of others, numbers too, are taken but for those that tell the thread.
func TestLabelsOfPprof(t *testing.T) {
	src := &pprof.Profile{SampleType: []*pprof.ValueType{{Type: "inuse_space", Unit: "bytes"}}}
	fn := &pprof.Function{ID: 1, Name: "f"}
	loc := &pprof.Location{ID: 1, Line: []pprof.Line{{Function: fn}}}
	src.Function, src.Location = append(src.Function, fn), append(src.Location, loc)
	src.Sample = []*pprof.Sample{{
		Location: []*pprof.Location{loc}, Value: []int64{7},
		Label:    map[string][]string{"thread": {"worker"}, "process": {"srv"}, "handler": {"/a", "/b"}},
		NumLabel: map[string][]int64{"pid": {4}, "tid": {5}, "size": {64}}, NumUnit: map[string][]string{"size": {"kb"}},
	}}
	var buf bytes.Buffer
	if err := src.Write(&buf); err != nil {
		t.Fatal(err)
	}
	p, err := Read(&buf, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	th := p.threads[0]
	if got := fmt.Sprint(th.PID, th.TID, th.CommString(), p.labels[th.Labels]); got != "4 5worker[{handler /a} {handler /b} {process srv} {size 64 kb}]" {
		t.Error(got)
	}
}
