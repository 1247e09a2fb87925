package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
)

// TestRecordWorkloads records programs of the distribution and of the tests,
// and checks that stacks are complete, that samples are as many as the CPU
// time says, and that none is lost.
func TestRecordWorkloads(t *testing.T) {
	gogc := build(t, "gogc", "go", "build", "-o", "OUT", "./testdata/targets/gogc")
	deepThread := build(t, "deepthread", "gcc", "-O2", "-pthread", "-o", "OUT", "testdata/targets/deepthread.c")
	gaps := build(t, "gaps", "gcc", "-O2", "-pthread", "-o", "OUT", "testdata/targets/gaps.c")
	bigFrames := build(t, "bigframes", "gcc", "-O2", "-pthread", "-o", "OUT", "testdata/targets/bigframes.c")
	brief := build(t, "briefthreads", "gcc", "-O2", "-pthread", "-o", "OUT", "testdata/targets/briefthreads.c")
	mixedThreads := build(t, "mixedthreads", "gcc", "-O2", "-pthread", "-o", "OUT", "testdata/targets/mixedthreads.c")
	random := filepath.Join(t.TempDir(), "random")
	writeCompressible(t, random, 2<<20)
	for _, tc := range []struct {
		name     string
		hz       []int
		complete float64 // percent of user samples
		alone    bool    // must be looked at soon
		command  []string
	}{
		{"go-gc", []int{99, 997}, 99.5, false, []string{gogc, "1"}},
		// One stack in sixty is longer than 64 KiB...
		{"cc1plus", []int{99, 997}, 99.5, false, []string{"g++", "-O1", "-c", "testdata/targets/heavy.cc", "-o", "/dev/null"}},
		// ...and nearly all are of this, in a thread.
		{"deep-thread", []int{997}, 99.5, false, []string{deepThread, "1"}},
		// Thirty pieces of each stack are not there.
		{"gaps", []int{99, 997}, 99.5, false, []string{gaps, "1"}},
		// What is copied at first is a part of one frame of three: some walks are cut until the others are known, 50 to 100 ms
		// of each thread.
		{"big-frames", []int{99, 997}, 94, true, []string{bigFrames, "4"}},
		// ...and here of the only one, which is over by then.
		{"brief-threads", []int{99, 997}, 99, true, []string{brief, "50"}},
		{"brief-threads/untouched", []int{99, 997}, 99, true, []string{brief, "50", "-"}},
		// Its last thread's samples end where others' do, until that is known to be wrong.
		{"mixed-threads", []int{99, 997}, 80, true, []string{mixedThreads, "2"}},
		{"python3", []int{997}, 99.5, false, []string{"python3", "-c", "s = 0\nfor i in range(8000000): s += i * i"}},
		{"xz", []int{997}, 99.5, false, []string{"xz", "-k", "-c", "-9", random}},
		{"short-lived", []int{99, 997}, 97, true, []string{"sh", "testdata/targets/shortlived.sh", "60"}},
		{"exec-chain", []int{99, 997}, 97, true, []string{"sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do sh testdata/targets/execchain.sh; done; true"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testenv.Needs(t, tc.command[0])
			if !tc.alone {
				t.Parallel()
			}
			// Of all rates together, which long tests have: at 99 Hz a single sample is a
			// quarter of a percent.
			var complete, user uint64
			for _, hz := range testenv.Some(tc.hz) {
				r, clock := runClocked(t, []string{"-F", fmt.Sprint(hz)}, tc.command...)
				if r.exit != 0 {
					t.Errorf("%d Hz: exit status %d\n%s", hz, r.exit, r.stderr)
				}
				r.wantRate(t, clock, float64(hz))
				complete += r.stats.Complete
				user += r.stats.UserSamples
				if r.stats.Truncated > 0 {
					t.Logf("%d Hz: truncated: %v", hz, r.stats.TruncatedByReason)
				}
			}
			wantShare(t, "complete", complete, user, tc.complete)
		})
	}
}

// Code that is made at run time and given up: a quarter of its samples are looked at when
// other code is in its place, and it is taken as it was read before.
func TestRecordGivenUpCode(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("the code is for x86-64")
	}
	givenUp := build(t, "givenup", "gcc", "-O2", "-o", "OUT", "testdata/targets/givenup.c")
	r := runRecord(t, "-F", "997", "--", givenUp, "10")
	wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 97)
}

