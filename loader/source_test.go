package loader

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Each of several events has its own samples, at its own rate or period, with its own weight and filter.
func TestSeveralEvents(t *testing.T) {
	getppid, write := mustParse(t, "syscalls:sys_enter_getppid"), mustParse(t, "syscalls:sys_enter_write")
	size, err := ParseWeight(write, "count")
	if err != nil {
		t.Fatal(err)
	}
	filter, err := ParseFilter(write, "count != 3")
	if err != nil {
		t.Fatal(err)
	}
	s := startSession(t, Config{
		Event: cpuClock, Frequency: 499, PIDs: []int{os.Getpid()}, Changes: true,
		Also: []Sampling{{Event: getppid, Period: 10}, {Event: write, Weight: size, Filter: filter, Period: 500}, {Event: mustParse(t, "page-faults")}},
	})
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	const calls, pages = 2000, 64
	stayOnCPU(t) // each CPU counts by itself
	for i := range calls {
		unix.Getppid()
		null.Write(make([]byte, 3+100*(i%2)))
	}
	mem, err := unix.Mmap(-1, 0, pages*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	for i := range pages {
		mem[i*4096] = 1
	}
	for began := time.Now(); time.Since(began) < 300*time.Millisecond; {
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	var samples, weights [4]int
	self := int32(os.Getpid())
	err = s.ReadSamples(^uint64(0), func(s *Sample) error {
		if s.PID != self || !s.HasUser() {
			t.Errorf("sample of process %d, event %d", s.PID, s.Event)
		}
		samples[s.Event]++
		weights[s.Event] += int(s.Weight)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d samples of %d", samples, weights)
	if samples[0] < 50 || samples[0] > 400 {
		t.Errorf("%d samples of some 0.3 s at 499 Hz", samples[0])
	}
	if samples[1] != calls/10 || weights[1] != calls {
		t.Errorf("%d samples of %d calls of getppid, every tenth of %d", samples[1], weights[1], calls)
	}
	if n := calls / 2 * 103; weights[2] > n || weights[2] < n-2*500 || samples[2] < n/606 || samples[2] > n/500 {
		t.Errorf("%d samples of %d bytes written, one in 500 of %d", samples[2], weights[2], n)
	}
	if samples[3] < pages || samples[3] != weights[3] {
		t.Errorf("%d samples of %d page faults, at least %d", samples[3], weights[3], pages)
	}
	for i, m := range s.Samplings() {
		if want := []string{"cpu-clock", getppid.Name, write.Name, "page-faults"}[i]; m.Event.Name != want {
			t.Errorf("event %d is %s, not %s", i, m.Event.Name, want)
		}
	}
}

func TestSeveralEventsRefused(t *testing.T) {
	for _, cfg := range []Config{
		{Event: cpuClock, Also: []Sampling{{Event: OffCPU}}},
		{Event: Wall, Also: []Sampling{{Event: cpuClock}}},
		{Event: cpuClock, Also: make([]Sampling, MaxEvents)},
		{Event: cpuClock, Also: []Sampling{{Event: cpuClock, Frequency: 1, Period: 1}}},
	} {
		if err := cfg.complete(); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}
