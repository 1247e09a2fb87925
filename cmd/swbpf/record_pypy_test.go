package main

import (
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
	for range calls { // what is called by others
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
	within := regexp.MustCompile(`^(Shape\.|more\.<locals>\.)+`)
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
				callee := within.ReplaceAllString(strings.TrimSuffix(f, "_[j]"), "")
				if _, ours := calls[callee]; !ours || !strings.HasSuffix(f, "_[j]") {
					continue
				}
				check.call(t, caller, callee, stack, count)
				caller = callee
			}
			if caller != "<module busy.py>" && caller != "main" {
				innermost += count
			}
		}
		wantShare(t, "with functions of Python", named, r.stats.UserSamples, 80)
		wantShare(t, "below main", innermost, named, 95)
		check.end(t, 0, "key", "<genexpr>", "more", "area", "helper") // which are inlined
	})
}
