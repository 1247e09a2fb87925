package loader

import (
	"math"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// burn keeps this thread busy for some milliseconds of its CPU time.
func burn(t testing.TB, ms int) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for end := threadTime(t) + time.Duration(ms)*time.Millisecond; threadTime(t) < end; {
		for i := range uint64(1 << 16) {
			sink += i
		}
	}
}

var sink uint64

func threadTime(t testing.TB) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// started is a stopped command and the session that watches it.
func started(t *testing.T, cfg Config, argv ...string) (*Command, *Session) {
	t.Helper()
	kernelTest(t)
	c, err := StartCommand(argv)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	cfg.PIDs, cfg.Held = []int{c.PID()}, c.PID()
	return c, startSession(t, cfg)
}

func finish(t *testing.T, c *Command, s *Session) {
	t.Helper()
	c.Resume()
	ps, err := c.Wait()
	if err != nil || !ps.Success() {
		t.Fatalf("%v, %v", ps, err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
}

func mustParse(t testing.TB, name string) Event {
	t.Helper()
	e, err := ParseEvent(name)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Of an exactly known number of events each is a sample or a counted loss,
// whether the ring suffices or not.
func TestAccountIsExact(t *testing.T) {
	const calls = 5000
	roomy := min(8<<20*CPUs(), 1<<30) // each CPU has room for all
	for _, c := range []struct {
		name   string
		ring   int
		period uint64
	}{
		{"roomy ring", roomy, 1},
		{"tiny ring", 4096, 1},
		{"every seventh", roomy, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd, s := started(t, Config{
				Event: mustParse(t, "syscalls:sys_enter_getppid"), Period: c.period,
				RingBytes: c.ring, Kernel: true,
			}, stackTarget(t), "getppid", strconv.Itoa(calls))
			finish(t, cmd, s)
			st := stats(t, s)
			read, weight := uint64(0), uint64(0)
			drain(t, s, func(p *Sample) {
				read++
				weight += p.Weight
				if int(p.PID) != cmd.PID() {
					t.Errorf("sample of process %d, want %d", p.PID, cmd.PID())
				}
			})
			if got := st.Samples + st.Lost() + st.SkippedPeriod; got != calls {
				t.Errorf("%d events accounted for, want %d: %+v", got, calls, st)
			}
			if read != st.Samples {
				t.Errorf("%d samples read, %d sent", read, st.Samples)
			}
			switch {
			case c.ring == 4096 && (st.LostRingFull == 0 || st.Samples == 0):
				t.Errorf("a ring of %d bytes took %d samples and lost %d", s.RingBytes(), st.Samples, st.LostRingFull)
			case c.ring != 4096 && st.Lost() != 0:
				t.Errorf("losses in a roomy ring: %v", st.LostByReason())
			}
			// The CPUs count to seven apart from each other.
			if c.ring != 4096 && (weight > calls || weight+c.period*uint64(CPUs()) < calls) {
				t.Errorf("the samples stand for %d events, want %d", weight, calls)
			}
		})
	}
}

// counter has the kernel count a software event in a command, and returns what reads the count.
func counter(t *testing.T, cmd *Command, config, bits uint64) (count func() uint64) {
	t.Helper()
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: config, Bits: bits, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
	}
	fd, err := unix.PerfEventOpen(&attr, cmd.PID(), -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return func() (n uint64) {
		t.Helper()
		if _, err := unix.Read(fd, unsafe.Slice((*byte)(unsafe.Pointer(&n)), 8)); err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// Page faults as counted by the kernel itself, for the same process.
func TestPageFaultAccount(t *testing.T) {
	cmd, s := started(t, Config{Event: mustParse(t, "page-faults"), Kernel: true},
		stackTarget(t), "faults", "2000")
	count := counter(t, cmd, unix.PERF_COUNT_SW_PAGE_FAULTS, 0)
	finish(t, cmd, s)
	counted := count()
	st := stats(t, s)
	if got := st.Samples + st.Lost(); got != counted || counted < 2000 {
		t.Errorf("%d events accounted for, the kernel counted %d: %+v", got, counted, st)
	}
}

// A timer samples CPU time at its frequency; idle CPUs do not count. A tick that
// is due while the hypervisor has the CPU comes late, and of several only one:
// the samples stand for what the scheduler charges, which is without that time,
// or for what perf's clock counts, which is with it, or between. By chance there
// is a tick more or less in each turn that the threads have on a CPU, which for a
// number of turns is a variance of a quarter of it at most.
func TestTimerFrequency(t *testing.T) {
	const hz = 997
	cmd, s := started(t, Config{Event: cpuClock, Frequency: hz, FollowChildren: true}, stackTarget(t), "children", "1", "1000")
	count := counter(t, cmd, unix.PERF_COUNT_SW_TASK_CLOCK, unix.PerfBitInherit)
	finish(t, cmd, s)
	clock := count()
	ps, err := cmd.Wait()
	if err != nil {
		t.Fatal(err)
	}
	weight, n := uint64(0), 0
	drain(t, s, func(smp *Sample) { weight += smp.Weight; n++ })
	used := ps.SysUsage().(*syscall.Rusage) // of its child too
	charged := float64(used.Utime.Nano() + used.Stime.Nano())
	chance := 5 * math.Sqrt(float64(used.Nvcsw+used.Nivcsw)/4) * 1e9 / hz
	if got := float64(weight); got < 0.95*charged-chance || got > 1.05*float64(clock)+chance {
		t.Errorf("samples for %.1f ms, charged %.1f, %.1f by perf's clock, and by chance %.1f", got/1e6, charged/1e6, float64(clock)/1e6, chance/1e6)
	}
	if st := stats(t, s); st.Lost() != 0 || st.SkippedIdle != 0 || st.Samples != uint64(n) {
		t.Errorf("%+v", st)
	}
}

// Samples come in the order of their time, and never newer than the cutoff:
// those of a CPU while it writes more, those of all from what they have written.
func TestOrder(t *testing.T) {
	s := startSession(t, Config{Event: mustParse(t, "context-switches"), RingBytes: 16 << 20})
	read := func(cutoff uint64, fn func(*Sample)) {
		err := s.ReadSamples(cutoff, func(p *Sample) error {
			if p.Time > cutoff {
				t.Errorf("time %d, cutoff %d", p.Time, cutoff)
			}
			fn(p)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	rest := func() { syscall.Nanosleep(&syscall.Timespec{Nsec: 2e6}, nil) }
	lastOf := make(map[uint32]uint64) // by CPU
	for range 100 {
		rest()
		read(monotonic()-1e6, func(p *Sample) {
			if p.Time < lastOf[p.CPU] {
				t.Errorf("CPU %d: time %d after %d", p.CPU, p.Time, lastOf[p.CPU])
			}
			lastOf[p.CPU] = p.Time
		})
	}
	begin := monotonic()
	for range 100 {
		rest()
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	var last uint64
	for end, cutoff := monotonic(), begin; cutoff < end; cutoff += 3e6 {
		read(cutoff, func(p *Sample) {
			if p.Time < last {
				t.Errorf("time %d after %d", p.Time, last)
			}
			last = p.Time
			lastOf[p.CPU] = p.Time
		})
	}
	if last < begin {
		t.Error("no context switches seen at the end")
	}
	for cpu := range lastOf {
		if online, err := onlineCPUs(); err != nil || !slices.Contains(online, int(cpu)) {
			t.Errorf("sample of CPU %d, which is not online", cpu)
		}
	}
}
