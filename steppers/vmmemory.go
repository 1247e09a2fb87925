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

	pace readPace
	kept int     // bytes, about, of functions; past maxKept they are forgotten
	buf  [8]byte // for a word
}

// maxKept bounds what is kept of the functions of a process, in bytes. Those that unwind.Codes refer to stay
// as long as these.
const maxKept = 64 << 20

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
	return readAll(m.mem, addr, buf)
}

// readNow reads memory as it is now. It refuses to where that has taken too much time.
func (m *vmMemory) readNow(addr uint64, buf []byte) bool {
	return m.pace.may(len(buf)) && readNow(m.mem, m.live, addr, buf)
}

// readNow reads memory as it is now: by live, or by mem where that is nil.
func readNow(mem procstate.Memory, live procstate.LiveMemory, addr uint64, buf []byte) bool {
	if live != nil {
		return live.ReadLive(addr, buf) == len(buf)
	}
	return readAll(mem, addr, buf)
}

// readAll reports whether all of buf could be read.
func readAll(mem procstate.Memory, addr uint64, buf []byte) bool {
	n, err := mem.ReadMemory(addr, buf)
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

// reader reads memory of a process.
type reader func(addr uint64, buf []byte) bool

func (r reader) word(addr uint64) (uint64, bool) {
	var b [8]byte
	if !r(addr, b[:]) {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[:]), true
}
