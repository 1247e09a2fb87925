package procstate

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DefaultStackBytes is how much of a thread's stack a capture copies at most,
// unless it is told otherwise.
const DefaultStackBytes = 1 << 20

// captureBudget bounds the stack bytes of one capture, all threads together:
// what can be copied in a few hundredths of a second. With many threads each
// gets its share, but never less than minStackShare.
const (
	captureBudget = 256 << 20
	minStackShare = 32 << 10
)

// A Collector picks memory beyond the live stack that a walk will need, such
// as what tells where a language runtime keeps the rest of a stack. It runs
// for each thread while the target stands still, so it must be quick; m reads
// the target, add asks for n bytes at addr to be copied.
type Collector func(m Memory, tid ThreadID, regs *Regs, add func(addr uint64, n int))

// JoinCollectors makes one Collector of several, which run in this order. Those that are nil are
// left out; where all are, so is the result.
func JoinCollectors(of ...Collector) Collector {
	of = slices.DeleteFunc(slices.Clone(of), func(c Collector) bool { return c == nil })
	switch len(of) {
	case 0:
		return nil
	case 1:
		return of[0]
	}
	return func(m Memory, tid ThreadID, regs *Regs, add func(addr uint64, n int)) {
		for _, collect := range of {
			collect(m, tid, regs, add)
		}
	}
}

// CaptureOptions say what a capture takes.
type CaptureOptions struct {
	// Threads are those to capture; empty means all, stopped together.
	Threads []ThreadID

	// StackBytes limits the copy of each stack; 0 is DefaultStackBytes, and of
	// goroutines on no thread all that fits.
	StackBytes int

	// Collect may be nil.
	Collect Collector

	// CollectShared is as Collect, but runs once, for what belongs to no thread. It takes
	// effect where all threads stand, and may be nil.
	CollectShared func(m Memory, add func(addr uint64, n int))

	// Probes tells what uretprobes have replaced on the stacks of the threads.
	// It is asked while they stand still, and may be nil.
	Probes func() map[ThreadID]UserProbes

	// Goroutines, of a process in Go, asks for what ReadGoroutines and walks of
	// those that are on no thread read. It takes effect where all threads stand.
	Goroutines bool

	// Space is what the process has mapped, as SpaceOfProcess has read it shortly
	// before; nil when that is not known. It spares reading the same again, and is the
	// Libraries of the Capture where nothing has changed.
	Space *AddressSpace

	// Also are addresses that must be in the copy of a thread, with what
	// follows them: where an earlier walk found that something was missing.
	Also map[ThreadID][]uint64

	goroutines *goroutineCopy // made of Goroutines before the stop
	mapped     *mappedBefore  // made of Space then; nil without
}

// prepare does what can be done before the process stands.
func (o *CaptureOptions) prepare(pid int) {
	if o.Space != nil && len(o.Space.text) > 0 {
		o.mapped = newMappedBefore(o.Space.text)
	}
	if o.Goroutines && len(o.Threads) == 0 {
		space := o.Space
		if space == nil {
			space = SpaceOfProcess(pid)
		}
		o.goroutines = newGoroutineCopy(pid, space, o.StackBytes)
	}
}

// rawCapture is what is taken while the target stands still.
type rawCapture struct {
	threads []rawThread
	maps    []byte        // text of /proc/PID/maps
	known   *mappedBefore // has that text, of a moment before; nil where it was read
	task    ThreadID      // a thread that has its memory still
	arch    *Arch
	stopped time.Duration
	shared  []Region // that belong to no thread
	fault   any      // what a Collector, or Probes, has panicked with
}

type rawThread struct {
	tid     ThreadID
	regs    Regs
	err     error // why there are no registers
	blocked bool  // registers are those that the kernel shows of a blocked thread
	regions []Region
	probes  UserProbes
}

