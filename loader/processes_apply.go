package loader

import (
	"cmp"
	"slices"
	"time"

	"github.com/swbpf/swbpf/procstate"
)

type exit struct {
	proc *Process
	time uint64
}

// eventKey stands for an event in the queue.
type eventKey struct {
	time uint64
	i    int
}

// resyncEvery bounds how often losses make the table be read anew, or that be tried.
const resyncEvery = uint64(time.Second)

// maxRecover is how long reading the table anew may keep all else waiting.
const maxRecover = time.Second

// keepEvents is the number of events for which memory is kept: those of half a second
// with 200 processes in it.
const keepEvents = 4096

// What may wait to be applied: a program that maps code in a loop makes a million events
// a second, and what has come must be dealt with in a fraction of one.
const (
	maxWaiting   = 1 << 18 // events
	maxOfProcess = 1 << 14 // of them, mappings and names of one process
)

// maxMappings bounds the executable mappings of a process that are kept. What a program
// unmaps is not reported: those that come to more are read anew first.
const maxMappings = procstate.MaxLoaded

// recover reads the table anew after records were lost, not too often. Where it cannot, it tries
// again.
func (p *Processes) recover() {
	began := monotonic()
	if began < p.resync {
		return
	}
	p.lossy = p.bootstrap(maxRecover) != nil
	p.resync = afterRest(began, resyncEvery)
}

// afterRest returns when to do something again that began at a time: it is to take a
// twentieth of the time at most, and to be done no more often than each so many ns.
func afterRest(began, interval uint64) uint64 {
	now := monotonic()
	return now + max(interval, 20*(now-began))
}

// readStale reads processes anew of which mappings are missing, one at a time.
func (p *Processes) readStale() {
	began := monotonic()
	if began < p.reread {
		return
	}
	for proc := range p.stale {
		delete(p.stale, proc)
		if p.procs[proc.PID] != proc || proc.Exited {
			continue
		}
		if fresh := p.load(proc.PID); fresh != nil && fresh.Space.Len() > 0 {
			proc.replace(fresh)
		}
		break
	}
	p.reread = afterRest(began, 0)
}

// add adds a mapping to a process, unless it has very many. What takes the place of
// others may cut them in two, and make them more still.
func (p *Processes) add(proc *Process, m *procstate.Mapping) {
	if n := proc.Space.Len(); n >= 2*maxMappings || n >= maxMappings && !proc.Space.Overlaps(m.Start, m.End) {
		p.stale[proc] = true
		p.mu.Lock()
		p.leftOut++
		p.mu.Unlock()
		return
	}
	proc.insert(m)
}

// due removes the events up to time t from the queue: those of the keys, in their order.
// They are valid until the next call.
func (p *Processes) due(t uint64) (queue []SidebandEvent, keys []eventKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.order()
	first := p.next
	for ; p.next < len(p.keys) && p.keys[p.next].time <= t; p.next++ {
		e := &p.pending[p.keys[p.next].i]
		e.due = true
		if e.isOfMany() {
			if p.waits[e.PID]--; p.waits[e.PID] <= 0 {
				delete(p.waits, e.PID)
			}
		}
	}
	return p.pending, p.keys[first:p.next]
}

// order brings the keys of the queue in order of time, and drops what was removed from it
// once that is most of it. Events are large: they stay where they are.
func (p *Processes) order() {
	if p.next > len(p.keys)/2 {
		p.drop()
	}
	first := ^uint64(0) // time of a new one
	for i := p.keyed; i < len(p.pending); i++ {
		p.keys = append(p.keys, eventKey{p.pending[i].Time, i})
		first = min(first, p.pending[i].Time)
	}
	if !p.sorted {
		// Those before it are in order, and stay where they are.
		known := p.keys[p.next:p.keyed]
		from, _ := slices.BinarySearchFunc(known, first, func(k eventKey, t uint64) int {
			if k.time <= t {
				return -1
			}
			return 1
		})
		slices.SortFunc(p.keys[p.next+from:], func(a, b eventKey) int {
			return cmp.Or(cmp.Compare(a.time, b.time), a.i-b.i)
		})
		p.sorted = true
	}
	p.keyed = len(p.pending)
}

// drop drops what was due from the queue.
func (p *Processes) drop() {
	n := 0
	for i := range p.pending {
		if !p.pending[i].due {
			p.pending[n] = p.pending[i]
			n++
		}
	}
	clear(p.pending[n:])
	p.pending = p.pending[:n]
	if cap(p.pending) > keepEvents && n <= keepEvents { // after a burst
		p.pending, p.keys = append(make([]SidebandEvent, 0, keepEvents), p.pending...), nil
	}
	p.keys, p.next, p.keyed, p.sorted = p.keys[:0], 0, 0, false
}

func (p *Processes) apply(e *SidebandEvent) {
	switch e.Kind {
	case SidebandFork:
		p.applyFork(e)
	case SidebandExec:
		if proc := p.forEvent(e.PID); proc != nil {
			proc.exec(e.Comm)
		}
	case SidebandComm:
		if proc := p.procs[e.PID]; proc != nil {
			proc.Comm = e.Comm
			if e.last {
				p.stale[proc] = true
			}
		}
	case SidebandMmap:
		p.applyMmap(e)
	case SidebandExit:
		p.applyExit(e)
	case SidebandLost:
		p.lossy = true
	case SidebandBPF:
		if p.onBPF != nil {
			p.onBPF(e)
		}
	}
}

func (p *Processes) applyFork(e *SidebandEvent) {
	parent := p.forEvent(e.PPID)
	if parent == nil {
		if p.only == nil {
			p.procs[e.PID] = p.empty(e.PID)
		} else if !p.only[e.PID] {
			delete(p.procs, e.PID) // the number's earlier owner
		}
		return
	}
	p.procs[e.PID] = parent.fork(e.PID)
}

func (p *Processes) applyMmap(e *SidebandEvent) {
	proc := p.forEvent(e.PID)
	if proc == nil {
		return
	}
	var m *procstate.Mapping
	if e.looked {
		m = procstate.NewFileMapping(e.ref(), e.Offset, e.image, e.imageErr)
	} else {
		m = p.images.NewMapping(proc.Space, e.ref(), e.Offset)
		p.announce(e.PID, m.Image, m.Start, m.Offset)
	}
	p.add(proc, m)
	if e.last {
		p.stale[proc] = true
	}
}

func (p *Processes) applyExit(e *SidebandEvent) {
	if proc := p.procs[e.PID]; proc != nil && !proc.Exited {
		proc.Exited, proc.ExitTime = true, e.Time
		p.exits = append(p.exits, exit{proc, e.Time})
	}
}

// forEvent returns the process that an event tells of, which shows that it
// lives, or nil when it is not followed.
func (p *Processes) forEvent(pid int32) *Process {
	proc := p.procs[pid]
	if proc == nil {
		if p.only != nil && !p.only[pid] {
			return nil
		}
		// Born before the side-band was opened or by a lost record.
		if proc = p.load(pid); proc == nil {
			proc = p.empty(pid)
		}
		p.procs[pid] = proc
	}
	return proc
}

func (p *Processes) empty(pid int32) *Process {
	return &Process{PID: pid, Arch: procstate.HostArch(), Space: new(procstate.AddressSpace)}
}
