package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
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
	if err := printDiff(&b, d, &diffOptions{rows: 20}); err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(b.String(), "\nWhat counts")
	// hot(int): 75 of 100 to 240 of 265; cold: 20 of 100 to 20 of 265.
	want := `before  app: 100 samples
after   app: 265 samples

grew, in % of all samples
      self   → self  change             change of total    function (* significant)
     75.00    90.57  +15.57 ± 9.19   *  +12.45 ± 8.46   *  hot(int)

shrank, in % of all samples
      self   → self  change             change of total    function (* significant)
     20.00     7.55  −12.45 ± 8.46   *  −12.45 ± 8.46   *  <b>cold</b>
`
	if table != want {
		t.Errorf("got\n%s\nwant\n%s", table, want)
	}
	b.Reset()
	same := viewProfile(t, 1)
	if d, err = profile.Compare(same, same, false); err != nil {
		t.Fatal(err)
	}
	if err := printDiff(&b, d, &diffOptions{rows: 20}); err != nil || !strings.Contains(b.String(), "no function changed by more than sampling error") {
		t.Errorf("%s, %v", b.String(), err)
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
		{[]string{"diff", before}, 2, "1 files given, where 'diff BEFORE AFTER' takes 2"},
		{[]string{"diff", "-", "-"}, 2, "standard input"},
		{[]string{"diff", before, after, "-o", filepath.Join(dir, "d.folded")}, 2, "as .html or .svg"},
		{[]string{"diff", before, after, "-n", "-1"}, 2, "not negative"},
		{[]string{"diff", "--absolute", before, after}, 1, "the duration of \"a.folded\" is not known"},
		{[]string{"diff", before, empty}, 1, "without samples"},
	} {
		out, err := exec.Command(swbpf(t), test.args...).CombinedOutput()
		status := 0
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			status = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if status != test.status || !strings.Contains(string(out), test.want) {
			t.Errorf("%v: status %d, %s; want %d, %s", test.args, status, out, test.status, test.want)
		}
	}
	for path, want := range map[string]string{page: "<!DOCTYPE html>", picture: "<svg "} {
		if text, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(text), want) {
			t.Errorf("%s: %.40q, %v", path, text, err)
		}
	}
}
