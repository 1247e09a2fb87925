package vmread

import (
	"cmp"
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

// IsDue reports whether the object has to be read before it counts at a time.
func (v *Valid) IsDue(at Times) bool {
	if v.covers(at) {
		return false
	}
	return v.changes || at.Now-v.last >= min(max((v.last-v.first)/2, leastTrust), mostTrust)
}

// Read takes note that the object was read now, and whether it was the same as before. It reports whether that is what it was
// at a time.
func (v *Valid) Read(at Times, isSame bool) bool {
	switch {
	case v.first == 0: // for the first time: there is no telling
		v.first, v.last = at.Now, at.Now
		return true
	case !isSame:
		v.Differs(at)
	default:
		v.last = at.Now
	}
	return v.Holds(at)
}

// Differs takes note that the object was another before now, or none.
func (v *Valid) Differs(at Times) { *v = Valid{first: at.Now, last: at.Now, changes: true} }

// Holds reports whether the object was what was read of it at a time, as far as is known where it cannot be read any more.
func (v *Valid) Holds(at Times) bool { return v.first != 0 && (!v.changes || v.covers(at)) }

func (v *Valid) covers(at Times) bool { return v.first != 0 && at.Taken-v.first <= v.last-v.first }

// Times are when memory was captured, and the present, in ns of CLOCK_MONOTONIC: both are the same for what stands still, or
// where the first is not known.
type Times struct{ Taken, Now uint64 }

// Times returns those of the memory.
func (m *Memory) Times() Times {
	at := Times{Now: procstate.Monotonic()}
	if sample, ok := m.Mem.(*procstate.Snapshot); ok {
		at.Taken = sample.Taken()
	}
	at.Taken = cmp.Or(at.Taken, at.Now)
	return at
}
