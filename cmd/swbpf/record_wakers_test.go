package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/profile"
)

func buildWakers(t *testing.T) string {
	return build(t, "wakers", "gcc", "-O1", "-g", "-pthread", "-o", "OUT", "testdata/targets/wakers.c")
}

// waits is how long a function waited, in ns, by the marker of what woke its thread up, "" for none, and
// the stacks of that.
type waits struct {
	ns     map[string]int64
	stacks map[string][]wakerStack
	sum    int64
}

// wakerStack ended so many ns.
type wakerStack struct {
	functions []string
	ns        int64
}

// waitsIn returns those in a function, without the time in which it could run.
func waitsIn(t *testing.T, r *recording, function string) waits {
	w := waits{ns: map[string]int64{}, stacks: map[string][]wakerStack{}}
	for _, s := range r.profile.Sample {
		stack := stackOf(s)
		who, after := "", []string(nil)
		if at := slices.IndexFunc(stack, func(f string) bool { return strings.HasPrefix(f, "[woken by ") }); at >= 0 {
			who, after = stack[at], stack[at+1:]
			if state := stack[at-1]; state != "["+s.Label["state"][0]+"]" || state == "[runnable]" {
				t.Errorf("above the wait there is no waker: %q", stack)
			}
			stack = stack[:at]
		}
		if !slices.Contains(stack, function) || s.Label["state"][0] == "runnable" {
			continue
		}
		ns := s.Value[len(s.Value)-1]
		w.ns[who] += ns
		w.sum += ns
		w.stacks[who] = append(w.stacks[who], wakerStack{after, ns})
	}
	return w
}

// want checks that nearly all of the time was ended by one, in a stack that has these functions in that order, and that
// no stack has one of those that are not to be there. The rest may be the program's end, and locks that are taken
// meanwhile.
func (w waits) want(t *testing.T, what, who string, functions, not []string) {
	t.Helper()
	var right int64
	for _, stack := range w.stacks[who] {
		at := 0
		for _, f := range stack.functions {
			if at < len(functions) && f == functions[at] {
				at++
			}
			if slices.Contains(not, f) {
				t.Errorf("%s: %s has no part in it: %q", what, f, stack.functions)
			}
		}
		if at == len(functions) {
			right += stack.ns
		}
	}
	if w.sum == 0 || float64(right) < 0.9*float64(w.sum) {
		t.Errorf("%s: of %d ns %d were ended by %q in %q: %v", what, w.sum, right, who, functions, w.stacks)
	}
}

// What has woken a thread up is above what it waited in: another thread, or an interrupt, which is not mistaken for
// what it interrupts.
func TestRecordWakers(t *testing.T) {
	t.Parallel()
	path := buildWakers(t)
	for _, flag := range []string{"--off-cpu", "--wall"} {
		r := runRecord(t, flag, "--wakers", "--", path, "200")
		for _, c := range []struct {
			waits, who string
			stack      []string
		}{
			{"take", "maker", []string{"main", "make", "pthread_cond_broadcast", "futex_wake"}},
			{"read_byte", "maker", []string{"main", "write_byte", "vfs_write"}},
			{"receive_byte", "maker", []string{"main", "send_byte", "tcp_sendmsg"}},
			{"nap", "an interrupt", []string{"hrtimer_interrupt"}},
		} {
			var not []string
			if c.who == "an interrupt" {
				not = []string{"main", "start_thread"}
			}
			waitsIn(t, r, c.waits).want(t, flag+" "+c.waits, profile.WakerMarker(c.who), c.stack, not)
		}
		if r.stats.WakersLost > 0 || r.stats.Wakers < 800 {
			t.Errorf("%s: %d wakers, %d lost", flag, r.stats.Wakers, r.stats.WakersLost)
		}
		if by := r.stats.OffCPUNSByWaker; by["maker"] < 20*by[""] || by["an interrupt"] < 20*by[""] || !strings.Contains(r.stderr, "\nwoken by: maker ") {
			t.Errorf("%s: woken by %v\n%s", flag, by, r.stderr)
		}
		if top := r.stderr[strings.Index(r.stderr, "top functions"):]; strings.Contains(top, " make\n") || strings.Contains(top, "write_byte") {
			t.Errorf("%s: who wakes others up is taken for who waits:\n%s", flag, r.stderr)
		}
	}
}

// Without the flag nothing is told; of one that is not recorded its name and what it does in the kernel.
func TestRecordWakersOfOthers(t *testing.T) {
	t.Parallel()
	path := buildWakers(t)
	cmd := exec.Command(path, "1000000", "other")
	_, out := testenv.Start(t, cmd)
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	of := []string{"-d", "0.5", "-p", strconv.Itoa(pid)}
	r := runRecord(t, append(of, "--off-cpu", "--wakers")...)
	waitsIn(t, r, "read_byte").want(t, "alone", "[woken by maker]", []string{"vfs_write"}, []string{"main", "write_byte"})
	r = runRecord(t, append(of, "--off-cpu")...)
	waitsIn(t, r, "read_byte").want(t, "without", "", nil, nil)
	if r.stats.Wakers != 0 {
		t.Errorf("%d wakers without --wakers", r.stats.Wakers)
	}
	r = runRecord(t, "-d", "0.5", "--off-cpu", "--wakers")
	waitsIn(t, r, "read_byte").want(t, "whole machine", "[woken by maker]", []string{"main", "write_byte", "vfs_write"}, nil)
}

// Other formats keep them.
func TestWakersInFormats(t *testing.T) {
	path, dir := buildWakers(t), t.TempDir()
	var files []string
	for _, name := range []string{"w.pb.gz", "w.folded", "w.html", "w.speedscope.json", "w.firefox.json", "w.perf.txt"} {
		files = append(files, filepath.Join(dir, name))
	}
	args := []string{"record", "--off-cpu", "--wakers"}
	for _, f := range files {
		args = append(args, "-o", f)
	}
	testenv.Run(t, exec.Command(swbpf(t), append(args, "--", path, "50")...))
	var want map[string]int64
	for _, f := range files {
		out := filepath.Join(dir, "out.folded")
		testenv.Run(t, exec.Command(swbpf(t), "view", f, "-o", out))
		got := map[string]int64{}
		for stack, ns := range foldedStacks(t, string(read(t, out, nil))) {
			_, who, ok := strings.Cut(stack, ";[woken by ")
			if who, _, _ = strings.Cut(who, "]"); ok {
				got[who] += int64(ns)
			}
		}
		if want == nil {
			want = got
			if want["maker"] == 0 || want["an interrupt"] == 0 {
				t.Fatalf("%s: %v", f, want)
			}
		}
		for who, ns := range want {
			if diff := got[who] - ns; diff < -ns/100 || diff > ns/100 {
				t.Errorf("%s: woken by %s are %d ns, want %d", f, who, got[who], ns)
			}
		}
	}
}