// A program that was packed, and has unpacked itself into memory, has its functions and its unwind tables there.
func TestRecordUnpacked(t *testing.T) {
	t.Parallel()
	unpacked := build(t, "unpacked", "gcc", "-O2", "-fomit-frame-pointer", "-pie", "-fPIE", "-o", "OUT", "testdata/targets/unpacked.c")
	r := runRecord(t, "-F", "499", "--no-kernel", "--", unpacked, "2")
	wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 95)
	whole := regexp.MustCompile(`;main(?:;unpacked \(unpacked\)\+0x[0-9a-f]+){22} (\d+)\n`)
	known := uint64(0)
	for line := range strings.Lines(r.folded) {
		if m := whole.FindStringSubmatch(line); m != nil {
			n, _ := strconv.ParseUint(m[1], 10, 64)
			known += n
		}
	}
	wantShare(t, "known as its own", known, r.stats.UserSamples, 60) // from when it is looked at
	cmd := exec.Command(unpacked, "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	waitFor(t, "its own code", func() bool {
		out, _, _ := runWalk(t, strconv.Itoa(cmd.Process.Pid))
		return strings.Contains(out, "unpacked (unpacked)") && strings.Contains(out, ": complete") && strings.Contains(out, " main+0x")
	})
}

// Functions without unwind tables in a large file: nothing waits for that to be looked through.
func TestRecordHandWritten(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the code is for x86-64")
	}
	handWritten := build(t, "handwritten", "gcc", "-O2", "-s", "-rdynamic", "-o", "OUT", "testdata/targets/handwritten.c")
	r := runRecord(t, "-F", "997", "--", handWritten, "0.5")
	wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 99.5)
}

// Programs in Go that live for a few milliseconds: of all but the first the kernel
// side knows what they are before they run.
func TestRecordShortGo(t *testing.T) {
	for _, mode := range testenv.Some([]string{"exe", "pie"}) {
		t.Run(mode, func(t *testing.T) {
			gogc := build(t, "gogc-"+mode, "go", "build", "-buildmode", mode, "-ldflags", "-s -w", "-o", "OUT", "./testdata/targets/gogc")
			r := runRecord(t, "-F", "1997", "--", "sh", "-c", "$0 0; sleep 0.5; for i in $(seq 80); do $0 0; done", gogc)
			comm := filepath.Base(gogc)
			first := int64(1 << 32)
			for _, s := range r.profile.Sample {
				if slices.Equal(s.Label["comm"], []string{comm}) {
					first = min(first, s.NumLabel["pid"][0])
				}
			}
			pids, unknown := map[int64]bool{}, map[int64][]string{}
			for _, s := range r.profile.Sample {
				pid := s.NumLabel["pid"][0]
				if pid == first || !slices.Equal(s.Label["comm"], []string{comm}) {
					continue
				}
				pids[pid] = true
				if stack := stackOf(s); slices.ContainsFunc(stack, func(name string) bool { return strings.HasPrefix(name, "[truncated") }) {
					unknown[pid] = stack
				}
			}
			if len(unknown) > 0 {
				t.Errorf("%d of %d processes: %v", len(unknown), len(pids), unknown)
			}
			if len(pids) < 40 {
				t.Errorf("samples of %d processes", len(pids))
			}
		})
	}
}

// All threads of a machine that is busy with them are sampled thousands of times a
// second, each time with another 60 KB of stack: the rings, full within 27 ms, are emptied
// in time. Where the machine itself has not run a CPU for as long, that tells nothing.
func TestRecordBurst(t *testing.T) {
	burst := build(t, "burst", "gcc", "-O2", "-pthread", "-o", "OUT", "testdata/targets/burst.c")
	for try := 1; ; try++ {
		longest := watchStalls(t)
		r := runRecord(t, "-F", "4999", "--", burst, "2")
		s, stalled := &r.stats, longest()
		if s.BytesSent < s.Samples*40<<10 {
			t.Errorf("%d bytes of %d samples", s.BytesSent, s.Samples)
		}
		wantShare(t, "complete", s.Complete, s.UserSamples, 99)
		if s.Lost*100 > s.Samples && stalled > 15*time.Millisecond && try < 10 {
			t.Logf("%d samples, %d lost: a CPU did not run for %v", s.Samples, s.Lost, stalled)
			continue
		}
		t.Logf("each CPU ran every %v", stalled)
		wantShare(t, "not lost", s.Samples, s.Samples+s.Lost, 99)
		return
	}
}

// watchStalls begins to watch whether the machine runs all CPUs. The result ends that, and
// returns for how long at most one did not run what comes before all else.
func watchStalls(t *testing.T) func() time.Duration {
	t.Helper()
	cmd := exec.Command(build(t, "stalls", "gcc", "-O2", "-pthread", "-o", "OUT", "testdata/targets/stalls.c"))
	in, out := testenv.Start(t, cmd)
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		testenv.Lacks(t, "a thread that comes before all else")
	}
	return func() (longest time.Duration) {
		in.Close()
		cpus := 0
		for ; lines.Scan(); cpus++ {
			us, err := strconv.Atoi(lines.Text())
			if err != nil {
				t.Fatal(err)
			}
			longest = max(longest, time.Duration(us)*time.Microsecond)
		}
		if cpus == 0 {
			t.Fatal("no CPU was watched")
		}
		return longest
	}
}