// capture stops threads of p, copies what opts ask for and sets them going
// again, or detaches them when letGo is set. On the engine's goroutine.
func (e *engine) capture(p *ProcDebug, opts *CaptureOptions, letGo bool) (*rawCapture, error) {
	ts, whole := p.all(), true
	if len(opts.Threads) > 0 {
		ts, whole = ts[:0], false
		for _, tid := range opts.Threads {
			t, err := p.find(tid)
			if err != nil {
				return nil, err
			}
			ts = append(ts, t)
		}
		slices.SortFunc(ts, func(a, b *tracee) int { return int(a.tid) - int(b.tid) })
		ts = slices.Compact(ts) // one may be asked for twice
	}
	rc := &rawCapture{threads: make([]rawThread, 0, len(ts)+16)}
	arena := newArena(len(ts) * minArenaShare)
	hold(ts)
	if letGo {
		p.detaching = true
	}
	defer quietStops()()
	defer hurry()()
	begin := time.Now()
	ts, late := e.stop(p, ts, whole)
	begin = stoodFrom(ts, begin)
	rc.fault = faultOf(func() { rc.take(e, p, ts, late, opts, arena) })
	if letGo {
		for _, t := range ts {
			t.letGo = true
		}
	}
	e.release(ts)
	rc.stopped = time.Since(begin)
	if letGo && e.child != 0 {
		e.giveBack(late)
	}
	if len(rc.threads) == 0 {
		return nil, fmt.Errorf("process %d: %w", p.pid, ErrTerminated)
	}
	return rc, nil
}

// faultOf returns what f panics with, nil if it does not.
func faultOf(f func()) (fault any) {
	defer func() { fault = recover() }()
	f()
	return nil
}

// hurry gives this thread precedence, where that is allowed: while it waits for
// a CPU, its target stands. It is that over all usual threads, where the kernel
// grants it, or else a nice value, also where it has otherwise what time others
// leave. The function returned undoes it.
func hurry() (undo func()) {
	was, err := unix.SchedGetAttr(0, 0)
	usual := []uint32{unix.SCHED_NORMAL, unix.SCHED_BATCH, unix.SCHED_IDLE}
	if err != nil || !slices.Contains(usual, was.Policy) {
		return func() {}
	}
	hurried := *was
	hurried.Policy, hurried.Priority, hurried.Nice = unix.SCHED_RR, 1, 0
	if unix.SchedSetAttr(0, &hurried, 0) != nil {
		const nice = -10
		hurried = *was
		hurried.Policy = unix.SCHED_NORMAL
		if hurried.Nice = nice; was.Policy == unix.SCHED_NORMAL && was.Nice <= nice || unix.SchedSetAttr(0, &hurried, 0) != nil {
			return func() {}
		}
	}
	return func() { _ = unix.SchedSetAttr(0, was, 0) }
}

// take copies registers, mappings and memory of the threads, which stand.
func (rc *rawCapture) take(e *engine, p *ProcDebug, ts, late []*tracee, opts *CaptureOptions, arena *arena) {
	for _, t := range ts {
		if t.state == traceeGone {
			continue
		}
		th := rawThread{tid: t.tid}
		switch {
		case t.state == traceeStopped:
			var a *Arch
			if a, th.err = ptraceRegs(t.tid, &e.regs, &th.regs); a != nil {
				rc.arch = a
			}
		case slices.Contains(late, t):
			th.blocked = true
		default:
			th.err = ErrThreadExited
		}
		rc.threads = append(rc.threads, th)
	}
	for i := range rc.threads {
		if th := &rc.threads[i]; th.blocked {
			if rc.arch == nil {
				rc.arch = archOfProgram(p.pid)
			}
			th.err = blockedRegs(p.pid, th.tid, rc.arch, &th.regs)
		}
	}
	for i := range rc.threads {
		if th := &rc.threads[i]; th.err == nil {
			rc.task = th.tid
			break
		}
	}
	if rc.arch == nil {
		return
	}
	if opts.Probes != nil {
		probes := opts.Probes()
		for i := range rc.threads {
			rc.threads[i].probes = probes[rc.threads[i].tid]
		}
	}
	areas := rc.readMaps(p.pid, opts.mapped)
	rc.copyStacks(areas, opts, arena)
	if opts.Collect != nil {
		rc.collect(opts.Collect, arena)
	}
	if opts.goroutines != nil {
		rc.shared = opts.goroutines.take(rc.task, rc.arch.AddressWidth)
	}
	if opts.CollectShared != nil && len(opts.Threads) == 0 {
		rc.collectShared(opts.CollectShared, arena)
	}
}

