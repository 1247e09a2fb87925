package oracle

import "slices"

// Tramp is code that instrumentation has put in place of an instruction, at
// addresses [Start, End): a jump leads there, and one leads back. From Up to
// Down it has a frame of its own, whose caller is the code that it was put
// into. Elsewhere it is as if it were a part of that.
type Tramp struct{ Start, End, Up, Down uint64 }

// trampAt returns the tramp that holds an address, nil when there is none.
func (s *Shadow) trampAt(pc uint64) *Tramp {
	for i := range s.tramps {
		if t := &s.tramps[i]; pc >= t.Start && pc < t.End {
			return t
		}
	}
	return nil
}

// jump follows a jump into a tramp or out of it: the instrumented code is the
// tramp's caller.
func (s *Shadow) jump(from, to moment) bool {
	switch in, out := s.trampAt(to.pc), s.trampAt(from.pc); {
	case in != nil && out == nil:
		s.recs = append(s.recs, record{pc: from.pc, sp: from.sp, point: true})
	case in == nil && out != nil:
		s.recs = s.recs[:len(s.recs)-1]
	default:
		return false
	}
	return true
}

// framed is the Shadow without the instrumented code below tramps that have no
// frame of their own at the moment; pc is where the thread is.
func (s *Shadow) framed(pc uint64) *Shadow {
	if len(s.tramps) == 0 {
		return s
	}
	c := *s
	c.recs = slices.Clone(s.recs)
	for i := len(c.recs) - 1; i >= 0; i-- {
		at := pc
		if i+1 < len(c.recs) {
			at = c.recs[i+1].pc
		}
		if t := s.trampAt(at); c.recs[i].point && (t == nil || at < t.Up || at >= t.Down) {
			c.recs = slices.Delete(c.recs, i, i+1)
		}
	}
	return &c
}
