package perfdata

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"golang.org/x/sys/unix"
)

// Event is one that was recorded.
type Event struct {
	Attr
	Name string // as perf has it, modifiers included: "cycles:u"
}

// Attr is how the kernel was asked for an event: those fields of struct perf_event_attr that
// matter to who reads samples.
type Attr struct {
	Type       uint32
	Config     uint64
	Period     uint64 // of each sample, or with IsFrequency how many a second there were to be
	SampleType uint64 // PERF_SAMPLE_* of <linux/perf_event.h>
	ReadFormat uint64
	Flags      uint64 // the bits, from disabled on
	BranchType uint64
	RegsUser   uint64 // the registers that samples have, by the kernel's numbers for the machine
	StackUser  uint32 // bytes that samples have of the user stack at most; 0: none
	RegsIntr   uint64
}

// Bits of Attr.Flags.
const (
	flagInherit     = 1 << 1
	flagFrequency   = 1 << 10
	flagSampleIDAll = 1 << 18
)

// IsFrequency tells what Period is.
func (a *Attr) IsFrequency() bool { return a.Flags&flagFrequency != 0 }

// minAttrBytes is the length of the first version, PERF_ATTR_SIZE_VER0.
const minAttrBytes = 64

// parseAttr reads the attributes of an event and returns how many bytes of b they are. Later
// versions have more fields at the end.
func parseAttr(b []byte) (a Attr, n int, err error) {
	if len(b) < minAttrBytes {
		return a, 0, errors.New("the attributes of an event are cut off")
	}
	le := binary.LittleEndian
	if n = int(le.Uint32(b[4:])); n == 0 {
		n = minAttrBytes
	}
	if n < minAttrBytes || n > len(b) {
		return a, 0, fmt.Errorf("the attributes of an event have %d bytes, of which there are %d", n, len(b))
	}
	var all [112]byte
	copy(all[:], b[:n])
	return Attr{
		Type: le.Uint32(all[0:]), Config: le.Uint64(all[8:]), Period: le.Uint64(all[16:]),
		SampleType: le.Uint64(all[24:]), ReadFormat: le.Uint64(all[32:]), Flags: le.Uint64(all[40:]),
		BranchType: le.Uint64(all[72:]), RegsUser: le.Uint64(all[80:]), StackUser: le.Uint32(all[88:]),
		RegsIntr: le.Uint64(all[96:]),
	}, n, nil
}

// Names of events by their numbers, as perf has them.
var (
	hardwareNames = []string{"cycles", "instructions", "cache-references", "cache-misses", "branches", "branch-misses", "bus-cycles",
		"stalled-cycles-frontend", "stalled-cycles-backend", "ref-cycles"}
	softwareNames = []string{"cpu-clock", "task-clock", "page-faults", "context-switches", "cpu-migrations", "minor-faults", "major-faults",
		"alignment-faults", "emulation-faults", "dummy", "bpf-output", "cgroup-switches"}
)

// KindName is what an event is called by its numbers alone. perf's own name for it may have terms behind
// it, of how it was recorded: "page-faults/call-graph=fp/".
func (a *Attr) KindName() string {
	var names []string
	switch a.Type {
	case unix.PERF_TYPE_HARDWARE:
		names = hardwareNames
	case unix.PERF_TYPE_SOFTWARE:
		names = softwareNames
	}
	if a.Config < uint64(len(names)) {
		return names[a.Config]
	}
	return fmt.Sprintf("event %d/%#x", a.Type, a.Config)
}

// ReadsByThread reports whether the values of counters that a sample has (Sample.Read) are those of its
// thread. Otherwise an ID has one.
func (a *Attr) ReadsByThread() bool { return a.Flags&flagInherit != 0 }

// IsDummy reports whether an event counts nothing: it is there for the records of mappings.
func (a *Attr) IsDummy() bool {
	return a.Type == unix.PERF_TYPE_SOFTWARE && a.Config == unix.PERF_COUNT_SW_DUMMY
}

// CountsTime reports whether an event counts nanoseconds.
func (a *Attr) CountsTime() bool {
	return a.Type == unix.PERF_TYPE_SOFTWARE && (a.Config == unix.PERF_COUNT_SW_CPU_CLOCK || a.Config == unix.PERF_COUNT_SW_TASK_CLOCK)
}

// idFromEnd returns how many bytes before the end of a record that is no sample the ID of its event is;
// 0 where there is none.
func idFromEnd(sampleType uint64) int {
	switch {
	case sampleType&unix.PERF_SAMPLE_IDENTIFIER != 0:
		return 8
	case sampleType&unix.PERF_SAMPLE_ID != 0:
		return 8 * (1 + bits.OnesCount64(sampleType&(unix.PERF_SAMPLE_STREAM_ID|unix.PERF_SAMPLE_CPU)))
	}
	return 0
}

// idOffset returns where in the body of a sample the ID of its event is; -1 where there is none.
func idOffset(sampleType uint64) int {
	const before = unix.PERF_SAMPLE_IP | unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME | unix.PERF_SAMPLE_ADDR
	switch {
	case sampleType&unix.PERF_SAMPLE_IDENTIFIER != 0:
		return 0
	case sampleType&unix.PERF_SAMPLE_ID != 0:
		return 8 * bits.OnesCount64(sampleType&before)
	}
	return -1
}
