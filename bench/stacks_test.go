package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"
)

var threeLinks = judge{chain: "chain::level", links: 3}

func TestJudge(t *testing.T) {
	l := "chain<2>::level(long)"
	for _, tc := range []struct {
		name              string
		frames            []string
		complete, correct bool
	}{
		{"whole", []string{"_start", "__libc_start_main", "main", l, "chain::level", l, "strlen"}, true, true},
		{"within a link", []string{"_start", "main", l, l}, true, true},
		{"what main calls", []string{"_start", "main", "clock_gettime"}, true, true},
		{"before main", []string{"_start", "_dl_start"}, true, true},
		{"a link too few", []string{"_start", "main", l, l, "strlen"}, true, false},
		{"a link too many", []string{"_start", "main", l, l, l, l, "strlen"}, true, false},
		{"interrupted", []string{"_start", "main", l, "strlen", l, l}, true, false},
		{"main is missing", []string{"_start", l, l, l, "strlen"}, true, false},
		{"no start", []string{"main", l, l, l, "strlen"}, false, false},
		{"stripped", []string{"[unknown]", "__libc_start_main_impl", "main", l, l, l}, true, true},
	} {
		var v verdict
		v.add(threeLinks, tc.frames, 2)
		want := verdict{stacks: 2}
		if tc.complete {
			want.complete = 2
		}
		if tc.correct {
			want.correct = 2
		}
		if v != want {
			t.Errorf("%s: %+v, want %+v", tc.name, v, want)
		}
	}
}

func TestJudgeText(t *testing.T) {
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "stacks")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	want := verdict{stacks: 4, complete: 3, correct: 3}
	got, err := judgeFolded(file("a;_start;main;strlen;irq_[k] 3\na;[truncated];x 1\nb;_start 9\na;irq_[k] 2\n"), "a", threeLinks)
	if err != nil || got != want {
		t.Errorf("folded: %+v, %v", got, err)
	}
	got, err = judgePerfScript(file("a 1: \n\tffffffff81000000 irq\n\t  12 strlen\n\t  34 main\n\t  56 _start\n\na 1: \n\t  12 [unknown]\n\nb 1:\n\t 56 _start\n\n"), "a", threeLinks)
	if err != nil || got != (verdict{stacks: 2, complete: 1, correct: 1}) {
		t.Errorf("perf script: %+v, %v", got, err)
	}
	got, err = judgeBpftrace(file("Attaching\n\n@[\n    12 strlen+1 (libc)\n    34 main+2\n    56 _start+3\n]: 3\n@[\n    12 0x12 ([unknown])\n]: 1\n"), threeLinks)
	if err != nil || got != want {
		t.Errorf("bpftrace: %+v, %v", got, err)
	}
}

func TestSave(t *testing.T) {
	path := filepath.Join(t.TempDir(), "doc.md")
	os.WriteFile(path, []byte("a\n<!-- bench:x -->\nold\n<!-- /bench:x -->\nb\n"), 0o600)
	r := &report{name: "x", out: io.Discard}
	r.row("1", "2")
	if err := r.save(path); err != nil {
		t.Fatal(err)
	}
	got, _ := os.ReadFile(path)
	if want := "a\n<!-- bench:x -->\n\n| 1 | 2 |\n\n<!-- /bench:x -->\nb\n"; string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
	r.name = "y"
	if err := r.save(path); err == nil {
		t.Error("a document without the block")
	}
}
