package main

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// The only stack of a thread that waits from before the recording until after it has the functions of its runtime, of each of several
// threads its own.
func TestRecordWaitingRuntimes(t *testing.T) {
	t.Parallel()
	needRecord(t)
	for _, tc := range []struct {
		program, flag, code string
		threads             int
	}{
		{"python3", "-c", `
import sys, threading
def inner(): met.wait(); sys.stdin.read()
def outer(): inner()
def inner0(): print("ready", flush=True); stop.wait()
def outer0(): inner0()
def inner1(): met.wait(); stop.wait()
def outer1(): inner1()
met, stop = threading.Barrier(3), threading.Event()
for f in outer, outer1: threading.Thread(target=f, daemon=True).start()
met.wait()
outer0()`, 3},
		{"ruby", "-e", `def inner; puts "ready"; STDOUT.flush; STDIN.read; end
def outer; inner; end
outer`, 1},
		{"php", "-r", `function inner() { echo "ready\n"; fgets(STDIN); } function outer() { inner(); } outer();`, 1},
		{"perl", "-e", `sub inner { $| = 1; print "ready\n"; my $line = <STDIN>; } sub outer { inner(); return; } outer();`, 1},
		{"lua5.4", "-e", `local function inner() print("ready") io.stdout:flush() return (io.read()) end
function outer() local x = inner() return x end
outer()`, 1},
		{"luajit", "-e", `function inner() print("ready") io.stdout:flush() local x = io.read() return x end
function outer() local x = inner() return x end
outer()`, 1},
		{"bash", "-c", `inner() { echo ready; read -r x; }; outer() { inner; }; outer`, 1},
		{"Rscript", "-e", `inner <- function() { cat("ready\n"); readLines(file("stdin"), 1) }; outer <- function() { x <- inner(); x }; outer()`, 1},
	} {
		t.Run(tc.program, func(t *testing.T) {
			testenv.Needs(t, tc.program)
			cmd := exec.Command(tc.program, tc.flag, tc.code)
			startReady(t, cmd)
			waitFor(t, tc.program+" to come to rest", func() bool { return !strings.ContainsAny(threadStates(t, cmd.Process.Pid), "RD") })
			flags := []string{"--off-cpu", "--wall"}
			for _, flag := range flags[:min(tc.threads, len(flags))] {
				r := runRecord(t, flag, "-d", "0.5", "-p", fmt.Sprint(cmd.Process.Pid))
				seen := map[string]bool{}
				for _, s := range r.profile.Sample {
					calls := ""
					for _, name := range stackOf(s) {
						if name = strings.TrimPrefix(name, "main::"); strings.HasPrefix(name, "outer") || strings.HasPrefix(name, "inner") {
							calls += " " + name
						}
					}
					if calls != "" {
						seen[calls] = true
					}
				}
				want := []string{" outer inner", " outer0 inner0", " outer1 inner1"}[:tc.threads]
				if len(seen) != tc.threads || slices.ContainsFunc(want, func(calls string) bool { return !seen[calls] }) {
					t.Errorf("%s: calls %v, want %v\n%s", flag, seen, want, r.folded)
				}
			}
		})
	}
}

// Of a thread that waits over and over every time has the functions, from the first one on, which begins before the recording.
func TestRecordWaitsAgain(t *testing.T) {
	t.Parallel()
	needRecord(t)
	for _, tc := range []struct{ program, flag, code string }{
		{"python3", "-c", `
import time
def inner(): time.sleep(0.3)
def outer():
    while True: inner()
print("ready", flush=True)
outer()`},
		{"ruby", "-e", `def inner; sleep 0.3; end
def outer; loop { inner }; end
puts "ready"; STDOUT.flush; outer`},
		{"php", "-r", `function inner() { usleep(300000); } function outer() { while (1) inner(); } echo "ready\n"; outer();`},
		{"perl", "-e", `sub inner { select(undef, undef, undef, 0.3); } sub outer { while (1) { inner() } } $| = 1; print "ready\n"; outer();`},
		{"bash", "-c", `inner() { read -rt 0.3 x; }; outer() { while :; do inner; done; }; echo ready; outer`},
	} {
		t.Run(tc.program, func(t *testing.T) {
			testenv.Needs(t, tc.program)
			cmd := exec.Command(tc.program, tc.flag, tc.code)
			startReady(t, cmd)
			waitFor(t, tc.program+" to come to rest", func() bool { return !strings.ContainsAny(threadStates(t, cmd.Process.Pid), "RD") })
			r := runRecord(t, "--off-cpu", "-d", "1", "-p", fmt.Sprint(cmd.Process.Pid))
			value := len(r.profile.SampleType) - 1
			named, all := int64(0), int64(0)
			for _, s := range r.profile.Sample {
				if int32(s.NumLabel["tid"][0]) != int32(cmd.Process.Pid) {
					continue // Ruby has a thread for its timer
				}
				all += s.Value[value]
				stack := stackOf(s)
				isInner := func(name string) bool { return strings.TrimPrefix(name, "main::") == "inner" }
				if slices.ContainsFunc(stack, isInner) {
					named += s.Value[value]
				}
			}
			if all < 9e8 || float64(named) < 0.99*float64(all) {
				t.Errorf("of %.1f ms %.1f have functions\n%s", float64(all)/1e6, float64(named)/1e6, r.folded)
			}
		})
	}
}
