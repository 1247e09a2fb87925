package profile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"
)

// twoEvents is a profile of two events, of which samples are in the same stacks and others.
func twoEvents() *Profile {
	b := NewBuilder()
	b.KeepTimes()
	m := b.Module(Module{Path: "/bin/prog", Kind: Native, Limit: 0x100})
	first := Thread{PID: 1, TID: 2, Comm: Comm("prog")}
	second := first
	second.Event = 1
	b.Add(first, []Loc{{m, 16}, {m, 32}}, "", 3, 30)
	b.Add(second, []Loc{{m, 16}, {m, 32}}, "", 1, 700)
	b.Add(second, []Loc{{m, 48}}, "stack-cut", 2, 5)
	b.Add(first, []Loc{{m, 64}}, "no-frame", 1, 10)
	return b.Finish(Meta{
		Tool: "swbpf 1", Target: "prog", Event: "cpu-clock", FrequencyHz: 99, Value: ValueType{"cpu", "nanoseconds"}, Period: 10,
		Also: []Event{{Name: "syscalls:sys_exit_read", Value: ValueType{"ret", "bytes"}, ByValue: true}},
	}, nil)
}

func TestEvents(t *testing.T) {
	p := twoEvents()
	textual := twoEvents()
	textual.times = nil // of which each is a sample in the text
	for from, events := range map[string][]*Profile{
		"memory": p.Events(), "pprof": rereadAs(t, p, (*Profile).WritePprof, "").Events(), "pprof of others": rereadAs(t, p, writeByPprof, "").Events(),
		"perf": rereadAs(t, textual, (*Profile).WritePerfScript, "").Events(),
		"pprof, by name": {
			rereadAs(t, p, (*Profile).WritePprof, "cpu-clock"), rereadAs(t, p, (*Profile).WritePprof, "syscalls:sys_exit_read")},
		"pprof, by type": {
			rereadAs(t, p, (*Profile).WritePprof, "cpu"), rereadAs(t, p, (*Profile).WritePprof, "syscalls:sys_exit_read")},
		"pprof of others, by name": {
			rereadAs(t, p, writeByPprof, "cpu-clock"), rereadAs(t, p, writeByPprof, "syscalls:sys_exit_read")},
		"perf, by name": {
			rereadAs(t, textual, (*Profile).WritePerfScript, "cpu-clock"), rereadAs(t, textual, (*Profile).WritePerfScript, "syscalls:sys_exit_read")},
	} {
		if len(events) != 2 {
			t.Errorf("%s: %d events", from, len(events))
			continue
		}
		for i, want := range []struct {
			event                    string
			samples, value, complete int64
			truncated                []Tally
			byValue                  bool
			hz, threads, locations   int
		}{
			{"cpu-clock", 4, 40, 3, []Tally{{"no-frame", 1}}, false, 99, 1, 4},
			{"syscalls:sys_exit_read", 3, 705, 1, []Tally{{"stack-cut", 2}}, true, 0, 1, 4},
		} {
			q := events[i]
			if strings.HasPrefix(from, "perf") {
				want.hz = q.Meta.FrequencyHz // is by the period, which is not that of 99 Hz
			}
			if q.Meta.Event != want.event || q.Meta.FrequencyHz != want.hz || q.Meta.ByValue != want.byValue || len(q.Meta.Also) != 0 {
				t.Errorf("%s: event %d is %+v", from, i, q.Meta)
			}
			if q.Samples != want.samples || q.Value != want.value || q.Complete != want.complete || !slices.Equal(q.Truncated, want.truncated) {
				t.Errorf("%s: event %d has %d samples of %d, %d complete, others %v; want %+v", from, i, q.Samples, q.Value, q.Complete, q.Truncated, want)
			}
			if len(q.threads) != want.threads || len(q.locations) != want.locations {
				t.Errorf("%s: event %d has %d threads and %d locations, want %+v", from, i, len(q.threads), len(q.locations), want)
			}
			if types := []ValueType{{"cpu-clock", "count"}, {"syscalls:sys_exit_read", "count"}}; from != "memory" && (!slices.Equal(q.Types, types) || q.Type != want.event) {
				t.Errorf("%s: %q of %v", from, q.Type, q.Types)
			}
			if from == "memory" && int64(len(q.times)) != 2 {
				t.Errorf("event %d has %d times", i, len(q.times))
			}
		}
	}
}

