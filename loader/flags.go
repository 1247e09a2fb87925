package loader

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
)

const (
	processSampled = byte(gen.SamplerProcessFlagsPROCESS_SAMPLED)
	processIsGo    = byte(gen.SamplerProcessFlagsPROCESS_IS_GO)
)

// processFlags are the flags of processes by number, in memory that is the
// kernel side's as well: bpf/config.h. There are none once it is closed.
type processFlags []byte

// mapProcesses maps the map of flags.
func mapProcesses(m *ebpf.Map) (processFlags, error) {
	mem, err := unix.Mmap(m.FD(), 0, int(m.ValueSize())*int(m.MaxEntries()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the table of processes: %w", err)
	}
	return mem, nil
}

// set sets a flag of a process.
func (f processFlags) set(pid int, flag byte) {
	if word, shift, ok := f.word(pid); ok {
		atomic.OrUint32(word, uint32(flag)<<shift)
	}
}

// clear takes a flag back.
func (f processFlags) clear(pid int, flag byte) {
	if word, shift, ok := f.word(pid); ok {
		atomic.AndUint32(word, ^(uint32(flag) << shift))
	}
}

// word returns the word that holds the flags of a process, and where in it they
// are: the kernel writes those of others at the same time.
func (f processFlags) word(pid int) (word *uint32, shift int, ok bool) {
	if pid < 0 || pid >= len(f) {
		return nil, 0, false
	}
	// Both architectures are little-endian.
	return (*uint32)(unsafe.Pointer(&f[pid&^3])), pid & 3 * 8, true
}

// close takes the flags out of memory.
func (f *processFlags) close() error {
	if *f == nil {
		return nil
	}
	mem := *f
	*f = nil
	return unix.Munmap(mem)
}
