package main

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pprof "github.com/google/pprof/profile"
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

// spent is the time of a thread as it saw it itself, in ns.
type spent struct {
	way          string
	tid          int64
	elapsed, cpu float64
}

// Time on and off the CPU add up, thread by thread, to what the thread saw pass,
// and the time on it is what the kernel charged it for.
func TestRecordWall(t *testing.T) {
	needRecord(t)
	target := build(t, "spend", "gcc", "-O2", "-pthread", "-o", "OUT", "testdata/targets/spend.c")
	file := filepath.Join(t.TempDir(), "p.pb.gz")
	stolen := stolenTime(t)
	stdout, stderr, status := runSwbpf(t, t.TempDir(), "record", "--wall", "-o", file, "--", target, "2000")
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	stolen = stolenTime(t) - stolen
	p := readPprof(t, file)
	wall, cpu, off := valueOf(t, p, "wall"), valueOf(t, p, "cpu"), valueOf(t, p, "off-cpu")
	if p.DefaultSampleType != "wall" {
		t.Errorf("default is %s", p.DefaultSampleType)
	}
	var threads []spent
	for lines := bufio.NewScanner(strings.NewReader(stdout)); lines.Scan(); {
		var s spent
		if _, err := fmt.Sscan(lines.Text(), &s.way, &s.tid, &s.elapsed, &s.cpu); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		threads = append(threads, s)
	}
	if len(threads) != 5 {
		t.Fatalf("threads: %s", stdout)
	}
	for _, th := range threads {
		total, onCPU, byState := 0.0, 0.0, map[string]float64{}
		state := map[string]string{"asleep": "sleep", "reading": "sleep", "locked": "lock", "computing": "running", "uninterruptible": "disk"}[th.way]
		inWay := 0.0 // of that state
		for _, s := range p.Sample {
			if s.NumLabel["tid"][0] != th.tid {
				continue
			}
			if s.Value[wall] != s.Value[cpu]+s.Value[off] || (s.Label["state"][0] == "running") != (s.Value[cpu] > 0) {
				t.Errorf("%v of state %v", s.Value, s.Label["state"])
			}
			total += float64(s.Value[wall])
			onCPU += float64(s.Value[cpu])
			byState[s.Label["state"][0]] += float64(s.Value[wall])
			if s.Label["state"][0] == state && slices.Contains(stackOf(s), "spend_"+th.way) {
				inWay += float64(s.Value[wall])
			}
		}
		if math.Abs(total-th.elapsed) > 0.02*th.elapsed {
			t.Errorf("%s: %.1f ms on and off the CPU, %.1f ms passed", th.way, total/1e6, th.elapsed/1e6)
		}
		// A thread is not charged for what interrupts and the hypervisor take.
		if slack := 0.02 * th.elapsed; onCPU < th.cpu-slack || onCPU > th.cpu+stolen+slack {
			t.Errorf("%s: %.1f ms on the CPU, the kernel says %.1f and %.1f for others", th.way, onCPU/1e6, th.cpu/1e6, stolen/1e6)
		}
		// Waits for a CPU come on top of what it waits for.
		if rest := total - byState["runnable"] - byState["running"]; state != "running" && byState[state] < 0.9*rest {
			t.Errorf("%s: by state %v", th.way, byState)
		}
		if state == "running" && byState[state]+byState["runnable"] < 0.98*total {
			t.Errorf("%s: by state %v", th.way, byState)
		}
		if inWay < 0.8*byState[state] {
			t.Errorf("%s: %.1f of %.1f ms in spend_%s", th.way, inWay/1e6, byState[state]/1e6, th.way)
		}
	}
	for _, want := range []string{"running ", "sleep ", "lock ", "disk "} {
		if !strings.Contains(stderr, want) {
			t.Errorf("no %q in the summary:\n%s", want, stderr)
		}
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
// profile, with its stack and all the time.
func TestRecordWaiting(t *testing.T) {
	needRecord(t)
	for _, flag := range []string{"--off-cpu", "--wall"} {
		target := exec.Command(build(t, "waiter", "sh", "-c", "printf '%s' \"$1\" | gcc -O1 -xc -o OUT -", "sh", waiterProgram))
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
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
			return err == nil && strings.HasPrefix(string(b), "0 0x0 ") || strings.HasPrefix(string(b), "63 0x0 ")
		})
		r := runRecord(t, flag, "-d", "2", "-p", fmt.Sprint(pid))
		stdin.Close()
		target.Wait()
		value, waited := len(r.profile.SampleType)-1, int64(0)
		for _, s := range r.profile.Sample {
			stack := stackOf(s)
			if n := len(stack); n > 4 && stack[0] == "_start" && slices.Contains(stack, "await") && strings.Contains(stack[n-2], "pipe_read") && stack[n-1] == "[sleep]" {
				waited += s.Value[value]
			}
		}
		if d := r.profile.DurationNanos; math.Abs(float64(waited-d)) > 0.02*float64(d) {
			t.Errorf("%s: waited for %.1f ms of %.1f\n%s", flag, float64(waited)/1e6, float64(d)/1e6, r.folded)
		}
		if r.stats.Samples != 1 || r.stats.Complete != 1 {
			t.Errorf("%s: %d samples, %d complete: %v", flag, r.stats.Samples, r.stats.Complete, r.stats.TruncatedByReason)
		}
	}
}

const waiterProgram = `
#include <unistd.h>
__attribute__((noinline)) int await(void) { char c; int n = read(0, &c, 1); __asm__ volatile(""); return n; }
int main(void) { return await(); }
`
