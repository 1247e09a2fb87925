package main

import (
	"runtime"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// wazeroCalls are the functions of steppers/wazero/testdata/program that are in WebAssembly, and what they call in the source.
var wazeroCalls = map[string][]string{
	"fib": {"fib", "mix"}, "deep": {"deep", "mix", "fib"}, "mix": nil, "calls": {"viahost", "mix"}, "viahost": {"host", "mix"},
	"indirect": {"fib", "viahost"}, "many": {"mix"}, "host": nil,
}

// Stacks of WebAssembly that a program in Go runs are whole: compiled, on stacks of its own that grow and are let go of, and
// interpreted; its functions call what they call in the source.
func TestRecordWazero(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("wazero is known on amd64 alone")
	}
	testenv.EachWazero(t, []string{"-ldflags=-s -w"}, func(t *testing.T, program string) {
		for _, flags := range [][]string{nil, {"-interpret"}} {
			t.Run("compile"+strings.Join(flags, ""), func(t *testing.T) {
				command := append([]string{program, "-for", "2s"}, flags...)
				r := recordCommand(t, 0, append(command, "fib", "calls", "many", "indirect")...)
				wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 99)
				check := callCheck{calls: wazeroCalls}
				var named, all uint64
				for stack, count := range foldedStacks(t, r.folded) {
					if !strings.Contains(stack, ";main.run;") {
						continue
					}
					all += count
					caller := ""
					for f := range strings.SplitSeq(stack, ";") {
						callee, is := strings.CutSuffix(f, "_[j]")
						switch {
						case strings.Contains(f, ".(*callEngine).call"): // of the interpreter, between two
							continue
						case !is, strings.HasPrefix(callee, "[jit of "):
							caller = ""
							continue
						}
						check.call(t, caller, callee, stack, count)
						caller = callee
					}
					if strings.Contains(stack, "_[j]") {
						named += count
					}
				}
				wantShare(t, "with functions of WebAssembly", named, all, 30)
				check.end(t, 0, "deep", "host", "viahost", "many", "indirect") // what is seldom, or short
			})
		}
	})
}
