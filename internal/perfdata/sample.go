package perfdata

import (
	"encoding/binary"
	"math/bits"

	"golang.org/x/sys/unix"
)

// Sample is what a record of TypeSample holds, as far as it matters to stacks. Slices are valid as
// long as the record; what samples of the event do not have is zero.
type Sample struct {
	IP       uint64
	PID, TID int32
	CPU      uint32
	HasCPU   bool
	Period   uint64 // that of the event where samples do not have it
	Cgroup   uint64 // ID

	// Read are the values of counters at that time: of the event, or of all of its group. There is
	// none where samples do not tell what event a value is of.
	Read []Value

	// Callchain has addresses from the leaf on, with PERF_CONTEXT_* before those of a kind.
	HasCallchain bool
	Callchain    []uint64

	// Regs are the user registers whose bits are set in RegsMask, by the kernel's numbers for
	// the machine.
	RegsABI  RegsABI
	RegsMask uint64
	Regs     []uint64

	// Stack is the user memory from the SP on, StackAsked how many bytes of it there were to be.
	Stack      []byte
	StackAsked uint64
}

// Value is the value of an event's counter.
type Value struct {
	ID, Value uint64 // ID is one of the event's: see File.EventOf
}

// RegsABI is enum perf_sample_regs_abi.
type RegsABI uint64

// The ABIs of user registers.
const (
	RegsNone RegsABI = iota // a kernel thread
	Regs32                  // of a program of 32 bits
	Regs64
)

// Contexts are markers in Callchain: enum perf_callchain_context.
const (
	ContextHypervisor   = ^uint64(32) + 1
	ContextKernel       = ^uint64(128) + 1
	ContextUser         = ^uint64(512) + 1
	ContextUserDeferred = ^uint64(640) + 1 // a number follows, by which the user part comes later
	contextMax          = ^uint64(4095) + 1
)

// IsContext reports whether an entry of Callchain is a marker.
func IsContext(ip uint64) bool { return ip >= contextMax }

// What unix does not have of <linux/perf_event.h>.
const (
	branchHardwareIndex = 1 << 17 // PERF_SAMPLE_BRANCH_HW_INDEX
	branchCounters      = 1 << 19 // PERF_SAMPLE_BRANCH_COUNTERS
	readTimeEnabled     = 1 << 0  // PERF_FORMAT_*
	readTimeRunning     = 1 << 1
	readID              = 1 << 2
	readGroup           = 1 << 3
	readLost            = 1 << 4

	sampleWeightStruct = 1 << 24
)

// maxCallchain is the longest chain of addresses that is taken: sysctl
// kernel.perf_event_max_stack is 127 by default.
const maxCallchain = 1 << 12

