package loader

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/btf"

	"github.com/swbpf/swbpf/gen"
)

// OffCPU is the event of threads that leave the CPU. Each time that a thread
// was off the CPU is one sample, taken when the thread runs again: its Weight is
// the duration in ns, its stack that of the switch away from it, Blocked what it
// waited for. After its wake-up a thread waits for a CPU: that is a sample of
// its own, Continued, of state BlockedRunnable, as is the whole time of a thread
// that was preempted. Threads that were off the CPU already when the Session
// started count from then on, with the stack that they had; those that still
// are when it stops come last, with the time until then. Kernel threads that
// wait for work (TASK_IDLE) do not count.
//
// With many switches a part of them is sampled, by chance: all of the first 25 in
// 10 ms of a thread from the same place in its program (5 where it is preempted),
// as far as its CPU has no more than 300 of the first 3 of each, and 50 others;
// then fewer and fewer, also while the ring is filled. The Weight of a sample has
// the times of those that it stands for, of the same thread, place, state and about
// the same length. A thread whose time has no sample gets one while it is still off
// the CPU, from Linux 5.9 on: when that has lasted for 0.1 s, if ReadSamples is called
// as often, later where there are many thousand threads; and when the Session stops.
// What no sample stood for when the thread ends, or the Session stops, is one without
// stack, Unsampled. So the sum of a thread's times is right however many there are.
var OffCPU = Event{Name: "off-cpu", Unit: UnitNanoseconds, typ: typeOffCPU} // read only

// Wall is OffCPU and cpu-clock together. The Weight of a sample on the CPU,
// NotBlocked, is the time in ns that the thread was on a CPU since its last one;
// what is left at its end, or at that of the Session, is Unsampled. The sum of
// a thread's times is the time that it existed, from its first switch on.
var Wall = Event{Name: "wall", Unit: UnitNanoseconds, typ: typeWall} // read only

// These are no PERF_TYPE_*.
const (
	typeOffCPU = ^uint32(0) - iota
	typeWall
)

// DefaultMinOffCPU is the least duration of interest unless a Config has
// another.
const DefaultMinOffCPU = time.Microsecond

// IsOffCPU reports whether the event is OffCPU.
func (e Event) IsOffCPU() bool { return e.typ == typeOffCPU }

// IsWall reports whether the event is Wall.
func (e Event) IsWall() bool { return e.typ == typeWall }

// hasOffCPU reports whether there are samples of time off the CPU.
func (e Event) hasOffCPU() bool { return e.IsOffCPU() || e.IsWall() }

// Blocked tells why a thread is off the CPU.
type Blocked uint8

// The reasons; their numbers are those of enum off_cpu_state in bpf/record.h.
const (
	NotBlocked             Blocked = iota // it is not: a sample of any other event
	BlockedSleep                          // interruptible: a timer, a pipe, a socket, a child
	BlockedDisk                           // I/O of a block device
	BlockedLock                           // a futex: a lock of user space
	BlockedStopped                        // by a signal or a tracer
	BlockedUninterruptible                // in the kernel, but for no disk: a vfork child, a lock of its own
	BlockedRunnable                       // it could go on: preempted, or woken up, it waits for a CPU
)

var blockedNames = [...]string{"running", "sleep", "disk", "lock", "stopped", "uninterruptible", "runnable"}

// String returns the reason as the label "state" has it: "sleep".
func (b Blocked) String() string {
	if int(b) < len(blockedNames) {
		return blockedNames[b]
	}
	return fmt.Sprintf("Blocked(%d)", uint8(b))
}

type (
	offCPUEnd   = gen.SamplerOffCpuEnd
	unsampled   = gen.SamplerUnsampled
	threadTimes = gen.SamplerThreadTimes
)

// blockedThreads holds the samples of threads that are off the CPU: the last one of
// each, and the last one that was taken late, of which others may still be in the ring
// that are older.
type blockedThreads struct {
	byTID, late map[uint32]*blockedRecord
	free        []*blockedRecord
}

// blockedRecord is a copy of a record, aligned to 8 bytes.
type blockedRecord struct {
	time  uint64
	words []uint64
}

func (r *blockedRecord) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(r.words))), len(r.words)*8)
}

func newBlockedThreads() *blockedThreads {
	return &blockedThreads{byTID: make(map[uint32]*blockedRecord), late: make(map[uint32]*blockedRecord)}
}

// hold copies the record of a thread that has left the CPU into byTID or late, unless
// that has a later one.
func (b *blockedThreads) hold(in map[uint32]*blockedRecord, rec []byte) error {
	if len(rec) < int(unsafe.Sizeof(sampleHeader{})) {
		return fmt.Errorf("%w: %d bytes", errBadRecord, len(rec))
	}
	h := (*sampleHeader)(unsafe.Pointer(unsafe.SliceData(rec)))
	r := in[h.Tid]
	if r == nil {
		if n := len(b.free); n > 0 {
			r, b.free = b.free[n-1], b.free[:n-1]
		} else {
			r = new(blockedRecord)
		}
		in[h.Tid] = r
	} else if r.time > h.Time {
		return nil
	}
	n := len(rec) / 8
	r.time = h.Time
	r.words = append(r.words[:0], unsafe.Slice((*uint64)(unsafe.Pointer(h)), n)...)
	return nil
}

// take returns the record of a thread that left the CPU at start and is back,
// nil when there is none. It is valid until the next call of hold.
func (b *blockedThreads) take(tid uint32, start uint64) *blockedRecord {
	for _, in := range [...]map[uint32]*blockedRecord{b.byTID, b.late} {
		if r := in[tid]; r != nil && r.time == start {
			delete(in, tid)
			b.free = append(b.free, r)
			return r
		}
	}
	return nil
}

