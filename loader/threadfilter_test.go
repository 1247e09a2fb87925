package loader

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// threadsOf returns the threads of a process by their names.
func threadsOf(pid int) (tids map[string]int, err error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	tids = map[string]int{}
	for _, e := range entries {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/comm", pid, e.Name()))
		tids[strings.TrimSpace(string(name))], _ = strconv.Atoi(e.Name())
	}
	return tids, err
}

// namedThreads is threadsOf when all have the names t0, t1 and so on that they give themselves.
func namedThreads(t *testing.T, pid, n int) map[string]int {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		tids, err := threadsOf(pid)
		named := 0
		for i := range n {
			if tids["t"+strconv.Itoa(i)] != 0 {
				named++
			}
		}
		if named == n {
			return tids
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("threads %v, %v", tids, err)
		}
	}
}

// Threads are sampled, and no others of their process, nor those that it starts later; by all sorts of events.
func TestThreads(t *testing.T) {
	t.Parallel()
	sleeps, err := ParseEvent("sched:sched_switch")
	if err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []Config{{Event: cpuClock, Frequency: 997}, {Event: sleeps}, {Event: OffCPU}, {Event: Wall, Frequency: 997}} {
		t.Run(cfg.Event.Name, func(t *testing.T) {
			kernelTest(t)
			p := startTarget(t, stackTarget(t), "threads", "8")
			tids := namedThreads(t, p.pid, 4)
			cfg.Threads = []int{tids["t0"], tids["t2"]}
			s := startSession(t, cfg)
			if _, err := p.stdin.Write([]byte(".")); err != nil { // more threads
				t.Fatal(err)
			}
			namedThreads(t, p.pid, 8)
			seen := map[int32]int{}
			end := time.Now().Add(200 * time.Millisecond)
			readUntil(t, s, func(smp *Sample) bool {
				seen[smp.TID]++
				if !slices.Contains(cfg.Threads, int(smp.TID)) || int(smp.PID) != p.pid {
					t.Errorf("sample of thread %d of process %d", smp.TID, smp.PID)
				}
				return len(seen) == 2 && time.Now().After(end)
			})
			if stats(t, s).SkippedFilter == 0 {
				t.Error("no other thread was left out")
			}
		})
	}
}

// The number of a thread that was asked for means it no more when another thread or process gets it.
func TestReusedTID(t *testing.T) {
	p := startTarget(t, stackTarget(t), "threads", "8")
	tids := namedThreads(t, p.pid, 4)
	s := startSession(t, Config{Event: cpuClock, Frequency: 997, Threads: []int{tids["t0"]}})
	const window = 2000
	next := nextPID(t)
	for tid := next; tid < next+window; tid++ {
		if err := s.flags.set(tid, processSampled); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.stdin.Write([]byte(".")); err != nil { // threads whose numbers are among these
		t.Fatal(err)
	}
	tids = namedThreads(t, p.pid, 8)
	for _, name := range []string{"t4", "t5", "t6", "t7"} {
		if s.flags.of(tids[name]) != 0 {
			t.Errorf("thread %d is sampled by the number that it got", tids[name])
		}
	}
	fresh := startTarget(t, stackTarget(t), "fill", "64")
	if s.flags.of(fresh.pid) != 0 {
		t.Errorf("process %d is sampled by the number that it got", fresh.pid)
	}
}

// The end of threads is told, whether others of their process go on or not.
func TestThreadsDone(t *testing.T) {
	kernelTest(t)
	tid, goOn := make(chan int), make(chan bool)
	var end func()
	end = func() {
		runtime.LockOSThread() // the thread ends with the goroutine, but for the first one
		if unix.Gettid() == unix.Getpid() {
			go end()
		} else {
			tid <- unix.Gettid()
		}
		<-goOn
	}
	go end()
	own := ThreadsDone([]int{<-tid})
	close(goOn)
	select {
	case <-own:
	case <-time.After(patience):
		t.Error("the end of a thread is not told")
	}
	p := startTarget(t, stackTarget(t), "threads", "4")
	tids := namedThreads(t, p.pid, 2)
	done := ThreadsDone([]int{tids["t0"], tids["t1"], 1 << 22}) // ESRCH
	if done == nil {
		t.Fatal("the kernel does not tell")
	}
	select {
	case <-done:
		t.Error("they are told to have ended, and go on")
	case <-time.After(50 * time.Millisecond):
	}
	_ = p.cmd.Process.Kill()
	select {
	case <-done:
	case <-time.After(patience):
		t.Error("their end is not told")
	}
	for _, tid := range []int{-1, 0, 1 << 22, tids["t1"]} {
		if s, err := Open(Config{Threads: []int{tid}}); err == nil || !strings.Contains(err.Error(), "no such thread") || tid > 0 && !errors.Is(err, procstate.ErrNoThread) {
			if err == nil {
				s.Close()
			}
			t.Errorf("thread %d: %v", tid, err)
		}
	}
}

// CPUs are sampled, and no others, by counters, tracepoints and probes; where one comes back, too.
func TestCPUs(t *testing.T) {
	online, err := onlineCPUs()
	if err != nil {
		t.Fatal(err)
	}
	switches, err := ParseEvent("sched:sched_switch")
	if err != nil {
		t.Fatal(err)
	}
	want := allowedCPU(t)
	startTarget(t, stackTarget(t), "fill", "64") // wherever there is room
	var one unix.CPUSet
	one.Set(want)
	if err := unix.SchedSetaffinity(startTarget(t, stackTarget(t), "fill", "64").pid, &one); err != nil {
		t.Fatal(err)
	}
	for _, event := range []Event{cpuClock, switches} {
		s := startSession(t, Config{Event: event, CPUs: []int{want}})
		n := 0
		readUntil(t, s, func(smp *Sample) bool {
			if n++; int(smp.CPU) != want {
				t.Errorf("%s: a sample on CPU %d, want %d alone", event.Name, smp.CPU, want)
			}
			return n > 50
		})
		if c := s.sources[0].cpus; c != nil {
			if err := c.follow(online, s.sources[0].prog.FD(), true); err != nil || len(c.fds) != 1 {
				t.Errorf("events on CPUs %v, %v", c.fds, err)
			}
		}
	}
	for _, cfg := range []Config{{CPUs: []int{maxCPUs - 1}}, {CPUs: []int{want}, Event: OffCPU}, {CPUs: []int{want}, Event: Wall}, {Threads: []int{1}, PIDs: []int{1}}} {
		if s, err := Open(cfg); err == nil {
			s.Close()
			t.Errorf("%+v can be sampled", cfg)
		}
	}
}

func TestParseCPUs(t *testing.T) {
	online, err := onlineCPUs()
	if err != nil {
		t.Fatal(err)
	}
	list := FormatCPUs(online)
	if got, err := ParseCPUs(list + "," + fmt.Sprint(online[0])); err != nil || !slices.Equal(got, online) {
		t.Errorf("%q: %v, %v; want %v", list, got, err, online)
	}
	for _, list := range []string{"", "x", "3-1", "0-65535", "-1"} {
		if got, err := ParseCPUs(list); err == nil {
			t.Errorf("%q: %v", list, got)
		}
	}
	for text, cpus := range map[string][]int{"": nil, "4": {4}, "0-1": {0, 1}, "0-3,8,10-11": {0, 1, 2, 3, 8, 10, 11}} {
		if got := FormatCPUs(cpus); got != text {
			t.Errorf("%v is %q, want %q", cpus, got, text)
		}
	}
}
