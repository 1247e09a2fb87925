package loader

import (
	"errors"
	"testing"

	"github.com/swbpf/swbpf/gen"
)

// TestFitMemory sizes the maps of the real programs under limits on memory.
func TestFitMemory(t *testing.T) {
	const cpus = 4
	for _, test := range []struct {
		event  string
		limit  uint64
		shrunk bool // rings or tables are smaller than without a limit
		fits   bool
	}{
		{"cpu-clock", 0, false, true},
		{"cpu-clock", 1 << 30, false, true},
		{"cpu-clock", 60 << 20, true, true},
		{"cpu-clock", 40 << 20, true, false},
		{"off-cpu", 1 << 30, false, true},
		{"off-cpu", 128 << 20, true, true},
		{"off-cpu", 80 << 20, true, false},
		{"heap", 1 << 30, false, true},
		{"heap", 128 << 20, true, true},
		{"heap", 40 << 20, true, false},
	} {
		event := Heap
		if test.event != Heap.Name {
			var err error
			if event, err = ParseEvent(test.event); err != nil {
				t.Fatal(err)
			}
		}
		spec, err := gen.LoadSampler()
		if err != nil {
			t.Fatal(err)
		}
		s := &Session{sources: []*source{{Sampling: Sampling{Event: event}}}, cpuRing: 8 << 20, cfg: Config{StackBytes: 64 << 10}}
		rings, times := spec.Maps[gen.SamplerMapRings], spec.Maps[gen.SamplerMapTimes]
		rings.MaxEntries = cpus
		if !event.hasOffCPU() {
			times.MaxEntries = 1
			spec.Maps[gen.SamplerMapLengths].MaxEntries = 1
		}
		if err := s.prepareBlocks(spec); err != nil {
			t.Fatal(err)
		}
		threads, blocks := times.MaxEntries, spec.Maps[gen.SamplerMapBlocks]
		held := blocks.MaxEntries
		err = s.fitMemory(spec, test.limit)
		var missing *MissingError
		if fits := err == nil; fits != test.fits || !fits && !errors.As(err, &missing) {
			t.Errorf("%s, %d MiB: %v", test.event, test.limit>>20, err)
		}
		if shrunk := s.cpuRing < 8<<20 || times.MaxEntries < threads || blocks.MaxEntries < held; shrunk != test.shrunk {
			t.Errorf("%s, %d MiB: rings of %d bytes, times of %d threads", test.event, test.limit>>20, s.cpuRing, times.MaxEntries)
		}
		all := uint64(0)
		for _, m := range spec.Maps {
			all += mapBytes(m)
		}
		if err == nil && test.limit > 0 && all+besideMaps > test.limit {
			t.Errorf("%s, %d MiB: maps take %d bytes", test.event, test.limit>>20, all)
		}
		if s.cpuRing < minCPURing || event.hasOffCPU() && times.MaxEntries < minTimes || event.IsHeap() && blocks.MaxEntries < minBlocks {
			t.Errorf("%s, %d MiB: rings of %d bytes, times of %d threads are too small", test.event, test.limit>>20, s.cpuRing, times.MaxEntries)
		}
	}
}
