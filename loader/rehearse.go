package loader

import (
	"fmt"
	"os"
	"time"
)

// Rehearse records the calling process for a moment, in which it keeps a CPU
// busy, and returns how many samples with a user stack there were. Without an
// error there is at least one: recording works.
func Rehearse() (samples int, err error) {
	const atMost = 2 * time.Second
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
	if err := s.Start(); err != nil {
		return 0, err
	}
	begin := time.Now()
	for time.Since(begin) < atMost {
		for until := time.Now().Add(10 * time.Millisecond); time.Now().Before(until); {
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
		if samples > 0 && time.Since(begin) > atMost/20 {
			return samples, nil
		}
	}
	st, err := s.Stats()
	if err != nil {
		return 0, err
	}
	return samples, fmt.Errorf("no stack of this process in %v: %d events, %d samples, lost %v", atMost, st.Fired(), st.Samples, st.LostByReason())
}
