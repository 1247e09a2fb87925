package loader

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
)

// Session is a running capture. See the package comment for its life.
type Session struct {
	cfg      Config
	sources  []*source
	hooks    []hook        // of OffCPU and Wall
	waiting  *ebpf.Program // lists threads off the CPU; nil without
	maps     gen.SamplerMaps
	rings    *rings
	flags    processFlags
	mirrors  []mirror        // by CPU; nil without Config.Changes
	kernel   *kernelStacks   // nil where the kernel unwinds its stacks itself
	cpuRing  int             // bytes of a CPU's ring
	blocked  *blockedThreads // for OffCPU and Wall
	flushed  atomic.Uint64   // samples of threads that were off the CPU at the end
	forkProg *ebpf.Program   // for the fork hook; nil where all processes are sampled, and programs are not heeded
	fork     link.Link       // that hook
	execs    *NewPrograms    // nil without Config.NewPrograms
	switches []link.Link     // of OffCPU and Wall, while it runs
	late     lateAllocators  // of Heap

	startedAt, stopped uint64 // CLOCK_MONOTONIC ns of Start and Stop
	nextLate           uint64 // when to look for threads without a sample again
	flushedTimes       bool
	toldPages          bool       // see tellPageTables
	code               kernelCode // of OffCPU and Wall

	types    *btf.Cache // of the kernel; nil once all is loaded
	runStats io.Closer  // nil when not kept
	sample   Sample
	started  bool

	mu     sync.Mutex // guards closed, last, flags
	closed bool
	last   Stats // as of Close
}

// hook is a program that runs at a tracepoint.
type hook struct {
	tracepoint string
	prog       *ebpf.Program
}

// programs are those that run while it samples.
func (s *Session) programs() []*ebpf.Program {
	var all []*ebpf.Program
	for _, src := range s.sources {
		all = append(all, src.programs()...)
	}
	for _, h := range s.hooks {
		all = append(all, h.prog)
	}
	return all
}

// errNotOpen is the error of the methods of what its own function has not opened.
var errNotOpen = errors.New("it has not been opened")

// Open loads the programs, opens the event and reserves the ring; nothing is
// sampled before Start. What the system lacks is reported as *MissingError.
func Open(cfg Config) (*Session, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	if err := checkSystem(); err != nil {
		return nil, err
	}
	s := &Session{cfg: cfg}
	for i, m := range cfg.samplings() {
		src := &source{Sampling: m, number: i}
		var err error
		if src.readings, err = src.allReadings(); err != nil {
			return nil, err
		}
		s.sources = append(s.sources, src)
	}
	if err := s.open(); err != nil {
		s.Close()
		return nil, withFilesMissing(err)
	}
	return s, nil
}

// These are for tests, which share what they read of the kernel's types and the programs.
var (
	newTypes    = btf.NewCache
	loadSampler = gen.LoadSampler
)

func (s *Session) open() error {
	s.types = newTypes()
	defer func() { s.types = nil }()
	go s.types.Kernel() // it takes a while, and is not needed first
	online, err := onlineCPUs()
	if err != nil {
		return err
	}
	if len(s.cfg.CPUs) > 0 {
		if err := checkOnline(s.cfg.CPUs, online); err != nil {
			return err
		}
		online = s.cfg.CPUs
	}
	pids := s.cfg.PIDs
	if len(s.cfg.Threads) > 0 {
		if pids, err = ProcessesOf(s.cfg.Threads); err != nil {
			return err
		}
	}
	if len(pids) == 0 || s.cfg.FollowChildren {
		pids = []int{-1} // the sampling program chooses
	}
	for _, src := range s.sources {
		if err := src.open(online, pids, s.cfg.CPUs); err != nil {
			return err
		}
	}
	if s.hasOffCPU() {
		s.code, _ = readKernelCode(s.cfg.Wakers) // without it less is told, or checkWakers says so
		if err := s.checkWakers(); err != nil {
			return err
		}
		s.blocked = newBlockedThreads()
	}
	if _, ok := chargedMemlock(); ok {
		// If we may not, loading fails and diagnoseLoad says why.
		_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	}
	if err := s.load(); err != nil {
		return diagnoseLoad(err)
	}
	if s.rings, err = newRings(s.maps.Rings); err != nil {
		return err
	}
	if len(s.cfg.CPUs) > 0 {
		s.rings.endPoints(func(cpu int) bool { return !slices.Contains(s.cfg.CPUs, cpu) })
	}
	if s.kernel != nil {
		s.kernel.rings = s.rings
	}
	s.flags = newProcessFlags(s.maps.Processes)
	if s.kernel != nil {
		s.tryKernelStacks()
	}
	if err := s.track(); err != nil {
		return err
	}
	for _, src := range s.sources {
		if src.cpus == nil {
			continue
		}
		if err := src.cpus.attach(src.prog.FD()); err != nil {
			return diagnose(err, "attach the sampling program")
		}
	}
	if s.cfg.RunStats {
		if c, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME); err == nil {
			s.runStats = c
		}
	}
	return nil
}

