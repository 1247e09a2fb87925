package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/profile"
	"github.com/swbpf/swbpf/steppers"
)

// recorder runs a recording: it keeps the session, the side-band and the
// pipeline together, and decides when to poll and when to stop.
type recorder struct {
	opt      *recordOptions
	session  *loader.Session
	sideband *loader.Sideband
	command  *loader.Command // nil without a command
	images   *procstate.Images
	procs    *loader.Processes
	*pipeline

	alarm   *alarm                  // rings for the next poll
	stop    context.CancelFunc      // ends what watches for new files; the session must not end before
	watched chan struct{}           // closed when it has
	abort   func()                  // tidies up when a second signal ends the program at once
	began   time.Time               // when sampling has begun, or is to
	begun   chan struct{}           // closed when it has
	cpu     float64                 // ownCPU when it began
	part    part                    // of the recording, that is in the profile under way
	parts   *parts                  // nil where there is one
	value   [loader.MaxEvents]int64 // by event, of the samples in all profiles, in the unit that these have

	collectors steppers.ThreadCollectors // of threads that wait
	precedence *precedence               // of the thread that reads the rings; nil without

	forgotten   time.Time // when idle threads were forgotten last
	filesClosed time.Time // when idle files were closed last
	closed      uint64    // how many had been when the steppers forgot some last

	signals chan os.Signal
	idle    atomic.Bool // all is written, and the command has not ended; or nobody reads an output
}

const (
	// wakeBytes of news are less than what the start of a static program makes.
	wakeBytes = 200

	// switchRing is the ring for switches, of which there are many on a busy
	// machine.
	switchRing = 32 << 20

	// changesFrom is the rate in Hz from which only changes of stacks are sent.
	// Below it the memory to compare with is in no cache any more, and reading
	// it costs more than it saves. Events that each are a sample may be any number.
	changesFrom = 500

	// keep is how long a process is remembered after its end.
	keep = time.Second

	// closeFilesEvery is how often files are closed that no process maps any
	// more and that no sample was in.
	closeFilesEvery = 30 * time.Second

	// forgetIdleEvery is how often what is remembered of threads is forgotten that have
	// had no sample for as long.
	forgetIdleEvery = 4 * time.Second
)

// startRecorder sets everything up and starts sampling. Events of processes
// are followed from before the first sample. reads says that the caller's goroutine
// is the one that will read the rings: where they fill fast it has precedence from
// before the first sample on.
func startRecorder(o *recordOptions, signals chan os.Signal, reads bool) (*recorder, error) {
	r := &recorder{opt: o, signals: signals, abort: func() {}, begun: make(chan struct{})}
	if err := r.start(reads); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *recorder) start(reads bool) error {
	o := r.opt
	var inCgroups []uint64
	pids := o.pids // that run already
	if len(o.tids) > 0 {
		var err error
		if pids, err = loader.ProcessesOf(o.tids); err != nil {
			return err
		}
	}
	if len(o.cgroups) > 0 {
		cgroups, err := loader.OpenCgroups()
		if err != nil {
			return err
		}
		inCgroups, err = cgroupsOf(cgroups, o.cgroups)
		pids = cgroups.PIDs(inCgroups)
		if err = errors.Join(err, cgroups.Close()); err != nil {
			return err
		}
	}
	first, err := o.firstSampling(pids)
	if err != nil {
		return err
	}
	event := first.Event
	cfg := loader.Config{
		Event: event, Weight: first.Weight, Filter: first.Filter, Frequency: first.Frequency, Period: first.Period, StackBytes: int(o.stackBytes),
		Kernel: !o.noKernel, PIDs: o.pids, FollowChildren: o.children, Threads: o.tids, CPUs: o.cpus, Cgroups: inCgroups, User: o.user.id,
		NewPrograms: true, RunStats: true, MinOffCPU: time.Duration(o.minOffCPU), Wakers: o.wakers,
	}
	cfg.Changes = o.sendsChanges(event)
	for i := range o.also {
		m, err := o.also[i].sampling(pids)
		if err != nil {
			return err
		}
		cfg.Also = append(cfg.Also, m)
		cfg.Changes = cfg.Changes || o.also[i].sendsChanges(m.Event)
	}
	if event.IsOffCPU() || event.IsWall() {
		cfg.RingBytes = switchRing
		cfg.Collect, cfg.OnWaiting = r.collector, func(s *loader.Sample) { r.pipeline.rehearse(s) }
	}
	if len(o.command) > 0 {
		if r.command, err = loader.StartCommand(o.command); err != nil {
			return err
		}
		if o.recordsCommand() {
			cfg.PIDs, cfg.FollowChildren = []int{r.command.PID()}, true
		}
		if o.delay == 0 {
			cfg.Held = r.command.PID()
		}
	}
	raisePriority()
	collectLater()
	// The programs are checked and loaded while /proc is read.
	opened := make(chan error)
	go func() {
		var err error
		r.session, err = loader.Open(cfg)
		opened <- err
	}()
	r.pipeline = newPipeline(o.names)
	r.pipeline.stackBytes = uint64(cmp.Or(int(o.stackBytes), loader.DefaultStackBytes))
	r.labels.fixed, r.labels.withCPU = o.labels, o.sampleCPU
	r.labels.withState = event.IsOffCPU() || event.IsWall()
	if o.times {
		r.builder.KeepTimes()
	}
	if o.wakers {
		r.wakers = newWakers(r.builder)
	}
	if event.IsHeap() {
		r.heap = newHeap()
		r.atReturn[allocatedEvent] = true
	}
	r.atReturn[0] = event.IsReturn()
	for i, m := range cfg.Also {
		r.atReturn[1+i] = m.Event.IsReturn()
	}
	of := cfg.PIDs
	if len(o.tids) > 0 {
		of = pids
	}
	followed := r.follow(of)
	if err := <-opened; err != nil {
		return err // says best what is missing
	}
	if followed != nil {
		return followed
	}
	r.connect(r.session)
	if err := r.procs.Heed(r.session.NewPrograms()); err != nil {
		return err
	}
	if err := r.procs.FindAllocators(r.session); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop, r.watched = stop, make(chan struct{})
	go func(p *loader.Processes) {
		defer close(r.watched)
		_ = p.Watch(ctx) // without it, files are opened when their mappings are collected
	}(r.procs)
	limitGarbage()
	debug.FreeOSMemory() // at once, what the start took: by and by, 64 KB at a time, it costs more than samples do
	if reads && r.newPace().isTight {
		r.precedence = takePrecedence()
	}
	if o.delay > 0 {
		r.began = time.Now().Add(time.Duration(o.delay))
	} else if err := r.begin(); err != nil {
		return err
	}
	if r.command != nil {
		r.command.Resume()
	}
	leaveProgram()
	return nil
}

