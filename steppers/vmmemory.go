package steppers

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// vmMemory is how what an interpreter keeps is read.
type vmMemory struct {
	mem      procstate.Memory
	captured procstate.CapturedMemory // nil where mem is all there is
	live     procstate.LiveMemory     // nil where mem is live

	buf [8]byte // for a word
}

func vmMemoryOf(w *unwind.Walker) vmMemory {
	m := vmMemory{mem: w.ProcessState()}
	m.captured, _ = w.ProcessState().(procstate.CapturedMemory)
	m.live, _ = w.ProcessState().(procstate.LiveMemory)
	return m
}

// read reads memory as it was at the moment of the capture.
func (m *vmMemory) read(addr uint64, buf []byte) bool {
	if m.captured != nil {
		return m.captured.ReadCaptured(addr, buf)
	}
	n, err := m.mem.ReadMemory(addr, buf)
	return err == nil && n == len(buf)
}

// readNow reads memory as it is now.
func (m *vmMemory) readNow(addr uint64, buf []byte) bool {
	if m.live != nil {
		return m.live.ReadLive(addr, buf) == len(buf)
	}
	n, err := m.mem.ReadMemory(addr, buf)
	return err == nil && n == len(buf)
}

func (m *vmMemory) word(addr uint64) (uint64, bool) {
	ok := m.read(addr, m.buf[:])
	if !ok {
		return 0, false
	}
	return binary.LittleEndian.Uint64(m.buf[:]), true
}

func (m *vmMemory) wordNow(addr uint64) (uint64, bool) {
	ok := m.readNow(addr, m.buf[:])
	if !ok {
		return 0, false
	}
	return binary.LittleEndian.Uint64(m.buf[:]), true
}