// track enters the processes asked for, after the fork hook is in place.
func (s *Session) track() error {
	if s.forkProg != nil {
		var err error
		if s.fork, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sched_process_fork", Program: s.forkProg}); err != nil {
			return err
		}
	}
	for _, pid := range s.cfg.PIDs {
		tgid, err := tgidOf(pid)
		if err != nil {
			return err
		}
		if tgid != pid {
			return fmt.Errorf("process %d: it is a thread of process %d", pid, tgid)
		}
		if err := s.flags.set(pid, processSampled); err != nil {
			return err
		}
	}
	if s.cfg.FollowChildren && !slices.Contains(s.cfg.PIDs, s.cfg.Held) {
		if err := s.trackDescendants(); err != nil {
			return err
		}
	}
	for _, tid := range s.cfg.Threads {
		if _, err := processOfThread(tid); err != nil { // it is not another by now, whose number was free
			return err
		}
		if err := s.flags.set(tid, processSampled); err != nil {
			return err
		}
	}
	return nil
}

// hasOffCPU reports whether time off the CPU is sampled.
func (s *Session) hasOffCPU() bool { return s.first().Event.hasOffCPU() }

// usesCPUs reports whether a timer or counter of CPUs is sampled.
func (s *Session) usesCPUs() bool {
	return slices.ContainsFunc(s.sources, func(src *source) bool { return src.cpus != nil })
}

// Samplings are what is sampled, by Sample.Event: the events asked for, or cpu-clock in
// place of cycles, each with the frequency or the period that it has.
func (s *Session) Samplings() []Sampling {
	all := make([]Sampling, len(s.sources))
	for i, src := range s.sources {
		all[i] = src.Sampling
	}
	return all
}

// first is what is sampled of the first event.
func (s *Session) first() (m Sampling) {
	if len(s.sources) > 0 {
		m = s.sources[0].Sampling
	}
	return m
}

// Event is the first of what is sampled.
func (s *Session) Event() Event { return s.first().Event }

// Frequency is the sampling frequency of Event in Hz, 0 when sampling by Period.
func (s *Session) Frequency() int { return s.first().Frequency }

// Period is the number of events per sample of Event, 0 when sampling by Frequency.
func (s *Session) Period() uint64 { return s.first().Period }

// Duration is how long it sampled, from Start to Stop; time off the CPU counts
// within it. It is 0 before Stop.
func (s *Session) Duration() time.Duration {
	if s.stopped == 0 {
		return 0
	}
	return time.Duration(s.stopped - s.startedAt)
}

// NewPrograms tells of sampled programs whose files are new, and of rings that
// fill up; nil without Config.NewPrograms. It ends with the Session.
func (s *Session) NewPrograms() *NewPrograms { return s.execs }

// RingBytes is the room for samples that there is, on all CPUs.
func (s *Session) RingBytes() int {
	if s.rings == nil {
		return 0
	}
	return s.cpuRing * len(s.rings.cpus)
}

// BytesRead is how much has come through the rings so far, in bytes. It belongs
// to the goroutine that calls ReadSamples.
func (s *Session) BytesRead() uint64 {
	if s.rings == nil {
		return 0
	}
	return s.rings.bytes
}

