package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
)

// startGJS has gjs run callsingjs.js, which writes to the file said.
func startGJS(t *testing.T, turn string) (cmd *exec.Cmd, said string) {
	t.Helper()
	gjs, err := exec.LookPath("gjs")
	if err != nil || runtime.GOARCH != "amd64" {
		testenv.Lacks(t, "needs gjs on amd64")
	}
	return startCalls(t, gjs, "callsingjs.js", turn)
}

// The stack of a program of gjs has the functions and lines that the program itself says it has: interpreted in C++ in its first
// turn, by the baseline interpreter in the tenth, compiled in others. Of what is optimised then calls that were inlined lack, and lines.
func TestWalkGJS(t *testing.T) {
	t.Parallel()
	for _, turn := range []int{1, 10, 60, 1000} {
		cmd, file := startGJS(t, strconv.Itoa(turn))
		said := ""
		for deadline := time.Now().Add(20 * time.Second); !strings.Contains(said, "\nend"); time.Sleep(10 * time.Millisecond) {
			b, _ := os.ReadFile(file)
			if said = string(b); time.Now().After(deadline) {
				t.Fatalf("turn %d says nothing: %s", turn, said)
			}
		}
		var want []string // name and line
		for line := range strings.Lines(said) {
			name, at, ok := strings.Cut(line, "@")
			if f := strings.Split(strings.TrimSpace(at), ":"); ok && len(f) == 3 {
				if name == "" {
					name = "<module"
				}
				want = append(want, name+":"+f[1])
			}
		}
		out, _, _ := runSwbpf(t, "", "walk", fmt.Sprint(cmd.Process.Pid))
		var got []string
		for line := range strings.Lines(out) {
			_, at, ok := strings.Cut(line, "/calls.js")
			f := strings.Fields(line)
			if !ok || len(f) < 3 || !strings.HasPrefix(f[0], "#") {
				continue
			}
			f = f[1:]
			if strings.HasPrefix(f[0], "0x") {
				f = f[1:]
			}
			name, _, _ := strings.Cut(f[0], "+")
			if name == "get" { // of an accessor
				accessor, _, _ := strings.Cut(f[1], "+")
				name += " " + accessor
			}
			number, _, _ := strings.Cut(strings.TrimPrefix(at, ":"), " ")
			got = append(got, name+":"+strings.TrimSpace(number))
		}
		if len(want) < 5 {
			t.Fatalf("turn %d says %q", turn, said)
		}
		if i := slices.Index(want, got[0]); turn < 1000 && !slices.Equal(got, want) || i < 0 {
			t.Errorf("turn %d: %q, it says %q\n%s", turn, got, want, out)
		}
		rest := want
		for _, is := range got {
			name, line, _ := strings.Cut(is, ":")
			i := slices.IndexFunc(rest, func(w string) bool { return w == is || line == "" && strings.HasPrefix(w, name+":") })
			if i < 0 {
				t.Errorf("turn %d: %s is not where the program says: %q, %q\n%s", turn, is, got, want, out)
				break
			}
			rest = rest[i+1:]
		}
		if !strings.Contains(out, "complete") || strings.Contains(out, "truncated") {
			t.Errorf("turn %d: not whole\n%s", turn, out)
		}
		_ = cmd.Process.Kill()
	}
}

// A recording of a program of gjs has whole stacks, and no function calls another than in the source.
func TestRecordGJS(t *testing.T) {
	t.Parallel()
	callers := map[string][]string{
		"leaf": {"get size", "helper", "numbers"}, "get size": {"Shape"}, "helper": {"area"}, "Shape": {"make"}, "make": {"inner"}, "area": {"inner"},
		"inner": {"map"}, "arrow": {"compare"}, "sorter": {"main"},
	}
	// What an optimising compiler has inlined lacks: its callers stand for it.
	allowed := map[string][]string{}
	for name := range callers {
		todo := slices.Clone(callers[name])
		for len(todo) > 0 {
			c := todo[0]
			if todo = todo[1:]; !slices.Contains(allowed[name], c) {
				allowed[name] = append(allowed[name], c)
				todo = append(todo, callers[c]...)
				switch c {
				case "map":
					todo = append(todo, "arrow")
				case "compare":
					todo = append(todo, "comparefn", "Merge", "MergeSort", "InsertionSort", "SortArray", "sort", "sorter", "main")
				}
			}
		}
		allowed[name] = append(allowed[name], "main", "next")
	}
	cmd, said := startGJS(t, "0")
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(said + ".begun"); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("it does not begin")
		}
	}
	r := runRecord(t, "-F", "1997", "--no-kernel", "-p", strconv.Itoa(cmd.Process.Pid), "-d", "1")
	_ = cmd.Process.Kill()
	if r.exit != 0 {
		t.Fatalf("exit status %d\n%s", r.exit, r.stderr)
	}
	var whole, inMain, total uint64
	for stack, count := range foldedStacks(t, r.folded) {
		frames := strings.Split(stack, ";")
		caller := ""
		for _, f := range frames {
			name, isJS := strings.CutSuffix(f, "_[j]")
			if !isJS || strings.Contains(name, "+0x") {
				continue
			}
			if want := allowed[name]; caller != "" && want != nil && !slices.Contains(want, caller) {
				t.Errorf("%s calls %s: %s", caller, name, stack)
			}
			caller = name
		}
		if !strings.Contains(stack, "[truncated") {
			whole += count
		}
		if slices.Contains(frames, "main_[j]") {
			inMain += count
		}
		total += count
	}
	wantShare(t, "whole", whole, total, 97)
	wantShare(t, "in main", inMain, total, 93)
}
