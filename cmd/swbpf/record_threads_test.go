package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/profile"
)

// threadsProgram starts a thread that sleeps 5 ms at a time until something can be read, one that does so for as long
// as the program lives, and one that computes half of the time; it tells their IDs.
const threadsProgram = `#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static int stop(int ms) { struct pollfd p = {.events = POLLIN}; return poll(&p, 1, ms); }
static void told(const char *name) { printf("%s %d\n", name, gettid()); fflush(stdout); }
static void *brief(void *a) { told("brief"); while (!stop(5)) ; return a; }
static void *lasting(void *a) { told("lasting"); for (;;) usleep(5000); return a; }
static void *busy(void *a) { told("busy"); for (volatile long n = 1;; n++) if (n % 1000000 == 0) usleep(2000); return a; }
int main(void) {
	pthread_t t;
	pthread_create(&t, 0, brief, 0);
	pthread_create(&t, 0, lasting, 0);
	pthread_create(&t, 0, busy, 0);
	for (;;) pause();
}`

// threadAt is a thread at a time in us.
type threadAt struct {
	tid string
	us  int
}

// startThreads starts threadsProgram. end has its first thread end.
func startThreads(t *testing.T) (pid string, tids map[string]string, end func()) {
	t.Helper()
	source := filepath.Join(t.TempDir(), "threads.c")
	if err := os.WriteFile(source, []byte(threadsProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(build(t, "some-threads", "gcc", "-O1", "-pthread", "-o", "OUT", source))
	in, out := testenv.Start(t, cmd)
	tids = map[string]string{}
	for lines := bufio.NewScanner(out); len(tids) < 3; {
		if !lines.Scan() {
			t.Fatal("the program has ended")
		}
		name, tid, _ := strings.Cut(lines.Text(), " ")
		tids[name] = tid
	}
	return fmt.Sprint(cmd.Process.Pid), tids, func() { _, _ = in.Write([]byte(".")) }
}

// Some threads are recorded as perf does, and a recording of them ends when they do, though their process goes on.
func TestRecordSomeThreads(t *testing.T) {
	needRecord(t)
	testenv.Needs(t, "perf")
	pid, tids, end := startThreads(t)
	dir := t.TempDir()

	cmd := exec.Command(swbpf(t), "record", "-t", tids["brief"]+","+tids["lasting"], "-e", "sched:sched_switch", "-o", "s.perf.txt", "-d", "1.5", "--no-kernel")
	cmd.Dir = dir
	perf := exec.Command("perf", "record", "-q", "-k", "mono", "-c", "1", "-e", "sched:sched_switch", "-t", tids["brief"]+","+tids["lasting"], "-o", filepath.Join(dir, "perf.data"), "sleep", "100")
	if err := perf.Start(); err != nil {
		t.Fatal(err)
	}
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	_ = perf.Process.Signal(os.Interrupt)
	_ = perf.Wait() // the status is that of the signal
	script, err := exec.Command("perf", "script", "-i", filepath.Join(dir, "perf.data"), "-F", "pid,tid,time,event").Output()
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(filepath.Join(dir, "s.perf.txt"))
	if err != nil {
		t.Fatal(err)
	}
	at := regexp.MustCompile(`(?m)(\d+)/(\d+) +(\d+\.\d{6})\d*: `)
	switches := func(text []byte) (all []threadAt) {
		for _, m := range at.FindAllSubmatch(text, -1) {
			var sec, usec int
			_, _ = fmt.Sscanf(string(m[3]), "%d.%d", &sec, &usec)
			all = append(all, threadAt{string(m[2]), sec*1e6 + usec})
		}
		return all
	}
	want := switches(script)
	if len(want) == 0 {
		t.Fatal("perf has recorded nothing")
	}
	began, ended := want[0].us, want[len(want)-1].us // of perf, which may have begun later
	mine, both, threads := 0, 0, map[string]int{}
	for _, s := range switches(own) {
		threads[s.tid]++
		if s.us < began || s.us > ended {
			continue
		}
		mine++
		const apart = 100 // us, as the two do not read the clock at the same moment
		if slices.ContainsFunc(want, func(w threadAt) bool { return w.tid == s.tid && max(w.us-s.us, s.us-w.us) < apart }) {
			both++
		}
	}
	if len(threads) != 2 || threads[tids["brief"]] < 50 || threads[tids["lasting"]] < 50 || mine < 50 || float64(both) < 0.95*float64(mine) {
		t.Errorf("samples by thread: %v, of %v; perf has %d of %d of them\n%s", threads, tids, both, mine, said)
	}

	cmd = exec.Command(swbpf(t), "record", "-t", tids["brief"], "--wall", "-o", "w.pb.gz")
	cmd.Dir = dir
	progress, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	watched := func() bool {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", cmd.Process.Pid))
		n := 0
		for _, fd := range fds {
			if link, _ := os.Readlink(fd); strings.Contains(link, "bpf-prog") {
				n++
			}
		}
		return n > 0
	}
	waitFor(t, "the recording to be under way", watched)
	_, _, status := runSwbpf(t, dir, "walk", "-t", tids["brief"])
	if status != exitOK {
		t.Errorf("walk: status %d", status)
	}
	time.Sleep(300 * time.Millisecond)
	end()
	text, _ := bufio.NewReader(progress).ReadString(0)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	p, err := readProfile(filepath.Join(dir, "w.pb.gz"), profile.ReadOptions{}, codeOptions{})
	if err != nil || p.Meta.Target != "thread "+tids["brief"] || p.Samples == 0 {
		t.Errorf("%v: %d samples of %+v", err, p.Samples, p.Meta)
	}
	if _, stderr, status := runSwbpf(t, dir, "record", "-t", tids["brief"]); status != exitCannot || !strings.Contains(stderr, "no such thread") {
		t.Errorf("a thread that has ended: status %d\n%s", status, stderr)
	}

	for args, want := range map[string]string{"-t " + tids["lasting"]: "thread " + tids["lasting"], "-C 0 -p " + pid: "pid " + pid + " on CPU 0", "-C 0": "CPU 0"} {
		if _, stderr, status := runSwbpf(t, dir, append([]string{"record", "-e", "cpu-clock,sched:sched_switch", "-d", "0.3", "--sample-cpu", "-o", "c.pb.gz"}, strings.Fields(args)...)...); status != 0 {
			t.Errorf("%s: status %d\n%s", args, status, stderr)
			continue
		}
		p, err := readProfile(filepath.Join(dir, "c.pb.gz"), profile.ReadOptions{SampleType: "sched:sched_switch"}, codeOptions{})
		if err != nil || p.Meta.Target != want {
			t.Errorf("%s: %v: target %q", args, err, p.Meta.Target)
		}
	}
}