// begin starts sampling.
func (r *recorder) begin() error {
	r.beginPart()
	close(r.begun)
	return r.session.Start()
}

// beginPart has the recording, or its first part, begin now.
func (r *recorder) beginPart() {
	r.began, r.cpu = time.Now(), ownCPU()
	r.part = part{began: r.began, clock: procstate.Monotonic()}
	r.forgotten, r.filesClosed = r.began, r.began
	if r.parts != nil {
		r.parts.due = r.began.Add(r.parts.every)
	}
}

// hasBegun reports whether sampling has started.
func (r *recorder) hasBegun() bool {
	select {
	case <-r.begun:
		return true
	default:
		return false
	}
}

// cgroupsOf returns the IDs of the cgroups of these names.
func cgroupsOf(cgroups *loader.Cgroups, names []string) (ids []uint64, err error) {
	for _, name := range names {
		found, err := cgroups.Find(name)
		if err != nil {
			return nil, err
		}
		ids = append(ids, found...)
	}
	return ids, nil
}

// follow begins to follow processes, those that run included.
func (r *recorder) follow(pids []int) (err error) {
	if r.alarm, err = newAlarm(); err != nil {
		return err
	}
	if r.sideband, err = loader.OpenSideband(loader.SidebandConfig{WakeBytes: wakeBytes}); err != nil {
		return err
	}
	of := toInt32(pids)
	if r.opt.children { // of what is forked from here on the side-band tells
		if of, err = loader.WithDescendants(of); err != nil {
			return err
		}
	}
	r.images = procstate.NewImages(0)
	r.procs = loader.NewProcesses(loader.ProcessesConfig{
		Sideband: r.sideband, Images: r.images, PIDs: of, OnImage: r.onImage, OnBPF: r.modules.onBPF,
		OnNews: r.alarm.tellNews, OnFilled: r.alarm.ring,
	})
	r.pipeline.procs = r.procs
	return r.procs.Bootstrap()
}

// collector returns what collects of a thread of a process what runtimes keep of its frames; nil where there is nothing.
func (r *recorder) collector(pid int) procstate.Collector {
	if proc := r.procs.Process(int32(pid)); proc != nil {
		return r.collectors.Of(proc.Space)
	}
	return nil
}

