package main

import (
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// Functions of Erlang have their names and their callers in recordings, also of a process that collects garbage now and
// then, which moves its stack.
func TestRecordErlang(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("on arm64 Erlang is tested under an emulator")
	}
	const calls = "stuck:outer/1_[j];stuck:caught/2_[j];stuck:mapped/2_[j];lists:map/2_[j];" +
		"stuck:'-mapped/2-fun-0-'/3_[j];stuck:inner/2_[j];stuck:spin/2_[j]" // which told has called last
	testenv.SomeErlang(t, func(t *testing.T, erl testenv.Erlang) {
		seen := erl.Compile(t, filepath.Join("..", "..", "testdata", "walk", "stuck.erl"))
		for _, perf := range testenv.Some([]string{"true", "false"}) { // with frame pointers, where perf is supported
			t.Run("perf "+perf, func(t *testing.T) {
				command := erl.Command("+S", "1:1", "+JPperf", perf, "-pa", seen, "-eval", "timer:apply_after(1500, erlang, halt, []), stuck:main().")
				r := recordCommand(t, 0, append([]string{"sh", "-c", `"$@" & wait; rm -f "$0"/tmp/perf-$!.map "$0"/tmp/jit-$!.dump`, erl.Root}, command...)...)
				// Those of the first tenths of a second are not, until the kernel side knows where to look: where
				// the machine is busy 89 % are complete, else 98.
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
	})
}
