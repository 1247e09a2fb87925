package loader

import (
	"fmt"
	"os"

	"github.com/cilium/ebpf"

	"github.com/swbpf/swbpf/gen"
)

// What rings and tables leave of a cgroup's memory, in bytes: it is what the
// kernel takes while it checks the programs, and the recorder later. Those for
// off-CPU time are more, and so are the samples.
const (
	besideMaps       = 40 << 20
	besideOffCPUMaps = 80 << 20
)

// minTimes is of how many threads times are kept at least, where the event is
// off-CPU time.
const minTimes = 1 << 13

// minBlocks is how many blocks of memory there is room for at least, where the event is Heap.
const minBlocks = 1 << 14

// memoryLimit is how much memory our cgroup allows, in bytes; 0: no limit is known.
func memoryLimit() uint64 {
	list, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0 // there are no cgroups
	}
	limit, _ := cgroupLimits("/sys/fs/cgroup", string(list))
	return limit
}

// fitMemory makes rings and tables of a size that leaves room for the rest under a
// limit on memory, which 0 is not. Without it they would fit, as rings are halved
// until they do, and the recorder be killed for the memory that it needs itself.
func (s *Session) fitMemory(spec *ebpf.CollectionSpec, limit uint64) error {
	if limit == 0 {
		return nil
	}
	beside := uint64(besideMaps)
	if s.hasOffCPU() {
		beside = besideOffCPUMaps
	}
	times, lengths, rings, blocks := spec.Maps[gen.SamplerMapTimes], spec.Maps[gen.SamplerMapLengths], spec.Maps[gen.SamplerMapRings], spec.Maps[gen.SamplerMapBlocks]
	for {
		rings.ValueSize = uint32(s.ringValueBytes())
		need := beside
		for _, m := range spec.Maps {
			need += mapBytes(m)
		}
		moreTimes, moreRings := times.MaxEntries/2 >= minTimes, s.cpuRing/2 >= minCPURing
		switch {
		case need <= limit:
			return nil
		case moreTimes && (!moreRings || mapBytes(times) > mapBytes(rings)):
			times.MaxEntries /= 2
			lengths.MaxEntries = times.MaxEntries / 2
		case blocks.MaxEntries/2 >= minBlocks && (!moreRings || mapBytes(blocks) > mapBytes(rings)):
			blocks.MaxEntries /= 2
		case moreRings:
			s.cpuRing /= 2
		default:
			return &MissingError{
				What:   "memory: the cgroup's limit is " + bytesText(limit),
				Remedy: fmt.Sprintf("give it %d MiB or more", (need+1<<20-1)>>20),
			}
		}
	}
}

// mapBytes is about what a map takes in the kernel, in bytes.
func mapBytes(m *ebpf.MapSpec) uint64 {
	each := uint64(m.ValueSize+7) &^ 7
	if m.Type == ebpf.Hash || m.Type == ebpf.LRUHash {
		each += uint64(m.KeySize+7)&^7 + 64
	}
	return each * uint64(m.MaxEntries)
}
