package swbpf_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/hotspot"
	"github.com/swbpf/swbpf/unwind"
)

// TestVirtualThreads compares the stacks of virtual threads with what Java says of them.
func TestVirtualThreads(t *testing.T) {
	amd64Only(t)
	canTrace(t)
	type mode struct {
		name        string
		flags, args []string
	}
	found := false
	test := func(t *testing.T, java testenv.Program, modes []mode) {
		classes := testenv.CompileJava(t, java, filepath.Join("testdata", "walk", "VirtualStacks.java"))
		if hasNoVirtualThreads(java) {
			t.Skip("no virtual threads here")
		}
		found = true
		for _, m := range modes {
			t.Run(m.name, func(t *testing.T) {
				command := java.Command(slices.Concat(m.flags, []string{"-cp", classes, "VirtualStacks", "500"}, m.args)...)
				testVirtualThreads(t, start(t, command[0], command[1:]...))
			})
		}
	}
	testenv.EachJava(t, func(t *testing.T, java testenv.Program) {
		test(t, java, []mode{
			{"mixed", []string{"-Xmixed"}, nil},
			{"moved", []string{"-XX:+IgnoreUnrecognizedVMOptions", "-XX:+UseZGC", "-XX:+ZGenerational", "-Xmx256m"}, []string{"gc"}},
		})
	})
	testenv.SomeJava(t, func(t *testing.T, java testenv.Program) {
		modes := []mode{
			{"compiled", []string{"-Xcomp", "-XX:TieredStopAtLevel=1"}, nil},
			{"collected", []string{"-XX:+UseSerialGC", "-XX:-UseCompressedOops"}, []string{"gc", "gc"}},
		}
		if testenv.Long() {
			modes = append(modes, mode{"interpreted", []string{"-Xint"}, nil}) // as methods are that run once
		}
		test(t, java, modes)
	})
	if !found {
		t.Skip("no Java with virtual threads")
	}
}

// hasNoVirtualThreads reports whether a Java is older than these.
func hasNoVirtualThreads(java testenv.Program) bool {
	try := java.Command("-version")
	out, err := exec.Command(try[0], try[1:]...).CombinedOutput()
	m := regexp.MustCompile(`version "(\d+)`).FindSubmatch(out)
	return err != nil || m == nil || len(m[1]) < 2 || string(m[1]) < "21"
}

// virtualStack is what VirtualStacks.java says of a thread.
type virtualStack struct {
	name, state string
	calls       []string // "Class.method:line"
}

func readVirtualStacks(t *testing.T, tg *target) map[int64]virtualStack {
	stacks := map[int64]virtualStack{}
	for {
		line := tg.line(t)
		if line == "done" {
			return stacks
		}
		var id int64
		fields := strings.Fields(line)
		if _, err := fmt.Sscan(line, &id); err != nil || len(fields) < 4 {
			continue // a warning
		}
		for i := range fields {
			if method, ok := strings.CutSuffix(fields[i], ":-2"); ok { // a native one
				fields[i] = method + ":0"
			}
		}
		stacks[id] = virtualStack{fields[1], fields[2], fields[3:]}
	}
}

// virtualCalls returns the calls of a stack as Java writes them.
func virtualCalls(w *unwind.Walker, frames []unwind.Frame) (calls []string) {
	for i := range frames {
		for _, l := range w.Codes().Lines(frames[i].Code) {
			calls = append(calls, fmt.Sprintf("%s:%d", l.Name, l.Line))
		}
	}
	return calls
}

