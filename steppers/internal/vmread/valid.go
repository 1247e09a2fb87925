package vmread

import (
	"time"

	"github.com/swbpf/swbpf/procstate"
)

// Valid is for how long an object of an interpreter, of which another can take the place once it is freed, is known to
// have been what was read of it. A sample is looked at some tenths of a second after it was taken: what is there by then
// can be another. So an address of which that has been seen is trusted only where the same was read of it before a sample
// was taken and after that, and other addresses for half of the time that they are known for. The zero value is of an
// address of which nothing was read.
type Valid struct {
	first, last uint64 // ns of CLOCK_MONOTONIC, when the same was read for the first and the last time
	changes     bool   // something else was read before
}

// How long an object is trusted before it is read again, in ns.
const (
	leastTrust = uint64(2 * time.Millisecond)
	mostTrust  = uint64(time.Second)
)

// IsDue reports whether the object has to be read before it counts for what m has, a sample or what stands still.
func (v *Valid) IsDue(m *Memory) bool {
	taken, now := m.Times()
	if v.covers(taken) {
		return false
	}
	return v.changes || now-v.last >= min(max((v.last-v.first)/2, leastTrust), mostTrust)
}

// Read takes note that the object was read now, and whether it was the same as before. It reports whether that is what it was
// at the time of m.
func (v *Valid) Read(m *Memory, isSame bool) bool {
	taken, now := m.Times()
	switch {
	case v.first == 0: // for the first time: there is no telling
		v.first, v.last = now, now
		return true
	case !isSame:
		*v = Valid{first: now, last: now, changes: true}
	default:
		v.last = now
	}
	return !v.changes || v.covers(taken)
}

// Holds reports whether the object was what was read of it at the time of m, as far as is known where it cannot be read any
// more.
func (v *Valid) Holds(m *Memory) bool {
	taken, _ := m.Times()
	return v.first != 0 && (!v.changes || v.covers(taken))
}

func (v *Valid) covers(taken uint64) bool { return v.first != 0 && taken-v.first <= v.last-v.first }

// Times returns when what is read as captured was so, and the present, in ns of CLOCK_MONOTONIC: both are the same for what
// stands still, or where it is not known.
func (m *Memory) Times() (taken, now uint64) {
	now = procstate.Monotonic()
	if sample, ok := m.Mem.(*procstate.Snapshot); ok {
		taken = sample.Taken()
	}
	if taken == 0 {
		taken = now
	}
	return taken, now
}
