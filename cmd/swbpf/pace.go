package main

import (
	"cmp"
	"time"

	"github.com/swbpf/swbpf/loader"
)

// The time between polls, within which it follows from how fast the rings fill.
const (
	minPoll  = 5 * time.Millisecond
	codePoll = 25 * time.Millisecond  // while code, or what it is called, is gone before it was looked at
	soonPoll = 100 * time.Millisecond // while there is what may soon be gone with its process
	newPoll  = 400 * time.Millisecond // while there are new processes, whose control group is not known yet
	maxPoll  = 800 * time.Millisecond
)

// codePolls is how many polls in a row are as soon as that since it was last seen:
// programs compile what they run first, and again what they run often.
const codePolls = 40

// hastenedPolls is the same since one was hastened by news, as of code that a process has begun to make: if it is
// gone soon, so is what that is called.
const hastenedPolls = 12

// calmPolls is how many polls in a row have no new process before the wait is longer
// than newPoll.
const calmPolls = 3

// pace says how long to wait between polls of the rings: until there is enough to do,
// by how they were filled before. Whoever wakes up finds its memory in no
// cache any more, and should have much to do then. The kernel tells of a ring that
// fills faster (bpf/ring.h).
type pace struct {
	wait    time.Duration // until the next poll
	least   time.Duration
	calm    int     // polls since there was a new process
	code    int     // polls that will be as soon as codePoll
	lost    int     // polls in a row that needed what was given up, or code that cannot be walked at all
	enough  float64 // bytes in all rings
	isFixed bool    // the wait stays as it is
	isTight bool    // whether rings can be full before a thread gets its turn on a CPU
}

// turn is how long a thread may have to wait for its turn on a CPU that is busy.
const turn = 50 * time.Millisecond

// enoughBytes are worth a poll, if they are not more than a quarter of the rings.
const enoughBytes = 2 << 20

// newPace makes the pace of a recording.
func (r *recorder) newPace() *pace {
	hz := 0
	for _, m := range r.session.Samplings() {
		if m.Frequency == 0 || m.Event.IsWall() {
			return &pace{wait: minPoll, least: minPoll, isFixed: true}
		}
		hz += m.Frequency
	}
	return paceOf(hz, max(1, loader.CPUs()), r.session.RingBytes(), cmp.Or(int(r.opt.stackBytes), loader.DefaultStackBytes))
}

// paceOf makes the pace for a rate in Hz: within the least wait, stacks of the
// greatest size fill an eighth of each ring.
func paceOf(hz, cpus, ringBytes, stackBytes int) *pace {
	eighth := float64(ringBytes) / 8
	fill := time.Duration(eighth / float64(hz*cpus*stackBytes) * float64(time.Second))
	least := min(max(fill, minPoll), soonPoll)
	return &pace{wait: least, least: least, enough: min(max(eighth, enoughBytes), 2*eighth), isTight: 8*fill < turn}
}

// polled sets the wait after a poll that took so many bytes. isNew says that there
// were samples of a new process, hastened that news had it come sooner, hurry that there is what
// may soon be gone, and lost that some was.
func (p *pace) polled(bytes uint64, isNew, hastened, hurry, lost bool) {
	if p.isFixed {
		return
	}
	fills := min(p.enough/float64(bytes), 2) // lest it grow on a whim
	if p.calm++; isNew {
		p.calm = 0
	}
	if p.lost++; !lost {
		p.lost = 0
	} else if p.lost <= codePolls {
		p.code = codePolls
	}
	if hastened {
		p.code = max(p.code, hastenedPolls)
	}
	most := maxPoll
	switch {
	case p.code > 0:
		p.code--
		most = codePoll
	case hurry:
		most = soonPoll
	case p.calm < calmPolls:
		most = newPoll
	}
	p.wait = min(max(time.Duration(float64(p.wait)*fills), min(p.least, most)), most)
}

// hasten is how long to wait at most from when there are news; 0: as long as
// without.
func (p *pace) hasten() time.Duration {
	if p.wait > soonPoll {
		return codePoll
	}
	return 0
}
