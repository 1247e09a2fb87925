package profile

import "testing"

// offCPU is a profile of values: what waited on a lock, and what slept.
func offCPU() *Profile {
	b := NewBuilder()
	m := b.Module(Module{Path: "/bin/srv", Kind: Native})
	syms := symbols{{m, 1}: {{Function: "lock"}}, {m, 2}: {{Function: "nap"}}, {m, 3}: {{Function: "main"}}}
	add := func(tid int32, comm string, fn uint64, n, value int64, labels ...Label) {
		b.Add(Thread{PID: 1, TID: tid, Comm: Comm(comm), Labels: b.Labels(labels...)}, []Loc{{m, fn}, {m, 3}}, "", n, value)
	}
	add(1, "srv", 1, 60, 1e9, Label{"state", "lock"}, Label{"cpu", "0"})
	add(1, "srv", 2, 20, 2e9, Label{"state", "sleep"}, Label{"cpu", "1"})
	add(2, "io 1", 2, 10, 5e9, Label{"state", "sleep"}, Label{"cpu", "0"})
	add(3, "io 2", 1, 10, 2e9)
	return b.Finish(Meta{Target: "srv", Event: "off-cpu", ByValue: true, Value: ValueType{"off-cpu", "nanoseconds"}}, syms)
}

// Labels are chosen in tabs, together with others; links keep the choice.
func TestFlameGraphLabels(t *testing.T) {
	b := newBrowser(t, testWidth, testHeight)
	file := writeHTML(t, offCPU())
	b.Open(file, "")
	b.Press("p")
	b.WantText("#filter-by", "ProcessThread namecpustate")
	b.ClickOn("#filter-by button:nth-child(4)")
	b.WantText("#process-list", "sleep70.0 %without20.0 %lock10.0 %")
	b.ClickOn("#process-list li:nth-child(1) label")
	b.WantText("#processes", "state sleep ▾")
	b.ClickOn("#filter-by button:nth-child(3)")
	b.WantText("#process-list", "060.0 %without20.0 %120.0 %")
	b.ClickOn("#process-list li:nth-child(1) label")
	b.WantText("#processes", "cpu 0, state sleep ▾")
	b.Press("Escape")
	b.wantAt(0, 0.5, "all", "Total: 5.00 s, 10 samples, 100 % of the filtered")
	view := b.hash()
	if view != "#label.cpu=0&label.state=sleep" {
		t.Errorf("address %s", view)
	}
	b.Open(file, view)
	b.wantAt(0, 0.5, "all", "Total: 5.00 s, 10 samples, 100 % of the filtered")
	// Two of one label are shown together, and so is what has none of it.
	b.Open(file, "#label.state=lock,+&comm=srv,io%25202")
	b.wantAt(0, 0.5, "all", "Total: 3.00 s, 70 samples, 100 % of the filtered")
	b.Press("p")
	b.ClickOn("#process-clear")
	b.WantText("#processes", "Filter ▾")
	b.Press("Escape")
	b.wantAt(0, 0.5, "all", "Total: 10.0 s, 100 samples, 100 %")
	if got := b.hash(); got != "" && got != "#" {
		t.Errorf("address %s", got)
	}
	b.Open(file, "#label.nothing=x&label.state=none&comm=zz")
	b.wantAt(0, 0.5, "all", "Total: 10.0 s, 100 samples, 100 %")
	b.NoErrors()
}

// Where samples have values, widths are these or the counts.
func TestFlameGraphWidths(t *testing.T) {
	b := newBrowser(t, testWidth, testHeight)
	file := writeHTML(t, offCPU())
	b.Open(file, "")
	b.wantAt(3, 0.1, "nap", "Code: native · /bin/srv", "Total: 7.00 s, 30 samples, 70.0 %", "Of parent: 70.0 %")
	b.ClickOn("#by-count")
	b.wantAt(3, 0.8, "lock", "Code: native · /bin/srv", "Total: 70 samples, 3.00 s, 70.0 %", "Of parent: 70.0 %")
	if got := b.hash(); got != "#by=count" {
		t.Errorf("address %s", got)
	}
	b.Press("c")
	b.wantAt(1, 0.1, "lock", "Code: native · /bin/srv", "Total: 70 samples, 3.00 s, 70.0 %")
	b.Press("w")
	b.wantAt(1, 0.1, "nap", "Code: native · /bin/srv", "Total: 7.00 s, 30 samples, 70.0 %")
	b.Press("p")
	b.ClickOn("#filter-by button:nth-child(2)")
	b.WantText("#process-list", "io 150.0 %srv30.0 %io 220.0 %")
	b.ClickOn("#by-count") // closes the list as well
	b.Press("p")
	b.WantText("#process-list", "srv80.0 %io 110.0 %io 210.0 %")
	b.Open(file, "#by=count")
	b.wantAt(0, 0.5, "all", "Total: 100 samples, 10.0 s, 100 %")
	b.Open(writeHTML(t, fixture()), "#by=count") // has one kind of widths
	b.wantAt(0, 0.5, "all", "Total: 99 samples, ≈ 1.00 s, 100 %")
	b.NoErrors()
}
