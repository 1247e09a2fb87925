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
	"unsafe"

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

// lateRun records testdata/late.c, most of whose times off the CPU are not sampled.
type lateRun struct {
	*target
	s *Session
	// By thread, in ns: the time asleep in sleep_late that has a stack, and all time asleep.
	ns, asleep map[int32]uint64

	function uint64 // sleep_late
}

const lateThreads = 8

func startLate(t *testing.T, ms int) *lateRun {
	path := build(t, "late.c", "-O1", "-no-pie", "-fno-optimize-sibling-calls", "-pthread")
	r := &lateRun{target: startTarget(t, path, fmt.Sprint(lateThreads), "300", fmt.Sprint(ms)),
		ns: map[int32]uint64{}, asleep: map[int32]uint64{}, function: symbolValue(t, path, "sleep_late")}
	r.s = startSession(t, Config{Event: OffCPU, Kernel: true, PIDs: []int{r.pid}})
	if _, err := r.stdin.Write([]byte{'.'}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *lateRun) add(p *Sample) error {
	if p.Blocked == BlockedSleep && int(p.TID) != r.pid {
		r.asleep[p.TID] += p.Weight
	}
	if p.Blocked == BlockedSleep && !p.Unsampled && len(p.Kernel) > 0 && returnsInto(p, r.function, r.function+64) {
		r.ns[p.TID] += p.Weight
	}
	return nil
}

// readToEnd reads until the threads have ended.
func (r *lateRun) readToEnd(t *testing.T) {
	t.Helper()
	begun, n := false, 1
	for end := time.Now().Add(patience); !begun || n > 1; begun = begun || n > 1 {
		if time.Now().After(end) {
			t.Fatalf("%d threads after %v", n, patience)
		}
		if err := r.s.ReadSamples(monotonic(), r.add); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", r.pid))
		if err != nil {
			t.Fatal(err)
		}
		n = len(tasks)
	}
}

// check checks that every thread was late for so long at least.
func (r *lateRun) check(t *testing.T, least time.Duration) {
	t.Helper()
	if err := r.s.Stop(); err != nil {
		t.Fatal(err)
	}
	drain(t, r.s, func(p *Sample) { _ = r.add(p) })
	if st := stats(t, r.s); st.SkippedRate == 0 || len(r.ns) != lateThreads {
		t.Errorf("%d of %d threads were late, %d times not sampled", len(r.ns), lateThreads, st.SkippedRate)
	}
	for tid, ns := range r.ns {
		if ns < uint64(least) {
			t.Errorf("thread %d was late for %v, want %v", tid, time.Duration(ns), least)
		}
	}
}

// Long times off the CPU have their stacks, also where most times are not sampled, if
// somebody reads meanwhile.
func TestOffCPULate(t *testing.T) {
	const ms = 1000
	r := startLate(t, ms)
	r.readToEnd(t)
	r.check(t, ms*time.Millisecond*99/100)
}

// Where the kernel does not list threads any more, the recording goes on without
// their stacks, and their times still sum up.
func TestOffCPULateFails(t *testing.T) {
	const ms = 500
	r := startLate(t, ms)
	other, err := r.s.hooks[0].prog.Clone() // no program that lists threads
	if err != nil {
		t.Fatal(err)
	}
	if err := r.s.waiting.Close(); err != nil {
		t.Fatal(err)
	}
	r.s.waiting = other
	if _, err := r.s.listWaiting(); err == nil {
		t.Fatal("threads are listed")
	}
	r.readToEnd(t)
	if err := r.s.Stop(); err != nil {
		t.Fatal(err)
	}
	drain(t, r.s, func(p *Sample) { _ = r.add(p) })
	if len(r.asleep) != lateThreads {
		t.Errorf("%d of %d threads slept", len(r.asleep), lateThreads)
	}
	for tid, ns := range r.asleep {
		if ns < uint64(ms*time.Millisecond) {
			t.Errorf("thread %d slept for %v", tid, time.Duration(ns))
		}
	}
}

// Those that last have them when the session stops, also when nobody has read.
func TestOffCPULateAtTheEnd(t *testing.T) {
	r := startLate(t, 1_000_000)
	awaitAsleep(t, r.pid, lateThreads)
	time.Sleep(40 * time.Millisecond)
	r.check(t, 20*time.Millisecond)
}

// All threads that wait when the session starts have their stacks: more than the
// kernel hands over at once.
func TestOffCPUManyWaiting(t *testing.T) {
	t.Parallel()
	const threads = 1000
	path := build(t, "late.c", "-O1", "-no-pie", "-fno-optimize-sibling-calls", "-pthread")
	function := symbolValue(t, path, "sleep_late")
	p := startTarget(t, path, fmt.Sprint(threads), "0", "1000000")
	if _, err := p.stdin.Write([]byte{'.'}); err != nil {
		t.Fatal(err)
	}
	awaitAsleep(t, p.pid, threads)
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

// awaitAsleep waits until so many threads of testdata/late.c are in sleep_late.
func awaitAsleep(t *testing.T, pid, threads int) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		n := 0
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		for _, task := range tasks {
			comm, _ := os.ReadFile(task + "/comm")
			call, _ := os.ReadFile(task + "/syscall")
			if string(comm) == "asleep\n" && len(call) > 0 && string(call) != "running\n" {
				n++
			}
		}
		if n >= threads {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d threads sleep", n, threads)
		}
	}
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

// Frames of what calls the program at a switch are left out.
func TestTraceCode(t *testing.T) {
	kernelTest(t)
	var s Session
	var err error
	if s.code, err = readKernelCode(true); err != nil || len(s.code.tracing) != len(tracingFunctions) || len(s.code.interrupts) == 0 {
		t.Fatalf("found %+x of %v: %v", s.code, tracingFunctions, err)
	}
	for _, start := range s.code.tracing {
		for at, want := range map[uint64]bool{start: true, start + 16: true, start - 1<<20: false} {
			p := Sample{Kernel: []uint64{at}}
			if s.code.leaveTracing(&p); (len(p.Kernel) == 0) != want {
				t.Errorf("%#x, %#x from its start: %x", at, at-start, p.Kernel)
			}
		}
	}
	type record struct {
		header sampleHeader
		pcs    [3]uint64
	}
	rec := record{pcs: [3]uint64{s.code.tracing[1] + 8, s.code.tracing[0] + 8, 0x1234}}
	rec.header.KernelFrames = uint8(len(rec.pcs))
	held := &blockedRecord{words: unsafe.Slice((*uint64)(unsafe.Pointer(&rec)), unsafe.Sizeof(rec)/8)}
	err = s.emitOffCPU(held, 1, 0, 2, false, func(p *Sample) error {
		if len(p.Kernel) != 1 || p.Kernel[0] != 0x1234 {
			t.Errorf("kernel frames %x", p.Kernel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
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
