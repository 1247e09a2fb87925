package main

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// Functions of Erlang have their names and their callers in recordings, also of a process that collects garbage most of
// the time, which moves its stack.
func TestRecordErlang(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("Erlang is known on amd64 alone")
	}
	testenv.Needs(t, "erl", "erlc")
	dir := t.TempDir()
	testenv.Run(t, exec.Command("erlc", "-o", dir, filepath.Join("..", "..", "testdata", "walk", "stuck.erl")))
	const calls = "stuck:outer/1_[j];stuck:caught/2_[j];stuck:mapped/2_[j];lists:map/2_[j];" +
		"stuck:'-mapped/2-fun-0-'/3_[j];stuck:inner/2_[j];stuck:spin/2_[j]" // which told has called last
	for _, perf := range []string{"false", "true"} { // with frame pointers, where perf is supported
		t.Run("perf "+perf, func(t *testing.T) {
			r := recordCommand(t, 0, "sh", "-c", `erl -noshell -noinput +S 1:1 +JPperf $0 -pa $1 -eval "$2" & wait; rm -f /tmp/perf-$!.map /tmp/jit-$!.dump`,
				perf, dir, "timer:apply_after(3000, erlang, halt, []), stuck:main().")
			// Those of the first tenths of a second are not, until the kernel side knows where to look: where
			// the machine is busy 92 % are complete, else 99.
			wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 80)
			var spins uint64
			for stack, count := range foldedStacks(t, r.folded) {
				if !strings.Contains(stack, "stuck:spin/2_[j]") || strings.Contains(stack, "[truncated:") {
					continue
				}
				if spins += count; !strings.Contains(stack, calls) {
					t.Errorf("not called as the source does: %s", stack)
				}
			}
			if spins*2 < r.stats.UserSamples {
				t.Errorf("%d of %d samples in the function that spins", spins, r.stats.UserSamples)
			}
		})
	}
}
