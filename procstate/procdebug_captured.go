package procstate

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"time"
)

// Capture is the ProcessState of a whole process at one moment: registers and
// live stacks of its threads, copied while all of them stood still. The
// process itself has gone on since, or ended; it is not asked again, except
// for the instructions of code that comes from no file, and for what the program
// itself knows of that.
type Capture struct {
	// Stopped is how long the target stood still: from when the first thread may
	// have stopped to the last one set going again.
	Stopped time.Duration

	pid     int
	task    ThreadID // a thread that had the process's memory
	exe     string
	arch    *Arch
	libs    LibraryState
	threads []CapturedThread
	areas   []area // that were readable
	earlier bool   // the areas are those of a moment before

	all    []Region // of all threads, by address
	shared []Region // of what belongs to no thread, by address

	cur *CapturedThread // the thread being walked
	hot Region          // of the last hit

	missAddr uint64
	missed   bool
}

// CapturedThread is one thread of a Capture.
type CapturedThread struct {
	Thread
	Err     error // why it has no registers
	Blocked bool  // it could not be stopped: only PC and SP are known

	regs    Regs
	regions []Region
	probes  UserProbes
}

// Capture copies the state of the target's threads and sets them going again.
func (p *ProcDebug) Capture(opts CaptureOptions) (*Capture, error) {
	opts.prepare(p.pid)
	if opts.Probes == nil {
		opts.Probes = p.probes.ask
	}
	return capture(p.pid, opts.Space, func([]Thread) (_ *ProcDebug, rc *rawCapture, err error) {
		p.e.do(func() {
			if err = p.alive(); err == nil {
				rc, err = p.e.capture(p, &opts, false)
			}
		})
		return p, rc, err
	})
}

// CaptureProcess attaches a process, captures it and lets it go, all within
// one stop. The errors are those of Attach.
func CaptureProcess(pid int, opts CaptureOptions) (*Capture, error) {
	opts.prepare(pid)
	return capture(pid, opts.Space, func(infos []Thread) (*ProcDebug, *rawCapture, error) {
		p, dir, err := newProcDebug(pid)
		if err != nil {
			return nil, nil, fmt.Errorf("process %d: %w", pid, err)
		}
		defer dir.close()
		p.silent = true
		var rc *rawCapture
		p.e.do(func() {
			if err = p.e.seize(p, dir, opts.Threads); err != nil {
				err = fmt.Errorf("process %d: %w", pid, err)
			} else {
				p.relook(infos, dir)
				rc, err = p.e.capture(p, &opts, true)
			}
			if err != nil {
				p.e.abandon(p)
			}
			p.e.forget(p)
		})
		return p, rc, err
	})
}

// capture makes a Capture of what take takes. What code of the caller's has panicked with
// meanwhile, it panics with: the threads go on. It takes again when there was no
// thread that could be captured: one is about to run another program, and has
// ended the others.
func capture(pid int, space *AddressSpace, take func(infos []Thread) (*ProcDebug, *rawCapture, error)) (*Capture, error) {
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		infos, err := ProcessThreads(pid)
		if err != nil {
			infos = nil // take tells why
		}
		p, rc, err := take(infos)
		switch {
		case err != nil:
			return nil, err
		case rc.fault != nil:
			panic(rc.fault) // where the caller is
		case rc.arch != nil:
			return newCapture(p, rc, infos, space), nil
		case !anyAlive(infos):
			return nil, fmt.Errorf("process %d: %w", pid, ErrTerminated)
		case time.Since(begin) > stopLimit:
			return nil, fmt.Errorf("process %d: no registers of any thread: %w", pid, rc.threads[0].err)
		}
	}
}

// relook takes the states of threads anew that stood for another tracer, which
// has gone meanwhile. On the engine's goroutine.
func (p *ProcDebug) relook(infos []Thread, dir *taskDir) {
	for i := range infos {
		in := &infos[i]
		if in.State != StateTraced || p.threads[in.TID] == nil {
			continue
		}
		if s, err := dir.stat(in.TID); err == nil {
			in.State = s.state
		}
	}
}