// run records until the time is over, the command or all processes or threads asked for
// have ended, or a signal asks to stop. A second signal ends the program at once.
func (r *recorder) run() error {
	ended := make(chan struct{}, 1)
	go r.awaitEnd(ended)
	progress := newProgress(os.Stderr, r)
	defer progress.clear()
	defer r.precedence.end()
	pace := r.newPace()
	for {
		r.precedence.resume()
		r.alarm.set(r.untilDue(pace.wait), pace.hasten())
		select {
		case <-ended:
			return r.drain()
		default: // from here on the alarm rings for the end
		}
		hastened, err := r.alarm.wait()
		r.precedence.resume()
		if err != nil {
			return err
		}
		if !r.hasBegun() && !time.Now().Before(r.began) {
			if err := r.begin(); err != nil {
				return err
			}
			pace = r.newPace()
		}
		bytes, processes := r.session.BytesRead(), r.sampled.n
		r.fleeting, r.lost = false, false
		if err := r.poll(r.procs.Collect()); err != nil {
			return err
		}
		if err := r.nextPart(); err != nil {
			return err
		}
		progress.update()
		pace.polled(r.session.BytesRead()-bytes, r.sampled.n > processes, hastened, r.fleeting, r.lost)
	}
}

// awaitEnd waits until it is time to stop, tells that, and heeds signals from then on.
func (r *recorder) awaitEnd(ended chan<- struct{}) {
	var command, done <-chan struct{}
	if r.command != nil {
		command = r.command.Done()
	}
	if len(r.opt.pids) > 0 {
		done = r.session.ProcessesDone()
	} else if len(r.opt.tids) > 0 {
		done = loader.ThreadsDone(r.opt.tids)
	}
	var first time.Time // of the signals
	begun, timeout := r.begun, (<-chan time.Time)(nil)
	for waits := true; waits; {
		waits = false
		select {
		case <-begun:
			begun, waits = nil, true
			if r.opt.duration > 0 {
				timeout = time.After(time.Duration(r.opt.duration))
			}
		case <-r.signals:
			first = time.Now()
		case <-timeout:
		case <-command:
		case <-done:
		}
	}
	ended <- struct{}{}
	r.alarm.ring()
	r.abortAfter(first)
}

// sameSignal is for how long after a signal others are taken for the same one: timeout
// sends it to the program and to its group, and of all who end a service each has its own.
const sameSignal = time.Second / 2

// abortAfter ends the program at once after another signal than the first, which is late,
// and so tells what another does, for what ended by itself: first is zero then. While it
// only waits, for the command or for one who reads an output, one will do.
func (r *recorder) abortAfter(first time.Time) {
	for range r.signals {
		switch {
		case first.IsZero() && !r.idle.Load():
			first = time.Now()
			fmt.Fprintln(os.Stderr, "swbpf: the recording has ended, and is written now; another signal ends that at once, and nothing is written")
		case time.Since(first) >= sameSignal:
			r.abort()
			os.Exit(exitInterrupted)
		}
	}
}

// drain stops sampling and takes what is left in the rings.
func (r *recorder) drain() error {
	if !r.hasBegun() {
		r.beginPart() // to end at once
	}
	if err := r.session.Stop(); err != nil {
		return fmt.Errorf("stop sampling: %w", err)
	}
	r.procs.Collect()
	return r.poll(^uint64(0))
}

// poll takes the samples up to a time at which all events are known.
func (r *recorder) poll(upTo uint64) error {
	err := r.session.ReadSamples(upTo, func(s *loader.Sample) error {
		r.procs.Advance(s.Time)
		r.add(s)
		r.precedence.yield()
		return nil
	})
	r.procs.Advance(upTo)
	r.procs.Expire(upTo - uint64(keep))
	r.modules.updateJIT(r.procs)
	err = errors.Join(err, r.followHeap())
	now := time.Now()
	if now.Sub(r.forgotten) > forgetIdleEvery {
		r.forgotten = now
		r.forgetIdle()
	}
	if now.Sub(r.filesClosed) > closeFilesEvery {
		r.filesClosed = now
		r.closeFiles()
		leaveProgram()
	}
	return err
}

// closeFiles closes files that are of no use any more, and has forgotten what is known of
// those that are closed.
func (r *recorder) closeFiles() {
	r.procs.CloseFiles(r.modules.has)
	if closed := r.images.Stats().Evicted; closed != r.closed {
		r.closed = closed
		held := r.images.Held()
		r.group.ForgetImages(func(index uint32) bool { return held[index] })
	}
}

