package main

import (
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// Functions of PyPy have their names, interpreted and compiled: each calls only what it calls in the source, if need be by
// others, which were inlined and are part of it.
func TestRecordPyPy(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("PyPy is known on amd64 alone")
	}
	calls := map[string][]string{
		"<module busy.py>": {"main"}, "main": {"work"}, "work": {"fib", "area"}, "area": {"helper", "more"},
		"more": {"<genexpr>"}, "helper": {"key"}, "fib": {"fib"}, "key": nil, "<genexpr>": nil,
	}
	names := slices.Collect(maps.Keys(calls))
	for range names { // what is called by others
		for caller, callees := range calls {
			for _, callee := range callees {
				for _, next := range calls[callee] {
					if !slices.Contains(calls[caller], next) {
						calls[caller] = append(calls[caller], next)
					}
				}
			}
		}
	}
	// Those that were inlined are told as such, and from 3.11 on with what they are in.
	is := regexp.MustCompile(`^(?:Shape\.|more\.<locals>\.)*(.*)_\[[ij]\]$`)
	testenv.EachPyPy(t, func(t *testing.T, pypy testenv.Program) {
		r := recordCommand(t, 0, pypy.Command(pypy.Script(t, "testdata/targets/busy.py"), "3")...)
		wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 99)
		check := callCheck{calls: calls}
		var named, innermost uint64
		for stack, count := range foldedStacks(t, r.folded) {
			from := strings.Index(stack, ";<module busy.py>_[j]")
			if from < 0 {
				continue // PyPy begins, or ends
			}
			named += count
			caller := ""
			for f := range strings.SplitSeq(stack[from+1:], ";") {
				if m := is.FindStringSubmatch(f); m != nil && slices.Contains(names, m[1]) {
					check.call(t, caller, m[1], stack, count)
					caller = m[1]
				}
			}
			if caller != "<module busy.py>" && caller != "main" {
				innermost += count
			}
		}
		wantShare(t, "with functions of Python", named, r.stats.UserSamples, 80)
		wantShare(t, "below main", innermost, named, 95)
		check.end(t, 0)
	})
}
