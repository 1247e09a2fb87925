package main

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
)

// sleeperProgram sleeps ten times for 50 ms and works in between.
const sleeperProgram = `
#include <time.h>
__attribute__((noinline)) void nap(void) { struct timespec t = { 0, 50000000 }; nanosleep(&t, 0); __asm__ volatile(""); }
int main(void) {
	for (int i = 0; i < 10; i++) {
		nap();
		for (volatile long j = 0; j < 1000000; j++);
	}
	return 0;
}
`

// The time off the CPU is in the profile by stack, in nanoseconds.
func TestRecordOffCPU(t *testing.T) {
	testenv.Needs(t, "gcc")
	path := build(t, "sleeper", "sh", "-c", "printf '%s' \"$1\" | gcc -O1 -xc -o OUT -", "sh", sleeperProgram)
	begin := time.Now()
	r := runRecord(t, "--off-cpu", "--", path)
	wall := time.Since(begin)
	if v := r.profile.SampleType[len(r.profile.SampleType)-1]; v.Type != "off-cpu" || v.Unit != "nanoseconds" {
		t.Errorf("sample type %v", v)
	}
	var napped, away int64
	for _, s := range r.profile.Sample {
		if !slices.Contains(stackOf(s), "nap") {
			continue
		}
		away += s.Value[len(s.Value)-1]
		// What it waits for a CPU afterwards is of another state.
		if s.Label["state"][0] == "sleep" {
			napped += s.Value[len(s.Value)-1]
		}
	}
	// Each nap takes 50 ms, and what the timer and the scheduler add to it. Its
	// time begins before the thread leaves the CPU, which another program, or the
	// machine's host, may take first.
	if ms := float64(away) / 1e6; ms < 0.9*500 || away > int64(wall) || r.stats.Lost > 0 {
		t.Errorf("away for %.1f ms in %v; %v", ms, wall, r.stats.LostByReason)
	}
	if sleep := float64(r.stats.OffCPUNSByState["sleep"]); math.Abs(sleep-float64(napped)) > 0.2*float64(napped) {
		t.Errorf("%v ns in naps, by state %v", napped, r.stats.OffCPUNSByState)
	}
	if r.stats.Complete*100 < r.stats.UserSamples*99 {
		t.Errorf("%d of %d stacks complete: %v", r.stats.Complete, r.stats.UserSamples, r.stats.TruncatedByReason)
	}
}

// vastProgram waits in two threads, behind a frame of 1 MB as ruby's threads have.
const vastProgram = `
#include <pthread.h>
#include <unistd.h>
__attribute__((noinline)) static void rest(volatile char *p) { pause(); p[0] = 1; }
__attribute__((noinline)) static void *vast(void *arg)
{
	volatile char words[1 << 20];
	words[0] = 1;
	rest(words);
	return arg;
}
int main(void)
{
	pthread_t t;
	pthread_create(&t, 0, vast, 0);
	write(1, "", 1);
	vast(0);
	return 0;
}
`

// Of threads that wait since before the recording the outermost frames are read too, where
// those before them are larger than what is copied.
func TestRecordOffCPUVastFrames(t *testing.T) {
	testenv.Needs(t, "gcc")
	path := build(t, "vast", "sh", "-c", "printf '%s' \"$1\" | gcc -O1 -pthread -xc -o OUT -", "sh", vastProgram)
	cmd := exec.Command(path)
	_, out := testenv.Start(t, cmd)
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // until both wait
	r := runRecord(t, "--off-cpu", "-d", "0.3", "-p", strconv.Itoa(cmd.Process.Pid))
	whole := 0
	for stack := range foldedStacks(t, r.folded) {
		if strings.Contains(stack, ";vast;rest;") && !strings.Contains(stack, "truncated") {
			whole++
		}
	}
	if whole != 2 || r.stats.Complete != r.stats.UserSamples {
		t.Errorf("%d stacks of %d are whole: %v\n%s", r.stats.Complete, r.stats.UserSamples, r.stats.TruncatedByReason, r.folded)
	}
}

// Long waits of a thread that also switches a hundred thousand times are told
// from the short ones, and from each other, though not all have a stack. Which
// ones have is chance, which may go wrong once.
func TestRecordOffCPUThinned(t *testing.T) {
	path := build(t, "often", "gcc", "-O1", "-pthread", "-o", "OUT", "testdata/targets/often.c")
	var wrong string
	for range 4 {
		out := filepath.Join(t.TempDir(), "out")
		r := runRecord(t, "--off-cpu", "--", "sh", "-c", "exec "+path+" 2000 >"+out)
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		var asked, got [2]float64
		if _, err := fmt.Sscan(string(b), &asked[0], &got[0], &asked[1], &got[1]); err != nil {
			t.Fatal(err)
		}
		if r.stats.Lost > 0 {
			t.Errorf("lost: %v", r.stats.LostByReason)
		}
		if r.stats.OffCPUUnsampled == 0 {
			t.Skip("this machine switches too seldom")
		}
		var slept [2]float64
		for _, s := range r.profile.Sample {
			if s.Label["state"][0] != "sleep" {
				continue
			}
			for i, function := range []string{"rest_short", "rest_long"} {
				if slices.Contains(stackOf(s), function) {
					slept[i] += float64(s.Value[len(s.Value)-1])
				}
			}
		}
		wrong = ""
		for i := range slept {
			if slept[i] < 0.9*asked[i] || slept[i] > 1.1*got[i] {
				wrong += fmt.Sprintf("asleep for %.1f ms, asked for %.1f and got %.1f; ", slept[i]/1e6, asked[i]/1e6, got[i]/1e6)
			}
		}
		if wrong == "" {
			return
		}
		t.Log(wrong)
	}
	t.Error(wrong)
}
