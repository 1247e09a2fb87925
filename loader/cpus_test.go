package loader

import (
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseCPUList(t *testing.T) {
	for _, c := range []struct {
		list string
		want []int
		ok   bool
	}{
		{"0", []int{0}, true},
		{"0-3\n", []int{0, 1, 2, 3}, true},
		{"1,3-4,8\n", []int{1, 3, 4, 8}, true},
		{"", nil, false},
		{"\n", nil, false},
		{"-1", nil, false},
		{"3-1", nil, false},
		{"0-", nil, false},
		{"a", nil, false},
		{"0,,1", nil, false},
		{"0-99999999", nil, false},
		{"99999999999999999999", nil, false},
	} {
		got, err := parseCPUList(c.list)
		if !slices.Equal(got, c.want) && c.ok || (err == nil) != c.ok {
			t.Errorf("%q: %v, %v", c.list, got, err)
		}
	}
}

// A CPU that goes and comes back is sampled again.
func TestCPUsComeAndGo(t *testing.T) {
	online, err := onlineCPUs()
	if err != nil {
		t.Fatal(err)
	}
	gone := allowedCPU(t)
	s := startSession(t, Config{Event: cpuClock, Frequency: 997})
	if got := slices.Sorted(maps.Keys(s.sources[0].cpus.fds)); !slices.Equal(got, online) {
		t.Errorf("events on CPUs %v, online are %v", got, online)
	}
	others := slices.DeleteFunc(slices.Clone(online), func(cpu int) bool { return cpu == gone })
	if err := s.sources[0].cpus.follow(others, s.sources[0].prog.FD(), true); err != nil {
		t.Fatal(err)
	}
	if _, there := s.sources[0].cpus.fds[gone]; there || len(s.sources[0].cpus.fds) != len(online)-1 {
		t.Errorf("events on CPUs %v after %d went", s.sources[0].cpus.fds, gone)
	}
	// The list in the kernel still has it: that is news compared with known.
	s.sources[0].cpus.known, s.sources[0].cpus.checked = nil, time.Time{}
	if err := s.followCPUs(); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(s.sources[0].cpus.fds)); !slices.Equal(got, online) {
		t.Errorf("events on CPUs %v, online are %v", got, online)
	}
	since := monotonic()
	p := startTarget(t, "taskset", "-c", strconv.Itoa(gone), stackTarget(t), "fill", "64")
	readUntil(t, s, func(smp *Sample) bool {
		return smp.Time > since && int(smp.CPU) == gone && int(smp.PID) == p.pid
	})
}

// So is one that went and came back between two looks at the list: its event
// is dead. Here it is stopped by hand, and the CPU said to have been another.
func TestCPUBackUnnoticed(t *testing.T) {
	back := allowedCPU(t)
	if incarnation(back) == 0 {
		t.Fatalf("CPU %d has no directory of its own", back)
	}
	s := startSession(t, Config{Event: cpuClock, Frequency: 997})
	if err := unix.IoctlSetInt(s.sources[0].cpus.fds[back], unix.PERF_EVENT_IOC_DISABLE, 0); err != nil {
		t.Fatal(err)
	}
	s.sources[0].cpus.born[back], s.sources[0].cpus.checked = 1, time.Time{}
	if err := s.followCPUs(); err != nil {
		t.Fatal(err)
	}
	since := monotonic()
	p := startTarget(t, "taskset", "-c", strconv.Itoa(back), stackTarget(t), "fill", "64")
	readUntil(t, s, func(smp *Sample) bool {
		return smp.Time > since && int(smp.CPU) == back && int(smp.PID) == p.pid
	})
}
