package main

import (
	"fmt"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/profile"
)

// unifiedCgroups is where the unified hierarchy of cgroups is mounted.
func unifiedCgroups(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1]
		}
	}
	t.Skip("no cgroup2 is mounted")
	return ""
}

// Samples are labelled with the cgroup, the container and the unit of their
// process, and with what the command line gives them.
func TestRecordLabels(t *testing.T) {
	t.Parallel()
	needRecord(t)
	root, err := os.MkdirTemp(unifiedCgroups(t), "swbpf-test-*")
	if err != nil {
		t.Skipf("cannot make cgroups: %v", err)
	}
	defer os.Remove(root)
	id := strings.Repeat("feedc0de", 8)
	type place struct{ dir, container, unit string }
	places := []place{
		{"docker-" + id + ".scope", id, ""},
		{"libpod-" + id + ".scope/container", id, ""},
		{"crio-" + id + ".scope", id, ""},
		{"web.service", "", "web.service"},
	}
	target := build(t, "depth30", "g++", "-O2", "-fomit-frame-pointer", "-o", "OUT", "testdata/targets/depth30.cc")
	byPID, pids := map[int64]place{}, []string{}
	for _, p := range places {
		dir := filepath.Join(root, p.dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		defer func() {
			for ; dir != root; dir = filepath.Dir(dir) {
				os.Remove(dir)
			}
		}()
		cmd := exec.Command(target, "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { cmd.Process.Kill(); cmd.Wait() }()
		pid := strconv.Itoa(cmd.Process.Pid)
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(pid), 0); err != nil {
			t.Fatal(err)
		}
		byPID[int64(cmd.Process.Pid)] = p
		pids = append(pids, pid)
	}
	seen := map[int64]bool{}
	for seconds := 1; len(seen) < len(places) && seconds < 60; seconds *= 2 { // until each had a CPU
		r := runRecord(t, "-F", "499", "-d", strconv.Itoa(seconds), "--label", "release=1.2", "--label", "zone=a b", "--sample-cpu", "-p", strings.Join(pids, ","))
		for _, s := range r.profile.Sample {
			pid := s.NumLabel["pid"][0]
			p := byPID[pid]
			seen[pid] = true
			want := map[string]string{
				"cgroup": "/" + filepath.Base(root) + "/" + p.dir, "container": p.container, "unit": p.unit,
				"release": "1.2", "zone": "a b", "comm": "depth30", "state": "",
			}
			for key, value := range want {
				if got := strings.Join(s.Label[key], ","); got != value {
					t.Fatalf("%s: %s is %q, want %q", p.dir, key, got, value)
				}
			}
			if n, err := strconv.Atoi(strings.Join(s.Label["cpu"], ",")); err != nil || n < 0 || n > 1<<16 {
				t.Fatalf("%s: CPU %q", p.dir, s.Label["cpu"])
			}
		}
	}
	if len(seen) != len(places) {
		t.Errorf("samples of %d processes, want %d", len(seen), len(places))
	}
	for _, c := range []struct {
		cgroup    string
		processes int // at most
		container string
	}{{"/" + filepath.Base(root) + "/web.service", 1, ""}, {id[:12], 3, id}} {
		r := runRecord(t, "-F", "499", "-d", "0.5", "--cgroup", c.cgroup)
		pids := map[int64]bool{}
		for _, s := range r.profile.Sample {
			pids[s.NumLabel["pid"][0]] = true
			if got := strings.Join(s.Label["container"], ","); got != c.container {
				t.Fatalf("--cgroup %s: a sample of container %q", c.cgroup, got)
			}
		}
		if len(pids) == 0 || len(pids) > c.processes {
			t.Errorf("--cgroup %s: samples of %d processes, want %d", c.cgroup, len(pids), c.processes)
		}
		out, err := exec.Command(swbpf(t), "walk", "--cgroup", c.cgroup).CombinedOutput()
		if n := strings.Count("\n"+string(out), "\nprocess "); err != nil || n != c.processes {
			t.Errorf("walk --cgroup %s: %d processes, want %d: %v\n%s", c.cgroup, n, c.processes, err, out)
		}
	}
}

// Without --sample-cpu there is no label that would multiply stacks.
func TestRecordFewLabels(t *testing.T) {
	r := runRecord(t, "-F", "997", "--", "sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
	for _, s := range r.profile.Sample {
		for key := range s.Label {
			if !slices.Contains([]string{"comm", "cgroup", "container", "unit"}, key) {
				t.Fatalf("label %s", key)
			}
		}
	}
}

// valuesOf sums the values of a type, by the function of a stack that is named.
func valuesOf(p *pprof.Profile, name, function string) (samples, sum int64) {
	for i, v := range p.SampleType {
		if v.Type != name {
			continue
		}
		for _, s := range p.Sample {
			if function == "" || slices.Contains(stackOf(s), function) {
				samples += s.Value[0]
				sum += s.Value[i]
			}
		}
	}
	return samples, sum
}

// grabProgram calls grab 100 times for 1000 bytes and 10 times for 50000, and
// writes 200 times 10 bytes.
const grabProgram = `
#include <stdlib.h>
#include <unistd.h>
__attribute__((noipa)) char *grab(long unused, unsigned long n) { return (char *)(n + unused * 0); }
__attribute__((noinline)) void small(void) { for (int i = 0; i < 100; i++) grab(i, 1000); __asm__ volatile(""); }
__attribute__((noinline)) void large(void) { for (int i = 0; i < 10; i++) grab(i, 50000); __asm__ volatile(""); }
__attribute__((noinline)) void out(void) { for (int i = 0; i < 200; i++) if (write(1, "123456789\n", 10) != 10) _exit(1); __asm__ volatile(""); }
int main(void) { small(); large(); out(); return 0; }
`

// allowedCPU is the number of a CPU that this process may run on.
func allowedCPU(t *testing.T) string {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	for cpu := range len(set) * bits.UintSize {
		if set.IsSet(cpu) {
			return strconv.Itoa(cpu)
		}
	}
	t.Fatal("no CPU")
	return ""
}

// An event can count by a number that it carries.
func TestRecordWeights(t *testing.T) {
	t.Parallel()
	needRecord(t)
	cpu := allowedCPU(t) // one, as each counts to the period by itself
	testenv.Needs(t, "gcc")
	target := build(t, "grab", "sh", "-c", "printf '%s' \"$1\" | gcc -O1 -xc -o OUT -", "sh", grabProgram)
	for _, tc := range []struct {
		flags, name, unit string
		want              map[string][2]int64 // samples and sum by function
	}{
		{"-e uprobe:TARGET:grab --weight arg2:bytes", "arg2", "bytes", map[string][2]int64{"small": {100, 100e3}, "large": {10, 500e3}}},
		{"-e uprobe:TARGET:grab", "", "count", map[string][2]int64{"small": {100, 100}, "large": {10, 10}}},
		{"-e uprobe:TARGET:grab --weight arg2:bytes --filter arg2>1000", "arg2", "bytes", map[string][2]int64{"small": {0, 0}, "large": {10, 500e3}}},
		{"-e uretprobe:TARGET:grab --weight ret", "ret", "count", map[string][2]int64{"small": {100, 100e3}, "large": {10, 500e3}}},
		{"-e syscalls:sys_enter_write --weight count", "count", "bytes", map[string][2]int64{"out": {200, 2000}}},
		{"-e syscalls:sys_exit_write --weight ret:bytes", "ret", "bytes", map[string][2]int64{"out": {200, 2000}}},
		// A sample after each 50 bytes or more: every fifth write.
		{"-e syscalls:sys_enter_write --weight count -c 50", "count", "bytes", map[string][2]int64{"out": {40, 2000}}},
		{"-e syscalls:sys_enter_write -c 10", "", "count", map[string][2]int64{"out": {20, 200}}},
	} {
		args := strings.Fields(strings.ReplaceAll(tc.flags, "TARGET", target))
		r := runRecord(t, append(args, "--", "taskset", "-c", cpu, target)...)
		last := r.profile.SampleType[len(r.profile.SampleType)-1]
		if tc.name != "" && last.Type != tc.name || last.Unit != tc.unit {
			t.Errorf("%s: values are %v", tc.flags, last)
		}
		for _, told := range []string{"(--filter leaves out 100 others)", "note: only events of which arg2>1000"} {
			if strings.Contains(r.stderr, told) != strings.Contains(tc.flags, "--filter") {
				t.Errorf("%s: %s", tc.flags, r.stderr)
			}
		}
		if notes := strings.Join(r.profile.Comments, "\n"); strings.Contains(notes, "only events of which arg2>1000") != strings.Contains(tc.flags, "--filter") {
			t.Errorf("%s: comments %s", tc.flags, notes)
		}
		for function, want := range tc.want {
			samples, sum := valuesOf(r.profile, last.Type, function)
			if got := [2]int64{samples, sum}; got != want {
				t.Errorf("%s: %d samples of %d in %s, want %v; lost %v", tc.flags, samples, sum, function, want, r.stats.LostByReason)
			}
		}
	}
}

// A static probe is recorded at all its locations, in the function that each is in, and
// weighs what the program says.
func TestRecordStaticProbe(t *testing.T) {
	t.Parallel()
	needRecord(t)
	testenv.Needs(t, "gcc")
	if runtime.GOARCH != "amd64" {
		t.Skip("its probes are written for amd64")
	}
	target := build(t, "probes", "gcc", "-O1", "-fno-inline", "-fno-strict-aliasing", "-o", "OUT", "../../loader/testdata/probes.c")
	out, err := exec.Command(target, "count", "10").Output()
	if err != nil {
		t.Fatal(err)
	}
	var times, sum int64
	if _, line, ok := strings.Cut(string(out), "\nmany "); !ok {
		t.Fatalf("no probe: %s", out)
	} else if _, err := fmt.Sscan(line, &times, &sum); err != nil {
		t.Fatal(err)
	}
	r := runRecord(t, "-e", "usdt:"+target+":test:many", "--weight", "arg2:bytes", "--", target, "visit", "10")
	for _, s := range r.profile.Sample {
		if got := strings.Join(stackOf(s), ";"); !strings.HasSuffix(got, ";main;visit;locations;many") {
			t.Errorf("stack %s", got)
		}
	}
	// One that is negative is no sample.
	if samples, got := valuesOf(r.profile, "arg2", "many"); got != sum || samples == 0 || samples > times || r.stats.Lost > 0 {
		t.Errorf("%d samples of %d in all, of %d times %d; lost %v", samples, got, times, sum, r.stats.LostByReason)
	}
	if r := runRecord(t, "-e", "usdt:"+target+":guarded", "--", target, "visit", "10"); r.stats.Samples != 10 {
		t.Errorf("%d samples of a probe with a semaphore, want 10", r.stats.Samples)
	}
}

// A period is a number of events, of a timer in nanoseconds.
func TestRecordPeriod(t *testing.T) {
	t.Parallel()
	target := build(t, "depth30", "g++", "-O2", "-fomit-frame-pointer", "-o", "OUT", "testdata/targets/depth30.cc")
	r, clock := runClocked(t, []string{"-e", "cpu-clock", "-c", "2000000"}, target, "1")
	if r.profile.Period != 2e6 {
		t.Errorf("period %d", r.profile.Period)
	}
	r.wantRate(t, clock, 500)
	if samples, ns := valuesOf(r.profile, "cpu", ""); ns != 2e6*samples {
		t.Errorf("%d samples are of %d ns", samples, ns)
	}
}

// Wrong flags are refused with what would be right.
func TestRecordRefusesWeights(t *testing.T) {
	needRecord(t)
	dir := t.TempDir()
	for args, want := range map[string][]string{
		"-e syscalls:sys_enter_write --weight bytes": {"bytes", "count", "fd"},
		"-e page-faults --weight bytes":              {"only tracepoints and probes"},
		"-e uprobe:libc:malloc --weight size":        {"arg1", "ret"},
		"-e uprobe:libc:malloc --weight ret":         {"uretprobe"},
		"--label novalue":                            {"novalue", "version=1.2"},
		"--label pid=3":                              {"of their own"},
		"--label a=1 --label a=2":                    {"already"},
		"-F 99 -c 5":                                 {"exclude"},
		"--off-cpu --wall":                           {"includes"},
		"--wall -e page-faults":                      {"exclude"},
		"--off-cpu -e cycles":                        {"exclude"},
		"--wakers":                                   {"--off-cpu or --wall"},
		"--wakers --wall --no-kernel":                {"excludes"},
		"--min-off-cpu 5ms":                          {"--wall"},
		"-e uprobe:libc:maloc":                       {"uprobe:libc:malloc"},
		"-e usdt:libstdc++.so.6:thow":                {"usdt:libstdc++.so.6:libstdcxx:throw"},
		"-e usdt:libstdc++.so.6:throw --weight arg9": {"arg1"},
		"-e syscalls:sys_enter_opnat":                {"syscalls:sys_enter_openat"},
	} {
		_, msg, status := runSwbpf(t, dir, append([]string{"record", "-d", "0.1"}, strings.Fields(args)...)...)
		if status != exitCannot {
			t.Errorf("%s: exit status %d: %s", args, status, msg)
		}
		for _, w := range want {
			if !strings.Contains(msg, w) {
				t.Errorf("%s: no %q in %s", args, w, msg)
			}
		}
	}
}

// The cgroups of processes without samples are forgotten in time.
func TestLabellerForgets(t *testing.T) {
	l := newLabeller(profile.NewBuilder())
	defer l.close()
	const none = 1 << 30 // no process has such a number
	const now = uint64(3 * cgroupKeep)
	for i := range int32(maxCgroups) {
		l.ofProcess(none+i, now)
	}
	if len(l.byPID) != maxCgroups {
		t.Fatalf("%d processes known", len(l.byPID))
	}
	for pid, c := range l.byPID {
		if pid != none {
			c.at -= 2 * uint64(cgroupKeep)
			l.byPID[pid] = c
		}
	}
	l.ofProcess(none-1, now)
	if _, recent := l.byPID[none]; len(l.byPID) != 2 || !recent {
		t.Errorf("%d processes known, the one of late among them: %v", len(l.byPID), recent)
	}
}
