package loader

import (
	"cmp"
	"context"
	"maps"
	"math"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/swbpf/swbpf/procstate"
	"golang.org/x/sys/unix"
)

// ProcessesConfig says which processes are followed, and from where.
type ProcessesConfig struct {
	// Sideband is where events come from; it must have been opened before the
	// first sample.
	Sideband *Sideband

	// Images opens and shares the mapped files.
	Images *procstate.Images

	// PIDs are the processes to follow, with all that they fork. Empty stands
	// for every process of the machine.
	PIDs []int32

	// OnNews, if set, is called by Watch when it has collected events of what may
	// be gone with its process: files that are new, and code that is in no file.
	OnNews func()

	// OnFilled, if set, is called by Watch when a ring for samples fills up, if it heeds
	// NewPrograms; and by another goroutine, soon after the ring has one of a thread of which
	// it is not known where its stack ends. That may be while Watch returns, and not later.
	OnFilled func()

	// OnImage, if set, is called for each file that a process maps as code, with
	// what is to be added to its link-time addresses, as soon as that is known:
	// ahead of Advance, at times repeatedly. Whoever calls Bootstrap, Collect,
	// Watch, Advance or Process calls it, never two at once; it must not use the
	// Processes.
	OnImage func(pid int32, im *procstate.Image, bias uint64)

	// OnBPF, if set, is called by Advance for each SidebandBPF.
	OnBPF func(*SidebandEvent)
}

// Processes is the table of processes, at one moment of the past: that of the
// last Advance. To resolve samples by it, in order of time:
//
//	p.Bootstrap()              // once, with the side-band open
//	go p.Watch(ctx)            // opens files as they are mapped
//	for ... {
//		upTo := p.Collect()    // all events up to that time are in
//		// for each sample with Time <= upTo, in order:
//		p.Advance(sample.Time)
//		proc := p.Process(sample.PID)
//		...
//		p.Expire(upTo - horizon)
//	}
//
// Collect and Watch may be called by any goroutine; everything else belongs to
// one goroutine, to which the processes belong, too.
type Processes struct {
	sideband *Sideband
	images   *procstate.Images
	onImage  func(pid int32, im *procstate.Image, bias uint64)
	imageMu  sync.Mutex // held while onImage runs
	onBPF    func(*SidebandEvent)
	onNews   func() // may be nil
	onFilled func() // may be nil

	programs   *NewPrograms    // nil: files are looked for within watchRest
	allocators *lateAllocators // told of files that are mapped; may be nil

	procs  map[int32]*Process
	exits  []exit // in order of time
	gone   map[int32]uint64
	now    uint64 // time of the last Advance
	resync uint64 // CLOCK_MONOTONIC ns from which on the table may be read anew, after a loss of records
	lossy  bool   // records were lost, and the table was not read anew since

	stale  map[*Process]bool // whose mappings are to be read anew, as some are not known
	reread uint64            // CLOCK_MONOTONIC ns from which on a process may be read again that takes long

	mu      sync.Mutex
	pending []SidebandEvent // the queue, as events came
	keys    []eventKey      // of the first events in it, in order of time if sorted
	next    int             // those of the keys before it were due
	keyed   int             // so many of pending have keys
	sorted  bool
	waits   map[int32]int  // of the queue, mappings and names by process
	leftOut uint64         // events that were not queued, or not applied, as there were too many
	latest  uint64         // the greatest time of an event that came
	taken   int            // events since tookSince
	synced  uint64         // time of the last SyncCPUs
	urgent  bool           // a Go program that the kernel side does not know was mapped since tookSince
	made    bool           // code that is in no file was mapped since tookSince
	opened  uint64         // files that had been looked for then
	evicted uint64         // files that had been closed again
	wanted  map[int32]bool // processes whose files are opened early; nil: all
	only    map[int32]bool // roots that are followed; nil: all

	goPrograms map[programFile]goProcess // those mapped so far
}

// watchNice is the nice value of the thread that opens files.
const watchNice = -20

// watchSlack is how late that thread's timers may be, whatever the program's
// other threads have.
const watchSlack = 50 * time.Microsecond

// watchRest is how long Watch lets events gather at most. A file that comes as
// the first unknown one after many that were known is opened that much later.
// Where new programs are told of, which ends the rest, only libraries can be so
// late, and it is longer.
const watchRest, longRest = 16 * time.Millisecond, 64 * time.Millisecond

// watchEvents in a rest are so many that another follows at once: to wait for the
// first of the next costs more than to rest in vain.
const watchEvents = 6

// collectSlack is how much older than a Collect an event must be to be surely
// in its ring: between taking its time and writing it the kernel may be
// interrupted.
const collectSlack = uint64(time.Millisecond)

