package main

import (
	"runtime"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// rCalls is what functions in testdata/targets/calls.R call, and those of R that they are called by.
var rCalls = map[string][]string{
	"main": {
		"fib", "applies", "maps", "calls", "callsValue", "parses", "area", "caught", "adds", "forces", "reduces", "stats::median",
		"<Anonymous>", "[[", "sum", "[", "commandArgs", "::", // these two are functions of R in 4.0
	},
	"work": {"$"}, "allocate": {"work", "$"}, "fib": {"fib"},
	"applies": {"lapply"}, "lapply": {"FUN", "match.fun"}, "FUN": {"work"},
	"maps": {"Map"}, "Map": {"mapply", "match.fun"}, "mapply": {"<Anonymous>", "isFALSE", "match.fun"},
	"calls": {"do.call"}, "callsValue": {"do.call"}, "do.call": {"work", "<Anonymous>", "parent.frame"},
	"<Anonymous>": {"work", "allocate"},
	"parses":      {"eval"}, "area": {"area.square", "area.circle", "structure"}, "area.square": {"work"}, "area.circle": {"allocate"},
	"caught": {"tryCatch"}, "adds": {"account$add"}, "account$add": {"work"},
	"forces": {"lazy"}, "lazy": {"force"}, "force": {"allocate"},
	"reduces": {"Reduce"}, "Reduce": {"f", "match.fun"}, "f": {"work"},
}

// Functions of R have their names in samples, in its interpreter of bytecode and without, and are called by those that
// do call them, also where the call was made for that and is gone.
func TestRecordR(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("R is known on amd64 alone")
	}
	testenv.EachR(t, func(t *testing.T, rscript testenv.Program) {
		for _, jit := range testenv.Some([]string{"0", "3"}) {
			t.Run("R_ENABLE_JIT="+jit, func(t *testing.T) {
				t.Parallel()
				command := append([]string{"env", "R_ENABLE_JIT=" + jit}, rscript.Command(rscript.Script(t, "testdata/targets/calls.R"), "2.5")...)
				r := recordCommand(t, 0, command...)
				var named, inMain, complete, unread uint64 // R 4.2 begins with larger stacks than are copied
				check := callCheck{calls: rCalls}
				for stack, count := range foldedStacks(t, r.folded) {
					_, own, is := strings.Cut(stack, ";main_[j]")
					if !is || strings.Contains(stack, ";cmpfun_[j]") || strings.Contains(stack, ":tryCmpfun_[j]") ||
						strings.Contains(own, ";tryCatch_[j]") && !strings.Contains(own, ";caught_[j]") {
						continue // R begins, or compiles
					}
					if inMain += count; !strings.Contains(stack, "[truncated: ") {
						complete += count
					}
					if strings.Contains(own, "[not read]_[j]") || strings.Contains(own, "[not copied]_[j]") {
						unread += count
					}
					caller := "main"
					for f := range strings.SplitSeq(own, ";") {
						callee, is := strings.CutSuffix(f, "_[j]")
						if !is {
							continue
						}
						if callee == "[not read]" || callee == "[not copied]" {
							caller = ""
							continue
						}
						check.call(t, caller, callee, stack, count)
						if _, known := rCalls[callee]; !known {
							callee = "" // what is called by it is R's business
						}
						caller = callee
					}
					if caller != "main" {
						named += count
					}
				}
				check.seen["main"] = true
				wantShare(t, "in main", inMain, r.stats.UserSamples, 60) // and R begins
				wantShare(t, "complete", complete, inMain, 99)
				wantShare(t, "named", named, inMain, 97)
				if unread*50 > inMain {
					t.Errorf("%d of %d samples lack a name", unread, inMain)
				}
				check.end(t, 1, "forces", "lazy", "force", "Map", "adds") // which take little time
			})
		}
	})
}
