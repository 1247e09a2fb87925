package steppers

import (
	"encoding/binary"
	"time"

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

// readPace bounds the time that it takes to read what a process says of itself, which can be made to lead
// from one thing to the next without an end. The zero value has all of it.
type readPace struct {
	left int       // microseconds, about
	from time.Time // since when there is no more
}

const (
	maxReading      = 4 << 20 // microseconds that a process has at first, and when it was left alone for long,
	readingPart     = 4       // and one in so many of those that pass
	readingInterval = 100 * time.Millisecond
	readingBytes    = 512 // that take a microsecond, to read and to take apart
)

// may reports whether so many bytes may be read, or looked at.
func (p *readPace) may(n int) bool {
	cost := 1 + n/readingBytes
	if p.left >= cost {
		p.left -= cost
		return true
	}
	now := time.Now()
	passed := now.Sub(p.from)
	if passed < readingInterval {
		return false
	}
	p.left, p.from = int(min(passed.Microseconds()/readingPart, maxReading)), now
	if p.left < cost {
		return false
	}
	p.left -= cost
	return true
}
