package profile

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
)

// twoEvents is a profile of two events, of which samples are in the same stacks and others.
func twoEvents() *Profile {
	b := NewBuilder()
	b.KeepTimes()
	m := b.Module(Module{Path: "/bin/prog"})
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
	for _, from := range []string{"memory", "pprof"} {
		p := twoEvents()
		events := p.Events()
		if from == "pprof" {
			var out bytes.Buffer
			if err := p.WritePprof(&out); err != nil {
				t.Fatal(err)
			}
			for i, typ := range []string{"", "syscalls:sys_exit_read"} {
				var err error
				if events[i], err = Read(bytes.NewReader(out.Bytes()), ReadOptions{SampleType: typ}); err != nil {
					t.Fatal(err)
				}
			}
			if want := []ValueType{{"cpu_samples", "count"}, {"cpu", "nanoseconds"}, {"syscalls:sys_exit_read_samples", "count"}, {"syscalls:sys_exit_read", "bytes"}}; !slices.Equal(events[0].Types, want) {
				t.Errorf("types %v, want %v", events[0].Types, want)
			}
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
			if q.Meta.Event != want.event || q.Meta.FrequencyHz != want.hz || q.Meta.ByValue != want.byValue || len(q.Meta.Also) != 0 {
				t.Errorf("%s: event %d is %+v", from, i, q.Meta)
			}
			if q.Samples != want.samples || q.Value != want.value || q.Complete != want.complete || !slices.Equal(q.Truncated, want.truncated) {
				t.Errorf("%s: event %d has %d samples of %d, %d complete, others %v; want %+v", from, i, q.Samples, q.Value, q.Complete, q.Truncated, want)
			}
			if len(q.threads) != want.threads || len(q.locations) != want.locations {
				t.Errorf("%s: event %d has %d threads and %d locations, want %+v", from, i, len(q.threads), len(q.locations), want)
			}
			if from == "memory" && int64(len(q.times)) != 2 {
				t.Errorf("event %d has %d times", i, len(q.times))
			}
		}
	}
}

// An event alone is as a recording of nothing else.
func TestEventAlone(t *testing.T) {
	b := NewBuilder()
	m := b.Module(Module{Path: "/bin/prog"})
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
