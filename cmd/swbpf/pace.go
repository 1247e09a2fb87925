package main

import (
	"cmp"
	"time"

	"github.com/swbpf/swbpf/loader"
)

// The time between polls, within which it follows from the rings' size.
const (
	minPoll  = 5 * time.Millisecond
	maxPoll  = 100 * time.Millisecond
	calmPoll = 400 * time.Millisecond // while nothing happens
)

// pace says how long to wait between polls of the rings: until an eighth of them
// is full. On a machine that idles the wait grows further, up to one that leaves
// room for all that may come meanwhile.
type pace struct {
	wait             time.Duration // until the next poll
	busy, most, calm time.Duration // its bounds: the least, the greatest, that of a machine that idles
	eighth           float64       // of the rings, in bytes
	few              float64       // samples a second of a machine that idles
}

// fewShare is the share of a machine's time on the CPU up to which it idles.
const fewShare = 1.0 / 8

// newPace makes the pace of a recording.
func (r *recorder) newPace() *pace {
	hz := r.session.Frequency()
	if hz == 0 || r.session.Event().IsWall() {
		return &pace{wait: minPoll, busy: minPoll, most: minPoll, calm: minPoll}
	}
	return paceOf(hz, max(1, loader.CPUs()), r.session.RingBytes(), cmp.Or(int(r.opt.stackBytes), loader.DefaultStackBytes))
}

// paceOf makes the pace for a rate in Hz: stacks of the greatest size fill an
// eighth of each ring within the least wait, at most three quarters within any
// other. Whoever wakes up finds its memory in no cache any more, and should have
// much to do then.
func paceOf(hz, cpus, ringBytes, stackBytes int) *pace {
	full := time.Duration(float64(ringBytes) / float64(hz*cpus*stackBytes) * float64(time.Second))
	busy := min(max(full/8, minPoll), maxPoll)
	most := max(full/4*3, busy)
	return &pace{
		wait: busy, busy: busy, most: min(most, maxPoll), calm: min(most, calmPoll),
		eighth: float64(ringBytes) / 8, few: float64(hz*cpus) * fewShare,
	}
}

// polled sets the wait after a poll that took so many samples, in so many bytes.
func (p *pace) polled(samples, bytes uint64) {
	if float64(samples) <= p.few*p.wait.Seconds() {
		p.wait = min(4*p.wait, p.calm)
		return
	}
	fills := min(p.eighth/float64(bytes), 2) // lest it grow on a whim
	p.wait = min(max(time.Duration(float64(p.wait)*fills), p.busy), p.most)
}

// hurry ends the calm: there is news of processes, which may soon be gone.
func (p *pace) hurry() { p.wait = p.busy }

// isCalm reports whether the wait is one of a machine that idles.
func (p *pace) isCalm() bool { return p.wait > p.most }
