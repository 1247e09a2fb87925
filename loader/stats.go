package loader

import "fmt"

// Stats is the account of a Session since it was opened. Every event that
// fired is in exactly one of Samples, the Lost fields and the Skipped fields.
type Stats struct {
	Samples uint64 // records put in the ring, read or not
	Usual   uint64 // of these, of which the stack's end was known and one read had all: they cost least

	LostRingFull  uint64 // no room in the ring
	LostNested    uint64 // came while another sample was being taken
	LostNoScratch uint64 // too many threads off the CPU, or blocks of memory held
	LostForeign   uint64 // task that this PID namespace does not contain
	LostDeferred  uint64 // in a thread that the kernel has not gone back to from a uprobe
	LostNumber    uint64 // static probes of which a number is in memory that could not be read

	SkippedIdle   uint64 // the idle task, and kernel threads that begin to wait for work
	SkippedFilter uint64 // processes and cgroups not asked for
	SkippedPeriod uint64 // tracepoints or probes between two samples

	SkippedNumbers uint64 // tracepoints or probes that do not pass the Filter

	// Of OffCPU and Wall: times shorter than Config.MinOffCPU, and times
	// without a stack, as there were too many, with their sum in ns.
	SkippedShort  uint64
	SkippedRate   uint64
	UnsampledTime uint64
	MissedWakers  uint64 // of Config.Wakers, for want of room: no event is lost by that
	MissedFrees   uint64 // of Heap: blocks given back that no sample tells of, for want of room
	// MissedAllocators are files with allocators that came while Heap was sampled and are not seen: see
	// Processes.FindAllocators.
	MissedAllocators uint64
	// MissedSwitches are those back to a thread that the kernel did not
	// report, and whose time is known within that of one on its CPU.
	MissedSwitches uint64

	StackBytes      uint64 // copied from user memory
	RingBytes       uint64 // put in the ring
	UnreadableStack uint64 // samples without a byte of user stack
	PartialRegs     uint64 // samples in state UserPartial
	Exited          uint64 // samples in state UserExited

	// RunTime is the time that the programs took, in ns, and Runs how often
	// they ran, by the kernel's account; 0 when it does not keep one (see
	// Config.RunStats). Both include runs for skipped events.
	RunTime, Runs uint64
}

// Lost is the number of events that should have become samples.
func (s *Stats) Lost() uint64 {
	return s.LostRingFull + s.LostNested + s.LostNoScratch + s.LostForeign + s.LostDeferred + s.LostNumber
}

// LostByReason returns the losses by their names, without those that did not
// occur.
func (s *Stats) LostByReason() map[string]uint64 {
	m := make(map[string]uint64)
	for name, n := range map[string]uint64{
		"ring_full":  s.LostRingFull,
		"nested":     s.LostNested,
		"no_scratch": s.LostNoScratch,
		"foreign":    s.LostForeign,
		"deferred":   s.LostDeferred,
		"number":     s.LostNumber,
	} {
		if n > 0 {
			m[name] = n
		}
	}
	return m
}

// LostHelp explains the names of LostByReason, in a line each.
var LostHelp = map[string]string{
	"ring_full":  "they came faster than they were read; sample more rarely, or fewer processes",
	"nested":     "they came while another sample was being taken on that CPU",
	"no_scratch": "of too many threads off the CPU, or too many blocks of memory that are held",
	"foreign":    "processes outside of this PID namespace; record on the host, or share its namespace (--pid=host)",
	"deferred":   "in threads that the kernel had not gone back to from a uprobe",
	"number":     "their --weight, or what --filter asks for, is in memory that was not there to be read at the probe",
}

// fired is the number of events that the programs saw.
func (s *Stats) fired() uint64 {
	return s.Samples + s.Lost() + s.SkippedIdle + s.SkippedFilter + s.SkippedPeriod + s.SkippedNumbers +
		s.SkippedShort + s.SkippedRate
}

// Stats returns the account so far. After Close it returns the account as it
// was then.
func (s *Session) Stats() (Stats, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.last, nil
	}
	if s.rings == nil {
		return Stats{}, errNotOpen
	}
	return s.readStats()
}

func (s *Session) readStats() (Stats, error) {
	var st Stats
	for i := range s.rings.cpus {
		c := s.rings.cpus[i].counters
		st.Samples += c.Samples
		st.Usual += c.Usual
		st.LostRingFull += c.LostRingFull
		st.LostNested += c.LostNested
		st.LostNoScratch += c.LostNoScratch
		st.LostForeign += c.LostForeign
		st.LostDeferred += c.LostDeferred
		st.LostNumber += c.LostNumber
		st.SkippedIdle += c.SkippedIdle
		st.SkippedFilter += c.SkippedFilter
		st.SkippedPeriod += c.SkippedPeriod
		st.SkippedNumbers += c.SkippedNumbers
		st.SkippedShort += c.SkippedShort
		st.SkippedRate += c.SkippedRate
		st.UnsampledTime += c.UnsampledTime
		st.MissedWakers += c.LostWakers
		st.MissedFrees += c.LostBlockEnds
		st.MissedSwitches += c.MissedSwitches
		st.StackBytes += c.StackBytes
		st.RingBytes += c.RingBytes
		st.UnreadableStack += c.UnreadableStack
		st.PartialRegs += c.PartialRegs
		st.Exited += c.Exited
	}
	st.Samples += s.flushed.Load()
	st.MissedAllocators = s.late.numMissed()
	for _, prog := range s.programs() {
		ps, err := prog.Stats()
		if err != nil {
			return Stats{}, fmt.Errorf("read program statistics: %w", err)
		}
		st.RunTime += uint64(ps.Runtime)
		st.Runs += ps.RunCount
		// The kernel runs no program inside another one and counts what it
		// dropped for that (where it does count).
		st.LostNested += ps.RecursionMisses
	}
	return st, nil
}