func testVirtualThreads(t *testing.T, tg *target) {
	want := readVirtualStacks(t, tg)
	if len(want) != 60 {
		t.Fatalf("Java tells of %d threads", len(want))
	}
	check := func(ps *swbpf.ProcessStacks) {
		seen, mounted := map[int64]bool{}, 0
		for i := range ps.VirtualThreads.List {
			v := &ps.VirtualThreads.List[i]
			stack, ok := want[v.ID]
			if !ok || stack.name != v.Name || seen[v.ID] {
				t.Errorf("a thread %d, %q, seen before: %v", v.ID, v.Name, seen[v.ID])
			}
			seen[v.ID] = true
			var calls []string
			if v.Carrier == 0 {
				frames, err := swbpf.WalkVirtualThread(ps.VirtualWalker, nil, v)
				if err != nil {
					t.Errorf("%d %s: after %d frames %v", v.ID, v.Name, len(frames), err)
				}
				calls = virtualCalls(ps.VirtualWalker, frames)
			} else {
				mounted++
				i := slices.IndexFunc(ps.Stacks, func(s swbpf.ThreadStack) bool { return s.TID == v.Carrier })
				if i < 0 {
					t.Errorf("%d is on thread %d, which there is not", v.ID, v.Carrier)
					continue
				}
				s := &ps.Stacks[i]
				if s.Err != nil {
					t.Errorf("%d %s: %v", v.ID, v.Name, s.Err)
				}
				calls = virtualCalls(s.Walker, s.Frames)
				if end := slices.IndexFunc(calls, func(c string) bool { return strings.HasPrefix(c, "jdk.internal.vm.Continuation.enterSpecial:") }); end > 0 {
					calls = calls[:end]
				}
			}
			checkVirtualCalls(t, v, calls, stack)
		}
		if len(seen) != len(want) || ps.VirtualThreads.Unread != 0 || ps.VirtualThreads.Cut || ps.VirtualThreads.Untracked {
			t.Errorf("%d of %d threads; %d not read, cut: %v", len(seen), len(want), ps.VirtualThreads.Unread, ps.VirtualThreads.Cut)
		}
		if mounted != 1 {
			t.Errorf("%d are on threads", mounted)
		}
	}
	opts := swbpf.WalkOptions{VirtualThreads: true}
	ps, err := swbpf.WalkProcess(tg.pid, opts)
	if err != nil {
		t.Fatal(err)
	}
	check(ps)
	ps, err = swbpf.WalkStopped(tg.pid, opts, check)
	if err != nil {
		t.Fatal(err)
	}
	// Not asked for, there are none; the one that runs is whole, also by itself.
	var carrier procstate.ThreadID
	for i := range ps.VirtualThreads.List {
		carrier = max(carrier, ps.VirtualThreads.List[i].Carrier)
	}
	ps, err = swbpf.WalkProcess(tg.pid, swbpf.WalkOptions{Threads: []procstate.ThreadID{carrier}, VirtualThreads: true})
	if err != nil {
		t.Fatal(err)
	}
	calls := virtualCalls(ps.Stacks[0].Walker, ps.Stacks[0].Frames)
	if ps.VirtualWalker != nil || ps.Stacks[0].Err != nil || !slices.ContainsFunc(calls, func(c string) bool { return strings.HasPrefix(c, "VirtualStacks.first:") }) {
		t.Errorf("%d virtual threads of a thread; its stack, %v:\n%s", len(ps.VirtualThreads.List), ps.Stacks[0].Err, strings.Join(calls, "\n"))
	}
}

// checkVirtualCalls compares the calls of a virtual thread with Java's, which leaves out some of its own.
func checkVirtualCalls(t *testing.T, v *hotspot.VirtualThread, calls []string, want virtualStack) {
	own := func(calls []string) (own []string) {
		for _, c := range calls {
			if strings.HasPrefix(c, "VirtualStacks.") {
				own = append(own, c)
			}
		}
		return own
	}
	got, java := own(calls), own(want.calls)
	if v.Carrier != 0 && len(got) > 0 && len(java) > 0 {
		// It runs: another line than it did, and of inlined methods only those are shown that are certain.
		runs := func(call string) bool {
			return strings.HasPrefix(call, "VirtualStacks.spins:") || strings.HasPrefix(call, "VirtualStacks.waits:")
		}
		if !runs(got[0]) {
			t.Errorf("%d %s is in %s", v.ID, v.Name, got[0])
		}
		got, java = slices.DeleteFunc(got, runs), slices.DeleteFunc(java, runs)
	}
	if !slices.Equal(got, java) {
		t.Errorf("%d %s [%s]:\n%s\nby Java\n%s", v.ID, v.Name, v.State, strings.Join(calls, "\n"), strings.Join(want.calls, "\n"))
		return
	}
	rest := calls
	for _, c := range want.calls {
		if strings.Contains(c, "$Lambda") || strings.HasPrefix(c, "VirtualStacks.") {
			continue // what is made as it runs has another name
		}
		i := slices.Index(rest, c)
		if i < 0 {
			t.Errorf("%d %s [%s]: no %s in\n%s", v.ID, v.Name, v.State, c, strings.Join(calls, "\n"))
			return
		}
		rest = rest[i+1:]
	}
	blocker, owned := "", false
	switch {
	case v.Name == "kind-2":
		blocker, owned = "java.util.concurrent.locks.ReentrantLock$NonfairSync", true
	case v.State == "blocked" || v.State == "waiting":
		blocker, owned = "java.lang.Object", v.State == "blocked"
	}
	if v.Blocker != blocker && (blocker != "" || v.Owner != 0) || owned != (v.OwnerThread != 0) {
		t.Errorf("%d %s [%s] waits for %q, which %d has", v.ID, v.Name, v.State, v.Blocker, v.OwnerThread)
	}
	states := map[string]string{"WAITING": "parked waiting", "TIMED_WAITING": "timed parked", "BLOCKED": "blocked", "RUNNABLE": "running runnable"}
	if !strings.Contains(states[want.state], v.State) || v.State == "" {
		t.Errorf("%d %s is %q, by Java %s", v.ID, v.Name, v.State, want.state)
	}
}