// readMaps takes the mappings, and returns the readable areas: those that are known, where
// the same code is mapped and all stacks are in one of these. What has changed of other
// memory since then does not matter: what is copied is what there is.
func (rc *rawCapture) readMaps(pid int, known *mappedBefore) []area {
	if rc.task != 0 && known != nil && rc.stacksIn(known.areas) && known.isMapped(pid, rc.task) {
		rc.maps, rc.known = known.text, known
		return known.areas
	}
	if rc.task != 0 {
		rc.maps = readMapsText(pid, rc.task)
	}
	return scanAreas(rc.maps)
}

// stacksIn reports whether the stacks of all threads are in some areas.
func (rc *rawCapture) stacksIn(areas []area) bool {
	for i := range rc.threads {
		th := &rc.threads[i]
		if _, ok := areaAt(areas, th.regs.Raw(rc.arch.SP)); th.err == nil && !ok {
			return false
		}
	}
	return true
}

// copyStacks copies the live stack of each thread: from a little below SP,
// where a function may keep data without moving SP, to the end of the memory
// area or the limit.
func (rc *rawCapture) copyStacks(areas []area, opts *CaptureOptions, arena *arena) {
	limit := uint64(DefaultStackBytes)
	if opts.StackBytes > 0 {
		limit = uint64(opts.StackBytes)
	}
	if share := uint64(captureBudget / max(len(rc.threads), 1)); limit > share {
		limit = max(share, minStackShare)
	}
	batch := vmBatch{task: rc.task}
	sp := rc.arch.SP
	for i := range rc.threads {
		th := &rc.threads[i]
		if th.err != nil {
			continue
		}
		at := th.regs.Raw(sp)
		var stack area
		if a, ok := areaAt(areas, at); ok {
			stack = area{max(a.start, at-rc.arch.RedZone), min(a.end, at+limit)}
			batch.add(th, stack.start, stack.end, arena)
		}
		for _, at := range opts.Also[th.tid] {
			if at >= stack.start && at < stack.end && limit > DefaultStackBytes {
				continue // more of a stack was asked for because of it
			}
			if a, ok := areaAt(areas, at); ok {
				batch.add(th, max(a.start, at-alsoBelow), min(a.end, at+limit), arena)
			}
		}
	}
	batch.run()
}

// alsoBelow is what is taken below an address asked for, in bytes.
const alsoBelow = 4096

// collect lets the Collector look at each thread.
func (rc *rawCapture) collect(f Collector, arena *arena) {
	mem := pageCache{source: liveProcess(rc.task), width: rc.arch.AddressWidth, active: true}
	batch := vmBatch{task: rc.task}
	left := captureBudget
	for i := range rc.threads {
		th := &rc.threads[i]
		if th.err != nil {
			continue
		}
		f(&mem, th.tid, &th.regs, func(addr uint64, n int) {
			if n > 0 && n <= left && addr+uint64(n) > addr {
				left -= n
				batch.add(th, addr, addr+uint64(n), arena)
			}
		})
	}
	batch.run()
}

// collectShared lets a collector add memory that belongs to no thread.
func (rc *rawCapture) collectShared(f func(m Memory, add func(addr uint64, n int)), arena *arena) {
	mem := pageCache{source: liveProcess(rc.task), width: rc.arch.AddressWidth, active: true}
	batch := vmBatch{task: rc.task}
	var out rawThread
	left := captureBudget
	f(&mem, func(addr uint64, n int) {
		if n > 0 && n <= left && addr+uint64(n) > addr {
			left -= n
			batch.add(&out, addr, addr+uint64(n), arena)
		}
	})
	batch.run()
	rc.shared = append(rc.shared, out.regions...)
}

// arena hands out memory that was touched before the target was stopped, so
// that the page faults of this process do not prolong the stop.
type arena struct{ free []byte }

const minArenaShare = 12 << 10

func newArena(n int) *arena {
	a := &arena{free: make([]byte, n)}
	for i := 0; i < n; i += cachePage {
		a.free[i] = 1
	}
	return a
}

func (a *arena) get(n int) []byte {
	if n > len(a.free) {
		a.free = make([]byte, max(n, 1<<20))
	}
	b := a.free[:n:n]
	a.free = a.free[n:]
	return b
}

