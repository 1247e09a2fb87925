package unwind

import (
	"slices"

	"github.com/swbpf/swbpf/procstate"
)

// Memo remembers the outer frames of a thread's last walk, those that rules led
// through to the bottom. Where the stack is known to be as it was then, from an
// address on, a later walk that comes to one of these frames beyond it need not
// go on. The zero Memo is empty. A Memo belongs to one thread and one Walker.
type Memo struct {
	frames []memoFrame // from the bottom up: their SPs fall

	rules      *ruledFrames
	space      *procstate.AddressSpace
	generation uint32

	// During a walk.
	from uint64 // all that frames were found by, from this address on, is as it was
	next int    // frames from here on have a lower SP than the walk
	same int    // frames that the walk was spared
	open bool   // a walk goes on, or has panicked
}

// memoFrame is a frame in a call. All that leads to its callers lies from sp on.
type memoFrame struct{ pc, sp, fp uint64 }

// maxTrail is the number of frames up to which what a walk adds to a Memo is
// remembered.
const maxTrail = 1024

// Reset empties the Memo, for use with another thread.
func (m *Memo) Reset() {
	*m = Memo{frames: m.frames[:0]}
}

// begin prepares for a walk by rules. ok is false when there can be no memo of
// it: the mappings must tell when they change.
func (m *Memo) begin(w *Walker, rules *ruledFrames, from uint64) (ok bool) {
	if m.open {
		m.frames = m.frames[:0]
	}
	m.from, m.same, m.next, m.open = from, 0, len(m.frames), true
	space, ok := w.libs.(*procstate.AddressSpace)
	if !ok || rules == nil {
		m.frames, m.open = m.frames[:0], false
		return false
	}
	if m.rules != rules || m.space != space || m.generation != space.Generation() {
		m.frames, m.next = m.frames[:0], 0
		m.rules, m.space, m.generation = rules, space, space.Generation()
	}
	return true
}

// find returns the index of the frame in a call at which the walk has arrived,
// or -1 when it is not known, and the SP from which on to ask again.
func (m *Memo) find(pc, sp, fp uint64) (i int, stop uint64) {
	for m.next > 0 && m.frames[m.next-1].sp < sp {
		m.next--
	}
	i = m.next - 1
	if i >= 0 && sp >= m.from {
		f := &m.frames[i]
		if f.sp == sp && f.pc == pc && f.fp == fp {
			return i, 0
		}
		if f.sp == sp {
			i--
		}
	}
	if i < 0 {
		return -1, ^uint64(0)
	}
	return -1, max(m.from, m.frames[i].sp)
}

// appendTo appends the callers of a frame, and makes the Memo that of the walk
// that came to it.
func (m *Memo) appendTo(dst []PC, i int) []PC {
	for j := i - 1; j >= 0; j-- {
		dst = append(dst, PC{Addr: m.frames[j].pc - 1})
	}
	m.same = i + 1
	return dst
}

// keep makes the outer frames of the walk those of the Memo: what it had of
// them, and the trail that led there. A walk that is not complete is forgotten.
func (m *Memo) keep(trail []memoFrame, complete bool) {
	m.open = false
	if !complete {
		m.frames, m.same = m.frames[:0], 0
		return
	}
	m.frames = slices.Grow(m.frames[:m.same], len(trail))
	for _, f := range slices.Backward(trail) {
		m.frames = append(m.frames, f)
	}
}