// readOffCPU handles a record of a Session of OffCPU or Wall: fn is called with
// the samples of a thread that runs again, or was on the CPU.
func (s *Session) readOffCPU(rec []byte, fn func(*Sample) error) error {
	switch len(rec) {
	case int(unsafe.Sizeof(offCPUEnd{})):
		end := (*offCPUEnd)(unsafe.Pointer(unsafe.SliceData(rec)))
		r := s.blocked.take(end.Tid, end.Start)
		if r == nil || end.Dropped != 0 {
			return nil
		}
		return s.emitOffCPU(r, end.Blocked, end.Runnable, end.Time, false, fn)
	case int(unsafe.Sizeof(unsampled{})):
		return s.emitUnsampled((*unsampled)(unsafe.Pointer(unsafe.SliceData(rec))), fn)
	}
	if len(rec) >= int(unsafe.Sizeof(sampleHeader{})) {
		switch Blocked((*sampleHeader)(unsafe.Pointer(unsafe.SliceData(rec))).OffCpu) {
		case NotBlocked:
		case wakerBlocked:
			return s.emitWaker(rec, fn)
		default:
			return s.blocked.hold(s.blocked.byTID, rec)
		}
	}
	if err := s.sample.decode(rec, nil); err != nil {
		return err
	}
	return fn(&s.sample)
}

// emitOffCPU calls fn with the samples of a thread that was off the CPU until
// end, or is still: blocked ns in the state of the record, then runnable ns waiting for a CPU.
func (s *Session) emitOffCPU(r *blockedRecord, blocked, runnable, end uint64, still bool, fn func(*Sample) error) error {
	p := &s.sample
	if err := p.decode(r.bytes(), nil); err != nil {
		return err
	}
	p.Time, p.Left = end, p.Time
	s.code.leaveTracing(p)
	if blocked > 0 {
		p.Weight, p.Ongoing = blocked, still && runnable == 0
		if err := fn(p); err != nil {
			return err
		}
	}
	if runnable == 0 {
		return nil
	}
	p.Weight, p.Blocked, p.Continued, p.Ongoing = runnable, BlockedRunnable, blocked > 0, still
	return fn(p)
}

// emitUnsampled calls fn with time of which there is no sample.
func (s *Session) emitUnsampled(u *unsampled, fn func(*Sample) error) error {
	s.sample = Sample{
		Time: u.Time, Weight: u.Ns, PID: int32(u.Tgid), TID: int32(u.Tid), Comm: u.Comm, Cgroup: u.Cgroup,
		Blocked: Blocked(u.OffCpu), Unsampled: true, Regions: s.sample.Regions[:0],
	}
	return fn(&s.sample)
}

// flushTimes calls fn for the threads that were off the CPU when the Session
// stopped, and for what time is left without a sample, once.
func (s *Session) flushTimes(fn func(*Sample) error) error {
	if s.flushedTimes {
		return nil
	}
	s.flushedTimes = true
	runningSince := map[uint32]uint64{}
	for i := range s.rings.cpus {
		c := s.rings.cpus[i].counters
		runningSince[uint32(c.Running)] = c.OnCpuSince
	}
	var pid uint32
	var t threadTimes
	all := s.maps.Times.Iterate()
	for all.Next(&pid, &t) {
		if since, ok := runningSince[pid]; ok && s.Event().IsWall() && t.Left == 0 && since < s.stopped {
			t.Carried[NotBlocked] += s.stopped - since
		}
		if err := s.flushThread(&t, fn); err != nil {
			return err
		}
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("threads off the CPU: %w", err)
	}
	return nil
}

// flushThread is flushTimes for one thread.
func (s *Session) flushThread(t *threadTimes, fn func(*Sample) error) error {
	if t.Left != 0 && t.Left < s.stopped {
		blocked, runnable := s.stopped-t.Left, uint64(0)
		if t.Woken >= t.Left && t.Woken < s.stopped {
			runnable = s.stopped - t.Woken
			blocked -= runnable
		}
		r := s.blocked.take(t.Tid, t.Left)
		switch {
		case blocked+runnable < uint64(s.cfg.MinOffCPU):
		case r == nil || t.Sampled != uint8(gen.SamplerSampledSAMPLED) && t.Late != t.Left:
			if int(t.OffCpu) < len(t.Owed) {
				t.Owed[t.OffCpu] += blocked
			}
			t.Owed[BlockedRunnable] += runnable
		default:
			s.flushed.Add(1)
			if err := s.emitOffCPU(r, blocked, runnable, s.stopped, true, fn); err != nil {
				return err
			}
		}
	}
	for state, owed := range t.Owed {
		ns := t.Carried[state] + owed
		if ns == 0 {
			continue
		}
		err := s.emitUnsampled(&unsampled{
			Time: s.stopped, Ns: ns, Cgroup: t.Cgroup, Tgid: t.Tgid, Tid: t.Tid, Comm: t.Comm, OffCpu: uint32(state),
		}, fn)
		if err != nil {
			return err
		}
	}
	return nil
}

// switchTellsState reports whether the tracepoint sched_switch has the state
// of the thread that leaves as its fourth argument, since Linux 5.18; some have
// it earlier.
func switchTellsState(types *btf.Cache) (bool, error) {
	if assumedRelease != "" {
		return false, nil
	}
	kernel, err := types.Kernel()
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
