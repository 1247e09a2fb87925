package main

import (
	"os/exec"
	"strings"
	"testing"
)

const release58 = "5.8.0-test"

// swbpf58 is the command, for which the kernel is Linux 5.8.
func swbpf58(t *testing.T) string {
	t.Helper()
	return build(t, "swbpf58", "go", "build", "-ldflags", "-X github.com/swbpf/swbpf/loader.assumedRelease="+release58, "-o", "OUT", ".")
}

// With no more than Linux 5.8 has, recordings are the same: the kernel says that
// it is one, and nothing newer is used.
func TestRecordAsOnLinux58(t *testing.T) {
	t.Parallel()
	program := swbpf58(t)
	out, err := exec.Command(program, "doctor").CombinedOutput()
	if !strings.Contains(string(out), release58) {
		t.Fatalf("it takes the kernel for another one: %v\n%s", err, out)
	}
	target := build(t, "depth30", "g++", "-O2", "-fomit-frame-pointer", "-o", "OUT", "testdata/targets/depth30.cc")
	for flags, seconds := range map[string]string{"-F 99": "4", "-F 997": "2", "-F 997 --stack-bytes 1M --no-kernel": "2"} { // as its start takes some samples
		t.Run(flags, func(t *testing.T) {
			t.Parallel()
			r := runRecordBy(t, program, append(strings.Fields(flags), "--", target, seconds)...)
			wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 99.5)
			r.wantChain(t, "depth30", checkDepth30)
			if r.stats.Lost != 0 {
				t.Errorf("lost %v", r.stats.LostByReason)
			}
		})
	}
	// Programs that wait, come and go.
	for _, flags := range []string{"-F 997", "-e sched:sched_switch", "-e page-faults", "--off-cpu", "--wall"} {
		t.Run(flags+" sh", func(t *testing.T) {
			r := runRecordBy(t, program, append(strings.Fields(flags), "--", "sh", "testdata/targets/shortlived.sh", "10")...)
			if r.exit != 0 {
				t.Errorf("exit status %d\n%s", r.exit, r.stderr)
			}
			wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 97)
		})
	}
}
