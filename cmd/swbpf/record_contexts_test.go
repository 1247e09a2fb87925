package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
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
	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/profile"
)

// contextsProgram builds a program whose threads tell what they work on, with the variable in it or in a library built in a way.
func contextsProgram(t *testing.T, way string) (program, library string) {
	t.Helper()
	flags := []string{"gcc", "-O1", "-g", "-pthread", "-o", "OUT", "testdata/targets/contexts.c"}
	if way == "" {
		return build(t, "contexts-own", append(flags, "-DOWN", "-rdynamic")...), ""
	}
	library = build(t, "contexts"+way, "gcc", "-O1", "-fPIC", "-shared", way, "-o", "OUT", "testdata/targets/contextlib.c")
	return build(t, "contexts", append(flags, "-ldl")...), library
}

// contextOf returns what a sample of that program is to have: the digits of its trace and the route; ok is false where
// it is in no function that tells.
func contextOf(functions []string) (digits, route string, ok bool) {
	for _, f := range functions {
		switch f {
		case "checkout":
			return "01", "/checkout", true
		case "login":
			return "02", "/login", true
		case "unpublished":
			return "", "", true
		}
	}
	return "", "", false
}

// Samples have what their thread worked on at that moment, wherever its program keeps that, and what the process is.
func TestRecordContexts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, way string }{
		{"program", ""}, {"descriptors", "-mtls-dialect=gnu2"}, {"vector", "-mtls-dialect=gnu"}, {"static", "-ftls-model=initial-exec"},
	} {
		program, library := contextsProgram(t, c.way)
		loads := map[string][]string{"": {program, "1.5"}}
		if library != "" {
			loads = map[string][]string{" loaded": {program, "1.5", library}}
			if testenv.Long() {
				loads[" preloaded"] = []string{"env", "LD_PRELOAD=" + library, program, "1.5", "-"}
			}
		}
		for how, command := range loads {
			t.Run(c.name+how, func(t *testing.T) {
				t.Parallel()
				r := runRecord(t, append([]string{"-F", "997", "--"}, command...)...)
				if r.exit != 0 {
					t.Fatalf("exit status %d", r.exit)
				}
				checkContexts(t, r.profile.Sample)
			})
		}
	}
}

// The same of JavaScript, whose contexts go from one callback to the next, by the addons of npm that are in the directory
// SWBPF_NODE_CONTEXTS names.
func TestRecordNodeContexts(t *testing.T) {
	t.Parallel()
	packages := os.Getenv("SWBPF_NODE_CONTEXTS")
	if packages == "" {
		t.Skip("no SWBPF_NODE_CONTEXTS")
	}
	testenv.EachNode(t, func(t *testing.T, node string) {
		version := nodeVersion(t, node)
		command := []string{"env", "NODE_PATH=" + filepath.Join(packages, "node_modules"), node, "testdata/targets/contexts.js", "3"}
		switch {
		case version < 22:
			t.Skip("it has no contexts that can be found")
		case version < 24:
			command = slices.Insert(command, 3, "--experimental-async-context-frame")
		}
		r := runRecord(t, append([]string{"-F", "997", "--"}, command...)...)
		if r.exit != 0 {
			t.Fatalf("exit status %d", r.exit)
		}
		var of, with, wrong int64
		threads := map[string]bool{}
		for _, s := range r.profile.Sample {
			digits, route := "", ""
			switch functions := stackOf(s); {
			case slices.Contains(functions, "pay"):
				digits, route = "02", "/pay"
			case slices.Contains(functions, "look"):
				digits, route = "01", "/look"
			case !slices.Contains(functions, "unpublished"):
				continue
			}
			if digits != "" {
				of += s.Value[0]
			}
			trace, span := label(s, "trace_id"), label(s, "span_id")
			switch {
			case trace == "" && span == "" && label(s, "http.route") == "":
				continue
			case digits != "" && trace == strings.Repeat(digits, 16) && strings.HasSuffix(span, strings.Repeat(digits, 4)) &&
				label(s, "http.route") == route && label(s, "tenant") == "acme" && label(s, "service.name") == "shop":
				with += s.Value[0]
				threads[fmt.Sprint(s.NumLabel["tid"])] = true
			case digits != "" && trace == strings.Repeat(digits, 16) && label(s, "http.route") == "" && label(s, "tenant") == "" && label(s, "service.name") == "":
				// what the process tells was not found yet
			default:
				if wrong++; wrong < 5 {
					t.Errorf("%q has %v", stackOf(s), s.Label)
				}
			}
		}
		t.Logf("%d of %d samples, %d threads", with, of, len(threads))
		if wrong > 0 || of < 300 || float64(with) < 0.8*float64(of) || len(threads) != 2 {
			t.Errorf("of %d samples %d have what their thread worked on, %d threads; of %d kinds that is wrong", of, with, len(threads), wrong)
		}
	})
}

