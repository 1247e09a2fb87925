package steppers

// madeTries is what the analysis of code that is in no file may still take in a process. A
// runtime may have frames that only itself knows, and then each look at its code is in vain, and
// long: many paths lead on, none to a return.
type madeTries struct {
	insts int // that may be looked at in vain; negative: some were that were not left
	again int // looks in vain at what was looked at before
	skip  int // frames that are not looked at, as there are no instructions left
	skips int // the same after the next look
}

const (
	triedInsts  = 16 * maxMadeInsts // at first, and when something was found
	triedAgain  = 32                // the same
	earnedInsts = 256               // by a frame whose layout is known already
	lookedInsts = 64                // that a look counts for, beside the instructions on paths

	mostSkips     = 256
	maxTriedPIDs  = 1 << 10
	maxTriedInsts = 2 * maxMadeInsts // by one look
)

// triesOf returns what a process has left.
func (k *madeFrames) triesOf(pid int) *madeTries {
	t := k.tries[pid]
	if t == nil {
		if k.tries == nil || len(k.tries) >= maxTriedPIDs {
			k.tries = map[int]*madeTries{}
		}
		t = &madeTries{insts: triedInsts, again: triedAgain}
		k.tries[pid] = t
	}
	return t
}

// mayLook reports whether a frame may be looked at; again tells that nothing was found before.
func (t *madeTries) mayLook(again bool) bool {
	switch {
	case again && t.again <= 0:
		return false
	case t.insts > 0:
		return true
	case t.skip > 0:
		t.skip--
		return false
	}
	t.skips = min(max(1, 2*t.skips), mostSkips)
	t.skip = t.skips
	return true
}

// looked counts a look at so many instructions.
func (t *madeTries) looked(again, found bool, insts int) {
	switch {
	case found:
		t.insts, t.skip, t.skips = triedInsts, 0, 0
		if t.again = min(t.again+1, triedAgain); again {
			t.again = triedAgain
		}
	default:
		t.insts = max(t.insts-insts-lookedInsts, -maxTriedInsts)
		if again {
			t.again--
		}
	}
}

// known counts a frame whose layout is known already.
func (t *madeTries) known() { t.insts = min(t.insts+earnedInsts, triedInsts) }