// vmBatch reads many pieces of a process's memory with few system calls.
type vmBatch struct {
	task   ThreadID // one whose memory it is
	local  []unix.Iovec
	remote []remoteIovec
	owner  []*rawThread
	region []int // index in owner's regions

	patience int // unreadable pieces after which the rest is not read; 0 is no limit
}

// maxIovecs is UIO_MAXIOV.
const maxIovecs = 1024

// add asks for the run-time addresses [start, end).
func (b *vmBatch) add(th *rawThread, start, end uint64, arena *arena) {
	if end <= start {
		return
	}
	buf := arena.get(int(end - start))
	l := unix.Iovec{Base: &buf[0]}
	l.SetLen(len(buf))
	b.local = append(b.local, l)
	b.remote = append(b.remote, remoteIovec{start, end - start})
	b.owner = append(b.owner, th)
	b.region = append(b.region, len(th.regions))
	th.regions = append(th.regions, Region{Addr: start, Data: buf})
}

// reset forgets all pieces.
func (b *vmBatch) reset() {
	b.local, b.remote, b.owner, b.region = b.local[:0], b.remote[:0], b.owner[:0], b.region[:0]
}

// run reads all pieces. What cannot be read is cut off their ends.
func (b *vmBatch) run() {
	failures := 0
	for i := 0; i < len(b.local); {
		n := min(len(b.local)-i, maxIovecs)
		got, _, errno := unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(b.task),
			uintptr(unsafe.Pointer(&b.local[i])), uintptr(n),
			uintptr(unsafe.Pointer(&b.remote[i])), uintptr(n), 0)
		left := uint64(got)
		switch {
		case isRefused(errno): // one by one, another way
			n, left = 1, uint64(readMemFile(int(b.task), b.remote[i].base, b.owner[i].regions[b.region[i]].Data))
		case errno != 0:
			left = 0
		}
		end := i + n
		for i < end && left >= b.remote[i].len {
			left -= b.remote[i].len
			i++
		}
		if i < end { // this piece failed after left bytes
			r := &b.owner[i].regions[b.region[i]]
			r.Data = r.Data[:left]
			i++
			failures++
		}
		if b.patience > 0 && failures >= b.patience {
			for ; i < len(b.local); i++ {
				b.owner[i].regions[b.region[i]].Data = nil
			}
		}
	}
}

// area is a readable memory area of a process.
type area struct{ start, end uint64 }

// areaAt finds the area that holds addr.
func areaAt(areas []area, addr uint64) (area, bool) {
	i := sort.Search(len(areas), func(i int) bool { return areas[i].end > addr })
	if i < len(areas) && areas[i].start <= addr {
		return areas[i], true
	}
	return area{}, false
}

// scanAreas reads the address ranges of the readable areas from the text of
// /proc/PID/maps: lines that begin "START-END PERM".
func scanAreas(text []byte) []area {
	out := make([]area, 0, len(text)/64)
	for i := 0; i < len(text); {
		var a area
		j := i
		for ; j < len(text) && hexDigit(text[j]) < 16; j++ {
			a.start = a.start<<4 | uint64(hexDigit(text[j]))
		}
		j++
		for ; j < len(text) && hexDigit(text[j]) < 16; j++ {
			a.end = a.end<<4 | uint64(hexDigit(text[j]))
		}
		j++
		if j < len(text) && text[j] == 'r' && a.end > a.start {
			out = append(out, a)
		}
		for i = j; i < len(text) && text[i] != '\n'; i++ {
		}
		i++
	}
	return out
}

func hexDigit(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}

// mapsName is the name of the maps file of a process, through one of its threads.
func mapsName(pid int, tid ThreadID) string {
	return "/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(int(tid)) + "/maps"
}

// readMapsText reads the maps file of a process whole, through one of its
// live threads; nil when it cannot be read.
func readMapsText(pid int, tid ThreadID) []byte {
	fd, err := unix.Open(mapsName(pid, tid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	buf := make([]byte, 0, 256<<10)
	for len(buf) < maxMaps {
		buf = slices.Grow(buf, 4096)
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		buf = buf[:len(buf)+n]
	}
	return buf
}