// A process may tell what it is, and nothing of its threads.
func TestRecordProcessContext(t *testing.T) {
	t.Parallel()
	program, _ := contextsProgram(t, "-mtls-dialect=gnu2")
	r := runRecord(t, "-F", "499", "--", program, "2", "none")
	var with, traces, all int64
	for _, s := range r.profile.Sample {
		all += s.Value[0]
		if label(s, "service.name") == "shop" && label(s, "service.version") == "1.2" && label(s, "telemetry.sdk.language") == "" {
			with += s.Value[0]
		}
		if label(s, "trace_id") != "" || label(s, "http.route") != "" {
			traces += s.Value[0]
		}
	}
	if float64(with) < 0.5*float64(all) || traces > 0 { // it is looked for after 250 ms, in a batch of samples
		t.Errorf("of %d samples %d have the service, %d traces", all, with, traces)
	}
}

// Time off the CPU belongs to what the thread worked on as well.
func TestRecordContextsOffCPU(t *testing.T) {
	t.Parallel()
	program, library := contextsProgram(t, "-mtls-dialect=gnu2")
	for _, flag := range []string{"--off-cpu", "--wall"} {
		r := runRecord(t, flag, "--", program, "2", library, "sleep")
		checkContexts(t, r.profile.Sample)
	}
}

// A program that a process runs next has not what the one before told.
func TestRecordContextsExec(t *testing.T) {
	t.Parallel()
	program, library := contextsProgram(t, "-mtls-dialect=gnu2")
	r := runRecord(t, "-F", "997", "--", program, "1", library, "exec")
	var before, with, after int64
	for _, s := range r.profile.Sample {
		digits, _, _ := contextOf(stackOf(s))
		isAfter := label(s, "comm") == "exe" // as it is run by /proc/self/exe
		has := label(s, "trace_id") != "" || label(s, "service.name") != ""
		switch {
		case isAfter && has:
			t.Errorf("%q has %v", stackOf(s), s.Label)
		case isAfter:
			after += s.Value[0]
		case digits != "":
			if before += s.Value[0]; has {
				with += s.Value[0]
			}
		}
	}
	if after < 100 || before < 60 || float64(with) < 0.7*float64(before) {
		t.Errorf("of %d samples %d have what their thread worked on, and then there are %d", before, with, after)
	}
}

func checkContexts(t *testing.T, samples []*pprof.Sample) {
	t.Helper()
	var of, with, wrong int64
	spans := map[string]bool{}
	for _, s := range samples {
		digits, route, ok := contextOf(stackOf(s))
		if !ok {
			continue
		}
		trace, span := label(s, "trace_id"), label(s, "span_id")
		if digits != "" {
			of += s.Value[0]
		}
		switch {
		case trace == "" && span == "" && label(s, "http.route") == "" && label(s, "tenant") == "":
			continue
		case digits != "" && trace == strings.Repeat(digits, 16) && len(span) == 16 && strings.HasSuffix(span, strings.Repeat(digits, 4)) &&
			label(s, "http.route") == route && label(s, "tenant") == "acme" && label(s, "service.name") == "shop" && label(s, "service.version") == "1.2":
			with += s.Value[0]
			spans[trace+span] = true
		default:
			if wrong++; wrong < 5 {
				t.Errorf("%q has %v", stackOf(s), s.Label)
			}
		}
	}
	t.Logf("%d of %d samples, %d spans", with, of, len(spans))
	if wrong > 0 || of < 60 || float64(with) < 0.75*float64(of) || len(spans) < 10 {
		t.Errorf("of %d samples %d have what their thread worked on, %d spans; of %d kinds that is wrong", of, with, len(spans), wrong)
	}
}

