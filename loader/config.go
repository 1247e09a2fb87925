package loader

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
	"unsafe"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/procstate"
)

// Limits and defaults of a Config.
const (
	DefaultStackBytes = 64 << 10
	WholeStackBytes   = 256 << 10
	MaxStackBytes     = 1 << 20
	DefaultFrequency  = 99 // Hz: does not beat with periodic work

	minCPURing, maxCPURing = 256 << 10, 8 << 20
	allRings               = 16 << 20  // the most for all CPUs if these are few...
	allRingsOfMany         = 128 << 20 // ...and if they are many
)

// Config says what a Session samples.
type Config struct {
	// Event is what to sample. The zero Event is cycles. Where the hardware
	// cannot count cycles, cpu-clock is taken: see Session.Event.
	Event Event

	// Frequency is the number of samples per second and CPU, Period the
	// number of events per sample; at most one is set. Without both, a timer
	// or a hardware event is sampled at DefaultFrequency, any other event
	// each time. Tracepoints and probes know no frequency.
	Frequency int
	Period    uint64

	// PIDs are the processes to sample, with all their threads; empty: all.
	PIDs []int
	// Threads are the only threads to sample, in place of PIDs; empty: all. Those born
	// later are none of them.
	Threads []int
	// CPUs are the only CPUs to sample on; empty: all. Time off the CPU is on none.
	CPUs []int
	// FollowChildren adds the descendants of PIDs, those that run already and those
	// born later. One whose parent has ended, or any before that, is none.
	FollowChildren bool
	// Held is the process of a Command, sampled or not, that is held until after Start; 0
	// if there is none. It has no children before, and its wait is no time off the CPU.
	Held int

	// User, if set, is the number of the only user to sample: of what has its effective rights.
	User *uint32

	// Cgroups are the IDs of cgroups in the unified hierarchy whose processes are
	// sampled, with those of all cgroups below; empty: all. See Cgroups.Find.
	Cgroups []uint64

	// Weight is what an event of a tracepoint or probe counts for; the zero
	// Weight is 1. Then Period is a sum of weights.
	Weight Weight

	// Filter says which occurrences of a tracepoint or probe count at all.
	Filter Filter

	// Also are further events to sample, MaxEvents with Event at most: Sample.Event tells
	// which one a sample is of. OffCPU, Wall and Heap go with no other.
	Also []Sampling

	// MinOffCPU is the least duration of a sample of OffCPU; 0 means
	// DefaultMinOffCPU. With Wall shorter ones are added to the thread's next.
	MinOffCPU time.Duration

	// Collect, if set, makes what tells of a thread that is off the CPU when the Session finds it so, which memory of its process
	// beside its stacks a sample of it has (Sample.FrameRegions): the frames that a runtime keeps. It may return nil, and
	// is called by Start, ReadSamples and Stop.
	Collect func(pid int) procstate.Collector
	// OnWaiting, if set, is called with each sample for which Collect had something when it is taken, long before the
	// time off the CPU is over: that is not known yet, nor whether the thread goes on meanwhile. ReadSamples has it later.
	OnWaiting func(*Sample)

	// Wakers asks with OffCPU and Wall for a sample of what wakes a thread up whose time off the CPU has a
	// sample: Sample.Waker. One of another process than those asked for has no user part. It needs Kernel, as
	// kernel stacks tell threads from interrupts.
	Wakers bool

	// StackBytes limits the user stack copied per sample, at most
	// MaxStackBytes. It is rounded up to 4 KiB. 0 means DefaultStackBytes,
	// and up to WholeStackBytes where that makes the copy whole, as far as
	// the stack's end is known and there is room.
	StackBytes int
	whole      int // how long a stack may be if it is copied whole
	// Kernel asks for the kernel part of stacks.
	Kernel bool

	// RingBytes is the room for samples not yet read, of all CPUs together;
	// 0 means enough for an eighth of a second of stacks of StackBytes, and for
	// eight of the longest, within reason.
	// Each CPU has its share, a multiple of the page. It is halved for as
	// long as the kernel has not got so much.
	RingBytes int

	// Changes has the kernel send of stacks only what has changed since an
	// earlier sample (bpf/mirror.h); samples are the same. It makes samples
	// cheaper when they are frequent, and cannot be had with OffCPU and
	// Wall, nor with a kernel whose verifier rejects it.
	Changes bool

	// NewPrograms has Session.NewPrograms tell of programs from files that are
	// new, and of rings that fill up. It costs an exec less than a microsecond.
	NewPrograms bool

	// RunStats has the kernel measure the programs (Stats.RunTime), which
	// costs each run some 50 ns. Without CAP_SYS_ADMIN it has no effect.
	RunStats bool
}

