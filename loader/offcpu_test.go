package loader

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/btf"
)

// offCPUOf runs the program of testdata/block.c and returns, by thread, the
// time off the CPU in calls of the function in ns, and what the program says.
func offCPUOf(t *testing.T, mode string, n, ms int) (samples []blockedSample, said float64, st Stats) {
	t.Helper()
	path := build(t, "block.c", "-O1", "-no-pie", "-fno-optimize-sibling-calls", "-pthread")
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	// The shell is the process that is recorded; exec keeps its number.
	cmd, s := started(t, Config{Event: OffCPU, Kernel: true}, "/bin/sh", "-c",
		fmt.Sprintf("exec %s %s %d %d >%s", path, mode, n, ms, out.Name()))
	function := symbolValue(t, path, "block_in_"+mode)
	finish(t, cmd, s)
	drain(t, s, func(p *Sample) {
		if p.Unsampled {
			samples = append(samples, blockedSample{ns: float64(p.Weight), state: p.Blocked, pid: p.PID, tid: p.TID, rest: true})
			return
		}
		samples = append(samples, blockedSample{
			rest: p.Continued, pid: p.PID,
			ns: float64(p.Weight), state: p.Blocked, tid: p.TID,
			inCall: p.TID == p.PID && returnsInto(p, function, function+64), kernel: len(p.Kernel),
		})
		if !p.HasUser() && p.User != UserExec && p.User != UserExited {
			t.Errorf("sample without user part: %v", p.User)
		}
	})
	b, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(b), &said); err != nil {
		t.Fatal(err)
	}
	return samples, said, stats(t, s)
}

type blockedSample struct {
	ns     float64
	state  Blocked
	pid    int32
	tid    int32
	inCall bool
	rest   bool // no sample of its own
	kernel int
}

// returnsInto reports whether a word of the stack is an address in a range. It
// may be left over from an earlier call.
func returnsInto(p *Sample, start, end uint64) bool {
	for _, r := range p.Regions {
		for i := 0; i+8 <= len(r.Data); i += 8 {
			v := uint64(0)
			for j := range 8 {
				v |= uint64(r.Data[i+j]) << (8 * j)
			}
			if v > start && v < end {
				return true
			}
		}
	}
	return false
}

// The time that a program blocks in a function, by the samples, is what the
// program itself measures, within two percent.
func TestOffCPUDurations(t *testing.T) {
	for _, c := range []struct {
		mode  string
		n, ms int
		state Blocked
	}{
		{"sleep", 10, 30, BlockedSleep},
		{"lock", 10, 30, BlockedLock},
		{"pipe", 10, 30, BlockedSleep},
	} {
		t.Run(c.mode, func(t *testing.T) {
			samples, said, st := offCPUOf(t, c.mode, c.n, c.ms)
			// What the program sees pass is the time that it waits, and what it
			// then waits for a CPU; it runs for next to nothing.
			waits, runnable, n, counted := 0.0, 0.0, 0, 0
			for _, s := range samples {
				if !s.rest {
					counted++
				}
				switch {
				case s.state == BlockedRunnable && s.tid == s.pid:
					runnable += s.ns
				case s.inCall && s.state == c.state:
					waits += s.ns
					if s.ns > float64(c.ms)*1e6/2 {
						n++
					}
					if s.kernel == 0 {
						t.Errorf("blocked by %v without kernel frames", s.state)
					}
				}
			}
			if n != c.n || waits > 1.02*said || said > 1.02*(waits+runnable) {
				t.Errorf("%d waits of %.1f ms, and %.1f ms for a CPU; the program saw %d of %.1f ms", n, waits/1e6, runnable/1e6, c.n, said/1e6)
			}
			if st.Lost() != 0 || st.Samples != uint64(counted) {
				t.Errorf("%d samples read: %+v", counted, st)
			}
		})
	}
}

// A thread that is still blocked at the end is a sample too, and short times
// are left out.
func TestOffCPUAtTheEnd(t *testing.T) {
	p := startTarget(t, stackTarget(t), "threads", "2") // its main thread waits for a byte
	s := startSession(t, Config{Event: OffCPU, PIDs: []int{p.pid}, MinOffCPU: 50 * time.Millisecond})
	begin := monotonic()
	if _, err := p.stdin.Write([]byte{'.'}); err != nil {
		t.Fatal(err)
	}
	awaitPause(t, p.pid)
	paused := monotonic()
	time.Sleep(200 * time.Millisecond)
	atLeast := monotonic() - paused
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	end := monotonic()
	n := 0
	for range 2 { // the second time there is nothing
		drain(t, s, func(smp *Sample) {
			if int(smp.TID) != p.pid || smp.Time < paused {
				return // another thread, or one of its waits before
			}
			n++
			if smp.Weight < atLeast || smp.Weight > end-begin || smp.Time > end {
				t.Errorf("%d ms at the end, want %d to %d", smp.Weight/1e6, atLeast/1e6, (end-begin)/1e6)
			}
		})
	}
	if n != 1 {
		t.Errorf("%d samples of the thread that waits", n)
	}
}