// rereadAs reads what write writes, with the times of samples.
func rereadAs(t *testing.T, p *Profile, write func(*Profile, io.Writer) error, sampleType string) *Profile {
	t.Helper()
	var b bytes.Buffer
	if err := write(p, &b); err != nil {
		t.Fatal(err)
	}
	p, err := Read(&b, ReadOptions{SampleType: sampleType, Times: true})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// writeByPprof has pprof write a profile, which leaves out what it does not know.
func writeByPprof(p *Profile, w io.Writer) error {
	src, err := p.Pprof()
	if err != nil {
		return err
	}
	return src.Write(w)
}

// What is written of a profile that was read is what was written of it at first: pprof's format as a whole, and
// the pages of each event. Of perf's text, that again.
func TestEventsReread(t *testing.T) {
	p := twoEvents()
	again := rereadAs(t, p, (*Profile).WritePprof, "")
	same := func(what string, got, want *Profile, write func(*Profile, io.Writer) error) {
		t.Helper()
		var g, w bytes.Buffer
		if err := errors.Join(write(got, &g), write(want, &w)); err != nil {
			t.Fatal(err)
		}
		if g.String() != w.String() {
			t.Errorf("%s is another", what)
		}
	}
	same("pprof", again, p, (*Profile).WritePprof)
	same("pprof by pprof", again, p, writeByPprof)
	for i, name := range []string{"cpu-clock", "syscalls:sys_exit_read"} {
		want := p.Events()[i]
		for how, got := range map[string]*Profile{"of all": again.Events()[i], "alone": rereadAs(t, p, (*Profile).WritePprof, name)} {
			same(how+": page of "+name, got, want, (*Profile).WriteHTML)
			same(how+": folded stacks of "+name, got, want, (*Profile).WriteFolded)
			same(how+": pprof of "+name, got, want, (*Profile).WritePprof)
		}
		other, err := again.Events()[1-i].OfType(name)
		if err != nil {
			t.Fatal(err)
		}
		same("from the other: page of "+name, other, want, (*Profile).WriteHTML)
	}
	same("perf", rereadAs(t, p, (*Profile).WritePerfScript, ""), p, (*Profile).WritePerfScript)
	p.times = nil
	for i, e := range rereadAs(t, p, (*Profile).WritePerfScript, "").Events() {
		same("perf: folded stacks of "+e.Type, e, p.Events()[i], (*Profile).WriteFolded)
	}
	same("perf without times", rereadAs(t, p, (*Profile).WritePerfScript, ""), p, (*Profile).WritePerfScript)
}

// The number of an event's samples is a type of its own where they have values.
func TestEventCounted(t *testing.T) {
	q := rereadAs(t, twoEvents(), (*Profile).WritePprof, "syscalls:sys_exit_read_samples")
	if q.Type != "syscalls:sys_exit_read_samples" || q.Samples != 3 || q.Meta.ByValue || q.Meta.Event != "syscalls:sys_exit_read" {
		t.Errorf("%q: %d samples, %+v", q.Type, q.Samples, q.Meta)
	}
	var b bytes.Buffer
	if err := twoEvents().WritePprof(&b); err != nil {
		t.Fatal(err)
	}
	_, err := Read(&b, ReadOptions{SampleType: "cycles"})
	const want = `no such sample type: "cycles"; there is cpu-clock, syscalls:sys_exit_read, cpu_samples, cpu, syscalls:sys_exit_read_samples`
	if !errors.Is(err, ErrNoSuchType) || err.Error() != "pprof: "+want {
		t.Errorf("%v, want %s", err, want)
	}
}

// Samples of several events that are otherwise the same are one for pprof, when it writes them.
func TestEventsMerged(t *testing.T) {
	p := twoEvents()
	src, err := p.Pprof()
	if err != nil {
		t.Fatal(err)
	}
	merged, err := pprof.Merge([]*pprof.Profile{src, src})
	if err != nil {
		t.Fatal(err)
	}
	if len(merged.Sample) >= len(src.Sample) {
		t.Fatalf("%d samples of %d", len(merged.Sample), len(src.Sample))
	}
	q := rereadAs(t, p, func(_ *Profile, w io.Writer) error { return merged.Write(w) }, "")
	for i, e := range q.Events() {
		if want := p.Events()[i]; e.Samples != 2*want.Samples || e.Value != 2*want.Value || e.Complete != 2*want.Complete || e.Meta.ByValue != want.Meta.ByValue {
			t.Errorf("event %d has %d samples of %d, %d complete; want twice %d, %d, %d", i, e.Samples, e.Value, e.Complete, want.Samples, want.Value, want.Complete)
		}
	}
}

// What tells of other events than there are values of is not believed.
func TestEventsLie(t *testing.T) {
	for name, lie := range map[string]func(*Meta){
		"fewer":  func(m *Meta) { m.Also = nil },
		"more":   func(m *Meta) { m.Also = append(m.Also, Event{Name: "cycles"}) },
		"others": func(m *Meta) { m.Also = []Event{{Name: "cycles"}} },
	} {
		p := twoEvents()
		e := newPprofEncoder(io.Discard)
		var out bytes.Buffer
		e.w.Reset(&out)
		p.encodeTypes(e)
		p.encodeSamples(e)
		p.encodeMappings(e)
		for i := range p.locations {
			e.message(4, appendNumber(nil, 1, int64(i+1)))
		}
		lie(&p.Meta)
		meta, err := json.Marshal(&p.Meta)
		if err != nil {
			t.Fatal(err)
		}
		e.message(metaField, meta)
		if err := e.close(); err != nil {
			t.Fatal(err)
		}
		q, err := Read(&out, ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(q.Meta.Also) != 0 || q.Samples != 4 || len(q.Types) != 4 || q.Type != "cpu" {
			t.Errorf("%s: %d samples of %s, %v, %+v", name, q.Samples, q.Type, q.Types, q.Meta)
		}
	}
}

// A text may name more events than there is room for: those that come first are read, or the one that is
// asked for.
func TestEventsTooMany(t *testing.T) {
	var text strings.Builder
	for i := range 2 * maxEvents {
		fmt.Fprintf(&text, "a 1 1.%06d: 5 e%d: \n\t1 f (/x)\n\n", i, i)
	}
	p := read(t, text.String(), ReadOptions{})
	if n := len(p.Events()); n != maxEvents || p.Samples != maxEvents || !slices.Equal(p.Meta.Notes, []string{"256 samples of further events left out: no more than 256 are read at a time, or one by --sample-type"}) {
		t.Errorf("%d events, %d samples, %q", n, p.Samples, p.Meta.Notes)
	}
	if p = read(t, text.String(), ReadOptions{SampleType: "e500"}); p.Samples != 1 || p.Meta.Event != "e500" || p.Type != "e500" {
		t.Errorf("%d samples of %s", p.Samples, p.Meta.Event)
	}
	if _, err := Read(strings.NewReader(text.String()), ReadOptions{SampleType: "e512"}); !errors.Is(err, ErrNoSuchType) {
		t.Error(err)
	}
}

// perf does not tell what an event was called but for its modifiers, by which events can differ.
func TestEventModifiers(t *testing.T) {
	const text = "a 1 1.000001: 5 cycles:u: \n\t1 f (/x)\n\na 1 1.000002: 5 cycles:k: \n\t1 g (/x)\n\na 1 1.000003: 5 faults:u: \n\t1 g (/x)\n\n"
	p := read(t, text, ReadOptions{})
	if names := typeNames(p.Types); !slices.Equal(names, []string{"cycles:k", "cycles:u", "faults"}) {
		t.Errorf("%q", names)
	}
}

// An event alone is as a recording of nothing else.
func TestEventAlone(t *testing.T) {
	b := NewBuilder()
	m := b.Module(Module{Path: "/bin/prog", Kind: Native, Limit: 0x100})
	th := Thread{PID: 1, TID: 2, Comm: Comm("prog")}
	b.Add(th, []Loc{{m, 16}, {m, 32}}, "", 1, 700)
	b.Add(th, []Loc{{m, 48}}, "stack-cut", 2, 5)
	alone := b.Finish(Meta{Tool: "swbpf 1", Target: "prog", Event: "syscalls:sys_exit_read", Value: ValueType{"ret", "bytes"}, ByValue: true}, nil)
	of := twoEvents().Events()[1]
	of.times = nil
	for _, write := range []func(*Profile, *bytes.Buffer) error{
		func(p *Profile, b *bytes.Buffer) error { return p.WriteFolded(b) },
		func(p *Profile, b *bytes.Buffer) error { return p.WritePerfScript(b) },
		func(p *Profile, b *bytes.Buffer) error { return p.WriteSVG(b) },
		func(p *Profile, b *bytes.Buffer) error { return p.WriteSpeedscope(b) },
	} {
		var x, y bytes.Buffer
		if err := write(alone, &x); err != nil {
			t.Fatal(err)
		}
		if err := write(of, &y); err != nil {
			t.Fatal(err)
		}
		if x.String() != y.String() {
			t.Errorf("alone:\n%s\nof two:\n%s", x.String(), y.String())
		}
	}
}

func TestTypesByEvent(t *testing.T) {
	m := Meta{Event: "cycles:u", Value: ValueType{"cycles", "count"}, Also: []Event{
		{Name: "cycles:k", Value: ValueType{"cycles", "count"}}, {Name: "page-faults", Value: ValueType{"page-faults", "count"}},
		{Name: "page-faults", Value: ValueType{"page-faults", "count"}},
	}}
	var names []string
	for _, t := range m.typesByEvent() {
		names = append(names, t.Type)
	}
	if want := []string{"cycles:u_samples", "cycles:u", "cycles:k_samples", "cycles:k", "page-faults_samples", "page-faults", "page-faults'_samples", "page-faults'"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

// A server is sent a profile of each event.
func TestEventsOTLP(t *testing.T) {
	r := readOTLP(t, twoEvents())
	if len(r.profiles) != 2 {
		t.Fatalf("%d profiles", len(r.profiles))
	}
	for i, want := range []struct {
		of, period ValueType
		total      uint64
	}{
		{ValueType{"samples", "count"}, ValueType{"cpu", "nanoseconds"}, 4},
		{ValueType{"ret", "bytes"}, ValueType{}, 705},
	} {
		total := uint64(0)
		for _, s := range r.profiles[i][2] {
			total += s.message(t).numbers(t, 4)[0]
		}
		if of, period := r.valueType(r.profiles[i], 1), r.valueType(r.profiles[i], 5); of != want.of || period != want.period || total != want.total {
			t.Errorf("profile %d has %d of %v, each for %v; want %+v", i, total, of, period, want)
		}
	}
}

// An event that Meta does not tell of is the first one.
func TestEventUnknown(t *testing.T) {
	for _, also := range [][]Event{nil, {{Name: "page-faults"}}} {
		b := NewBuilder()
		b.Add(Thread{PID: 1, Event: 200}, []Loc{{b.Module(Module{Path: "/bin/prog"}), 16}}, "", 1, 1)
		p := b.Finish(Meta{Event: "cpu-clock", Value: ValueType{"cpu", "nanoseconds"}, Also: also}, nil)
		if n := p.Events()[0].Samples; n != 1 {
			t.Errorf("%d samples", n)
		}
		var out bytes.Buffer
		for _, write := range []func(io.Writer) error{p.WritePprof, p.WritePerfScript, p.WriteFolded, func(w io.Writer) error { return p.WriteOTLP(w, nil) }} {
			if err := write(&out); err != nil {
				t.Error(err)
			}
		}
	}
}

// Events can have other numbers than they had when they were added.
func TestRenumberEvents(t *testing.T) {
	b := NewBuilder()
	loc := Loc{b.Module(Module{Path: "/bin/prog"}), 16}
	for tid := range int32(100) {
		for event := range uint8(3) {
			b.Add(Thread{PID: 1, TID: tid, Event: event}, []Loc{loc}, "", 1, int64(event))
		}
	}
	b.RenumberEvents([]uint8{2, 0, 1})
	b.Add(Thread{PID: 1, TID: 50, Event: 0}, []Loc{loc}, "", 1, 1) // as event 1 was
	p := b.Finish(Meta{Event: "b", Also: []Event{{Name: "c"}, {Name: "a"}}}, nil)
	p.Types = []ValueType{{"b", "count"}, {"c", "count"}, {"a", "count"}}
	for i, want := range []struct{ samples, value int64 }{{101, 101}, {100, 200}, {100, 0}} {
		q, err := p.OfType(p.Types[i].Type)
		if err != nil || q.Samples != want.samples || q.Value != want.value || len(q.threads) != 100 || q.Type != p.Types[i].Type || q.Meta.Event != q.Type {
			t.Errorf("event %d has %d samples of %d in %d threads, want %+v; %v", i, q.Samples, q.Value, len(q.threads), want, err)
		}
	}
	if _, err := p.OfType("d"); !errors.Is(err, ErrNoSuchType) {
		t.Errorf("an event that is not there: %v", err)
	}
}