// complete checks the configuration and fills in defaults.
func (c *Config) complete() error {
	first := c.samplings()[0]
	if err := first.complete(); err != nil {
		return err
	}
	if first.Event.IsHeap() && first.Event.typ == 0 { // as the variable has it
		var err error
		if first.Event, err = HeapOf(c.PIDs); err != nil {
			return err
		}
	}
	c.Event, c.Frequency, c.Period = first.Event, first.Frequency, first.Period
	c.Also = slices.Clone(c.Also)
	for i := range c.Also {
		if err := c.Also[i].complete(); err != nil {
			return err
		}
	}
	if len(c.Also) > 0 {
		for _, m := range c.samplings() {
			if m.Event.hasOffCPU() || m.Event.IsHeap() {
				return fmt.Errorf("event %s: it goes with no other", m.Event.Name)
			}
		}
	}
	switch {
	case len(c.Threads) > 0 && len(c.PIDs) > 0:
		return errors.New("processes and threads exclude each other")
	case len(c.CPUs) > 0 && c.Event.hasOffCPU():
		return fmt.Errorf("event %s: it is on no CPU, and cannot be sampled on some", c.Event.Name)
	case len(c.CPUs) > 0 && c.Event.IsHeap():
		return fmt.Errorf("event %s: blocks are given back on any CPU, and cannot be sampled on some", c.Event.Name)
	case c.Wakers && !c.Event.hasOffCPU():
		return fmt.Errorf("event %s: it has no wakers", c.Event.Name)
	case c.Wakers && !c.Kernel:
		return errors.New("wakers cannot be told from interrupts without kernel stacks")
	case len(c.Also) >= MaxEvents:
		return fmt.Errorf("%d events: at most %d can be sampled at a time", len(c.Also)+1, MaxEvents)
	case c.MinOffCPU < 0:
		return fmt.Errorf("least time off the CPU %v: must be positive", c.MinOffCPU)
	case c.StackBytes < 0 || c.StackBytes > MaxStackBytes:
		return fmt.Errorf("stack bytes %d: must be at most %d", c.StackBytes, MaxStackBytes)
	case c.RingBytes < 0 || c.RingBytes > 1<<30:
		return fmt.Errorf("ring bytes %d: must be at most %d", c.RingBytes, 1<<30)
	}
	if c.MinOffCPU == 0 {
		c.MinOffCPU = DefaultMinOffCPU
	}
	if c.StackBytes == 0 {
		c.StackBytes, c.whole = DefaultStackBytes, WholeStackBytes
	}
	c.StackBytes = (c.StackBytes + 4095) &^ 4095
	c.whole = max(c.whole, c.StackBytes)
	c.Changes = c.Changes && !c.Event.hasOffCPU()
	for _, pid := range c.PIDs {
		if pid <= 0 {
			return fmt.Errorf("process %d: no such process", pid)
		}
	}
	for _, tid := range c.Threads {
		if tid <= 0 {
			return fmt.Errorf("thread %d: no such thread", tid)
		}
	}
	return nil
}

// filters reports whether some processes or threads are sampled alone.
func (c *Config) filters() bool { return len(c.PIDs)+len(c.Threads) > 0 }

// ringBytes is the size of each CPU's ring to try first.
func (c *Config) ringBytes(cpus int) int {
	n := max(1, c.RingBytes/cpus)
	if c.RingBytes == 0 {
		rate := 0
		for _, m := range c.samplings() {
			rate += cmp.Or(m.Frequency, 1000)
		}
		most := min(maxCPURing, max(allRings/cpus, min(allRingsOfMany/cpus, 1<<20)))
		n = max(minCPURing, min(most, max(rate*c.StackBytes/8, 8*c.whole)))
	}
	page := os.Getpagesize()
	return (n + page - 1) &^ (page - 1)
}

// recordLimit is the most that a record takes, but for what is copied of stacks
// beyond StackBytes. Each region may have a piece and a group that it does not fill,
// and each stack blocks that it shares with others.
func (c *Config) recordLimit() int {
	const (
		beside = 64 << 10      // more than all that is not user stack
		frames = 2 * copyChunk // FRAMES_ROOM of bpf/config.h
		stacks = 5
	)
	region := int(unsafe.Sizeof(regionHeader{})) + 2*8
	return beside + frames + c.StackBytes + stacks*(c.maskRoom()+2*mirrorBlock) + int(gen.SamplerLimitsMAX_REGIONS)*region
}

// maskRoom is what the masks of the longest region take.
func (c *Config) maskRoom() int {
	if !c.Changes {
		return 0
	}
	return (c.whole/mirrorPiece + c.whole/mirrorGroup + 2) * 8
}

// copyChunk is at least CHUNK of bpf/config.h.
const copyChunk = 16 << 10
