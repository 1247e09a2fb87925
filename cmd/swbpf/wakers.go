package main

import (
	"maps"
	"time"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/profile"
	"github.com/swbpf/swbpf/unwind"
)

// wakers holds the stacks of what has woken threads up that were not back on a CPU yet when the last
// sample came. A nil one holds none.
type wakers struct {
	byTID map[int32]waker        // the thread that was woken
	names map[[16]byte]wakerName // of threads
	now   uint64                 // time of the last one, CLOCK_MONOTONIC ns

	interrupt, other wakerName
}

// wakerName is who it was, and the marker that says so.
type wakerName struct {
	who    string
	marker profile.Loc
}

// waker is the stack of one.
type waker struct {
	left  uint64        // when the other thread left the CPU, CLOCK_MONOTONIC ns
	woken uint64        // and was woken
	who   string        // it was
	stack []profile.Loc // callers first, below the marker
}

const (
	// maxWakers bounds the names of threads that stacks tell, as markers are kept for as long as a recording lasts.
	maxWakers = 1 << 12

	// wakerKeep is for how long a waker is kept: a thread that was woken up runs soon, or else has ended, or its
	// sample was lost.
	wakerKeep = 10 * time.Second
)

func newWakers(b *profile.Builder) *wakers {
	return &wakers{
		byTID: map[int32]waker{}, names: map[[16]byte]wakerName{},
		interrupt: nameWaker(b, "an interrupt"), other: nameWaker(b, "another thread"),
	}
}

func nameWaker(b *profile.Builder, who string) wakerName {
	return wakerName{who, b.Marker(profile.WakerMarker(who))}
}

// name tells who it was.
func (w *wakers) name(b *profile.Builder, s *loader.Sample) wakerName {
	if s.Waker.Interrupt {
		return w.interrupt
	}
	name, ok := w.names[s.Comm]
	if !ok {
		if len(w.names) >= maxWakers {
			return w.other
		}
		name = nameWaker(b, s.CommString())
		w.names[s.Comm] = name
	}
	return name
}

// appendWaker adds to the stack of a time off the CPU what ended it, where that is known.
func (p *pipeline) appendWaker(s *loader.Sample) {
	if p.wakers == nil || s.Blocked == loader.BlockedRunnable {
		return
	}
	if s.Ongoing {
		p.stats.OffCPUOngoingNS += s.Weight
		return
	}
	k, ok := p.wakers.byTID[s.TID]
	if !ok || k.left != s.Left {
		p.stats.OffCPUNSByWaker[""] += s.Weight
		return
	}
	p.stats.OffCPUNSByWaker[k.who] += s.Weight
	p.stack = append(p.stack, k.stack...)
	k.left = 0 // its memory is for the next one
	p.wakers.byTID[s.TID] = k
}

// forget forgets what has woken threads up that did not run for long since.
func (w *wakers) forget() {
	if w != nil {
		maps.DeleteFunc(w.byTID, func(_ int32, k waker) bool { return k.woken+uint64(wakerKeep) < w.now })
	}
}

// reset forgets all of them.
func (w *wakers) reset() {
	if w != nil {
		clear(w.byTID)
	}
}

// addWaker keeps the stack of a sample of what wakes a thread up: who that is, and what it does.
func (p *pipeline) addWaker(s *loader.Sample) {
	w := p.wakers
	if w == nil {
		return
	}
	w.now = s.Time
	if s.Comm[0] == 0 {
		s.Comm = p.programOf(s)
	}
	k := w.byTID[s.Waker.TID]
	k.left, k.woken = s.Waker.Left, s.Time
	name := w.name(p.builder, s)
	k.who, k.stack = name.who, append(k.stack[:0], name.marker)
	p.begin()
	if s.User != loader.UserNone && s.User != loader.UserExited && s.User != loader.UserExec {
		if err := p.user(s); err != nil {
			k.stack = append(k.stack, p.builder.Marker("[truncated: "+unwind.ReasonOf(err).String()+"]"))
		}
		*p.path = profile.Path{} // the stack is not added along it
	}
	p.addKernel(s)
	k.stack = append(k.stack, p.stack...)
	w.byTID[s.Waker.TID] = k
	p.stats.Wakers++
}
