package procstate

import "bytes"

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
	sp    uint64 // the SP that the call with the other stack returns with
	proof []byte // what was on that around it
	now   [callProof]byte
	buf   [maxOtherStack]byte
}

// AddOtherStack adds to what was captured what another stack holds around the last
// read that nothing answered: code that calls with another stack, as Lisp's from C,
// OCaml's and Rust's where it might become too deep, leaves its frames there, and only the
// stack that SP was in was captured. It is read from the process, as it is now. That
// is as it was if the call is still under way: what was captured from sp on, the SP
// that the call returns with, and the word below that still have to be there, before it is read and behind. Where the
// stack with sp was added in the same way, that was proved before, and all that led to it
// is compared once more. What this cannot tell is another call from the same place, or that
// such a call has just returned. Of a process that has ended it is what was read last, if that call was the same.
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
	switch n := s.live.read(sp-width, o.now[:len(proof)]); {
	case n == len(proof) && bytes.Equal(o.now[:n], proof):
		o.Region = Region{at, o.buf[:s.live.read(at, o.buf[:])]}
		o.sp, o.proof = sp, append(o.proof[:0], proof...)
		for _, before := range s.other[:s.others+1] { // it runs meanwhile
			if n := len(before.proof); s.live.read(before.sp-width, o.now[:n]) != n || !bytes.Equal(o.now[:n], before.proof) {
				o.Region = Region{}
			}
		}
	case n > 0:
		o.Region = Region{}
	case o.sp != sp || !bytes.Equal(o.proof, proof):
		return false
	}
	if s.missAddr-o.Addr >= uint64(len(o.Data)) {
		return false
	}
	s.others++
	// The first region stays the stack that SP is in.
	s.regions = append(s.regions, o.Region)
	return true
}

// AddStanding adds to what was captured memory of the process that is known to have been as it is when
// it was read, as the outermost frames of a thread that runs for ever on another stack. Data is kept, not copied.
func (s *Snapshot) AddStanding(r Region) { s.regions = append(s.regions, r) }