// finish completes the figures and names the profile.
func (r *recorder) finish() (*profile.Profile, error) {
	st, err := r.session.Stats()
	if err == nil {
		err = r.addHeld()
	}
	if err != nil {
		return nil, err
	}
	s := &r.stats
	s.RecordingCPUSeconds = ownCPU() - r.cpu - s.NamingCPUSeconds
	s.DurationSeconds = r.session.Duration().Seconds()
	s.Event, s.FrequencyHz = r.session.Event().Name, r.session.Frequency()
	if samplings := r.samplings(); len(samplings) > 1 {
		s.countEvents(samplings)
	}
	s.Weight = r.session.Samplings()[0].Weight.Name
	s.Lost, s.LostByReason = st.Lost(), st.LostByReason()
	s.BytesCopied, s.BytesSent = st.StackBytes, st.RingBytes
	s.BPFRunNS, s.BPFRuns = st.RunTime, st.Runs
	s.LeftOut = st.SkippedNumbers
	s.OffCPUSkippedShort, s.OffCPUUnsampled, s.OffCPUUnsampledNS = st.SkippedShort, st.SkippedRate, st.UnsampledTime
	s.OffCPUMissed, s.WakersLost = st.MissedSwitches, st.MissedWakers
	s.FreesMissed, s.AllocatorsMissed = st.MissedFrees, st.MissedAllocators
	s.UnreadableStacks, s.PartialRegisters, s.Exiting = st.UnreadableStack, st.PartialRegs, st.Exited
	s.Processes = r.sampled.n
	s.Modules = max(s.Modules, r.modules.count(r.builder.UsedModules()))
	if p := r.precedence; p != nil && p.refused != nil {
		s.RealTimeRefused = p.refused.Error()
	}
	if left := r.procs.LeftOut(); left > 0 {
		r.modules.notes = append(r.modules.notes, plural(left, "event")+
			" of processes left out, of those that map code or change their names without end: their code may lack frames or names")
	}
	if lost := r.sideband.Stats().Lost; lost > 0 {
		r.modules.notes = append(r.modules.notes, plural(lost, "event")+
			" of processes lost (forks, execs, mappings): code that was mapped just then may lack frames or names")
	}
	meta := r.meta()
	r.release()
	prof := r.build(meta)
	r.forget()
	debug.FreeOSMemory()
	return prof, nil
}

// build names what has been recorded, and forgets it.
func (r *recorder) build(meta profile.Meta) *profile.Profile {
	before := ownCPU()
	prof := r.builder.Finish(meta, r.modules)
	for i, p := range prof.Events() {
		r.value[i] += p.Value
	}
	r.modules.noteErrors()
	prof.Meta.Notes = slices.Concat(r.opt.notes(), r.modules.notes, r.modules.codes.Lacks(), r.labels.notes())
	r.stats.NamingCPUSeconds += ownCPU() - before
	return prof
}

// release gives back what only recording needs, before names are read.
func (r *recorder) release() {
	r.unwatch()
	r.session.Close()
	r.procs.Collect()
	r.procs.Advance(^uint64(0)) // what has happened since the last sample, to our programs as well
	r.closeSideband()
	r.procs, r.pipeline.procs, r.group = nil, nil, nil
	clear(r.memos[:])
	for _, wp := range r.modules.walked {
		wp.snapshot.Forget()
	}
	r.modules.walked = nil
	r.images.ForgetBlocks()
	debug.FreeOSMemory() // for names
	leaveProgram()
}

// forget lets go of what the profile was made of. The figures stay.
func (r *recorder) forget() {
	r.labels.close()
	r.pipeline = &pipeline{stats: r.stats, labels: new(labeller), heap: r.heap}
	r.images = nil
}

// unwatch has files opened no more as soon as they are mapped.
func (r *recorder) unwatch() {
	if r.stop != nil {
		r.stop()
		<-r.watched
	}
}

func (r *recorder) closeSideband() {
	if r.sideband != nil {
		r.sideband.Close()
		r.sideband = nil
	}
}

// close gives everything back. A command that is still running is left alone,
// unless it was never let go.
func (r *recorder) close() {
	signal.Stop(r.signals)
	r.unwatch()
	if r.session != nil {
		r.session.Close()
	}
	r.closeSideband()
	if r.alarm != nil {
		r.alarm.close()
	}
	if r.pipeline != nil {
		r.labels.close()
	}
	if r.command != nil && !r.command.Resumed() {
		r.command.Kill()
	}
}

// commandStatus waits for the recorded command, and says so on w if it still
// runs, and returns its exit code.
func (r *recorder) commandStatus(w io.Writer) (int, error) {
	if r.command == nil {
		return 0, nil
	}
	select {
	case <-r.command.Done():
	default:
		r.idle.Store(true)
		fmt.Fprintf(w, "waiting for the end of %s (process %d), for its exit status; Ctrl-C waits no longer\n", r.opt.command[0], r.command.PID())
	}
	state, err := r.command.Wait()
	if err != nil {
		return 0, err
	}
	return loader.ExitCode(state), nil
}

func toInt32(pids []int) []int32 {
	out := make([]int32, len(pids))
	for i, pid := range pids {
		out[i] = int32(pid)
	}
	return out
}
