package loader

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
)

const (
	processSampled     = byte(gen.SamplerProcessFlagsPROCESS_SAMPLED)
	processIsGo        = byte(gen.SamplerProcessFlagsPROCESS_IS_GO)
	processHasEnds     = byte(gen.SamplerProcessFlagsPROCESS_HAS_ENDS)
	processHasFrames   = byte(gen.SamplerProcessFlagsPROCESS_HAS_FRAMES)
	processStartsAbove = byte(gen.SamplerProcessFlagsPROCESS_STARTS_ABOVE)
	processHasContexts = byte(gen.SamplerProcessFlagsPROCESS_HAS_CONTEXTS)
	noProcess          = int(gen.SamplerProcessFlagsNO_PROCESS)
	processPage        = int(gen.SamplerProcessFlagsPROCESS_PAGE)
)

// processFlags are the flags of processes by number, in memory that is the
// kernel side's as well: bpf/config.h. Of 4 MB of them those are mapped that lie
// near one that was asked for here. There are none once it is closed. It belongs to one
// goroutine at a time.
type processFlags struct {
	fd    int
	pages [][]byte // PROCESS_PAGE flags each, nil where not mapped
}

// newProcessFlags makes the flags in a map.
func newProcessFlags(m *ebpf.Map) processFlags {
	return processFlags{fd: m.FD(), pages: make([][]byte, m.MaxEntries())}
}

// set sets a flag of a process.
func (f *processFlags) set(pid int, flag byte) error {
	isThere, err := f.mapped(pid)
	if isThere {
		word, shift := f.word(pid)
		atomic.OrUint32(word, uint32(flag)<<shift)
	}
	return err
}

// has reports whether a process has a flag, which the kernel side may have set.
func (f *processFlags) has(pid int, flag byte) (bool, error) {
	isThere, err := f.mapped(pid)
	if !isThere {
		return false, err
	}
	word, shift := f.word(pid)
	return atomic.LoadUint32(word)>>shift&uint32(flag) != 0, nil
}

// mapped maps the flags of a process, if there are any.
func (f *processFlags) mapped(pid int) (bool, error) {
	n := pid / processPage
	if pid < 0 || n >= len(f.pages) {
		return false, nil
	}
	if f.pages[n] == nil {
		mem, err := unix.Mmap(f.fd, int64(n*processPage), processPage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return false, fmt.Errorf("map the table of processes: %w", err)
		}
		f.pages[n] = mem
	}
	return true, nil
}

// clear takes back a flag that set has set.
func (f *processFlags) clear(pid int, flag byte) {
	if n := pid / processPage; pid >= 0 && n < len(f.pages) && f.pages[n] != nil {
		word, shift := f.word(pid)
		atomic.AndUint32(word, ^(uint32(flag) << shift))
	}
}

// word returns the word that holds the flags of a process, whose page is mapped, and
// where in it they are: the kernel writes those of others at the same time.
func (f *processFlags) word(pid int) (word *uint32, shift int) {
	// Both architectures are little-endian.
	return (*uint32)(unsafe.Pointer(&f.pages[pid/processPage][pid%processPage&^3])), pid & 3 * 8
}

// close takes the flags out of memory.
func (f *processFlags) close() (err error) {
	for _, mem := range f.pages {
		if mem != nil {
			err = errors.Join(err, unix.Munmap(mem))
		}
	}
	f.pages = nil
	return err
}