// Long times off the CPU have their stacks where most times are not sampled: those
// that end, when somebody reads meanwhile, and those that last, also when nobody does.
func TestOffCPULate(t *testing.T) {
	const threads = 8
	for _, c := range []struct {
		name  string
		ms    int // that each thread is late
		ends  bool
		least time.Duration
	}{
		{"while it lasts", 400, true, 390 * time.Millisecond},
		{"at the end", 1_000_000, false, 20 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := build(t, "late.c", "-O1", "-no-pie", "-fno-optimize-sibling-calls", "-pthread")
			function := symbolValue(t, path, "sleep_late")
			p := startTarget(t, path, fmt.Sprint(threads), fmt.Sprint(c.ms))
			s := startSession(t, Config{Event: OffCPU, Kernel: true, PIDs: []int{p.pid}})
			late := map[int32]uint64{} // ns, by thread
			read := func(p *Sample) error {
				if p.Blocked == BlockedSleep && !p.Unsampled && returnsInto(p, function, function+64) {
					late[p.TID] = max(late[p.TID], p.Weight)
					if len(p.Kernel) == 0 {
						t.Errorf("thread %d: no kernel frames", p.TID)
					}
				}
				return nil
			}
			if _, err := p.stdin.Write([]byte{'.'}); err != nil {
				t.Fatal(err)
			}
			awaitLate(t, p.pid, threads)
			if c.ends {
				for lateThreads(p.pid) > 0 {
					if err := s.ReadSamples(monotonic(), read); err != nil {
						t.Fatal(err)
					}
					time.Sleep(5 * time.Millisecond)
				}
			} else {
				time.Sleep(2 * c.least)
			}
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
			drain(t, s, func(p *Sample) { _ = read(p) })
			st := stats(t, s)
			if st.SkippedRate == 0 || len(late) != threads {
				t.Errorf("%d of %d threads were late, %d times not sampled", len(late), threads, st.SkippedRate)
			}
			for tid, ns := range late {
				if ns < uint64(c.least) {
					t.Errorf("thread %d was late for %v, want %v", tid, time.Duration(ns), c.least)
				}
			}
		})
	}
}

// All threads that wait when the session starts have their stacks: more than the
// kernel hands over at once.
func TestOffCPUManyWaiting(t *testing.T) {
	const threads = 1000
	path := build(t, "late.c", "-O1", "-no-pie", "-fno-optimize-sibling-calls", "-pthread")
	function := symbolValue(t, path, "sleep_late")
	p := startTarget(t, path, fmt.Sprint(threads), "1000000")
	if _, err := p.stdin.Write([]byte{'.'}); err != nil {
		t.Fatal(err)
	}
	awaitLate(t, p.pid, threads)
	s := startSession(t, Config{Event: OffCPU, Kernel: true, PIDs: []int{p.pid}})
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	late := map[int32]bool{}
	drain(t, s, func(p *Sample) {
		if late[p.TID] {
			t.Errorf("thread %d has another sample: %v, %d ns, unsampled %v", p.TID, p.Blocked, p.Weight, p.Unsampled)
		}
		late[p.TID] = p.Blocked == BlockedSleep && !p.Unsampled && returnsInto(p, function, function+64) && len(p.Kernel) > 0
	})
	for tid, is := range late {
		if !is {
			t.Errorf("thread %d has no stack", tid)
		}
	}
	if len(late) != threads {
		t.Errorf("%d of %d threads", len(late), threads)
	}
}

// awaitLate waits until so many threads of testdata/late.c are late.
func awaitLate(t *testing.T, pid, threads int) {
	t.Helper()
	for end := time.Now().Add(patience); lateThreads(pid) < threads; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d of %d threads are late", lateThreads(pid), threads)
		}
	}
}

// lateThreads is how many threads of testdata/late.c are late.
func lateThreads(pid int) (n int) {
	names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && string(b) == "asleep\n" {
			n++
		}
	}
	return n
}

// awaitPause waits until a program is in pause.
func awaitPause(t *testing.T, pid int) {
	t.Helper()
	call := map[string]string{"amd64": "34 ", "arm64": "73 "}[runtime.GOARCH] // of libc: pause, ppoll
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid)); strings.HasPrefix(string(b), call) {
			return
		}
	}
	t.Fatal("the program does not come to its pause")
}

// Every time off the CPU is accounted for, also when there are too many and
// when the ring is small.
func TestOffCPUAccount(t *testing.T) {
	const times = 300
	for _, ring := range []int{0, 4096} {
		cmd, s := started(t, Config{Event: OffCPU, RingBytes: ring, MinOffCPU: 1}, "/bin/sh", "-c", "exec "+
			build(t, "block.c", "-O1", "-no-pie", "-fno-optimize-sibling-calls", "-pthread")+" sleep 300 1 >/dev/null")
		finish(t, cmd, s)
		n := 0
		drain(t, s, func(p *Sample) {
			if !p.Continued && !p.Unsampled {
				n++
			}
		})
		st := stats(t, s)
		if got := st.Samples + st.Lost() + st.SkippedRate + st.SkippedShort; got < times {
			t.Errorf("%d times accounted for, there were %d: %+v", got, times, st)
		}
		if ring == 0 && (uint64(n) != st.Samples || st.Lost() != 0) || ring != 0 && st.SkippedRate+st.LostRingFull == 0 {
			t.Errorf("ring of %d: %d samples read, %+v", ring, n, st)
		}
	}
}

// The kernel's own format file says whether the tracepoint has the state.
func TestSwitchTellsState(t *testing.T) {
	kernelTest(t)
	got, err := switchTellsState(btf.NewCache())
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("uname", "-r").Output()
	if err != nil {
		t.Fatal(err)
	}
	major, minor, ok := parseRelease(strings.TrimSpace(string(out)))
	if want := major > 5 || major == 5 && minor >= 18; ok && got != want {
		t.Errorf("Linux %d.%d: %v", major, minor, got)
	}
}
