package loader

import "testing"

func TestKernelScratch(t *testing.T) {
	s, err := Open(Config{Frequency: 4999, Kernel: true, RunStats: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.Start()
	var st [3]int
	var bytes int
	for until := cpuTime() + 3e9; cpuTime() < until; {
		s.ReadSamples(monotonic(), func(p *Sample) error {
			if p.kernelRegs != nil {
				st[1]++
				bytes += 8 * len(p.kernelStack)
			} else if len(p.Kernel) > 0 {
				st[0]++
			} else {
				st[2]++
			}
			return nil
		})
	}
	t.Logf("state %d same %d; %v bytes %d", s.kernel.state, s.kernel.same, st, bytes/max(1, st[1]))
}
