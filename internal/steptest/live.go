package steptest

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
)

// Live is the memory of another process.
type Live int

func (p Live) ReadMemory(addr uint64, buf []byte) (int, error) {
	if n := procstate.ReadProcess(int(p), addr, buf); n < len(buf) {
		return n, procstate.ErrUnreadable
	}
	return len(buf), nil
}

func (p Live) ReadWord(addr uint64) (uint64, bool) {
	var b [8]byte
	_, err := p.ReadMemory(addr, b[:])
	return binary.LittleEndian.Uint64(b[:]), err == nil
}

// OnlyCode is memory of a process of which nothing is left but its files' code, at link-time
// addresses, or not even that.
type OnlyCode struct {
	procstate.LiveMemory
	HasEnded bool
}

// ReadLive implements procstate.LiveMemory.
func (m OnlyCode) ReadLive(addr uint64, buf []byte) int {
	const most = 1 << 20
	if m.HasEnded || addr >= most {
		return 0
	}
	return len(buf)
}
