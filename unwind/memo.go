package unwind

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
)

// Memo remembers the outer frames of a thread's last walk, and what was read of
// the stack to find them: as long as those words are the same, a later walk
// that comes to one of these frames need not go on. The zero Memo is empty. A
// Memo belongs to one thread and one Walker.
type Memo struct {
	frames []memoFrame // from the bottom up; all were walked through by rules
	fresh  []memoFrame // during a walk: those not in frames, from the top down

	rules      *ruledFrames
	space      *procstate.AddressSpace
	generation uint32

	// During a walk: the words of frames[:checked] are known to be the same,
	// and those of the next frame to be other when ends is set.
	checked int
	ends    bool
	next    int // frames from here on have a lower SP than the walk
	same    int // frames that the walk was spared

	// Where stacks have little in common a memo costs more than it spares: after
	// a round of walks of that kind come some without, and more each time.
	walks, spared, found int // of this round
	without              int // walks still to come
	pause                int // walks without before this round
}

// A Memo pays when it spares two thirds of the frames or more.
const (
	memoRound                = 16
	memoPause, memoPauseMost = 128, 2048
)

// memoFrame is a frame in a call, and the words that lead to its caller, the
// frame before it: they hold that one's PC and, where fpAt is not 0, FP.
type memoFrame struct {
	pc, sp, fp uint64
	raAt, fpAt uint64
	byFP       bool // the CFA is found from FP
	needsFP    bool // this frame's CFA, or that of one of its callers, depends on FP
}

// maxMemo is the number of frames up to which a walk is remembered.
const maxMemo = 1024

// Reset empties the Memo, for use with another thread.
func (m *Memo) Reset() {
	*m = Memo{frames: m.frames[:0], fresh: m.fresh[:0]}
}

// begin prepares for a walk by rules. ok is false when there can be no memo of
// it: the mappings must tell when they change.
func (m *Memo) begin(w *Walker, rules *ruledFrames) (ok bool) {
	m.same, m.checked, m.ends = 0, 0, false
	space, ok := w.libs.(*procstate.AddressSpace)
	if !ok || rules == nil || m.without > 0 {
		m.without = max(0, m.without-1)
		m.frames = m.frames[:0]
		return false
	}
	if m.rules != rules || m.space != space || m.generation != space.Generation() {
		m.frames = m.frames[:0]
		m.rules, m.space, m.generation = rules, space, space.Generation()
	}
	return true
}

// enter begins a run of frames that rules lead through.
func (m *Memo) enter() { m.fresh, m.next = m.fresh[:0], len(m.frames) }

// add adds a frame to the run.
func (m *Memo) add(f memoFrame, only ruledOnly) {
	if only&ruledSigned != 0 || len(m.fresh) >= maxMemo {
		m.enter() // what was read is not the PC itself, or it is too much
		return
	}
	m.fresh = append(m.fresh, f)
}

// find returns the index of the frame at which the walk has arrived, when that
// and all below it are as they were; -1 otherwise. stack is the captured memory
// from low on, around sp.
func (m *Memo) find(pc, sp, fp uint64, fpKnown bool, low uint64, stack []byte) int {
	for m.next > 0 && m.frames[m.next-1].sp < sp {
		m.next--
	}
	i := m.next - 1
	if i < 0 || m.frames[i].sp != sp || m.frames[i].pc != pc || m.frames[i].needsFP && !(fpKnown && m.frames[i].fp == fp) {
		return -1
	}
	for ; m.checked <= i && !m.ends; m.checked++ {
		// The bottom is known by its PC.
		if m.checked > 0 && !m.unchanged(m.checked, low, stack) {
			m.ends = true
			break
		}
	}
	if i >= m.checked {
		return -1
	}
	return i
}

// unchanged reports whether the words of a frame are as they were, those that
// matter.
func (m *Memo) unchanged(i int, low uint64, stack []byte) bool {
	f, caller := &m.frames[i], &m.frames[i-1]
	return wordIs(low, stack, f.raAt, caller.pc) && (f.fpAt == 0 || !caller.needsFP || wordIs(low, stack, f.fpAt, caller.fp))
}

// wordIs reports whether a word at an address of stack, which begins at low, has
// a value.
func wordIs(low uint64, stack []byte, addr, value uint64) bool {
	i, n := addr-low, uint64(len(stack))
	return i < n && n-i >= wordBytes && binary.LittleEndian.Uint64(stack[i:]) == value
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
// them, and the fresh ones above. A walk that is not complete is forgotten.
func (m *Memo) keep(complete bool) {
	m.walks, m.spared, m.found = m.walks+1, m.spared+m.same, m.found+m.same+len(m.fresh)
	if m.walks == memoRound {
		m.pause = min(max(memoPause, 2*m.pause), memoPauseMost)
		if m.spared*3 >= m.found*2 {
			m.pause = 0
		}
		m.without = m.pause
		m.walks, m.spared, m.found = 0, 0, 0
	}
	if !complete {
		m.frames, m.same = m.frames[:0], 0
		return
	}
	m.frames = m.frames[:m.same]
	for i := len(m.fresh) - 1; i >= 0 && len(m.frames) < maxMemo; i-- {
		f := &m.fresh[i]
		f.needsFP = f.byFP
		if n := len(m.frames); n > 0 && f.fpAt == 0 {
			f.needsFP = f.byFP || m.frames[n-1].needsFP
		}
		m.frames = append(m.frames, *f)
	}
}
