package mcode

// AddrSet is a set of addresses other than 0. The zero value is empty.
type AddrSet struct {
	slots []uint64 // hash table; a power of two, at least half of it 0
	N     int
}

// Add adds an address. It returns false when it was in the set already, and for 0.
func (s *AddrSet) Add(addr uint64) bool {
	if addr == 0 {
		return false
	}
	if 2*s.N >= len(s.slots) {
		old := s.slots
		s.slots, s.N = make([]uint64, max(256, 2*len(old))), 0
		for _, a := range old {
			if a != 0 {
				s.Add(a)
			}
		}
	}
	mask := uint64(len(s.slots) - 1)
	i := addr * 0x9e3779b97f4a7c15 >> 32 & mask
	for ; s.slots[i] != 0; i = (i + 1) & mask {
		if s.slots[i] == addr {
			return false
		}
	}
	s.slots[i] = addr
	s.N++
	return true
}

// Clear makes it empty; it keeps its room.
func (s *AddrSet) Clear() {
	clear(s.slots)
	s.N = 0
}
