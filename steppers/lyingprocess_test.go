package steppers

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/swbpf/swbpf/procstate"
)

// lyingProcess is a process of which some reads of memory have another word than there is: one that was read before, or
// near to it, or any.
type lyingProcess struct {
	procstate.ProcessState
	rng  *rand.Rand
	rate int // a lie in so many reads; 0: none
	seen [64]uint64
}

func (p *lyingProcess) lie(word uint64) uint64 {
	p.seen[p.rng.IntN(len(p.seen))] = word
	if p.rate == 0 || p.rng.IntN(p.rate) > 0 {
		return word
	}
	switch other := p.seen[p.rng.IntN(len(p.seen))]; p.rng.IntN(4) {
	case 0:
		return p.rng.Uint64()
	case 1:
		return word ^ 1<<p.rng.IntN(64)
	case 2:
		return other + 8*p.rng.Uint64N(64)
	default:
		return other
	}
}

func (p *lyingProcess) ReadMemory(addr uint64, buf []byte) (int, error) {
	n, err := p.ProcessState.ReadMemory(addr, buf)
	if n >= 8 {
		at := buf[p.rng.IntN(n/8)*8:]
		binary.LittleEndian.PutUint64(at, p.lie(binary.LittleEndian.Uint64(at)))
	}
	return n, err
}

func (p *lyingProcess) ReadWord(addr uint64) (uint64, bool) {
	word, ok := p.ProcessState.ReadWord(addr)
	return p.lie(word), ok
}
