package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/loader"
)

// complete asks as the shell's completion does, and returns what it is
// offered, and the directive.
func complete(t *testing.T, args ...string) (offered []string, directive string) {
	t.Helper()
	out, _, _ := runSwbpf(t, t.TempDir(), append([]string{"__complete"}, args...)...)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for _, line := range lines[:len(lines)-1] {
		word, _, _ := strings.Cut(line, "\t")
		offered = append(offered, word)
	}
	return offered, lines[len(lines)-1]
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	self := fmt.Sprint(os.Getpid())
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil || len(tasks) < 2 {
		t.Fatalf("threads: %v, %v", tasks, err)
	}
	thread := tasks[len(tasks)-1].Name()
	online := loader.OnlineCPUs()
	last := fmt.Sprint(online[len(online)-1])
	var ranges []string
	for _, cpu := range online[1:] {
		ranges = append(ranges, fmt.Sprint("0-", cpu))
	}
	for _, tc := range []struct {
		args []string
		want []string // among what is offered
		not  []string
	}{
		{[]string{""}, []string{"record", "walk", "top", "doctor", "man"}, []string{"__complete"}},
		{[]string{"record", "-e", "page"}, []string{"page-faults"}, []string{"cycles"}},
		{[]string{"top", "-e", "cpu-"}, []string{"cpu-clock", "cpu-cycles"}, nil},
		{[]string{"record", "-e", "upr"}, []string{"uprobe:"}, []string{"usdt:"}},
		{[]string{"record", "-e", "uprobe:libc:getprior"}, []string{"uprobe:libc:getpriority"}, []string{"uprobe:libc:malloc"}},
		{[]string{"record", "-e", "uretprobe:no-such-library:a"}, nil, []string{"uretprobe:"}},
		{[]string{"record", "-o", ""}, []string{"pb.gz", "folded", "html"}, []string{"stats"}},
		{[]string{"record", "-p", self}, []string{self}, nil},
		{[]string{"record", "-p", "1," + self}, []string{"1," + self}, nil},
		{[]string{"top", "-t", self}, []string{self}, nil},
		{[]string{"record", "-t", thread}, []string{thread}, nil},
		{[]string{"record", "-t", "1," + thread}, []string{"1," + thread}, nil},
		{[]string{"walk", self, "-t", ""}, []string{self, thread}, []string{"1"}},
		{[]string{"record", "-C", ""}, []string{"0", last}, nil},
		{[]string{"top", "-C", "0,"}, []string{"0,0", "0," + last}, nil},
		{[]string{"record", "-C", "0-"}, ranges, []string{"0-0"}},
		{[]string{"record", "-u", "ro"}, []string{"root"}, nil},
		{[]string{"top", "-p", self, "--ch"}, []string{"--children"}, nil},
		{[]string{"walk", self}, []string{self}, nil},
		{[]string{"walk", "--symbols", ""}, []string{"yes", "functions", "no"}, nil},
		{[]string{"record", "--", "ca"}, []string{"cat"}, []string{"ls"}},
		{[]string{"doctor", ""}, nil, []string{"record"}},
		{[]string{"doctor", "--"}, []string{"--json"}, nil},
	} {
		offered, _ := complete(t, tc.args...)
		for _, w := range tc.want {
			if !slices.Contains(offered, w) {
				t.Errorf("%q: %q is not offered, but %.200q", tc.args, w, offered)
			}
		}
		for _, w := range tc.not {
			if slices.Contains(offered, w) {
				t.Errorf("%q: %q is offered", tc.args, w)
			}
		}
	}
}

// TestCompletionTracepoints checks that tracepoints come in two steps.
func TestCompletionTracepoints(t *testing.T) {
	needRecord(t)
	offered, _ := complete(t, "record", "-e", "sched")
	if !slices.Contains(offered, "sched:") || slices.Contains(offered, "sched:sched_switch") {
		t.Errorf("sched: %q", offered)
	}
	offered, _ = complete(t, "record", "-e", "sched:sched_sw")
	if !slices.Contains(offered, "sched:sched_switch") {
		t.Errorf("sched:sched_sw: %q", offered)
	}
}

// TestCompletionScripts has the shells read the scripts that are for them.
func TestCompletionScripts(t *testing.T) {
	script, _, status := runSwbpf(t, t.TempDir(), "completion", "bash")
	if status != exitOK {
		t.Fatalf("status %d", status)
	}
	cmd := exec.Command("bash", "-n")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("bash: %v: %s", err, out)
	}
}

// TestUnknownVerb checks what is said of a verb that does not exist.
func TestUnknownVerb(t *testing.T) {
	_, msg, status := runSwbpf(t, t.TempDir(), "reccord")
	if status != exitCannot || !strings.Contains(msg, "reccord") || !strings.Contains(msg, "mean record?") {
		t.Errorf("status %d: %s", status, msg)
	}
	_, msg, status = runSwbpf(t, t.TempDir(), "completion", "csh")
	if status != exitCannot || !strings.Contains(msg, "csh") || !strings.Contains(msg, "swbpf completion --help") {
		t.Errorf("status %d: %s", status, msg)
	}
	_, msg, status = runSwbpf(t, t.TempDir(), "help", "reccord")
	if status != exitCannot || !strings.Contains(msg, "reccord") || !strings.Contains(msg, "mean record?") {
		t.Errorf("help: status %d: %s", status, msg)
	}
	out, msg, status := runSwbpf(t, t.TempDir(), "help", "completion", "bash")
	if status != exitOK || !strings.Contains(out, "swbpf completion bash") || msg != "" {
		t.Errorf("help on a verb of a verb: status %d: %s%s", status, out, msg)
	}
	out, msg, status = runSwbpf(t, t.TempDir())
	if status != exitOK || !strings.Contains(out, "swbpf doctor") || msg != "" {
		t.Errorf("without a verb: status %d: %s%s", status, out, msg)
	}
}