// newCapture makes a Capture of what was taken. The mappings are those of space, which
// may be nil, where they are the same.
func newCapture(p *ProcDebug, rc *rawCapture, infos []Thread, space *AddressSpace) *Capture {
	c := &Capture{
		Stopped: rc.stopped, pid: p.pid, task: rc.task, exe: p.ExecutablePath(), arch: rc.arch,
		areas: scanAreas(rc.maps), threads: make([]CapturedThread, len(rc.threads)),
	}
	switch {
	case rc.known != nil:
		c.libs, c.earlier = rc.known.withNew(space, p.pid, rc.task), true
	case space != nil && bytes.Equal(space.text, rc.maps):
		c.libs = space
	default:
		c.libs = spaceFromMaps(p.pid, rc.task, rc.maps)
	}
	var dir *taskDir
	for i := range rc.threads {
		t := &rc.threads[i]
		ct := &c.threads[i]
		*ct = CapturedThread{Thread: Thread{TID: t.tid}, Err: t.err, Blocked: t.blocked, regs: t.regs, regions: t.regions, probes: t.probes}
		if j, ok := slices.BinarySearchFunc(infos, t.tid, func(i Thread, tid ThreadID) int { return int(i.TID) - int(tid) }); ok {
			ct.Thread = infos[j]
		} else { // born since they were listed
			if dir == nil {
				dir, _ = openTaskDir(p.pid)
			}
			if dir != nil {
				if s, err := dir.stat(t.tid); err == nil {
					ct.Name, ct.State = s.name, s.state
				}
			}
		}
		c.all = append(c.all, t.regions...)
	}
	if dir != nil {
		dir.close()
	}
	// The first thread of a process can have exited before the others.
	for _, in := range infos {
		if in.State == StateZombie && c.find(in.TID) == nil {
			c.threads = append(c.threads, CapturedThread{Thread: in, Err: ErrThreadExited})
		}
	}
	slices.SortFunc(c.threads, func(a, b CapturedThread) int {
		if (int(a.TID) == p.pid) != (int(b.TID) == p.pid) {
			if int(a.TID) == p.pid {
				return -1
			}
			return 1
		}
		return int(a.TID) - int(b.TID)
	})
	c.shared = rc.shared
	for _, regions := range [][]Region{c.all, c.shared} {
		slices.SortFunc(regions, func(a, b Region) int {
			return cmp.Or(cmp.Compare(a.Addr, b.Addr), cmp.Compare(len(b.Data), len(a.Data)))
		})
	}
	return c
}

// find returns a thread; nil when there is none of that ID. The default is the first that
// has registers.
func (c *Capture) find(tid ThreadID) *CapturedThread {
	for i := range c.threads {
		if t := &c.threads[i]; t.TID == tid || tid == DefaultThread && t.Err == nil {
			return t
		}
	}
	if tid == DefaultThread && len(c.threads) > 0 {
		return &c.threads[0]
	}
	return nil
}

// CapturedThreads returns the threads, the initial one first, those included
// that have no registers. The slice must not be modified.
func (c *Capture) CapturedThreads() []CapturedThread { return c.threads }

// Arch implements ProcessState.
func (c *Capture) Arch() *Arch { return c.arch }

// PID implements ProcessState.
func (c *Capture) PID() int { return c.pid }

// ExecutablePath implements ProcessState.
func (c *Capture) ExecutablePath() string { return c.exe }

// Threads implements ProcessState.
func (c *Capture) Threads() ([]ThreadID, error) {
	tids := make([]ThreadID, 0, len(c.threads))
	for i := range c.threads {
		if c.threads[i].Err == nil {
			tids = append(tids, c.threads[i].TID)
		}
	}
	return tids, nil
}

// Registers implements ProcessState.
func (c *Capture) Registers(tid ThreadID, regs *Regs) error {
	t := c.find(tid)
	if t == nil {
		return fmt.Errorf("thread %d is not in the capture of process %d: %w", tid, c.pid, ErrNoThread)
	}
	if t.Err != nil {
		return t.Err
	}
	*regs = t.regs
	return nil
}

// Libraries implements ProcessState. It returns an *AddressSpace.
func (c *Capture) Libraries() LibraryState { return c.libs }

// BeforeWalk implements ProcessState. It stops nothing.
func (c *Capture) BeforeWalk(tid ThreadID) error {
	c.cur, c.hot, c.missed = c.find(tid), Region{}, false
	if c.cur != nil && len(c.cur.regions) > 0 {
		c.hot = c.cur.regions[0]
	}
	return nil
}

// UserProbes implements ProbedState.
func (c *Capture) UserProbes() *UserProbes {
	if c.cur == nil {
		return &UserProbes{}
	}
	return &c.cur.probes
}

