package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
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
)

// valueOf is the index of a type of values in a profile.
func valueOf(t *testing.T, p *pprof.Profile, name string) int {
	t.Helper()
	i := slices.IndexFunc(p.SampleType, func(v *pprof.ValueType) bool { return v.Type == name && v.Unit == "nanoseconds" })
	if i < 0 {
		t.Fatalf("no values of %s in %v", name, p.SampleType)
	}
	return i
}

// spent is the time of a thread in ns: as it saw it itself, as the thread did
// that made it and waited for its end, and on a CPU by the kernel.
type spent struct {
	way             string
	tid             int64
	own, whole, cpu float64
}

// wallRecording is a recording of threads that tell their times themselves.
type wallRecording struct {
	p       *pprof.Profile
	stderr  string
	stats   recordStats
	threads []spent
	stolen  float64
}

// recordWall records a target of testdata that takes a number of milliseconds.
func recordWall(t *testing.T, name, ms string) *wallRecording {
	t.Helper()
	needRecord(t)
	target := build(t, name, "gcc", "-O2", "-pthread", "-o", "OUT", "testdata/targets/"+name+".c")
	dir := t.TempDir()
	r := &wallRecording{stolen: -stolenTime(t)}
	stdout, stderr, status := runSwbpf(t, dir, "record", "--wall", "-o", "p.pb.gz", "--stats", "s.json", "--stats-detail", "--", target, ms)
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	r.stolen += stolenTime(t)
	r.p, r.stderr = readPprof(t, filepath.Join(dir, "p.pb.gz")), stderr
	b, err := os.ReadFile(filepath.Join(dir, "s.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &r.stats); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(strings.NewReader(stdout)); lines.Scan(); {
		var s spent
		if _, err := fmt.Sscan(lines.Text(), &s.way, &s.tid, &s.own, &s.whole, &s.cpu); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		r.threads = append(r.threads, s)
	}
	return r
}

// check checks the times of a thread: on and off the CPU they add up to what the
// thread saw pass, and on it they are what the kernel charged it for. It returns
// the thread's time in ns by state.
func (r *wallRecording) check(t *testing.T, th spent) map[string]float64 {
	t.Helper()
	wall, cpu, off := valueOf(t, r.p, "wall"), valueOf(t, r.p, "cpu"), valueOf(t, r.p, "off-cpu")
	total, byState := 0.0, map[string]float64{}
	for _, s := range r.p.Sample {
		if s.NumLabel["tid"][0] != th.tid {
			continue
		}
		if s.Value[wall] != s.Value[cpu]+s.Value[off] || (s.Label["state"][0] == "running") != (s.Value[cpu] > 0) {
			t.Errorf("%v of state %v", s.Value, s.Label["state"])
		}
		total += float64(s.Value[wall])
		byState[s.Label["state"][0]] += float64(s.Value[wall])
	}
	// Before its first own instruction and after its last one a thread may have
	// to wait for a CPU.
	if total < 0.98*th.own || total > 1.02*th.whole {
		t.Errorf("%s: %.1f ms on and off the CPU, %.1f to %.1f ms passed: %+v", th.way, total/1e6, th.own/1e6, th.whole/1e6, r.stats)
	}
	// A thread is not charged for what interrupts and the hypervisor take. When it
	// wakes an idle CPU it is charged from the wake-up on: the scheduler does not
	// read its clock again at the switch.
	onCPU, slack := byState["running"], 0.02*th.own
	t.Logf("%s: on the CPU %.1f ms, charged %.1f; total %.1f, own %.1f whole %.1f stolen %.1f runnable %.1f", th.way, onCPU/1e6, th.cpu/1e6, total/1e6, th.own/1e6, th.whole/1e6, r.stolen/1e6, byState["runnable"]/1e6)
	if onCPU < th.cpu-byState["runnable"]-slack || onCPU > th.cpu+r.stolen+slack {
		t.Errorf("%s: %.1f ms on the CPU, the kernel says %.1f and %.1f for others", th.way, onCPU/1e6, th.cpu/1e6, r.stolen/1e6)
	}
	return byState
}

// Threads that sleep, wait for a lock, read, compute, wait uninterruptibly and
// read a disk have their times in the states and the functions where they spent them.
func TestRecordWall(t *testing.T) {
	r := recordWall(t, "spend", "2000")
	if r.p.DefaultSampleType != "wall" {
		t.Errorf("default is %s", r.p.DefaultSampleType)
	}
	states := map[string]string{"asleep": "sleep", "reading": "sleep", "locked": "lock", "computing": "running", "uninterruptible": "uninterruptible", "disk": "disk"}
	if len(r.threads) != len(states) {
		t.Fatalf("threads %v", r.threads)
	}
	wall := valueOf(t, r.p, "wall")
	for _, th := range r.threads {
		byState, state, inWay := r.check(t, th), states[th.way], 0.0
		for _, s := range r.p.Sample {
			if s.NumLabel["tid"][0] == th.tid && s.Label["state"][0] == state && slices.Contains(stackOf(s), "spend_"+th.way) {
				inWay += float64(s.Value[wall])
			}
		}
		if state == "disk" && byState[state] == 0 {
			t.Logf("this file system reads without waiting for a block device: %v", byState)
			continue
		}
		waits := 0.0 // for something; a CPU may be waited for on top of it
		for s, ns := range byState {
			if s != "running" && s != "runnable" {
				waits += ns
			}
		}
		if state != "running" && byState[state] < 0.9*waits || state == "running" && waits > 0.02*th.own {
			t.Errorf("%s: by state %v", th.way, byState)
		}
		// What a thread runs after its last sample has no stack: two periods at most.
		unsampled := 0.0
		if state == "running" {
			unsampled = 2e9 / defaultFrequency
		}
		if inWay < 0.8*(byState[state]-unsampled) {
			t.Errorf("%s: %.1f of %.1f ms in spend_%s", th.way, inWay/1e6, byState[state]/1e6, th.way)
		}
	}
	for _, want := range []string{"running ", "sleep ", "lock ", "uninterruptible "} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("no %q in the summary:\n%s", want, r.stderr)
		}
	}
}

