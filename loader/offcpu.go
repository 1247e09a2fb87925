package loader

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/btf"

	"github.com/swbpf/swbpf/gen"
)

// OffCPU is the event of threads that leave the CPU because they block. Each
// time that a thread was off the CPU is one sample, taken when the thread runs
// again: its Weight is the duration in ns, its stack that of the switch away
// from it. Threads that are still off the CPU when a Session stops come last,
// with the time until then. What a thread waits for a CPU after its wake-up is
// included; threads that are preempted have not blocked and do not count.
var OffCPU = Event{Name: "off-cpu", Unit: UnitNanoseconds, typ: typeOffCPU} // read only

// typeOffCPU is no PERF_TYPE_*.
const typeOffCPU = ^uint32(0)

// DefaultMinOffCPU is the least duration of interest unless a Config has
// another.
const DefaultMinOffCPU = time.Microsecond

// IsOffCPU reports whether the event is OffCPU.
func (e Event) IsOffCPU() bool { return e.typ == typeOffCPU }

// Blocked tells why a thread has left the CPU.
type Blocked uint8

// The reasons; their numbers are those of enum off_cpu_state in bpf/record.h.
const (
	NotBlocked     Blocked = iota // it has not: a sample of any event but OffCPU
	BlockedSleep                  // interruptible: a timer, a pipe, a socket, a child
	BlockedDisk                   // uninterruptible: a disk mostly
	BlockedLock                   // a futex: a lock of user space
	BlockedStopped                // by a signal or a tracer
)

var blockedNames = [...]string{"running", "sleep", "disk", "lock", "stopped"}

func (b Blocked) String() string {
	if int(b) < len(blockedNames) {
		return blockedNames[b]
	}
	return fmt.Sprintf("Blocked(%d)", uint8(b))
}

type (
	offCPUEnd   = gen.SamplerOffCpuEnd
	offCPUStart = gen.SamplerOffCpuStart
)

// blockedThreads holds the samples of threads that are off the CPU.
type blockedThreads struct {
	byTID map[uint32]*blockedRecord
	free  []*blockedRecord
}

// blockedRecord is a copy of a record, aligned to 8 bytes.
type blockedRecord struct {
	time  uint64
	words []uint64
}

func newBlockedThreads() *blockedThreads {
	return &blockedThreads{byTID: make(map[uint32]*blockedRecord)}
}

// hold copies the record of a thread that has left the CPU.
func (b *blockedThreads) hold(rec []byte) error {
	if len(rec) < int(unsafe.Sizeof(sampleHeader{})) {
		return fmt.Errorf("%w: %d bytes", errBadRecord, len(rec))
	}
	h := (*sampleHeader)(unsafe.Pointer(unsafe.SliceData(rec)))
	r := b.byTID[h.Tid]
	if r == nil {
		if n := len(b.free); n > 0 {
			r, b.free = b.free[n-1], b.free[:n-1]
		} else {
			r = new(blockedRecord)
		}
		b.byTID[h.Tid] = r
	}
	n := len(rec) / 8
	r.time = h.Time
	r.words = append(r.words[:0], unsafe.Slice((*uint64)(unsafe.Pointer(h)), n)...)
	return nil
}

// take returns the record of a thread that left the CPU at start and is back,
// nil when there is none. It is valid until the next call of hold.
func (b *blockedThreads) take(tid uint32, start uint64) *blockedRecord {
	r := b.byTID[tid]
	if r == nil || r.time != start {
		return nil
	}
	delete(b.byTID, tid)
	b.free = append(b.free, r)
	return r
}

// decode loads the sample of a thread that was off the CPU until end.
func (r *blockedRecord) decode(s *Sample, end uint64) error {
	rec := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(r.words))), len(r.words)*8)
	if err := s.decode(rec); err != nil {
		return err
	}
	s.Weight = end - s.Time
	s.Time = end
	return nil
}

// readOffCPU handles a record of a Session of OffCPU: fn is called with the
// sample of a thread that runs again.
func (s *Session) readOffCPU(rec []byte, fn func(*Sample) error) error {
	if len(rec) != int(unsafe.Sizeof(offCPUEnd{})) {
		return s.blocked.hold(rec)
	}
	end := (*offCPUEnd)(unsafe.Pointer(unsafe.SliceData(rec)))
	r := s.blocked.take(end.Tid, end.Start)
	if r == nil || end.Dropped != 0 {
		return nil
	}
	if err := r.decode(&s.sample, end.Time); err != nil {
		return err
	}
	return fn(&s.sample)
}

// flushOffCPU calls fn for the threads that were off the CPU when the Session
// stopped, once. The kernel's own list tells them from those whose end was
// lost.
func (s *Session) flushOffCPU(fn func(*Sample) error) error {
	blocked := s.blocked
	s.blocked = newBlockedThreads()
	if len(blocked.byTID) == 0 {
		return nil
	}
	var pid uint32
	var start offCPUStart
	all := s.maps.OffCpuStarts.Iterate()
	for all.Next(&pid, &start) {
		if s.stopped-start.Time < uint64(s.cfg.MinOffCPU) {
			continue
		}
		r := blocked.take(start.Tid, start.Time)
		if r == nil {
			continue
		}
		if err := r.decode(&s.sample, s.stopped); err != nil {
			return err
		}
		s.flushed.Add(1)
		if err := fn(&s.sample); err != nil {
			return err
		}
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("threads off the CPU: %w", err)
	}
	return nil
}

// switchTellsState reports whether the tracepoint sched_switch has the state
// of the thread that leaves as its fourth argument.
func switchTellsState() (bool, error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return false, fmt.Errorf("type information of the kernel: %w", err)
	}
	var def *btf.Typedef
	if err := kernel.TypeByName("btf_trace_sched_switch", &def); err != nil {
		return false, fmt.Errorf("tracepoint sched_switch: %w", err)
	}
	pointer, ok := def.Type.(*btf.Pointer)
	if !ok {
		return false, fmt.Errorf("tracepoint sched_switch is a %v", def.Type)
	}
	proto, ok := pointer.Target.(*btf.FuncProto)
	if !ok {
		return false, fmt.Errorf("tracepoint sched_switch is a %v", pointer.Target)
	}
	return len(proto.Params) >= 5, nil // the first is the program's own data
}
