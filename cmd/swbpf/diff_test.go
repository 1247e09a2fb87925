package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/profile"
)

func TestPrintDiff(t *testing.T) {
	d, err := profile.Compare(viewProfile(t, 1), viewProfile(t, 12), false)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := printDiff(&b, d, &diffOptions{rows: 20}, false); err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(b.String(), "\nWhat counts")
	// hot(int): 75 of 100 to 240 of 265; cold: 20 of 100 to 20 of 265.
	want := `before  app: 100 samples
after   app: 265 samples

grew, in % of all samples
      self   → self  change              change of total     function (* significant)
     75.00    90.57  +15.57 ± 9.19    *  +12.45 ± 8.46    *  hot(int)

shrank, in % of all samples
      self   → self  change              change of total     function (* significant)
     20.00     7.55  −12.45 ± 8.46    *  −12.45 ± 8.46    *  <b>cold</b>
`
	if table != want {
		t.Errorf("got\n%s\nwant\n%s", table, want)
	}
	b.Reset()
	same := viewProfile(t, 1)
	if d, err = profile.Compare(same, same, false); err != nil {
		t.Fatal(err)
	}
	if err := printDiff(&b, d, &diffOptions{rows: 20}, false); err != nil || !strings.Contains(b.String(), "no function changed by more than sampling error") {
		t.Errorf("%s, %v", b.String(), err)
	}
}

// Functions that nothing ran in are compared by what they called.
func TestPrintDiffOfWaits(t *testing.T) {
	waits := func(ns ...int64) *profile.Profile {
		b := profile.NewBuilder()
		m := b.Module(profile.Module{Path: "/bin/app", Kind: profile.Native})
		for i, n := range ns {
			for range 50 {
				b.Add(profile.Thread{PID: 1, TID: 1}, []profile.Loc{b.Marker("[sleep]"), {Module: m, Addr: uint64(i + 1)}}, "", 1, n)
			}
		}
		return b.Finish(profile.Meta{Target: "app", Event: "off-cpu", ByValue: true, Duration: 1e9, Value: profile.ValueType{Type: "off-cpu", Unit: "nanoseconds"}},
			viewSymbols{{Module: m, Addr: 1}: {{Function: "nap"}}, {Module: m, Addr: 2}: {{Function: "doze"}}})
	}
	d, err := profile.Compare(waits(1e6, 2e6), waits(16e6, 3e6), true)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		all  bool
		want string
	}{
		// 1.96 standard deviations of 50 samples: 1.96 * sqrt(50) * hypot(1, 16) ms.
		{false, "    0.0500   0.8000  +0.7500 ± 0.2222 *  nap\n"},
		{true, "    0.0500   0.8000  +0.7500 ± 0.2222 *  nap\n    0.1000   0.1500  +0.0500 ± 0.0500    doze\n"},
	} {
		var b bytes.Buffer
		if err := printDiff(&b, d, &diffOptions{rows: 20, all: test.all}, false); err != nil {
			t.Fatal(err)
		}
		_, table, _ := strings.Cut(b.String(), "function (* significant)\n")
		if table, _, _ = strings.Cut(table, "\nWeights are tested"); table != test.want {
			t.Errorf("got\n%s\nwant\n%s", table, test.want)
		}
	}
}

func TestDiffCommand(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	before, after := file("a.folded", "app;main;f 300\napp;main;g 300\n"), file("b.folded", "app;main;f 100\napp;main;g 300\n")
	empty, page, picture := file("c.folded", "app;main 0\n"), filepath.Join(dir, "d.html"), filepath.Join(dir, "d.svg")
	for _, test := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"diff", before, after, "-o", page, "-o", picture}, 0, "grew, in % of all samples"},
		{[]string{"diff", before, before}, 0, "no function changed"},
		{[]string{"diff", before}, 2, "1 file given, where 'diff BEFORE AFTER' takes 2"},
		{[]string{"diff", "-", "-"}, 2, "standard input"},
		{[]string{"diff", before, after, "-o", filepath.Join(dir, "d.folded")}, 2, "as .html or .svg"},
		{[]string{"diff", before, after, "-n", "-1"}, 2, "not a whole number"},
		{[]string{"diff", "--absolute", before, after}, 1, "the duration of \"a.folded\" is not known"},
		{[]string{"diff", before, empty}, 1, "without samples"},
	} {
		out, msg, status := runSwbpf(t, "", test.args...)
		if status != test.status || !strings.Contains(out+msg, test.want) {
			t.Errorf("%v: status %d, %s%s; want %d, %s", test.args, status, out, msg, test.status, test.want)
		}
	}
	for path, want := range map[string]string{page: "<!DOCTYPE html>", picture: "<svg "} {
		if text, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(text), want) {
			t.Errorf("%s: %.40q, %v", path, text, err)
		}
	}
}
