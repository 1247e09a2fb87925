package main

import (
	"cmp"
	"time"

	"github.com/swbpf/swbpf/loader"
)

// The time between polls, within which it follows from how fast the rings fill.
const (
	minPoll  = 5 * time.Millisecond
	soonPoll = 100 * time.Millisecond // while there is what may soon be gone with its process
	maxPoll  = 400 * time.Millisecond
)

// pace says how long to wait between polls of the rings: until an eighth of them
// is full, by how they were filled before. Whoever wakes up finds its memory in no
// cache any more, and should have much to do then. The kernel tells of a ring that
// fills faster (bpf/ring.h).
type pace struct {
	wait    time.Duration // until the next poll
	least   time.Duration
	most    time.Duration
	eighth  float64 // of the rings, in bytes
	isTight bool    // whether rings can be full before a thread gets its turn on a CPU
}

// turn is how long a thread may have to wait for its turn on a CPU that is busy.
const turn = 50 * time.Millisecond

// newPace makes the pace of a recording.
func (r *recorder) newPace() *pace {
	hz := r.session.Frequency()
	if hz == 0 || r.session.Event().IsWall() {
		return &pace{wait: minPoll, least: minPoll, most: minPoll}
	}
	return paceOf(hz, max(1, loader.CPUs()), r.session.RingBytes(), cmp.Or(int(r.opt.stackBytes), loader.DefaultStackBytes))
}

// paceOf makes the pace for a rate in Hz: within the least wait, stacks of the
// greatest size fill an eighth of each ring.
func paceOf(hz, cpus, ringBytes, stackBytes int) *pace {
	eighth := float64(ringBytes) / 8
	fill := time.Duration(eighth / float64(hz*cpus*stackBytes) * float64(time.Second))
	least := min(max(fill, minPoll), soonPoll)
	return &pace{wait: least, least: least, most: maxPoll, eighth: eighth, isTight: 8*fill < turn}
}

// polled sets the wait after a poll that took so many bytes. hurry says that there
// is what may soon be gone.
func (p *pace) polled(bytes uint64, hurry bool) {
	fills := min(p.eighth/float64(bytes), 2) // lest it grow on a whim
	most := p.most
	if hurry {
		most = min(most, soonPoll)
	}
	p.wait = min(max(time.Duration(float64(p.wait)*fills), p.least), most)
}

// hasten is how long to wait at most from when there are news; 0: as long as
// without.
func (p *pace) hasten() time.Duration {
	if p.wait > soonPoll {
		return soonPoll
	}
	return 0
}