// AfterWalk implements ProcessState.
func (c *Capture) AfterWalk(ThreadID) error { return nil }

// Regions returns what was copied of the memory of a thread: its stack, and what
// was collected for it. It is nil where there is no such thread, or nothing of it. The
// bytes must not be modified.
func (c *Capture) Regions(tid ThreadID) []Region {
	if t := c.find(tid); t != nil {
		return t.regions
	}
	return nil
}

// Missed returns the address of the last read since BeforeWalk that the
// capture does not hold, although the process had memory there: another
// capture can ask for it with [CaptureOptions.Also].
func (c *Capture) Missed() (addr uint64, ok bool) { return c.missAddr, c.missed }

// ReadLive implements LiveMemory.
func (c *Capture) ReadLive(addr uint64, buf []byte) int { return ReadProcess(int(c.task), addr, buf) }

// ReadWord implements Memory.
func (c *Capture) ReadWord(addr uint64) (uint64, bool) {
	if c.arch == nil {
		return 0, false
	}
	width := uint64(c.arch.AddressWidth)
	if i := addr - c.hot.Addr; i >= uint64(len(c.hot.Data)) || width > uint64(len(c.hot.Data))-i {
		r, ok := c.regionOf(addr, width)
		if !ok {
			var b [8]byte
			if n, _ := c.ReadMemory(addr, b[:width]); n < int(width) {
				return 0, false
			}
			return binary.LittleEndian.Uint64(b[:]), true
		}
		c.hot = r
	}
	if width == 4 {
		return uint64(binary.LittleEndian.Uint32(c.hot.Data[addr-c.hot.Addr:])), true
	}
	return binary.LittleEndian.Uint64(c.hot.Data[addr-c.hot.Addr:]), true
}

// ReadCaptured implements CapturedMemory.
func (c *Capture) ReadCaptured(addr uint64, buf []byte) bool {
	r, ok := c.regionOf(addr, uint64(len(buf)))
	if ok {
		copy(buf, r.Data[addr-r.Addr:])
	}
	return ok
}

// regionOf finds n copied bytes at addr.
func (c *Capture) regionOf(addr, n uint64) (Region, bool) {
	if c.cur != nil {
		for _, r := range c.cur.regions {
			if i := addr - r.Addr; i < uint64(len(r.Data)) && n <= uint64(len(r.Data))-i {
				return r, true
			}
		}
	}
	for _, regions := range [...][]Region{c.shared, c.all} {
		// Regions may overlap, when threads share a memory area: look at some
		// that begin before addr.
		i := sort.Search(len(regions), func(i int) bool { return regions[i].Addr > addr })
		for j := i - 1; j >= 0 && j >= i-8; j-- {
			r := regions[j]
			if i := addr - r.Addr; i < uint64(len(r.Data)) && n <= uint64(len(r.Data))-i {
				return r, true
			}
		}
	}
	return Region{}, false
}

// ReadMemory implements Memory.
func (c *Capture) ReadMemory(addr uint64, buf []byte) (int, error) {
	if len(buf) == 0 {
		return 0, nil
	}
	if r, ok := c.regionOf(addr, 1); ok {
		n := copy(buf, r.Data[addr-r.Addr:])
		if n == len(buf) {
			return n, nil
		}
		m, err := c.ReadMemory(addr+uint64(n), buf[n:])
		return n + m, err
	}
	if readFiles(c.libs, addr, buf) == nil {
		return len(buf), nil
	}
	if c.libs == nil {
		return 0, ErrUnreadable
	}
	if m := c.libs.MappingAt(addr); m != nil && m.Image == nil {
		if n := ReadProcess(int(c.task), addr, buf); n > 0 {
			if n == len(buf) {
				return n, nil
			}
			return n, ErrUnreadable
		}
	}
	if c.hadMemory(addr) {
		c.missAddr, c.missed = addr, true
	}
	return 0, ErrUnreadable
}

// hadMemory reports whether the process had memory at an address, as far as is known.
func (c *Capture) hadMemory(addr uint64) bool {
	_, ok := areaAt(c.areas, addr)
	if !ok && c.earlier {
		c.areas, c.earlier = scanAreas(readMapsText(c.pid, c.task)), false
		_, ok = areaAt(c.areas, addr)
	}
	return ok
}
