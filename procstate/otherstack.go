package procstate

import "bytes"

// maxOtherStack is how much is read of a stack that was not captured, in bytes.
const maxOtherStack = 64 << 10

// proofOfCall is how many words are compared of the frame that waits on a stack.
const proofOfCall = 8

// AddOtherStack adds to what was captured what another stack holds around the last
// read that nothing answered: code that calls with another stack, as Lisp's from C
// and Rust's where it might become too deep, leaves its frames there, and only the
// stack that SP was in was captured. It is read from the process, as it is now. That
// is as it was if the call is still under way: what was captured from sp on, the SP
// that the call returns with, and the word below that still have to be there.
// It returns false when they are not, and without SetLiveCode.
func (s *Snapshot) AddOtherStack(sp uint64) bool {
	const page = 4 << 10
	if s.live == nil || !s.missed || len(s.regions) == 0 {
		return false
	}
	width := uint64(s.Arch().AddressWidth)
	stack, at := s.regions[0], s.missAddr&^(page-1)
	from := sp - width - stack.Addr
	if from >= uint64(len(stack.Data)) {
		return false
	}
	was := stack.Data[from:min(from+proofOfCall*width, uint64(len(stack.Data)))]
	var now [proofOfCall * 8]byte
	if s.other == nil {
		s.other = make([]byte, maxOtherStack)
	}
	n := s.live.read(at, s.other)
	if uint64(n) <= s.missAddr-at || s.live.read(sp-width, now[:len(was)]) != len(was) || !bytes.Equal(was, now[:len(was)]) {
		return false
	}
	// The first region stays the stack that SP is in.
	s.regions = append(s.regions, Region{at, s.other[:n]})
	return true
}
