package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"

	"github.com/swbpf/swbpf/internal/testenv"
)

// buns are programs of Bun of other versions. SWBPF_BUN names them.
func buns(t *testing.T) []string {
	t.Helper()
	list := os.Getenv("SWBPF_BUN")
	if list == "" {
		t.Skip("no Bun: SWBPF_BUN names none")
	}
	return filepath.SplitList(list)
}

// startCalls has a program run JavaScript of testdata, which writes to the file said.
func startCalls(t *testing.T, program, source, turn string, more ...string) (cmd *exec.Cmd, said string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "testdata", "walk", source))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "calls"+filepath.Ext(source))
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	said = filepath.Join(dir, "said")
	cmd = exec.Command(program, append([]string{file, turn, said}, more...)...)
	testenv.Start(t, cmd)
	return cmd, said
}

// The stack of a program of Bun has the functions that the program itself says it has: interpreted in its first turn,
// with calls inlined into each other in a later one, and in a loop that was entered before it was compiled.
func TestWalkBun(t *testing.T) {
	t.Parallel()
	for _, bun := range buns(t) {
		for _, turn := range []string{"1", "300", "4000", "-1"} {
			cmd, file := startCalls(t, bun, "callsinbun.js", turn)
			said := saidBy(t, bun, turn, file)
			var want []string
			for line := range strings.Lines(said) {
				name, ok := strings.CutPrefix(strings.TrimSpace(line), "at ")
				if ok && !strings.HasPrefix(name, "async ") { // which are on no stack
					name, _, _ = strings.Cut(name, " (")
					want = append(want, strings.TrimPrefix(name, "new "))
				}
			}
			out, _, _ := runSwbpf(t, "", "walk", fmt.Sprint(cmd.Process.Pid))
			var got []string
			for line := range strings.Lines(out) {
				f := strings.Fields(line)
				if len(f) > 2 && strings.HasPrefix(f[0], "#") {
					name, _, _ := strings.Cut(f[2], "+")
					got = append(got, name)
				}
			}
			at := slices.Index(got, "leaf")
			if len(want) < 4 || at < 0 {
				t.Errorf("%s %s: says %v\n%s", bun, turn, want, out)
				continue
			}
			for _, name := range want { // between functions of C++
				i := slices.Index(got[at:], name)
				if i < 0 {
					t.Errorf("%s %s: %s is not where the program says: %v\n%s", bun, turn, name, want, out)
					break
				}
				at += i + 1
			}
			if turn == "-1" && !strings.Contains(out, " spin+0x") {
				t.Errorf("%s: the loop was not compiled\n%s", bun, out)
			}
			_ = cmd.Process.Kill()
		}
	}
}

// saidBy waits for what a program of startCalls says.
func saidBy(t *testing.T, program, turn, file string) (said string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(said, "\nend"); time.Sleep(10 * time.Millisecond) {
		b, _ := os.ReadFile(file)
		if said = string(b); time.Now().After(deadline) {
			t.Fatalf("%s %s says nothing: %s", program, turn, said)
		}
	}
	return said
}

// Functions of a program of Bun have the lines that the program itself says they have, of its source, which is
// TypeScript: interpreted, compiled, and where calls are inlined into each other; and so have those of one that says nothing,
// as that changes how Bun keeps what lines there are.
func TestWalkBunLines(t *testing.T) {
	t.Parallel()
	for _, bun := range buns(t) {
		for _, turn := range []string{"1", "40", "300", "4000"} {
			said := ""
			for _, more := range [][]string{nil, {"quiet"}} {
				cmd, file := startCalls(t, bun, "linesinbun.ts", turn, more...)
				if says := saidBy(t, bun, turn, file); more == nil {
					said = strings.ReplaceAll(says, cmd.Args[1], "")
				}
				out, _, _ := runSwbpf(t, "", "walk", fmt.Sprint(cmd.Process.Pid))
				_ = cmd.Process.Kill()
				compareLines(t, said, strings.ReplaceAll(out, cmd.Args[1], ""))
				if t.Failed() {
					t.Fatalf("%s %s %v: the program says\n%s\n%s", bun, turn, more, said, out)
				}
			}
		}
	}
}

// compareLines compares functions and lines of a walk with what a program of startCalls has said, both without the file.
func compareLines(t *testing.T, said, walk string) {
	t.Helper()
	type place struct{ name, line string }
	var got []place
	for line := range strings.Lines(walk) {
		f := strings.Fields(line)
		if len(f) < 3 || !strings.HasPrefix(f[0], "#") {
			continue
		}
		p := place{}
		p.name, _, _ = strings.Cut(f[2], "+")
		for _, word := range f[3:] {
			if in, ok := strings.CutPrefix(word, ":"); ok {
				p.line = in
			}
		}
		got = append(got, p)
	}
	const functions = 20 // of the program
	n, at := 0, 0
	for line := range strings.Lines(said) {
		name, where, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "at "), " (:")
		if !ok || strings.HasPrefix(name, "async ") { // which are on no stack
			continue
		}
		want := place{name: strings.TrimPrefix(name, "new ")}
		want.line, _, _ = strings.Cut(where, ":")
		i := slices.IndexFunc(got[at:], func(p place) bool { return p.name == want.name })
		if i < 0 || got[at+i] != want {
			t.Errorf("%v is not where it is to be", want)
			return
		}
		n, at = n+1, at+i+1
	}
	if n != functions {
		t.Errorf("%d functions, not %d", n, functions)
	}
}