// Sample reads a record of TypeSample into s, whose memory it uses again. Fields are in the order of
// perf_output_sample in the kernel's kernel/events/core.c.
func (r *Record) Sample(s *Sample) error {
	*s = Sample{Callchain: s.Callchain[:0], Regs: s.Regs[:0], Read: s.Read[:0]}
	if r.Event < 0 {
		return ErrMalformed
	}
	a, c := r.attr, cursor{b: r.body}
	has := func(bit uint64) bool { return a.SampleType&bit != 0 }
	if has(unix.PERF_SAMPLE_IDENTIFIER) {
		c.u64()
	}
	if has(unix.PERF_SAMPLE_IP) {
		s.IP = c.u64()
	}
	if has(unix.PERF_SAMPLE_TID) {
		s.PID, s.TID = int32(c.u32()), int32(c.u32())
	}
	for _, bit := range [...]uint64{unix.PERF_SAMPLE_TIME, unix.PERF_SAMPLE_ADDR, unix.PERF_SAMPLE_ID, unix.PERF_SAMPLE_STREAM_ID} {
		if has(bit) {
			c.u64()
		}
	}
	if has(unix.PERF_SAMPLE_CPU) {
		s.CPU, s.HasCPU = c.u32(), true
		c.u32()
	}
	if has(unix.PERF_SAMPLE_PERIOD) {
		s.Period = c.u64()
	} else if !a.IsFrequency() {
		s.Period = a.Period
	}
	if has(unix.PERF_SAMPLE_READ) {
		s.Read = c.readValues(s.Read, a.ReadFormat)
	}
	if has(unix.PERF_SAMPLE_CALLCHAIN) {
		s.HasCallchain = true
		chain := c.words(c.u64())
		for ; len(chain) >= 8 && len(s.Callchain) < maxCallchain; chain = chain[8:] {
			s.Callchain = append(s.Callchain, binary.LittleEndian.Uint64(chain))
		}
	}
	if has(unix.PERF_SAMPLE_RAW) {
		// Its length is such that what follows is aligned to 8 bytes.
		c.bytes(int(min(c.u32(), 1<<30)))
	}
	if has(unix.PERF_SAMPLE_BRANCH_STACK) {
		c.skipBranches(a.BranchType)
	}
	if has(unix.PERF_SAMPLE_REGS_USER) {
		s.RegsABI = RegsABI(c.u64())
		if s.RegsABI != RegsNone {
			s.RegsMask = a.RegsUser
			for b := c.words(uint64(bits.OnesCount64(a.RegsUser))); len(b) >= 8; b = b[8:] {
				s.Regs = append(s.Regs, binary.LittleEndian.Uint64(b))
			}
		}
	}
	if has(unix.PERF_SAMPLE_STACK_USER) {
		if s.StackAsked = c.u64(); s.StackAsked != 0 {
			b := c.bytes(int(min(s.StackAsked, 1<<30)))
			s.Stack = b[:min(c.u64(), uint64(len(b)))]
		}
	}
	if c.short {
		return ErrMalformed
	}
	if has(unix.PERF_SAMPLE_CGROUP) {
		s.readCgroup(a, c)
	}
	return nil
}

// readCgroup reads the ID of the cgroup, which is behind much else. Without that the sample is as
// good.
func (s *Sample) readCgroup(a *Attr, c cursor) {
	for _, bit := range [...]uint64{unix.PERF_SAMPLE_WEIGHT | sampleWeightStruct, unix.PERF_SAMPLE_DATA_SRC, unix.PERF_SAMPLE_TRANSACTION} {
		if a.SampleType&bit != 0 {
			c.u64()
		}
	}
	if a.SampleType&unix.PERF_SAMPLE_REGS_INTR != 0 && c.u64() != uint64(RegsNone) {
		c.words(uint64(bits.OnesCount64(a.RegsIntr)))
	}
	if a.SampleType&unix.PERF_SAMPLE_PHYS_ADDR != 0 {
		c.u64()
	}
	s.Cgroup = c.u64()
}

// readValues appends the values of counters: read_format of struct perf_event_attr.
func (c *cursor) readValues(values []Value, format uint64) []Value {
	times := uint64(bits.OnesCount64(format & (readTimeEnabled | readTimeRunning)))
	rest := uint64(bits.OnesCount64(format & (readID | readLost))) // words behind a value
	take := func() {
		v := Value{Value: c.u64()}
		if format&readGroup == 0 {
			c.words(times)
		}
		if behind := c.words(rest); format&readID != 0 && behind != nil {
			v.ID = binary.LittleEndian.Uint64(behind)
			values = append(values, v)
		}
	}
	if format&readGroup == 0 {
		take()
		return values
	}
	n := c.u64()
	for c.words(times); n > 0 && !c.short; n-- {
		take()
	}
	return values
}

// skipBranches skips the branches that the processor has noted.
func (c *cursor) skipBranches(branchType uint64) {
	n := min(c.u64(), 1<<16)
	if branchType&branchHardwareIndex != 0 {
		c.u64()
	}
	c.words(3 * n)
	if branchType&branchCounters != 0 {
		c.words(n)
	}
}
