package main

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// framesAt makes frames of one-letter functions, each at an address of its own.
func framesAt(functions string) []walkFrame {
	frames := make([]walkFrame, len(functions))
	for i := range frames {
		f := new(unwind.Frame)
		f.SetPC(procstate.AMD64, uint64(functions[i]))
		frames[i] = walkFrame{frame: f, function: functions[i : i+1]}
	}
	return frames
}

func TestFoldRecursion(t *testing.T) {
	again := strings.Repeat
	sixteen := "abcdefghijklmnop"
	for _, test := range []struct {
		stack string
		want  []frameRun
	}{
		{"", nil},
		{"abc", []frameRun{{0, 3, 0}}},
		{"x" + again("a", 10) + "y", []frameRun{{0, 12, 0}}},
		{"x" + again("a", 11) + "y", []frameRun{{0, 1, 0}, {1, 2, 10}, {12, 13, 0}}},
		{again("a", 11), []frameRun{{0, 1, 10}}},
		{again("ab", 10) + "a", []frameRun{{0, 21, 0}}},
		{again("ab", 11) + "a", []frameRun{{0, 2, 20}, {22, 23, 0}}},
		{again("aab", 50) + again("c", 20), []frameRun{{0, 3, 147}, {150, 151, 19}}},
		{again(sixteen, 11), []frameRun{{0, 16, 160}}},
		{again(sixteen+"q", 11), []frameRun{{0, 187, 0}}},
	} {
		got := foldRecursion(framesAt(test.stack))
		if !slices.Equal(got, test.want) {
			t.Errorf("%q: %v, want %v", test.stack, got, test.want)
		}
		n := 0
		for _, r := range got {
			n += r.end - r.start + r.more
		}
		if n != len(test.stack) {
			t.Errorf("%q: %d frames of %d", test.stack, n, len(test.stack))
		}
	}
	frames := framesAt(again("a", 20))
	for i := range frames {
		frames[i].variables = []walkVariable{{name: "n", value: strconv.Itoa(i)}}
	}
	frames[12].line = 7
	if got := foldRecursion(frames); !slices.Equal(got, []frameRun{{0, 1, 11}, {12, 20, 0}}) {
		t.Errorf("with another line: %v", got)
	}
	if got := strings.Join(foldTurns(strings.Split("x"+again("ab", 12)+"c", "")), " < "); got != "x < (a < b) x12 < c" {
		t.Errorf("in one line: %s", got)
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 104825: "104,825", 1234567: "1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("%d is %s", n, got)
		}
	}
}

// deepRecursion is the depth of a stack overflow of 8 MB.
const deepRecursion = 104_825

// TestWalkRecursion checks that deep stacks are walked to their end, which tells who began
// the recursion, and that this is shown once, unless each frame is asked for.
func TestWalkRecursion(t *testing.T) {
	t.Parallel()
	testenv.Needs(t, "gcc")
	pid := strconv.Itoa(startWalkTarget(t, "recursion.c", []string{"-O1", "-g"}, "2", strconv.Itoa(deepRecursion)).Process.Pid)
	out, stderr, code := runWalk(t, pid)
	for _, want := range []string{
		`(?m)^thread \d+ "walk-recursion" .*: complete\n  #0 .* pause\+.*\n  #1 .* leaf\+.*\n  #2 .* step\+.*\n  #3 .* step\+.*\n  \.\.\. 104,823 more of frame #3\n  #104827 .* run\+.*\n  #104828 `,
		`(?m)^thread \d+ "walk-recursion" .*: complete\n  #0 .* pause\+.*\n  #1 .* leaf\+.*\n  #2 .* even\+.*\n  #3 .* odd\+.*\n  #4 .* even\+.*\n  \.\.\. 104,822 more of frames #3-#4\n  #104827 .* run\+`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %s", want)
		}
	}
	if code != exitOK || strings.Count(out, "\n") > 40 {
		t.Errorf("exit %d, %s", code, stderr)
	}
	if t.Failed() {
		t.Log(out[:min(len(out), 8000)])
	}
	const each = 5000 // deep, where each frame is asked for
	pid = strconv.Itoa(startWalkTarget(t, "recursion.c", []string{"-O1", "-g"}, "2", strconv.Itoa(each)).Process.Pid)
	if out, _, _ = runWalk(t, "--no-group", pid); strings.Count(out, " step+0x") != each || strings.Contains(out, " more of frame") {
		t.Errorf("--no-group: %d frames of %d", strings.Count(out, " step+0x"), each)
	}
	out, _, _ = runWalk(t, "--json", pid)
	var p jsonProcess
	if err := json.Unmarshal([]byte(out), &p); err != nil || len(p.Threads) != 3 {
		t.Fatalf("%d threads, %v", len(p.Threads), err)
	}
	for _, th := range p.Threads[1:] {
		n := 0
		for i, f := range th.Frames {
			if f.Index != i {
				t.Fatalf("frame %d has the number %d", i, f.Index)
			}
			if slices.Contains([]string{"step", "even", "odd"}, f.Function) {
				n++
			}
		}
		if n != each || !th.Complete {
			t.Errorf("thread %d: %d frames, %s", th.TID, n, th.Reason)
		}
	}
}

// TestWalkRecursionOfGoroutine checks that the stack of a goroutine that waits is taken whole.
func TestWalkRecursionOfGoroutine(t *testing.T) {
	cmd := exec.Command(build(t, "recursive", "env", "CGO_ENABLED=0", "go", "build", "-o", "OUT", walkSource("recursion.go")), strconv.Itoa(deepRecursion))
	startReady(t, cmd)
	out, stderr, code := runWalk(t, strconv.Itoa(cmd.Process.Pid))
	want := `(?m)^goroutine \d+ \[chan receive\]: complete\n(  #.*\n)*  #3 .* main\.step\+.*\n  #4 .* main\.step\+.*\n  \.\.\. 104,824 more of frame #4\n(  #.*\n)*  #\d+ .* main\.main\.gowrap1\+`
	if code != exitOK || !regexp.MustCompile(want).MatchString(out) {
		t.Errorf("exit %d, %s\n%s", code, stderr, out[:min(len(out), 8000)])
	}
}