// A walk has what threads work on at that moment, of a copy, of the process itself and of a core, and says it.
func TestWalkContexts(t *testing.T) {
	t.Parallel()
	program, library := contextsProgram(t, "-mtls-dialect=gnu2")
	own, _ := contextsProgram(t, "")
	for name, command := range map[string][]string{"program": {own, "60"}, "library": {program, "60", library}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(command[0], command[1:]...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			pid := strconv.Itoa(cmd.Process.Pid)
			for begun := time.Now(); ; time.Sleep(time.Millisecond) { // a walk that begins before has the mappings of then
				maps, err := os.ReadFile("/proc/" + pid + "/maps")
				if err != nil || time.Since(begun) > 10*time.Second {
					t.Fatalf("it tells nothing of itself: %v", err)
				}
				if bytes.Contains(maps, []byte("OTEL_CTX")) {
					break
				}
			}
			seen := map[string]int{}
			for n := 0; n < 100 && (seen["checkout"] < 2 || seen["login"] < 2 || seen["unpublished"] < 2); n++ {
				args := []string{"--json", pid}
				if n%3 == 1 {
					args = append(args, "--args")
				}
				checkWalkedContexts(t, seen, args...)
			}
			dump := filepath.Join(t.TempDir(), "core")
			for n := 0; n < 20 && seen["in a core"] < 1; n++ {
				if out, err := exec.Command("gcore", "-o", dump, pid).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				before := seen["checkout"] + seen["login"]
				checkWalkedContexts(t, seen, "--json", "--core", dump+"."+pid)
				seen["in a core"] += seen["checkout"] + seen["login"] - before
			}
			if seen["checkout"] < 2 || seen["login"] < 2 || seen["unpublished"] < 2 || seen["in a core"] < 1 {
				t.Errorf("threads in %v", seen)
			}
		})
	}
}

func checkWalkedContexts(t *testing.T, seen map[string]int, args ...string) {
	t.Helper()
	out, stderr, code := runWalk(t, args...)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	var p jsonProcess
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatal(err)
	}
	told := p.Resource["service.name"] == "shop" && p.Resource["telemetry.sdk.language"] == "c"
	for _, th := range p.Threads {
		var functions []string
		for _, f := range th.Frames {
			functions = append(functions, f.Function)
		}
		digits, route, ok := contextOf(functions)
		if !ok {
			continue
		}
		wantTrace := strings.Repeat(digits, 16)
		if th.Trace != wantTrace || (len(th.Span) == 16) != (digits != "") || th.Attributes["http.route"] != route {
			t.Errorf("%v: %q is in trace %q, span %q, %v", args, functions, th.Trace, th.Span, th.Attributes)
		}
		if !told {
			t.Errorf("%v: the process is %v", args, p.Resource)
		}
		switch digits {
		case "01":
			seen["checkout"]++
		case "02":
			seen["login"]++
		default:
			seen["unpublished"]++
		}
	}
}

