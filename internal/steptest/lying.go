package steptest

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/swbpf/swbpf/procstate"
)

// Lying is a process of which some reads of memory have another word than there is: one that was read before, or
// near to it, or any.
type Lying struct {
	procstate.ProcessState
	Rand *rand.Rand
	Rate int // a lie in so many reads; 0: none
	seen [64]uint64
}

func (p *Lying) lie(word uint64) uint64 {
	p.seen[p.Rand.IntN(len(p.seen))] = word
	if p.Rate == 0 || p.Rand.IntN(p.Rate) > 0 {
		return word
	}
	switch other := p.seen[p.Rand.IntN(len(p.seen))]; p.Rand.IntN(4) {
	case 0:
		return p.Rand.Uint64()
	case 1:
		return word ^ 1<<p.Rand.IntN(64)
	case 2:
		return other + 8*p.Rand.Uint64N(64)
	default:
		return other
	}
}

func (p *Lying) ReadMemory(addr uint64, buf []byte) (int, error) {
	n, err := p.ProcessState.ReadMemory(addr, buf)
	if n >= 8 {
		at := buf[p.Rand.IntN(n/8)*8:]
		binary.LittleEndian.PutUint64(at, p.lie(binary.LittleEndian.Uint64(at)))
	}
	return n, err
}

func (p *Lying) ReadWord(addr uint64) (uint64, bool) {
	word, ok := p.ProcessState.ReadWord(addr)
	return p.lie(word), ok
}