// Of events that each are a sample, however many, what is the same in a large stack
// is not sent.
func TestRecordFaults(t *testing.T) {
	faults := build(t, "faults", "gcc", "-O1", "-o", "OUT", "testdata/targets/faults.c")
	r := runRecord(t, "-e", "page-faults", "--stack-bytes", "1048576", "--", faults, "10000")
	s := &r.stats
	if s.Lost != 0 || s.Samples < 10000 {
		t.Errorf("%d samples, lost: %v", s.Samples, s.LostByReason)
	}
	wantShare(t, "complete", s.Complete, s.UserSamples, 99)
}

// TestRecordCloneChild: a child with a stack of its own in that of a thread is seen whole in each C
// library's clone, which calls above what it was given.
func TestRecordCloneChild(t *testing.T) {
	for _, cc := range []string{"gcc", "musl-gcc"} {
		t.Run(cc, func(t *testing.T) {
			prog := build(t, "clonechild-"+cc, cc, "-O1", "-pthread", "-o", "OUT", "testdata/targets/clonechild.c")
			r := runRecord(t, "-e", "syscalls:sys_enter_execve", "--no-kernel", "--", prog)
			if r.exit != 0 || r.stats.UserSamples != 20 || r.stats.Complete != 20 {
				t.Errorf("exit status %d, %d of %d stacks complete, want 20\n%s", r.exit, r.stats.Complete, r.stats.UserSamples, r.folded)
			}
		})
	}
}

// writeCompressible writes n bytes that keep a compressor busy.
func writeCompressible(t *testing.T, path string, n int) {
	t.Helper()
	b := make([]byte, 0, n)
	for x := uint32(1); len(b) < n; {
		x = x*1664525 + 1013904223
		b = fmt.Appendf(b, "%d line %x\n", x>>20, x>>12)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestRecordPID records a running server by its PID, under load.
func TestRecordPID(t *testing.T) {
	for _, prog := range []string{"redis-server", "redis-benchmark"} {
		testenv.Needs(t, prog)
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "redis.sock")
	server := exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", dir)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { server.Process.Kill(); server.Wait() }()
	waitFor(t, "redis to listen", func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	load := exec.Command("redis-benchmark", "-s", socket, "-l", "-q", "-t", "set,get,lpush,zadd")
	if err := load.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { load.Process.Kill(); load.Wait() }()

	r := runRecord(t, "-F", "997", "-d", "2", "-p", fmt.Sprint(server.Process.Pid))
	wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 99.5)
	if r.stats.Lost != 0 {
		t.Errorf("lost %v", r.stats.LostByReason)
	}
	if r.stats.Processes != 1 {
		t.Errorf("%d samples of %d processes", r.stats.Samples, r.stats.Processes)
	}
	if !strings.Contains(r.folded, "redis-server;_start;__libc_start_main") {
		t.Errorf("no stack from _start on in the folded stacks:\n%.2000s", r.folded)
	}
}

// TestRecordMachine records everything, while programs come and go.
func TestRecordMachine(t *testing.T) {
	target := build(t, "depth30", "g++", "-O2", "-fomit-frame-pointer", "-o", "OUT", "testdata/targets/depth30.cc")
	ours := []string{"depth30", "sh"}
	for _, c := range []*exec.Cmd{exec.Command(target, "1000"), exec.Command("sh", "testdata/targets/shortlived.sh", "100000")} {
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer c.Wait()
		defer syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	}
	r := runRecord(t, "-a", "-d", "2")
	if r.stats.FrequencyHz != defaultFrequency {
		t.Errorf("default frequency is %d", r.stats.FrequencyHz)
	}
	if r.stats.Lost != 0 {
		t.Errorf("lost %v", r.stats.LostByReason)
	}
	// What else runs on the machine may have no unwind tables, which is then
	// said: only of these programs it is known that they can be unwound.
	var complete, all int64
	for _, comm := range ours {
		n := int64(0)
		for _, s := range r.profile.Sample {
			if !slices.Equal(s.Label["comm"], []string{comm}) {
				continue
			}
			n += s.Value[0]
			if !slices.ContainsFunc(stackOf(s), func(name string) bool { return strings.HasPrefix(name, "[truncated") }) {
				complete += s.Value[0]
			}
		}
		if n == 0 {
			t.Errorf("no stacks of %s", comm)
		}
		all += n
	}
	wantShare(t, "complete", uint64(complete), uint64(all), 97)
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited in vain for %s", what)
}