// What threads of a group have in common is told.
func TestWorkText(t *testing.T) {
	work := func(trace, span string, attributes ...string) *procstate.ThreadWork {
		w := &procstate.ThreadWork{Trace: trace, Span: span}
		for i := 0; i < len(attributes); i += 2 {
			w.Attributes = append(w.Attributes, procstate.ContextAttribute{Key: attributes[i], Value: attributes[i+1]})
		}
		return w
	}
	for _, c := range []struct {
		of   []*procstate.ThreadWork
		want string
	}{
		{[]*procstate.ThreadWork{nil}, ""},
		{[]*procstate.ThreadWork{work("", "")}, ""},
		{[]*procstate.ThreadWork{work("aa", "b1", "route", "/x")}, `, span b1 of trace aa {"route": "/x"}`},
		{[]*procstate.ThreadWork{work("aa", "b1", "route", "/x", "n", "1"), work("aa", "b2", "route", "/x", "n", "2")}, `, in trace aa {"route": "/x"}`},
		{[]*procstate.ThreadWork{work("aa", "b1", "route", "/x"), work("bb", "b2")}, `, in 2 traces`},
		{[]*procstate.ThreadWork{work("aa", "b1", "route", "/x"), nil}, `, in trace aa`},
		{[]*procstate.ThreadWork{nil, work("aa", "b1", "route", "/x")}, `, in trace aa`},
		{[]*procstate.ThreadWork{work("", "", "route", "/x")}, ` {"route": "/x"}`},
	} {
		var g []*threadWalk
		for _, w := range c.of {
			g = append(g, &threadWalk{work: w})
		}
		if got := workText(g); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// Beyond so many traces samples have the attributes of their threads alone, and beyond so many of these nothing.
func TestLabelsOfContexts(t *testing.T) {
	b := profile.NewBuilder()
	l := makeLabeller(b)
	shared := &sharedContext{told: true, id: 1, labels: []profile.Label{{Key: "service.name", Value: "shop"}}}
	shared.process.ThreadKeys = []string{"route", "pid"}
	labelsOf := func(trace uint32, attributes string) map[string]string {
		record := make([]byte, procstate.ThreadContextHead)
		binary.LittleEndian.PutUint32(record, trace)
		record[16], record[24] = 1, 1
		binary.LittleEndian.PutUint16(record[26:], uint16(len(attributes)))
		s := &loader.Sample{PID: noPID, Regions: []procstate.Region{{Data: append(record, attributes...)}}, ContextRegions: 1}
		key := labelKey{process: shared.id}
		key.context, key.untraced = l.ofContext(s, shared)
		m := map[string]string{}
		for _, label := range l.labels(key, s, shared) {
			m[label.Key] = label.Value
		}
		return m
	}
	got := labelsOf(1, "\x00\x02/x\x01\x01p\x07\x01z")
	want := map[string]string{"service.name": "shop", "trace_id": "01000000" + strings.Repeat("0", 24), "span_id": "01" + strings.Repeat("0", 14), "route": "/x", "otel.pid": "p"}
	if !maps.Equal(got, want) {
		t.Errorf("labels %v, want %v", got, want)
	}
	if !shared.lacks || shared.next != 0 {
		t.Error("that an attribute has no name has no consequence")
	}
	for i := range uint32(maxTracedContexts - 1) {
		if got := labelsOf(2+i, ""); got["trace_id"] == "" {
			t.Fatalf("trace %d: %v", i, got)
		}
	}
	if notes := l.notes(); len(notes) > 0 {
		t.Errorf("%q", notes)
	}
	for range 2 {
		if got := labelsOf(1<<30, "\x00\x02/y"); got["trace_id"] != "" || got["route"] != "/y" {
			t.Errorf("one too many: %v", got)
		}
	}
	for i := range uint32(maxContexts) {
		labelsOf(1<<30, fmt.Sprintf("\x00\x08%08x", i))
	}
	if got := labelsOf(1<<30, "\x00\x02/z"); got["route"] != "" || got["service.name"] != "shop" {
		t.Errorf("one too many: %v", got)
	}
	if notes := l.notes(); len(notes) != 1 || len(l.contexts) > maxContexts {
		t.Errorf("%q, %d", notes, len(l.contexts))
	}
}

// nodeVersion returns the first number of a Node's version.
func nodeVersion(t *testing.T, node string) (major int) {
	t.Helper()
	out, err := exec.Command(node, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(out), "v%d.", &major); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return major
}