// syncCPUsEvery is how often CPUs that come and go are looked for.
const syncCPUsEvery = uint64(time.Second)

// NewProcesses makes an empty table. Without a Sideband it knows what is read
// from /proc alone.
func NewProcesses(cfg ProcessesConfig) *Processes {
	p := &Processes{
		sideband: cmp.Or(cfg.Sideband, new(Sideband)), images: cmp.Or(cfg.Images, new(procstate.Images)), onImage: cfg.OnImage, onBPF: cfg.OnBPF,
		goPrograms: make(map[programFile]goProcess),
		procs:      make(map[int32]*Process), gone: make(map[int32]uint64), onNews: cfg.OnNews, onFilled: cfg.OnFilled,
		stale: make(map[*Process]bool), waits: make(map[int32]int),
	}
	if len(cfg.PIDs) > 0 {
		p.only, p.wanted = make(map[int32]bool), make(map[int32]bool)
		for _, pid := range cfg.PIDs {
			p.only[pid], p.wanted[pid] = true, true
		}
	}
	return p
}

// Watch collects events whenever enough of them wait, so that files are
// opened while the processes that map them live. While all that is mapped is
// known already, it lets them gather for up to watchRest, or for up to longRest
// while it heeds NewPrograms. It returns when ctx ends, and ends the side-band's
// Waits with it. Its thread is given precedence, where that is allowed, as a busy
// machine is when it would come too late.
func (p *Processes) Watch(ctx context.Context) error {
	if p.procs == nil {
		return errNotOpen
	}
	// Not unlocked: the thread ends with the goroutine and its precedence.
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, watchNice)
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(watchSlack), 0, 0, 0)
	defer context.AfterFunc(ctx, p.sideband.Wake)()
	later := time.AfterFunc(math.MaxInt64, func() { p.onFilled() })
	defer later.Stop()
	rest := time.Duration(0)
	for calm := true; ctx.Err() == nil; {
		if calm {
			woken, err := p.sideband.Wait(time.Minute)
			if err != nil {
				return err
			}
			if !woken {
				continue
			}
		}
		if rest > 0 {
			p.rest(rest)
		}
		news := p.programs.take()
		started := news.programs
		if news.ringFills && p.onFilled != nil {
			p.onFilled()
		}
		if news.endUnknown && p.onFilled != nil {
			later.Reset(2 * time.Duration(collectSlack)) // when the sample may be read
		}
		p.Collect()
		p.lookAgain(started)
		events, urgent, made, evicted := p.tookSince()
		if evicted {
			p.forgetPrograms()
		}
		switch {
		case urgent:
			rest = 0
		case p.programs != nil:
			rest = min(rest+rest/4+watchRest/64, longRest)
		default:
			rest = min(rest+watchRest/64, watchRest)
		}
		p.know(started, urgent)
		calm = rest < watchRest || events < watchEvents
		if p.onNews != nil && (urgent || made) {
			p.onNews()
		}
	}
	return nil
}

// Heed has Watch open the files of new programs at once, and let events gather
// longer while there are none. It must be called before Watch, and n must
// live longer than that. A nil n, a Session's without Config.NewPrograms, changes nothing.
func (p *Processes) Heed(n *NewPrograms) error {
	if p.procs == nil {
		return errNotOpen
	}
	if n == nil {
		return nil
	}
	p.programs = n
	return p.sideband.alsoWait(n.fd)
}

// FindAllocators has a Session of Heap see allocators, too, of programs that are started from now on, and of libraries
// that are called as such (Linux 6.6; 6.11 for some processes alone). A program that is met for the first time has
// run for some milliseconds by then. It must be called before Watch, and changes nothing for other Sessions.
func (p *Processes) FindAllocators(s *Session) error {
	if p.procs == nil || s == nil || s.rings == nil {
		return errNotOpen
	}
	if s.Event().IsHeap() {
		p.allocators = &s.late
	}
	return nil
}

// lookAgain opens the files of programs that were executed which were not opened
// when they were mapped, as the news of the process's fork, from another CPU, came
// behind.
func (p *Processes) lookAgain(started []programFile) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wanted == nil {
		return // all are opened as they come
	}
	for _, f := range started {
		if _, isGo := p.goPrograms[f]; isGo {
			continue
		}
		for i := range p.pending {
			e := &p.pending[i]
			if e.Kind == SidebandMmap && !e.due && !e.looked && e.Inode == f.Inode && e.Dev == userDev(f.Dev) && procstate.HasFile(e.Path) {
				p.look(e)
			}
		}
	}
}

