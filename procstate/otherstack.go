package procstate

import "bytes"

// maxOtherStack is how much is read of a stack that was not captured, in bytes.
const maxOtherStack = 64 << 10

// callProof is what is compared of the frames around a call with another stack, in bytes.
const callProof = 64

// otherStack is what was read last of a stack that was not captured.
type otherStack struct {
	Region
	sp    uint64 // the SP that the call with the other stack returns with
	proof []byte // what was on that around it
	now   [callProof]byte
	buf   [maxOtherStack]byte
}

// AddOtherStack adds to what was captured what another stack holds around the last
// read that nothing answered: code that calls with another stack, as Lisp's from C
// and Rust's where it might become too deep, leaves its frames there, and only the
// stack that SP was in was captured. It is read from the process, as it is now. That
// is as it was if the call is still under way: what was captured from sp on, the SP
// that the call returns with, and the word below that still have to be there. Of a
// process that has ended it is what was read last, if that call was the same.
// AddOtherStack returns false when that is not so, and without SetLiveCode.
func (s *Snapshot) AddOtherStack(sp uint64) bool {
	const page = 4 << 10
	if s.live == nil || !s.missed || len(s.regions) == 0 {
		return false
	}
	stack, width := s.regions[0], uint64(s.Arch().AddressWidth)
	from := sp - width - stack.Addr
	if from >= uint64(len(stack.Data)) {
		return false
	}
	proof := stack.Data[from:min(from+callProof, uint64(len(stack.Data)))]
	if s.other == nil {
		s.other = &otherStack{}
	}
	o := s.other
	at := s.missAddr &^ (page - 1)
	switch n := s.live.read(sp-width, o.now[:len(proof)]); {
	case n == len(proof) && bytes.Equal(o.now[:n], proof):
		o.Region = Region{at, o.buf[:s.live.read(at, o.buf[:])]}
		o.sp, o.proof = sp, append(o.proof[:0], proof...)
	case n > 0:
		o.Region = Region{}
	case o.sp != sp || !bytes.Equal(o.proof, proof):
		return false
	}
	if s.missAddr-o.Addr >= uint64(len(o.Data)) {
		return false
	}
	// The first region stays the stack that SP is in.
	s.regions = append(s.regions, o.Region)
	return true
}

// AddStanding adds to what was captured memory of the process that is known to have been as it is when
// it was read, as the outermost frames of a thread that runs for ever on another stack. Data is kept, not copied.
func (s *Snapshot) AddStanding(r Region) { s.regions = append(s.regions, r) }