// Times add up also where there are too many switches for a stack of each.
func TestRecordWallSwitches(t *testing.T) {
	r := recordWall(t, "pingpong", "2000")
	if len(r.threads) != 2 {
		t.Fatalf("threads %v", r.threads)
	}
	for _, th := range r.threads {
		r.check(t, th)
	}
	if r.stats.OffCPUUnsampled == 0 || !strings.Contains(r.stderr, "switches of the busiest threads") {
		t.Errorf("%d switches without a stack\n%s", r.stats.OffCPUUnsampled, r.stderr)
	}
}

// stolenTime is the time in ns that the machine's CPUs spent with interrupts, and
// without this machine.
func stolenTime(t *testing.T) float64 {
	t.Helper()
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	var user, nice, system, idle, iowait, irq, softirq, steal float64
	if _, err := fmt.Sscanf(string(b), "cpu %f %f %f %f %f %f %f %f", &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal); err != nil {
		t.Fatal(err)
	}
	return (irq + softirq + steal) * 1e9 / 100 // USER_HZ
}

func readPprof(t *testing.T, path string) *pprof.Profile {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := pprof.ParseData(b)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A thread that waits from before the recording until after it is in the
// profile, with its stack and all the time, also where the process has ended but
// for this thread.
func TestRecordWaiting(t *testing.T) {
	t.Parallel()
	needRecord(t)
	for _, tc := range []struct{ flag, mode, bottom string }{
		{"--off-cpu", "", "_start"}, {"--wall", "", "_start"}, {"--wall", "thread", "start_thread"},
	} {
		flag := tc.flag
		testenv.Needs(t, "gcc")
		target := exec.Command(build(t, "waiter", "sh", "-c", "printf '%s' \"$1\" | gcc -O1 -pthread -xc -o OUT -", "sh", waiterProgram), tc.mode)
		var out bytes.Buffer
		target.Stdout = &out
		stdin, err := target.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := target.Start(); err != nil {
			t.Fatal(err)
		}
		pid := target.Process.Pid
		waitFor(t, "the target to read", func() bool {
			tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
			return slices.ContainsFunc(tasks, func(path string) bool {
				b, err := os.ReadFile(path)
				return err == nil && strings.HasPrefix(string(b), "0 0x0 ") || strings.HasPrefix(string(b), "63 0x0 ")
			})
		})
		r := runRecord(t, flag, "-d", "2", "-p", fmt.Sprint(pid))
		stdin.Close()
		target.Wait()
		value, waited := len(r.profile.SampleType)-1, int64(0)
		for _, s := range r.profile.Sample {
			stack := stackOf(s)
			if n := len(stack); n > 4 && slices.Contains(stack[:2], tc.bottom) && slices.Contains(stack, "await") && strings.Contains(stack[n-2], "pipe_read") && stack[n-1] == "[sleep]" {
				waited += s.Value[value]
			}
		}
		if d := r.profile.DurationNanos; math.Abs(float64(waited-d)) > 0.02*float64(d) {
			t.Errorf("%s %s: waited for %.1f ms of %.1f\n%s", flag, tc.mode, float64(waited)/1e6, float64(d)/1e6, r.folded)
		}
		if r.stats.Samples != 1 || r.stats.Complete != 1 {
			t.Errorf("%s %s: %d samples, %d complete: %v", flag, tc.mode, r.stats.Samples, r.stats.Complete, r.stats.TruncatedByReason)
		}
	}
}

const waiterProgram = `
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__attribute__((noinline)) int await(void) { char c; int n = read(0, &c, 1); __asm__ volatile(""); return n; }
static void *thread(void *arg) { exit(await()); }
int main(int argc, char **argv) {
	pthread_t t;
	if (strcmp(argv[1], "thread") != 0)
		return await();
	pthread_create(&t, 0, thread, 0);
	pthread_exit(0);
}
`

// TestRecordWallTimeNamespace records busy threads, more than there are CPUs, with a
// recorder whose clock is another than the kernel's.
func TestRecordWallTimeNamespace(t *testing.T) {
	needRecord(t)
	testenv.Needs(t, "unshare")
	testenv.Run(t, exec.Command("unshare", "--time", "--fork", "true"))
	var pids []string
	for range runtime.NumCPU() + 1 {
		busy := exec.Command("sh", "-c", "while :; do :; done")
		testenv.Start(t, busy)
		pids = append(pids, strconv.Itoa(busy.Process.Pid))
	}
	var up unix.Timespec // time begins at 0 at the earliest
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &up); err != nil {
		t.Fatal(err)
	}
	for _, ahead := range []int64{-min(1000, up.Sec-1), 1000} {
		cmd := exec.Command("unshare", "--time", "--monotonic", fmt.Sprint(ahead), "--fork", "--kill-child",
			swbpf(t), "record", "--wall", "-d", "1", "-p", strings.Join(pids, ","), "-o", "p.pb.gz")
		cmd.Dir = t.TempDir()
		testenv.Run(t, cmd)
		p := readPprof(t, filepath.Join(cmd.Dir, "p.pb.gz"))
		whole, i := map[int64]int64{}, valueOf(t, p, "wall")
		for _, s := range p.Sample {
			whole[s.NumLabel["tid"][0]] += s.Value[i]
		}
		for tid, ns := range whole {
			if ns < 9*p.DurationNanos/10 || ns > 11*p.DurationNanos/10 {
				t.Errorf("%d s ahead: thread %d had %d ns of %d", ahead, tid, ns, p.DurationNanos)
			}
		}
		if len(whole) != len(pids) {
			t.Errorf("%d s ahead: %d threads of %d", ahead, len(whole), len(pids))
		}
	}
}
