package oracle

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// target is the ProcessState of the stopped thread that is being judged. Its
// stack is read once an instruction, other memory when asked for, a page at a time.
type target struct {
	arch  *procstate.Arch
	pid   int
	tid   int
	exe   string
	regs  procstate.Regs
	space *procstate.AddressSpace

	probes *probes

	stackAddr uint64
	stack     []byte // what was read of it
	buf       []byte

	stops uint64 // captures so far
	pages [32]page
}

// page is a slot of the direct-mapped cache of other memory, as it is at one
// stop.
type page struct {
	addr uint64
	stop uint64
	n    int // bytes that could be read
	data [4096]byte
}

// maxStack bounds how much of a stack is read at each instruction.
const maxStack = 256 << 10

// capture reads the stack from below SP up to end, and the code at pc.
func (t *target) capture(sp, end, pc uint64, code []byte) (codeLen int) {
	t.stops++
	t.stackAddr = sp - t.arch.BelowSP
	n := min(end-t.stackAddr, maxStack)
	if end <= t.stackAddr {
		n = 4096
	}
	if uint64(len(t.buf)) < n {
		t.buf = make([]byte, n)
	}
	local := []unix.Iovec{{Base: &t.buf[0]}, {Base: &code[0]}}
	local[0].SetLen(int(n))
	local[1].SetLen(len(code))
	remote := []unix.RemoteIovec{{Base: uintptr(t.stackAddr), Len: int(n)}, {Base: uintptr(pc), Len: len(code)}}
	got, _ := unix.ProcessVMReadv(t.pid, local, remote, 0)
	t.stack = t.buf[:min(uint64(max(got, 0)), n)]
	if codeLen = got - int(n); codeLen > 0 {
		return codeLen
	}
	return t.read(pc, code)
}

// read fills buf from the target's memory and returns how much there was, up
// to the end of a page.
func (t *target) read(addr uint64, buf []byte) int {
	if len(buf) == 0 {
		return 0
	}
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(len(buf))
	n, err := unix.ProcessVMReadv(t.pid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(buf)}}, 0)
	if rest := 4096 - addr%4096; (err != nil || n <= 0) && uint64(len(buf)) > rest {
		local[0].SetLen(int(rest))
		n, _ = unix.ProcessVMReadv(t.pid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: int(rest)}}, 0)
	}
	return max(n, 0)
}

// isHidden reports whether an address is in the rest of the red zone, which samples do not have.
func (t *target) isHidden(addr uint64) bool {
	return t.stackAddr-1-addr < t.arch.RedZone-t.arch.BelowSP
}

// Arch implements procstate.ProcessState.
func (t *target) Arch() *procstate.Arch { return t.arch }

// PID implements procstate.ProcessState.
func (t *target) PID() int { return t.pid }

// ExecutablePath implements procstate.ProcessState.
func (t *target) ExecutablePath() string { return t.exe }

// Threads implements procstate.ProcessState.
func (t *target) Threads() ([]procstate.ThreadID, error) {
	return []procstate.ThreadID{procstate.ThreadID(t.tid)}, nil
}

// Registers implements procstate.ProcessState.
func (t *target) Registers(_ procstate.ThreadID, regs *procstate.Regs) error {
	*regs = t.regs
	return nil
}

// Libraries implements procstate.ProcessState.
func (t *target) Libraries() procstate.LibraryState { return t.space }

// BeforeWalk implements procstate.ProcessState: the thread is stopped.
func (t *target) BeforeWalk(procstate.ThreadID) error { return nil }

// AfterWalk implements procstate.ProcessState.
func (t *target) AfterWalk(procstate.ThreadID) error { return nil }

// ReadWord implements procstate.Memory.
func (t *target) ReadWord(addr uint64) (uint64, bool) {
	if i := addr - t.stackAddr; i < uint64(len(t.stack)) && 8 <= uint64(len(t.stack))-i {
		return binary.LittleEndian.Uint64(t.stack[i:]), true
	}
	if t.isHidden(addr) {
		return 0, false
	}
	if in := t.pageAt(addr); len(in) >= 8 {
		return binary.LittleEndian.Uint64(in), true
	}
	var b [8]byte
	if t.read(addr, b[:]) < 8 {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[:]), true
}

// pageAt returns what can be read of a page from an address on, until the next call.
func (t *target) pageAt(addr uint64) []byte {
	p := &t.pages[addr>>12%uint64(len(t.pages))]
	if p.addr != addr>>12 || p.stop != t.stops {
		p.addr, p.stop = addr>>12, t.stops
		p.n = t.read(addr&^4095, p.data[:])
	}
	return p.data[min(int(addr%4096), p.n):p.n]
}

// ReadMemory implements procstate.Memory.
func (t *target) ReadMemory(addr uint64, buf []byte) (int, error) {
	if i := addr - t.stackAddr; i < uint64(len(t.stack)) && uint64(len(buf)) <= uint64(len(t.stack))-i {
		return copy(buf, t.stack[i:]), nil
	}
	if t.isHidden(addr) {
		return 0, procstate.ErrUnreadable
	}
	n := 0
	if len(buf) > 4096 {
		n = t.read(addr, buf)
	} else {
		for in := t.pageAt(addr); n < len(buf) && len(in) > 0; in = t.pageAt(addr + uint64(n)) {
			n += copy(buf[n:], in)
		}
	}
	if n < len(buf) {
		return n, procstate.ErrUnreadable
	}
	return n, nil
}