// A recording of a program of Bun has all its functions, and none calls another than in the source.
func TestRecordBun(t *testing.T) {
	t.Parallel()
	callers := map[string][]string{
		"helper": {"area"}, "area": {"inner"}, "inner": {"map"}, "map": {"arrow"}, "arrow": {"compare"}, "Shape": {"make"}, "make": {"inner"},
		"size": {"Shape"}, "leaf": {"size", "helper", "numbers"},
	}
	for _, bun := range buns(t) {
		cmd, _ := startCalls(t, bun, "callsinbun.js", "0")
		r := runRecord(t, "-F", "1997", "--no-kernel", "-p", strconv.Itoa(cmd.Process.Pid), "-d", "1")
		_ = cmd.Process.Kill()
		if r.exit != 0 {
			t.Fatalf("exit status %d\n%s", r.exit, r.stderr)
		}
		var inSort, inLater, total uint64
		seen := map[string]uint64{}
		for stack, count := range foldedStacks(t, r.folded) {
			frames := strings.Split(stack, ";")
			for i, f := range frames {
				name, isJS := strings.CutSuffix(f, "_[j]")
				seen[name] += count
				caller, byJS := strings.CutSuffix(frames[max(i-1, 0)], "_[j]")
				if want := callers[name]; isJS && byJS && want != nil && !strings.Contains(caller, "+0x") && !slices.Contains(want, caller) {
					t.Errorf("%s: %s calls %s: %s", bun, caller, name, stack)
				}
			}
			if slices.Contains(frames, "sort_[j]") {
				inSort += count
				if slices.Contains(frames, "later_[j]") || slices.Contains(frames, "later_[i]") {
					inLater += count
				}
			}
			total += count
		}
		wantShare(t, "in sort", inSort, total, 20)
		wantShare(t, "called by later", inLater, inSort, 95)
		for _, name := range []string{"compare", "sort", "later"} {
			if seen[name] == 0 {
				t.Errorf("%s: %s is in no sample", bun, name)
			}
		}
	}
}

// Functions in a recording, from a program's start, have lines in which they call another.
func TestRecordBunLines(t *testing.T) {
	t.Parallel()
	calls := map[string][]int64{
		"call": {31}, "more": {59}, "Base": {39, 41, 42}, "Derived": {52}, "value": {67}, "accessor": {79}, "arrow": {95},
		"fallback": {100}, "inner": {111}, "callbacks": {107, 109}, "generated": {122}, "iterated": {132}, "toString": {141},
		"tagged": {146}, "tags": {153}, "switched": {167}, "Initial": {183, 185, 186},
		"initial": {194}, "later": {199, 202, 203}, "main": {210}, // of Base, Initial and later it differs where they begin or end

	}
	for _, bun := range buns(t) {
		cmd, _ := startCalls(t, bun, "linesinbun.ts", "0")
		r := runRecord(t, "-F", "1997", "--no-kernel", "-p", strconv.Itoa(cmd.Process.Pid), "-d", "2")
		_ = cmd.Process.Kill()
		var called, told int64
		for _, sample := range r.profile.Sample {
			inner := true // no function of the program has been met
			for _, l := range sample.Location {
				for _, line := range l.Line {
					want := calls[line.Function.Name]
					if line.Function.Filename != cmd.Args[1] || want == nil {
						continue
					}
					if line.Line != 0 && !slices.Contains(want, line.Line) {
						t.Errorf("%s: %s calls in line %d", bun, line.Function.Name, line.Line)
					}
					if !inner {
						called += sample.Value[0]
						told += sample.Value[0] * min(line.Line, 1)
					}
					inner = false
				}
			}
		}
		t.Log(bun)
		wantShare(t, "have lines", uint64(told), uint64(called), 90)
		for name := range calls {
			if !slices.ContainsFunc(r.profile.Function, func(f *pprof.Function) bool { return f.Name == name }) {
				t.Errorf("%s: no %s", bun, name)
			}
		}
	}
}

// Code of regular expressions is that, of whichever.
func TestRecordBunRegExp(t *testing.T) {
	t.Parallel()
	const scan = `const text = ('foo bar 12345 '.repeat(50) + 'x@y.org ').repeat(10); let n = 0
function scan() { for (const m of text.matchAll(/([a-z0-9._-]+)@([a-z0-9.-]+)\.(org|com)/g)) n += m.length }
while (process.cpuUsage().user < 1.5e6) scan()`
	for _, bun := range buns(t) {
		r := recordCommand(t, 0, bun, "-e", scan)
		var named, other uint64
		for stack, count := range foldedStacks(t, r.folded) {
			switch {
			case strings.HasSuffix(stack, ";RegExp_[j]"):
				named += count
			case strings.Contains(stack[strings.LastIndexByte(stack, ';')+1:], "[jit of"):
				other += count
			}
		}
		t.Log(bun)
		wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 95)
		wantShare(t, "in regular expressions", named, r.stats.UserSamples, 50)
		wantShare(t, "of code without a name", named, named+other, 95)
	}
}
