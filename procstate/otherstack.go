package procstate

import (
	"bytes"
	"slices"
)

const (
	// maxOtherStack is how much is read of a stack that was not captured, in bytes.
	maxOtherStack = 64 << 10
	// maxOtherStacks is how many of them a walk may come to, one from the other.
	maxOtherStacks = 4
	// callProof is what is compared of the frames around a call with another stack, in bytes.
	callProof = 64
)

// otherStack is what was read last of a stack that was not captured.
type otherStack struct {
	Region
	before Region // what was read before in the same call, where the callers were other ones then
	sp     uint64 // the SP that the call with the other stack returns with
	proof  []byte // what was on that around it
	now    [callProof]byte
	spare  []byte // to read into
}

// callState is what became of a call with another stack since the capture. The worst comes last.
type callState int

const (
	callUnderWay callState = iota
	callEnded              // so has the process, or the stack is gone
	callReturned           // or is another one
)

// stateOf compares the proof of a call, which is at addr, with what is there now.
func (o *otherStack) stateOf(live *LiveCode, addr uint64, proof []byte) callState {
	switch n := live.read(addr, o.now[:len(proof)]); {
	case n == 0:
		return callEnded
	case bytes.Equal(o.now[:n], proof):
		return callUnderWay
	}
	return callReturned
}

// read reads from a page on, for keep.
func (o *otherStack) read(live *LiveCode, page uint64) Region {
	if o.spare == nil {
		o.spare = make([]byte, maxOtherStack)
	}
	return Region{page, o.spare[:live.read(page, o.spare)]}
}

// keep keeps what read has read, for what was missed there. Where that was other than it is while the call was the
// same, one of both is of a moment when it had just returned.
func (o *otherStack) keep(now Region, missed uint64, isSame bool) {
	last := o.Region
	o.Region, o.spare = now, last.Data[:cap(last.Data)]
	if was, is := around(last, missed), around(now, missed); isSame && len(was) > 0 && len(is) > 0 && !bytes.Equal(was, is) {
		o.before, o.spare = last, o.before.Data[:cap(o.before.Data)]
	}
	if len(o.spare) == 0 {
		o.spare = nil
	}
}

// around returns what a region has at an address and behind.
func around(r Region, addr uint64) []byte {
	i := addr - r.Addr
	if i >= uint64(len(r.Data)) {
		return nil
	}
	return r.Data[i:min(i+callProof, uint64(len(r.Data)))]
}

// AddOtherStack adds to what was captured what another stack holds around the last
// read that nothing answered: code that calls with another stack, as Lisp's from C,
// OCaml's and Rust's where it might become too deep, leaves its frames there, and only the
// stack that SP was in was captured. It is read from the process, as it is now. That
// is as it was if the call is still under way: what was captured from sp on, the SP
// that the call returns with, and the word below that still have to be there, before it is read and behind. Where the
// stack with sp was added in the same way, that was proved before, and all that led to it
// is compared once more. What this cannot tell is another call from the same place, or that
// such a call has just returned: see UseEarlierCode. Of a process that has ended it is what was read last, if that call was
// the same.
// AddOtherStack returns false when that is not so, and without SetLiveCode.
func (s *Snapshot) AddOtherStack(sp uint64) bool {
	const page = 4 << 10
	if s.live == nil || !s.missed || s.others >= maxOtherStacks {
		return false
	}
	width := uint64(s.Arch().AddressWidth)
	stack := s.RegionAt(sp - width)
	if len(stack.Data) == 0 {
		return false
	}
	from := sp - width - stack.Addr
	proof := stack.Data[from:min(from+callProof, uint64(len(stack.Data)))]
	if s.others == len(s.other) {
		s.other = append(s.other, &otherStack{})
	}
	o := s.other[s.others]
	at := s.missAddr &^ (page - 1)
	isSame := o.sp == sp && bytes.Equal(o.proof, proof)
	if !isSame {
		o.before.Data = o.before.Data[:0]
	}
	if s.live.earlier && isSame && s.missAddr-o.before.Addr < uint64(len(o.before.Data)) {
		s.others++
		s.regions = append(s.regions, o.before)
		return true
	}
	state := o.stateOf(s.live, sp-width, proof)
	if state == callUnderWay {
		now := o.read(s.live, at)
		for _, before := range s.other[:s.others] { // it runs meanwhile
			state = max(state, before.stateOf(s.live, before.sp-width, before.proof))
		}
		if state = max(state, o.stateOf(s.live, sp-width, proof)); state == callUnderWay {
			o.keep(now, s.missAddr, isSame)
			o.sp, o.proof = sp, append(o.proof[:0], proof...)
		}
	}
	switch {
	case state == callReturned:
		o.Data = o.Data[:0]
		return false
	case state == callEnded && !isSame:
		return false
	}
	s.live.replaced = s.live.replaced || isSame && len(o.before.Data) > 0
	if s.missAddr-o.Addr >= uint64(len(o.Data)) {
		return false
	}
	s.others++
	// The first region stays the stack that SP is in.
	s.regions = append(s.regions, o.Region)
	return true
}

// dropOtherStacks takes back what AddOtherStack has added.
func (s *Snapshot) dropOtherStacks() {
	for _, o := range s.other[:s.others] {
		s.regions = slices.DeleteFunc(s.regions, func(r Region) bool {
			return len(r.Data) > 0 && len(o.Data) > 0 && &r.Data[0] == &o.Data[0]
		})
	}
	s.others, s.hot = 0, Region{}
}

// AddStanding adds to what was captured memory of the process that is known to have been as it is when
// it was read, as the outermost frames of a thread that runs for ever on another stack. Data is kept, not copied.
func (s *Snapshot) AddStanding(r Region) { s.regions = append(s.regions, r) }
