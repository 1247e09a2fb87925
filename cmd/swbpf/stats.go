package main

import (
	"encoding/json"
	"syscall"
	"time"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/unwind"
)

// recordStats is what is known of a recording. Times in the names' units; bytes
// where a name says so.
type recordStats struct {
	figures
	detail
	samplesOf [loader.MaxEvents]uint64 // by event
}

// figures are what --stats writes.
type figures struct {
	DurationSeconds   float64           `json:"duration_seconds"`
	Event             string            `json:"event"`
	FrequencyHz       int               `json:"frequency_hz"`
	Samples           uint64            `json:"samples"`             // delivered
	UserSamples       uint64            `json:"user_samples"`        // with a user stack
	KernelOnlySamples uint64            `json:"kernel_only_samples"` // kernel threads, and tasks that exec or exit
	Complete          uint64            `json:"complete"`            // user stacks walked to the bottom
	Truncated         uint64            `json:"truncated"`           // user stacks that were not
	TruncatedByReason map[string]uint64 `json:"truncated_by_reason"`
	Lost              uint64            `json:"lost"` // events without a sample
	LostByReason      map[string]uint64 `json:"lost_by_reason"`
	Frames            uint64            `json:"frames"`       // user frames unwound
	BytesCopied       uint64            `json:"bytes_copied"` // of user stacks, in the kernel
	BytesSent         uint64            `json:"bytes_sent"`   // through the ring
	BPFRunNS          uint64            `json:"bpf_run_ns"`
	BPFRuns           uint64            `json:"bpf_runs"`
	UnwindNS          uint64            `json:"unwind_ns"`
	CPUUserSeconds    float64           `json:"cpu_user_seconds"` // of the recorder itself
	CPUSystemSeconds  float64           `json:"cpu_system_seconds"`
	MaxRSSBytes       int64             `json:"max_rss_bytes"`
	Processes         int               `json:"processes"`                   // with at least one sample
	Modules           int               `json:"modules"`                     // files with at least one frame; of --every, in the part that has most
	Events            []eventFigures    `json:"events,omitempty"`            // where there are several, each
	RealTimeRefused   string            `json:"real_time_refused,omitempty"` // why the recorder had to wait for its turn on busy CPUs, where its rate forbids that
}

// eventFigures are what --stats writes of each of several events.
type eventFigures struct {
	Event       string `json:"event"`
	FrequencyHz int    `json:"frequency_hz"`
	Samples     uint64 `json:"samples"`
}

// countEvents fills in the figures of each event.
func (s *recordStats) countEvents(samplings []loader.Sampling) {
	for i, m := range samplings {
		s.Events = append(s.Events, eventFigures{m.Event.Name, m.Frequency, s.samplesOf[i]})
	}
}

// detail is what --stats writes with --stats-detail besides.
type detail struct {
	Weight              string            `json:"weight,omitempty"` // by which events count
	OffCPUNSByState     map[string]uint64 `json:"off_cpu_ns_by_state,omitempty"`
	OffCPUNSByWaker     map[string]uint64 `json:"off_cpu_ns_by_waker,omitempty"`   // what ended it, by name; "" where that is not known
	OffCPUOngoingNS     uint64            `json:"off_cpu_ongoing_ns,omitempty"`    // with wakers: what had not ended
	LeftOut             uint64            `json:"left_out,omitempty"`              // by --filter
	OffCPUSkippedShort  uint64            `json:"off_cpu_skipped_short,omitempty"` // below --min-off-cpu
	OffCPUUnsampled     uint64            `json:"off_cpu_unsampled,omitempty"`     // too many within a short time
	OffCPUUnsampledNS   uint64            `json:"off_cpu_unsampled_ns,omitempty"`
	OffCPUMissed        uint64            `json:"off_cpu_missed_switches,omitempty"` // that the kernel did not report
	Wakers              uint64            `json:"wakers,omitempty"`                  // samples of what woke threads up
	WakersLost          uint64            `json:"wakers_lost,omitempty"`             // for want of room
	FreesMissed         uint64            `json:"frees_missed,omitempty"`            // blocks of the heap given back, of which it is not known when
	AllocatorsMissed    uint64            `json:"allocators_missed,omitempty"`       // files with allocators that came later and are not seen
	UnsampledNS         uint64            `json:"not_sampled_ns,omitempty"`          // in the profile as "[not sampled]"
	UnreadableStacks    uint64            `json:"unreadable_stacks,omitempty"`       // samples without a byte of user stack
	PartialRegisters    uint64            `json:"partial_registers,omitempty"`       // samples of tasks that the kernel was just saving the registers of
	Exiting             uint64            `json:"exiting,omitempty"`                 // samples of tasks that exit
	LiveBytes           uint64            `json:"live_bytes"`                        // of stacks known in full: from SP to the outermost frame
	LiveBytesCopied     uint64            `json:"live_bytes_copied"`                 // for these stacks
	RecordingCPUSeconds float64           `json:"recording_cpu_seconds"`             // of the recorder, from the first sample possible until all are counted
	NamingCPUSeconds    float64           `json:"naming_cpu_seconds"`                // of the recorder, at the end; cpu_user_seconds and cpu_system_seconds hold both
}

// ownCPU returns the CPU time that this program has used so far, in seconds.
func ownCPU() float64 {
	var ru syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &ru) != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano()).Seconds()
}

// addOwnUsage fills in what the recorder itself has used.
func (s *recordStats) addOwnUsage() {
	var ru syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &ru) != nil {
		return
	}
	s.CPUUserSeconds = time.Duration(ru.Utime.Nano()).Seconds()
	s.CPUSystemSeconds = time.Duration(ru.Stime.Nano()).Seconds()
	s.MaxRSSBytes = ru.Maxrss << 10
}

// addLive counts a stack of which all is known: how much of it was live, and
// how much was copied. pcs are its frames, of which those may be left out that are
// known to be on the stack itself, and sp the outermost one's SP. Stacks that go on
// elsewhere, as those of Go do, are left out: not all of their SPs are known here.
func (s *recordStats) addLive(sample *loader.Sample, pcs []unwind.PC, sp uint64) {
	for i := range pcs {
		if pcs[i].Flags&unwind.StackSwitched != 0 {
			return
		}
	}
	s.LiveBytes += sp - sample.Regs.Raw(sample.Arch.SP)
	for _, r := range sample.StackRegions() {
		s.LiveBytesCopied += uint64(len(r.Data))
	}
}

// write writes the figures to f, and with detail all that is known.
func (s *recordStats) write(f *outFile, detail bool) error {
	var v any = &s.figures
	if detail {
		v = s
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if _, err := f.Write(append(b, '\n')); err != nil {
		return err
	}
	return f.commit()
}
