package loader

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
)

// Sampling says what of an event is sampled; the fields are as in Config.
type Sampling struct {
	Event     Event
	Frequency int
	Period    uint64
	Weight    Weight
	Filter    Filter
}

// MaxEvents is how many events a Session samples at most.
const MaxEvents = int(gen.SamplerLimitsMAX_EVENTS)

// samplings are all that a Config asks for, in order.
func (c *Config) samplings() []Sampling {
	return append([]Sampling{{c.Event, c.Frequency, c.Period, c.Weight, c.Filter}}, c.Also...)
}

// complete checks a Sampling and fills in defaults.
func (m *Sampling) complete() error {
	if m.Event.isZero() {
		m.Event = knownEvents[0]
	}
	e := &m.Event
	switch {
	case m.Frequency < 0:
		return fmt.Errorf("frequency %d Hz: must be positive", m.Frequency)
	case m.Frequency > 0 && m.Period > 0:
		return errors.New("frequency and period exclude each other")
	case e.isPoint() && m.Frequency > 0:
		return fmt.Errorf("event %s: only timers and counters are sampled by frequency; this is sampled by period", e.Name)
	case !m.Weight.isZero() && !e.hasNumbers():
		return fmt.Errorf("event %s: only tracepoints and probes have a weight", e.Name)
	case !m.Weight.isZero() && m.Weight.event != e.Name:
		return fmt.Errorf("event %s: its weight is of event %s", e.Name, m.Weight.event)
	case len(m.Filter.conditions) > 0 && m.Filter.event != e.Name:
		return fmt.Errorf("event %s: its filter is of event %s", e.Name, m.Filter.event)
	case e.IsOffCPU() && m.Period > 1:
		return fmt.Errorf("event %s: it has no period", e.Name)
	}
	if m.Frequency == 0 && m.Period == 0 {
		if e.HasDefaultFrequency() {
			m.Frequency = DefaultFrequency
		} else if m.Period = 1; e.IsHeap() {
			m.Period = DefaultHeapPeriod
		}
	}
	return nil
}

// source is one of the events of a Session, with the programs that it runs.
type source struct {
	Sampling
	number   int                      // among the events: Sample.Event
	readings []reading                // how programs find numbers of the event
	prog     *ebpf.Program            // the sampling program; nil for OffCPU
	copies   []*ebpf.Program          // of prog, one for each of readings but the first
	heap     map[string]*ebpf.Program // of Heap, by name
	cpus     *cpuEvents               // nil for tracepoints and probes
	points   points                   // of tracepoints and probes
	many     []int                    // processes of Heap, where the kernel puts probes in many places at once
	links    []link.Link              // of these
}

// open opens the event, without programs. Those of CPUs are on the wanted ones alone, where there are some.
func (s *source) open(online, pids, wanted []int) (err error) {
	if s.Event.IsReturn() {
		if err := checkReturnProbes(pids); err != nil {
			return err
		}
	}
	switch {
	case s.Event.IsTracepoint():
		var fd int
		if fd, err = openTracepoint(s.Event, online[0]); err == nil {
			s.points = points{{fd: fd}}
		}
	case s.Event.IsHeap() && canAttachMany(pids):
		s.many = pids
	case s.Event.IsUprobe(), s.Event.IsHeap():
		s.points, err = openUprobes(s.Event, pids, online[0])
	case s.Event.IsKprobe():
		s.points, err = openKprobe(s.Event, online[0])
	case s.Event.IsOffCPU():
	default:
		if err = s.openCPUs(online); err == nil {
			s.cpus.wanted = wanted
		}
	}
	return err
}

// openCPUs opens the event on all CPUs, or cpu-clock in place of cycles that need not be precise.
func (s *source) openCPUs(online []int) error {
	var err error
	event := s.Event
	if event.IsWall() {
		event = cpuClock
	}
	for degree := 3; event.mostPrecise && degree > 0 && s.cpus == nil; degree-- {
		if s.cpus, err = openCPUEvents(event.precise(degree), &s.Sampling, online); err != nil && !isUnsupportedEvent(err) && !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	if s.cpus == nil {
		s.cpus, err = openCPUEvents(event, &s.Sampling, online)
	}
	if err != nil && s.Event.Unit == UnitCycles && isUnsupportedEvent(err) && !event.isPrecise() {
		s.Event = event.byClock()
		if s.cpus, err = openCPUEvents(s.Event, &s.Sampling, online); err != nil {
			err = fmt.Errorf("in place of %s, which this machine does not count: %w", event.Name, err)
		}
	}
	if err != nil && isUnsupportedEvent(err) {
		err = &MissingError{
			What:   "a counter of " + s.Event.Name + " on this machine",
			Remedy: "sample cpu-clock, or another event that 'perf list' shows; where it is virtual, have its host pass the PMU through",
			Err:    err,
		}
	}
	return err
}

// programName is the name of the program that the event runs; "" for OffCPU and Heap.
func (s *source) programName() string {
	switch {
	case s.Event.IsTracepoint():
		return gen.SamplerProgOnTracepoint
	case s.Event.IsUprobe():
		return gen.SamplerProgOnUprobe
	case s.Event.IsKprobe():
		return gen.SamplerProgOnKprobe
	case s.Event.IsOffCPU(), s.Event.IsHeap():
		return ""
	}
	return gen.SamplerProgOnPerfEvent
}

// programs are those that were loaded.
func (s *source) programs() []*ebpf.Program {
	if s.heap != nil {
		return slices.Collect(maps.Values(s.heap))
	}
	if s.prog == nil {
		return s.copies
	}
	return append([]*ebpf.Program{s.prog}, s.copies...)
}

// programAt is the sampling program for a place of the event.
func (s *source) programAt(place int) *ebpf.Program {
	if s.heap != nil {
		return s.heap[s.Event.places[place].program]
	}
	if i := slices.Index(s.readings, s.readingAt(place)); i > 0 {
		return s.copies[i-1]
	}
	return s.prog
}

// start sets the sampling going.
func (s *source) start() error {
	if s.cpus != nil {
		return s.cpus.enable()
	}
	if s.many != nil {
		return s.attachMany(s.Event.places)
	}
	for _, p := range s.points {
		if err := unix.IoctlSetInt(p.fd, unix.PERF_EVENT_IOC_SET_BPF, s.programAt(p.place).FD()); err != nil {
			return fmt.Errorf("attach to %s: %w", s.Event.Name, err)
		}
	}
	return nil
}

// stopCPUs ends the sampling of a timer or counter.
func (s *source) stopCPUs() error {
	if s.cpus == nil {
		return nil
	}
	err := s.cpus.close()
	s.cpus = nil
	return err
}

// stopPoints ends that of a tracepoint or probe.
func (s *source) stopPoints() error {
	err := errors.Join(s.points.Close(), closeLinks(s.links))
	s.points, s.links = nil, nil
	return err
}