// know has no more told of programs whose files are open, and of those in Go what
// they are. The others are told of again while there is what is urgent.
func (p *Processes) know(started []programFile, urgent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range started {
		if is, isGo := p.goPrograms[f]; isGo || !urgent {
			p.programs.know(f, is)
		}
	}
}

// forgetPrograms has the programs told of again whose files are not open any more.
func (p *Processes) forgetPrograms() {
	p.mu.Lock()
	defer p.mu.Unlock()
	isClosed := func(f programFile) bool { return !p.images.IsOpen(userDev(f.Dev), f.Inode) }
	maps.DeleteFunc(p.goPrograms, func(f programFile, _ goProcess) bool { return isClosed(f) })
	p.programs.forget(isClosed)
}

// rest waits for a while, or for a new program.
func (p *Processes) rest(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	fds := []unix.PollFd{{Fd: int32(p.sideband.wake), Events: unix.POLLIN}}
	if p.programs != nil {
		fds = append(fds, unix.PollFd{Fd: int32(p.programs.fd), Events: unix.POLLIN})
	}
	_, _ = unix.Ppoll(fds, &ts, nil)
}

// tookSince returns how many events came since the last call, whether a
// mapping was among them that had to be looked at without delay, or of code that is
// in no file, and whether files were closed that may come again.
func (p *Processes) tookSince() (events int, urgent, made, evicted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.images.Stats()
	events, urgent, made, evicted = p.taken, p.urgent || st.Opened+st.Failed != p.opened, p.made, st.Evicted != p.evicted
	p.taken, p.urgent, p.made, p.opened, p.evicted = 0, false, false, st.Opened+st.Failed, st.Evicted
	return events, urgent, made, evicted
}

// Collect takes in the events that wait in the side-band and opens the files
// of new mappings. It returns the time (CLOCK_MONOTONIC, ns) up to which all
// events are in.
func (p *Processes) Collect() (upTo uint64) {
	if p.procs == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := monotonic()
	p.sideband.Drain(p.take)
	if now-p.synced > syncCPUsEvery {
		p.synced = now
		// Where CPUs cannot be listed any more, those known are followed on.
		_ = p.sideband.SyncCPUs(p.take)
	}
	return now - collectSlack
}

// take queues an event. Those of threads that come and go tell nothing of their process.
func (p *Processes) take(e *SidebandEvent) {
	switch {
	case e.isOfThread():
		return
	case p.isTooMuch(e):
		p.leftOut++
		return
	case e.Kind == SidebandFork && p.wanted != nil && p.wanted[e.PPID]:
		p.wanted[e.PID] = true
	case e.Kind == SidebandMmap && (p.wanted == nil || p.wanted[e.PID]):
		if procstate.HasFile(e.Path) {
			p.look(e)
		} else {
			p.made = p.made || e.Path != "[vdso]"
		}
	}
	p.sorted = p.sorted && p.latest <= e.Time
	p.latest = max(p.latest, e.Time)
	p.pending = append(p.pending, *e)
	p.taken++
}

// isTooMuch reports whether an event is not to be queued. The last one before those
// that are not tells that they are missing.
func (p *Processes) isTooMuch(e *SidebandEvent) bool {
	switch n := len(p.pending) - p.next; {
	case n >= maxWaiting:
		return true
	case n == maxWaiting-1:
		*e = SidebandEvent{Kind: SidebandLost, Time: e.Time, CPU: e.CPU}
	case e.isOfMany():
		n := p.waits[e.PID] + 1
		if n > maxOfProcess {
			return true
		}
		p.waits[e.PID] = n
		e.last = n == maxOfProcess
	}
	return false
}

// LeftOut returns how many events were not taken in, or mappings not kept, because
// there were too many: at a time, or of one process, whose mappings are read anew then.
func (p *Processes) LeftOut() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.leftOut
}

// look opens the file of a mapping.
func (p *Processes) look(e *SidebandEvent) {
	e.image, e.imageErr = p.images.Open(e.ref())
	e.looked = true
	if e.image != nil {
		p.lookForGo(e)
	}
	p.announce(e.PID, e.image, e.Addr, e.Offset)
	if p.allocators != nil && e.image != nil {
		p.allocators.look(e.ref())
	}
}

// maxGoPrograms bounds what is kept of programs in Go, also where each is a new file.
const maxGoPrograms = 4096

