package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
)

// Go that C has called is seen with all that lies between: each call of C and
// each call back, down to the start of the thread, be it Go's or C's.
func TestRecordCallbacks(t *testing.T) {
	t.Parallel()
	testenv.Needs(t, "gcc")
	prog := build(t, "gocallbacks", "env", "CGO_ENABLED=1", "go", "build", "-o", "OUT", "./testdata/targets/gocallbacks")
	const (
		toC  = `main\._Cfunc_level;runtime\.cgocall(_\[i\])?;runtime\.asmcgocall;_cgo_\w+_Cfunc_level;level(\.\w+)*`
		toGo = `;goBurn;crosscall2;runtime\.cgocallback;runtime\.cgocallbackg;runtime\.cgocallbackg;runtime\.cgocallbackg1;` +
			`_cgoexp_\w+_goBurn;main\.goBurn`
	)
	inC, inGo := `(;burnC(\.\w+)*)`, `(;main\.burn)`
	fromGo := regexp.MustCompile(`;runtime\.goexit;runtime\.main;main\.main;` + toC + `(` + toGo + `;` + toC + `){0,2}(` + inC + `|` + toGo + inGo + `)$`)
	fromC := regexp.MustCompile(`;(clone3?|__clone3?);start_thread;inThread;level(\.\w+)*(` + toGo + `;` + toC + `)?(` + inC + `|` + toGo + inGo + `)$`)
	leaf := regexp.MustCompile(`(` + inC + `|` + inGo + `)$`)

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

// Stacks of a C program with a library in Go, where the dynamic loader places
// what tells of the current goroutine, are whole: Go that C has called, and C
// that this calls, in each thread.
func TestRecordGoLibrary(t *testing.T) {
	t.Parallel()
	testenv.Needs(t, "gcc")
	prog := build(t, "golibrary", "sh", "-c", "d=$(dirname OUT) && "+
		"CGO_ENABLED=1 go build -buildmode=c-shared -o $d/libgolibrary.so ./testdata/targets/golibrary/main.go && "+
		"gcc -O2 -pthread -Wl,-rpath,'$ORIGIN' -o OUT testdata/targets/golibrary/main.c -L$d -lgolibrary")
	r := runRecord(t, "-F", "997", "--no-kernel", "--", prog, "20000")
	if r.exit != 0 {
		t.Errorf("exit status %d\n%s", r.exit, r.stderr)
	}
	wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 99.5)
	const called = `work;GoWork;crosscall2;runtime\.cgocallback;`
	for what, re := range map[string]string{
		"Go in the main thread": `;main;` + called + `.*;main\.GoWork;main\.grow`,
		"Go in another thread":  `;start_thread;` + called + `.*;main\.GoWork;main\.grow`,
		"C called by Go":        `;` + called + `.*;runtime\.asmcgocall;_cgo_\w+;(call;|call_\[i\];)?back;burnC`,
	} {
		n := len(regexp.MustCompile(re).FindAllString(r.folded, -1))
		if n == 0 {
			t.Errorf("no stack of %s:\n%.3000s", what, r.folded)
		}
		t.Logf("%s: %d different stacks", what, n)
	}
}

// buildGoLibraries returns a command that calls two libraries in Go.
func buildGoLibraries(t *testing.T) []string {
	t.Helper()
	prog := build(t, "golibraries", "sh", "-c", "d=$(dirname OUT) && "+
		"for l in 0 1; do CGO_ENABLED=1 go build -buildmode=c-shared -o $d/libgolibraries$l.so ./testdata/targets/golibrary/main.go; done && "+
		"gcc -O2 -o OUT testdata/targets/golibraries.c -ldl")
	dir := filepath.Dir(prog)
	return []string{prog, filepath.Join(dir, "libgolibraries0.so"), filepath.Join(dir, "libgolibraries1.so")}
}

// A sample of a thread that is in several runtimes of Go, of which one has called the other by way of C, has the stacks
// of all.
func TestRecordGoLibraries(t *testing.T) {
	t.Parallel()
	testenv.Needs(t, "gcc")
	r := runRecord(t, append([]string{"-F", "997", "--no-kernel", "--"}, append(buildGoLibraries(t), "700")...)...)
	if r.exit != 0 {
		t.Errorf("exit status %d\n%s", r.exit, r.stderr)
	}
	wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 99.5)
	leaf := regexp.MustCompile(`;back;burn(\.\w+)*$`)
	inGo := regexp.MustCompile(`;GoWork;crosscall2;runtime\.cgocallback;[^ ]*?;main\.GoWork;`)
	samples := 0
	for line := range strings.Lines(r.folded) {
		stack, count, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, _ := strconv.Atoi(count); leaf.MatchString(stack) {
			samples += n
			if strings.Count(stack, ";back;") != 7 || len(inGo.FindAllString(stack, -1)) != 6 || !strings.Contains(stack, ";main;back;GoWork;") {
				t.Errorf("%d %s", n, stack)
			}
		}
	}
	if samples < 100 {
		t.Errorf("%d samples of the innermost function:\n%.3000s", samples, r.folded)
	}
}

// Two libraries in Go, each with a runtime of its own, call each other by way of C: a walk goes from the stacks of the
// one to those of the other and back.
func TestWalkGoLibraries(t *testing.T) {
	t.Parallel()
	testenv.Needs(t, "gcc")
	steptest.NeedPtrace(t)
	args := buildGoLibraries(t)
	cmd := exec.Command(args[0], args[1:]...)
	_, out := testenv.Start(t, cmd)
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	text, stderr, status := runSwbpf(t, "", "walk", "--json", fmt.Sprint(cmd.Process.Pid))
	if status != 0 {
		t.Fatalf("exit status %d\n%s", status, stderr)
	}
	var walk struct {
		Threads []struct {
			TID      int
			Complete bool
			Reason   string
			Frames   []struct{ Function, Module string }
		}
	}
	if err := json.Unmarshal([]byte(text), &walk); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, th := range walk.Threads {
		if !th.Complete {
			t.Errorf("thread %d: %s", th.TID, th.Reason)
		}
		if th.TID != cmd.Process.Pid {
			continue
		}
		for _, f := range th.Frames {
			switch f.Function {
			case "back", "main", "main.GoWork", "runtime.asmcgocall", "runtime.cgocallback":
				got = append(got, strings.TrimSuffix(f.Function+" "+strings.TrimPrefix(filepath.Base(f.Module), "libgo"), " golibraries"))
			}
		}
	}
	want := []string{"back"}
	for n := range 6 {
		lib := fmt.Sprintf(" libraries%d.so", (n+1)%2)
		want = append(want, "runtime.asmcgocall"+lib, "main.GoWork"+lib, "runtime.cgocallback"+lib, "back")
	}
	if want = append(want, "main"); !slices.Equal(got, want) {
		t.Errorf("main thread: %q,\nwant %q", got, want)
	}
}
