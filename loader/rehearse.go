package loader

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Rehearse records the calling process for a moment, in which it keeps a CPU
// busy, and returns how many samples with a user stack there were. Without an
// error there is at least one: recording works.
func Rehearse() (samples int, err error) {
	const enough, atMost = 100 * time.Millisecond, 2 * time.Second // of CPU time
	s, err := Open(Config{Frequency: 997, PIDs: []int{os.Getpid()}, Kernel: true})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	sideband, err := OpenSideband(SidebandConfig{})
	if err != nil {
		return 0, err
	}
	defer sideband.Close()
	begin := cpuTime()
	if err := s.Start(); err != nil {
		return 0, err
	}
	for used := time.Duration(0); used < atMost; used = cpuTime() - begin {
		if samples > 0 && used > enough {
			return samples, nil
		}
		for until := cpuTime() + 10*time.Millisecond; cpuTime() < until; {
		}
		err := s.ReadSamples(monotonic(), func(p *Sample) error {
			if p.HasUser() && len(p.Regions) > 0 && len(p.Regions[0].Data) > 0 {
				samples++
			}
			return nil
		})
		if err != nil {
			return samples, err
		}
	}
	st, err := s.Stats()
	if err != nil || samples > 0 {
		return samples, err
	}
	return 0, fmt.Errorf("no stack of this process in %v: %d events, %d samples, lost %v", atMost, st.fired(), st.Samples, st.LostByReason())
}

// cpuTime is the CPU time of this process.
func cpuTime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts) != nil {
		return 0 // there is no such kernel
	}
	return time.Duration(ts.Nano())
}