// lookForGo finds out whether a file mapped is in Go: then the kernel side is to
// know the process before it is sampled. It does when it knows the program.
func (p *Processes) lookForGo(e *SidebandEvent) {
	rt, err := procstate.GoStacksOf(e.image)
	if err != nil {
		return
	}
	offsets := GoOffsetsOf(rt, 0)
	is, ok := offsets.inKernel()
	if !ok || !rt.Samplable() || is.G_slot != 0 { // of libraries, by where they are mapped
		p.urgent = true
		return
	}
	f := programFile{
		Inode: e.Inode, Size: uint64(e.image.Size()), Generation: uint32(e.Gen),
		Dev: kernelDev(e.Dev),
	}
	if len(p.goPrograms) == maxGoPrograms {
		clear(p.goPrograms) // those of processes to come are met again
	}
	p.goPrograms[f] = is
	if known, ok := p.programs.isKnown(f); !ok || known != is {
		p.urgent = true
		if ok { // a process's fork came behind its exec, or the file was written anew
			p.programs.know(f, is)
		}
	}
}

// kernelDev returns a device's number as the kernel has it, and userDev as events do.
func kernelDev(dev uint64) uint32 { return unix.Major(dev)<<20 | unix.Minor(dev) }
func userDev(dev uint32) uint64   { return unix.Mkdev(dev>>20, dev&(1<<20-1)) }

// announce tells the user of the table of a file that a process maps at start,
// from an offset on.
func (p *Processes) announce(pid int32, im *procstate.Image, start, offset uint64) {
	if p.onImage == nil || im == nil {
		return
	}
	if vaddr, ok := im.VaddrOfOffset(offset); ok {
		p.imageMu.Lock()
		defer p.imageMu.Unlock()
		p.onImage(pid, im, start-vaddr)
	}
}

func (e *SidebandEvent) ref() *procstate.FileRef {
	return &procstate.FileRef{
		PID: e.PID, TID: e.TID, Path: e.Path, Start: e.Addr, End: e.Addr + e.Len,
		Dev: e.Dev, Inode: e.Inode, Gen: e.Gen, HasGen: true, Mapped: e.Time,
	}
}

// Advance applies all collected events up to time t (CLOCK_MONOTONIC, ns), in
// order of time. The table cannot go back.
func (p *Processes) Advance(t uint64) {
	queue, due := p.due(t)
	for _, k := range due {
		p.apply(&queue[k.i])
	}
	p.now = max(p.now, t)
	if p.lossy {
		p.recover()
	}
	if len(p.stale) > 0 {
		p.readStale()
	}
}

// Process returns a process, or nil when it is not followed or nothing is
// known of it. One that no event told of is looked for in /proc.
func (p *Processes) Process(pid int32) *Process {
	if proc := p.procs[pid]; proc != nil {
		return proc
	}
	if pid <= 0 || p.procs == nil || (p.only != nil && !p.only[pid]) {
		return nil
	}
	if failed, ok := p.gone[pid]; ok && p.now-failed < resyncEvery {
		return nil
	}
	proc := p.load(pid)
	if proc == nil {
		if len(p.gone) > 4096 {
			clear(p.gone)
		}
		p.gone[pid] = p.now
		return nil
	}
	p.procs[pid] = proc
	return proc
}

// Expire removes processes that exited before time t (CLOCK_MONOTONIC, ns):
// no sample that old is still to come. Processes whose initial thread has
// ended but that still have others stay.
func (p *Processes) Expire(t uint64) {
	for len(p.exits) > 0 && p.exits[0].time < t {
		x := p.exits[0]
		p.exits = p.exits[1:]
		switch {
		case p.procs[x.proc.PID] != x.proc || !x.proc.Exited:
			// Replaced by a namesake, or revived by the exec of a thread.
		case exists(x.proc.PID):
			p.exits = append(p.exits, exit{x.proc, max(p.now, t)}) // looked at again later
		default:
			delete(p.procs, x.proc.PID)
			p.forgetWanted(x.proc.PID)
		}
	}
}

// CloseFiles closes the files that no process maps any more, unless they were
// mapped since the call before or keep wants them. It is meant to be called
// every now and then.
func (p *Processes) CloseFiles(keep func(*procstate.Image) bool) {
	if p.procs == nil {
		return
	}
	mapped := make(map[*procstate.Image]bool)
	for _, proc := range p.procs {
		for _, m := range proc.Space.Mappings() {
			mapped[m.Image] = true
		}
	}
	p.images.CloseIdle(func(im *procstate.Image) bool { return mapped[im] || keep(im) })
}

func (p *Processes) forgetWanted(pid int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wanted != nil && !p.only[pid] {
		delete(p.wanted, pid)
	}
}

// monotonic returns the kernel's CLOCK_MONOTONIC in ns, as procstate.Monotonic does, but to
// the point. The runtime is not told of the system call, which does not block: it would
// wake a thread to watch it.
func monotonic() uint64 {
	var ts unix.Timespec
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&ts)), 0)
	return uint64(ts.Nano() - procstate.OwnClockOffset())
}
