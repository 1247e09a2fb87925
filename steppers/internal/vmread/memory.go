package vmread

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// Memory is how what an interpreter keeps is read.
type Memory struct {
	Mem      procstate.Memory
	Captured procstate.CapturedMemory // nil where Mem is all there is
	Live     procstate.LiveMemory     // nil where Mem is live

	Pace Pace
	Kept int     // bytes, about, of functions; past MaxKept they are forgotten
	Buf  [8]byte // for a word
}

// MaxKept bounds what is kept of the functions of a process, in bytes. Those that unwind.Codes refer to stay
// as long as these.
const MaxKept = 64 << 20

// MemoryOf is the memory of the process that w walks.
func MemoryOf(w *unwind.Walker) Memory {
	m := Memory{Mem: w.ProcessState()}
	m.Captured, _ = w.ProcessState().(procstate.CapturedMemory)
	m.Live, _ = w.ProcessState().(procstate.LiveMemory)
	return m
}

// Read reads memory as it was at the moment of the capture.
func (m *Memory) Read(addr uint64, buf []byte) bool {
	if m.Captured != nil {
		return m.Captured.ReadCaptured(addr, buf)
	}
	return ReadAll(m.Mem, addr, buf)
}

// ReadNow reads memory as it is now. It refuses to where that has taken too much time.
func (m *Memory) ReadNow(addr uint64, buf []byte) bool {
	return m.Pace.May(len(buf)) && ReadNow(m.Mem, m.Live, addr, buf)
}

// ReadNow reads memory as it is now: by live, or by mem where that is nil.
func ReadNow(mem procstate.Memory, live procstate.LiveMemory, addr uint64, buf []byte) bool {
	if live != nil {
		return live.ReadLive(addr, buf) == len(buf)
	}
	return ReadAll(mem, addr, buf)
}

// ReadAll reports whether all of buf could be read.
func ReadAll(mem procstate.Memory, addr uint64, buf []byte) bool {
	n, err := mem.ReadMemory(addr, buf)
	return err == nil && n == len(buf)
}

// Word reads a word as Read does.
func (m *Memory) Word(addr uint64) (uint64, bool) {
	ok := m.Read(addr, m.Buf[:])
	if !ok {
		return 0, false
	}
	return binary.LittleEndian.Uint64(m.Buf[:]), true
}

// WordNow reads a word as ReadNow does.
func (m *Memory) WordNow(addr uint64) (uint64, bool) {
	ok := m.ReadNow(addr, m.Buf[:])
	if !ok {
		return 0, false
	}
	return binary.LittleEndian.Uint64(m.Buf[:]), true
}

// HasEnded reports whether the process has ended, as not even the code of a file that it has mapped can
// be read any more: what is known of it stays so. That reading has taken too much time is no end.
func (m *Memory) HasEnded(im *procstate.Image, bias uint64) bool {
	return !ReadNow(m.Mem, m.Live, mcode.Begin(im)+bias, m.Buf[:])
}

// Reader reads memory of a process.
type Reader func(addr uint64, buf []byte) bool

// Word reads a word.
func (r Reader) Word(addr uint64) (uint64, bool) {
	var b [8]byte
	if !r(addr, b[:]) {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[:]), true
}
