package steptest

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
)

// Memory is memory of a made-up process.
type Memory map[uint64]byte

func (m Memory) Put(addr uint64, data ...byte) {
	for i, b := range data {
		m[addr+uint64(i)] = b
	}
}

func (m Memory) Words(addr uint64, words ...uint64) {
	for i, v := range words {
		m.Put(addr+8*uint64(i), binary.LittleEndian.AppendUint64(nil, v)...)
	}
}

func (m Memory) Read(addr uint64, buf []byte) bool {
	for i := range buf {
		b, ok := m[addr+uint64(i)]
		if !ok {
			return false
		}
		buf[i] = b
	}
	return true
}

// ReadMemory implements procstate.Memory.
func (m Memory) ReadMemory(addr uint64, buf []byte) (int, error) {
	if !m.Read(addr, buf) {
		return 0, procstate.ErrUnreadable
	}
	return len(buf), nil
}

// ReadWord implements procstate.Memory.
func (m Memory) ReadWord(addr uint64) (uint64, bool) {
	var b [8]byte
	ok := m.Read(addr, b[:])
	return binary.LittleEndian.Uint64(b[:]), ok
}
