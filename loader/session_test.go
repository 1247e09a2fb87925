package loader

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/swbpf/swbpf/internal/testenv"
)

// openFDs counts this process's descriptors.
func openFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// After Close no descriptor, program or map remains, and the account does.
func TestCloseLeavesNothing(t *testing.T) {
	kernelTest(t)
	p := startTarget(t, stackTarget(t), "fill", "64")
	for _, name := range []string{"cpu-clock", "sched:sched_switch"} {
		cfg := Config{Event: mustParse(t, name), PIDs: []int{p.pid}, Kernel: true, RunStats: true}
		// The library keeps descriptors of the kernel's type information.
		if s, err := Open(cfg); err != nil {
			t.Fatal(err)
		} else if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		before := openFDs(t)
		s, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		if err := s.Start(); err != nil {
			t.Errorf("second Start: %v", err)
		}
		readUntil(t, s, func(*Sample) bool { return true })
		progID, mapID := programID(t, s.sources[0].prog), mapID(t, s.maps.Rings)
		for range 2 {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		// What others left to the garbage collector may be closed meanwhile.
		if after := openFDs(t); after > before {
			t.Errorf("%s: %d descriptors before, %d after", name, before, after)
		}
		if st := stats(t, s); st.Samples == 0 || st.Runs == 0 {
			t.Errorf("%s: account after Close: %+v", name, st)
		}
		awaitGone(t, name+": program", func() error {
			prog, err := ebpf.NewProgramFromID(progID)
			prog.Close()
			return err
		})
		awaitGone(t, name+": ring", func() error {
			m, err := ebpf.NewMapFromID(mapID)
			m.Close()
			return err
		})
	}
}

// awaitGone waits until find reports that a thing does not exist: the kernel
// frees things a little later than it says.
func awaitGone(t *testing.T, what string, find func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if err = find(); errors.Is(err, fs.ErrNotExist) {
			return
		}
	}
	t.Errorf("%s still there (%v)", what, err)
}

func programID(t *testing.T, p *ebpf.Program) ebpf.ProgramID {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, ok := info.ID()
	if !ok {
		t.Fatal("the program has no ID")
	}
	return id
}

func mapID(t *testing.T, m *ebpf.Map) ebpf.MapID {
	t.Helper()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, ok := info.ID()
	if !ok {
		t.Fatal("the map has no ID")
	}
	return id
}

// Nothing is sampled before Start and after Stop.
func TestStartAndStop(t *testing.T) {
	kernelTest(t)
	p := startTarget(t, stackTarget(t), "fill", "64")
	for _, name := range []string{"cpu-clock", "raw_syscalls:sys_enter"} {
		cfg := Config{Event: mustParse(t, name)}
		s, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		burn(t, 20)
		if st := stats(t, s); st.fired() != 0 {
			t.Errorf("%s: fired before Start: %+v", name, st)
		}
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		burn(t, 20)
		readUntil(t, s, func(*Sample) bool { return true })
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		st := stats(t, s)
		burn(t, 20)
		if later := stats(t, s); later != st {
			t.Errorf("%s: fired after Stop, process %d: %+v, then %+v", name, p.pid, st, later)
		}
	}
}

// Cycles are taken where the hardware counts them, else cpu-clock.
func TestDefaultEvent(t *testing.T) {
	s := startSession(t, Config{})
	if name := s.Event().Name; name != "cycles" && name != "cpu-clock" {
		t.Errorf("default event %s", name)
	}
	if s.Frequency() != DefaultFrequency || s.Period() != 0 || s.RingBytes() < 1<<20 {
		t.Errorf("%d Hz, period %d, ring of %d", s.Frequency(), s.Period(), s.RingBytes())
	}
}

func TestTooHighFrequency(t *testing.T) {
	kernelTest(t)
	most, ok := readInt(maxRatePath)
	if !ok {
		t.Fatal("no maximal rate")
	}
	for _, cycles := range []Event{cpuClock, knownEvents[0]} {
		if s, err := Open(Config{Event: cycles, Period: 1}); err == nil {
			if s.Event().IsTimer() {
				t.Errorf("a timer that rings each ns is opened for %s", cycles.Name)
			}
			s.Close()
		} else if !strings.Contains(err.Error(), strconv.Itoa(most)) {
			t.Errorf("each ns of %s: %v", cycles.Name, err)
		}
	}
	s, err := Open(Config{Event: cpuClock, Frequency: most + 1})
	if err == nil {
		s.Close()
		t.Fatalf("%d Hz accepted, the kernel allows %d", most+1, most)
	}
	var missing *MissingError
	if errors.As(err, &missing) {
		t.Errorf("diagnosed as %v", err)
	}
}

// Every general event that the kernel has gives samples, with the right unit.
func TestSoftwareEvents(t *testing.T) {
	for _, name := range []string{"task-clock", "context-switches", "page-faults", "minor-faults"} {
		s := startSession(t, Config{Event: mustParse(t, name), Kernel: true})
		startTarget(t, stackTarget(t), "threads", "2")
		readUntil(t, s, func(p *Sample) bool { return p.HasUser() && p.Weight > 0 })
	}
}

// The verifier, most of what a recording waits for at its start, does not look at
// more instructions than it has to: loops that it follows turn by turn are short.
func TestVerifierWork(t *testing.T) {
	kernelTest(t)
	const most = 60_000 // 21,500 and 27,200 on Linux 6.18
	for _, changes := range []bool{false, true} {
		s, err := Open(Config{Event: cpuClock, Kernel: true, Changes: changes})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		info, err := s.sources[0].prog.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, ok := info.VerifiedInstructions()
		if !ok {
			testenv.Lacks(t, "a kernel that counts what its verifier looks at")
		}
		if n > most {
			t.Errorf("changes %v: the verifier looks at %d instructions, more than %d", changes, n, most)
		}
	}
}
