package steppers

// addrSet is a set of addresses other than 0. The zero value is empty.
type addrSet struct {
	slots []uint64 // hash table; a power of two, at least half of it 0
	n     int
}

// add adds an address. It returns false when it was in the set already, and for 0.
func (s *addrSet) add(addr uint64) bool {
	if addr == 0 {
		return false
	}
	if 2*s.n >= len(s.slots) {
		old := s.slots
		s.slots, s.n = make([]uint64, max(256, 2*len(old))), 0
		for _, a := range old {
			if a != 0 {
				s.add(a)
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
	s.n++
	return true
}

func (s *addrSet) clear() {
	clear(s.slots)
	s.n = 0
}