// Start sets the sampling going.
func (s *Session) Start() error {
	if s.rings == nil {
		return errNotOpen
	}
	if s.started {
		return nil
	}
	s.started, s.startedAt = true, monotonic()
	if s.hasOffCPU() {
		if err := s.attachSwitches(); err != nil {
			return err
		}
	}
	for _, src := range s.sources {
		if err := src.start(); err != nil {
			return err
		}
		if src.Event.IsHeap() {
			s.late.begin(src)
		}
	}
	return nil
}

// Stop ends the sampling; what is in the ring can still be read, and the
// Session cannot be started again. With time off the CPU it belongs to the goroutine
// that calls ReadSamples.
func (s *Session) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rings == nil {
		return errNotOpen
	}
	if s.switches != nil {
		s.readLateBefore(monotonic())
	}
	return s.stop()
}

func (s *Session) stop() error {
	var err error
	for _, src := range s.sources {
		err = errors.Join(err, src.stopCPUs())
	}
	if s.started && s.stopped == 0 {
		s.stopped = monotonic()
	}
	if s.switches != nil {
		for _, l := range s.switches {
			err = errors.Join(err, l.Close())
		}
		s.switches = nil
	}
	s.late.end()
	if s.rings != nil {
		s.rings.endPoints(func(int) bool { return true }) // to take a uprobe away takes a tenth of a second, and there may be many
	}
	for _, src := range s.sources {
		err = errors.Join(err, src.stopPoints())
	}
	return err
}

// ReadSamples calls fn for each sample in the ring with a Time of at most
// upTo, in order of time, and removes it. Take a cutoff that lies a
// millisecond in the past, so that programs that are still running have done
// with what is older; what a CPU that was stopped in its program for longer
// leaves comes late, after newer ones. An error of fn ends the read and is
// returned.
func (s *Session) ReadSamples(upTo uint64, fn func(*Sample) error) error {
	if s.rings == nil {
		return errNotOpen
	}
	if err := s.followCPUs(); err != nil {
		return err
	}
	err := s.readRings(upTo, s.watchForGaps(fn))
	switch {
	case err != nil || s.blocked == nil:
	case s.stopped == 0:
		s.readLate()
	case upTo >= s.stopped:
		err = s.flushTimes(fn)
	}
	return err
}

func (s *Session) readRings(upTo uint64, fn func(*Sample) error) error {
	return s.rings.read(upTo, func(cpu int, rec []byte) error {
		if s.blocked != nil {
			return s.readOffCPU(rec, fn)
		}
		if len(rec) == int(unsafe.Sizeof(blockEnd{})) && s.Event().IsHeap() {
			return s.emitFreed(rec, fn)
		}
		var m *mirror
		if s.mirrors != nil {
			m = &s.mirrors[cpu]
		}
		if err := s.sample.decode(rec, m); err != nil {
			return err
		}
		if s.kernel != nil {
			s.kernel.complete(&s.sample)
		}
		if s.Event().IsHeap() {
			s.sample.Bytes = s.sample.Weight
			s.sample.Weight = standsFor(s.sample.Bytes, s.Period())
		}
		return fn(&s.sample)
	})
}

// followCPUs brings the timers and counters in line with the CPUs that are online.
func (s *Session) followCPUs() error {
	for _, src := range s.sources {
		if src.cpus == nil {
			continue
		}
		if err := src.cpus.update(src.prog.FD(), s.started); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the sampling and takes everything out of the kernel. Samples not
// read are gone. Calling it again does nothing.
func (s *Session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	err := s.stop()
	if s.rings != nil {
		s.last, _ = s.readStats()
	}
	for _, prog := range s.programs() {
		err = errors.Join(err, prog.Close())
	}
	err = errors.Join(err, s.waiting.Close(), s.forkProg.Close())
	s.closed = true
	for _, c := range []io.Closer{s.fork, s.runStats} {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	if s.execs != nil {
		err = errors.Join(err, s.execs.close())
	}
	if s.kernel != nil {
		err = errors.Join(err, s.kernel.close())
	}
	if s.rings != nil {
		err = errors.Join(err, s.rings.close())
	}
	s.mirrors, s.kernel, s.sample = nil, nil, Sample{}
	return errors.Join(err, s.flags.close(), s.maps.Close())
}
