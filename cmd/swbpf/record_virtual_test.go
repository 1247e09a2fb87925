package main

import (
	"maps"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// virtualCalls are the methods of Virtual.java, and what they call in the source, of their own.
var virtualCalls = map[string][]string{
	"Virtual.lambda$main$0": {"Virtual.run"}, "Virtual.run": {"Virtual.deep"}, "Virtual.deep": {"Virtual.deep", "Virtual.rounds", "Virtual.spin"},
	"Virtual.rounds": {"Virtual.waits", "Virtual.spin"}, "Virtual.waits": {"Virtual.sleep", "Virtual.locks", "Virtual.spin"},
	"Virtual.sleep": {}, "Virtual.locks": {"Virtual.spin"}, "Virtual.spin": {},
}

// Stacks of virtual threads go on with their carriers', also where most of their frames are in the heap: these are
// copied once that was learned, some tenths of a second after the first of them.
func TestRecordVirtualThreads(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("Java is known on amd64 alone")
	}
	found := false
	testenv.SomeJava(t, func(t *testing.T, java testenv.Program) {
		classes := testenv.CompileJava(t, java, "../../testdata/walk/Virtual.java")
		try := java.Command("-cp", classes, "Virtual", "1")
		if exec.Command(try[0], try[1:]...).Run() != nil {
			t.Skip("no virtual threads here")
		}
		found = true
		for _, mode := range testenv.Some([]string{"-Xint", "-XX:+UseZGC", "-XX:+UseZGC -XX:+ZGenerational", "-Xmixed"}) {
			t.Run(mode, func(t *testing.T) {
				args := append(strings.Fields(mode), "-XX:+IgnoreUnrecognizedVMOptions", "-cp", classes, "Virtual", "2000")
				r := recordCommand(t, 0, java.Command(args...)...)
				wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 97) // 99.2 to 99.9
				check := callCheck{calls: virtualCalls}
				var mounted, whole, samples uint64
				for stack, count := range foldedStacks(t, r.folded) {
					caller, isVirtual, isWhole := "", false, false
					for f := range strings.SplitSeq(stack, ";") {
						f = strings.TrimSuffix(strings.TrimSuffix(f, "_[j]"), "_[i]")
						switch {
						case f == "jdk.internal.vm.Continuation.enterSpecial":
							if caller != "jdk.internal.vm.Continuation.run" {
								t.Errorf("%s is called by %s", f, caller)
							}
							mounted += count
							isVirtual = true
						case f == "[not copied]" && isVirtual:
							if caller != "jdk.internal.vm.Continuation.enterSpecial" {
								t.Errorf("%s is called by %s", f, caller)
							}
							f = ""
						case f == "java.lang.VirtualThread.run" && isVirtual:
							whole += count
							isWhole = true
						case virtualCalls[f] != nil:
							if strings.HasPrefix(caller, "Virtual.") {
								check.call(t, caller, f, stack, count)
							} else if isWhole && f != "Virtual.lambda$main$0" && f != "Virtual.run" {
								t.Errorf("%s is called by %s: %s", f, caller, stack)
							}
							if !isVirtual && !strings.Contains(stack, "[truncated:") {
								t.Errorf("%s is in no virtual thread: %s", f, stack)
							}
							samples += count
						}
						caller = f
					}
				}
				if samples == 0 || mounted*2 < r.stats.UserSamples || whole*3 < mounted {
					t.Errorf("%d samples: %d of virtual threads, %d of these from the first method on", r.stats.UserSamples, mounted, whole)
				}
				t.Logf("%d samples: %d of virtual threads, %d of these from the first method on", r.stats.UserSamples, mounted, whole)
				check.end(t, 0, slices.Collect(maps.Keys(virtualCalls))...) // any may be inlined, or in the heap
			})
		}
	})
	if !found {
		t.Skip("no Java with virtual threads")
	}
}
