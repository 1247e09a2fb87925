package main

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Go that C has called is seen with all that lies between: each call of C and
// each call back, down to the start of the thread, be it Go's or C's.
func TestRecordCallbacks(t *testing.T) {
	prog := build(t, "gocallbacks", "env", "CGO_ENABLED=1", "go", "build", "-o", "OUT", "./testdata/targets/gocallbacks")
	const (
		toC  = `main\._Cfunc_level;runtime\.cgocall(_\[i\])?;runtime\.asmcgocall;_cgo_\w+_Cfunc_level;level(\.\w+)*`
		toGo = `;goBurn;crosscall2;runtime\.cgocallback;runtime\.cgocallbackg;runtime\.cgocallbackg;runtime\.cgocallbackg1;` +
			`_cgoexp_\w+_goBurn;main\.goBurn`
	)
	inC, inGo := `(;burnC(\.\w+)*)`, `(;main\.burn)`
	fromGo := regexp.MustCompile(`;runtime\.goexit;runtime\.main;main\.main;` + toC + `(` + toGo + `;` + toC + `){0,2}(` + inC + `|` + toGo + inGo + `)$`)
	fromC := regexp.MustCompile(`;(clone3?|__clone3?);start_thread;inThread;level(\.\w+)*(` + toGo + `;` + toC + `)?(` + inC + `|` + toGo + inGo + `)$`)
	leaf := regexp.MustCompile(inC + `|` + inGo + `$`)

	r := runRecord(t, "-F", "997", "--no-kernel", "--", prog, "4s")
	if r.exit != 0 {
		t.Errorf("exit status %d\n%s", r.exit, r.stderr)
	}
	var whole, truncated, onGo, onC int
	deepest := 0
	for line := range strings.Lines(r.folded) {
		i := strings.LastIndexByte(line, ' ')
		n, err := strconv.Atoi(strings.TrimSpace(line[i+1:]))
		if err != nil {
			t.Fatal(err)
		}
		stack := line[:i]
		if !leaf.MatchString(stack) {
			continue // the runtime's own work
		}
		switch {
		case strings.Contains(stack, "[truncated"):
			truncated += n
			t.Logf("%d %s", n, stack)
		case fromGo.MatchString(stack):
			onGo += n
		case fromC.MatchString(stack):
			onC += n
		default:
			t.Errorf("%d %s", n, stack)
		}
		whole += n
		deepest = max(deepest, strings.Count(stack, "crosscall2"))
	}
	if onGo < 50 || onC < 50 || deepest != 3 {
		t.Errorf("%d samples on a thread of Go's, %d on one of C's, callbacks %d deep at most", onGo, onC, deepest)
	}
	if truncated*200 > whole {
		t.Errorf("%d of %d stacks truncated", truncated, whole)
	}
}
