package profile

import (
	"fmt"
	"testing"
)

// withWakers is a profile of one thread that waits in two ways, for another one and for an interrupt, and for no
// reason that is known.
func withWakers() *Profile {
	b := NewBuilder()
	m, k := b.Module(Module{Path: "/bin/srv", Kind: Native}), b.Module(Module{Path: KernelPath, Kind: Kernel})
	syms := symbols{
		{m, 1}: {{Function: "main"}}, {m, 2}: {{Function: "take"}}, {m, 3}: {{Function: "give"}},
		{k, 1}: {{Function: "schedule"}}, {k, 2}: {{Function: "try_to_wake_up"}},
	}
	lock, sleep := b.Marker("[lock]"), b.Marker("[sleep]")
	giver, interrupt := b.Marker(WakerMarker("giver")), b.Marker(WakerMarker("an interrupt"))
	cut := b.Marker("[truncated: stack-cut]")
	srv := Thread{PID: 1, TID: 1, Comm: Comm("srv")}
	b.Add(srv, []Loc{{k, 2}, {m, 3}, {m, 1}, giver, lock, {k, 1}, {m, 2}, {m, 1}}, "", 4, 4e9)
	b.Add(srv, []Loc{{k, 2}, cut, giver, lock, {k, 1}, {m, 2}, {m, 1}}, "", 1, 1e9)
	b.Add(srv, []Loc{{k, 2}, interrupt, sleep, {k, 1}, {m, 2}, {m, 1}}, "", 2, 2e9)
	b.Add(srv, []Loc{sleep, {k, 1}, {m, 2}, {m, 1}}, "", 3, 3e9)
	return b.Finish(Meta{ByValue: true, Value: ValueType{"off-cpu", "nanoseconds"}}, syms)
}

// What woke a thread up is not what waited.
func TestTopOfWakers(t *testing.T) {
	p := withWakers()
	for _, c := range []struct {
		top  []TopEntry
		want string
	}{
		{p.Top(-1), "schedule 10 of 10, main 0 of 10, take 0 of 10, "},
		{p.TopUser(-1), "take 10 of 10, main 0 of 10, "},
	} {
		got := ""
		for _, e := range c.top {
			got += fmt.Sprintf("%s %d of %d, ", e.Function, e.Self/1e9, e.Total/1e9)
		}
		if got != c.want {
			t.Errorf("%s\nwant %s", got, c.want)
		}
	}
	if p.Complete != p.Samples {
		t.Errorf("%d of %d stacks are complete, and what woke threads up is not part of them", p.Complete, p.Samples)
	}
}

// The flame graph shows it above the state; among callers, and in the legend, it is the state that counts.
func TestFlameGraphOfWakers(t *testing.T) {
	b := newBrowser(t, testWidth, testHeight)
	file := writeHTML(t, withWakers())
	b.Open(file, "")
	b.WantText("#legend", "native 0 %kernel 0 %waiting 100 %")
	b.wantAt(5, 0.1, "[lock]", "Code: marker", "Total: 5.00 s, 5 samples, 50.0 %", "Of parent: 50.0 %")
	b.wantAt(6, 0.1, "[woken by giver]", "Code: marker", "Total: 5.00 s, 5 samples, 50.0 %", "Of parent: 100 %")
	b.wantAt(8, 0.1, "give", "Code: native · /bin/srv", "Total: 4.00 s, 4 samples, 40.0 %", "Of parent: 100 %")
	b.Open(file, "#view=callers")
	b.wantAt(1, 0.1, "[lock]", "Code: marker", "Total: 5.00 s, 5 samples, 50.0 %")
	b.wantAt(1, 0.9, "[sleep]", "Code: marker", "Total: 5.00 s, 5 samples, 50.0 %")
	b.wantAt(2, 0.1, "schedule", "Code: kernel · [kernel.kallsyms]", "Total: 5.00 s, 5 samples, 50.0 %", "Of parent: 100 %")
	b.NoErrors()
}
