package main

import (
	"time"

	"github.com/swbpf/swbpf/loader"
)

// The time between polls, within which it follows from the rings' size.
const (
	minPoll  = 5 * time.Millisecond
	maxPoll  = 100 * time.Millisecond
	calmPoll = 400 * time.Millisecond // while nothing happens
)

// pace says how long to wait between polls of the rings. On a machine that idles
// the wait grows, up to one that leaves room for all that may come meanwhile.
type pace struct {
	wait       time.Duration // until the next poll
	busy, calm time.Duration // its bounds
	few        float64       // samples a second of a machine that idles
}

// fewShare is the share of a machine's time on the CPU up to which it idles.
const fewShare = 1.0 / 8

// newPace makes the pace of a recording.
func (r *recorder) newPace() *pace {
	hz := r.session.Frequency()
	if hz == 0 || r.session.Event().IsWall() {
		return &pace{wait: minPoll, busy: minPoll, calm: minPoll}
	}
	return paceOf(hz, max(1, loader.CPUs()), r.session.RingBytes(), int(r.opt.stackBytes))
}

// paceOf makes the pace for a rate in Hz: stacks of the greatest size fill an
// eighth of each ring within a wait, at most half within one of a machine that
// idled.
func paceOf(hz, cpus, ringBytes, stackBytes int) *pace {
	full := time.Duration(float64(ringBytes) / float64(hz*cpus*stackBytes) * float64(time.Second))
	busy := min(max(full/8, minPoll), maxPoll)
	return &pace{wait: busy, busy: busy, calm: min(max(full/2, busy), calmPoll), few: float64(hz*cpus) * fewShare}
}

// polled sets the wait after a poll that took so many samples.
func (p *pace) polled(samples uint64) {
	if float64(samples) > p.few*p.wait.Seconds() {
		p.wait = p.busy
		return
	}
	p.wait = min(2*p.wait, p.calm)
}

// hurry ends the calm: there is news of processes, which may soon be gone.
func (p *pace) hurry() { p.wait = p.busy }

// isCalm reports whether the wait has grown.
func (p *pace) isCalm() bool { return p.wait > p.busy }
