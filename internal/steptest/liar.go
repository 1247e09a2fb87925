package steptest

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
)

// Liar is a process whose memory is anything: addresses of its own, which may
// lead around in circles, small numbers, enormous ones, or nothing. It is the
// same each time that it is read. Code and constants are those of the files,
// unless True has others.
type Liar struct {
	Seed  uint64             // of the memory
	Leads []uint64           // where its words lead, besides to themselves
	True  []procstate.Region // what memory is nevertheless
	Reads uint64             // how often it was read
	Bytes uint64             // and how much of it

	arch *procstate.Arch
	libs *procstate.AddressSpace
	exe  string
	regs procstate.Regs
}

// NewLiar makes a Liar that maps libs, and runs the program exe of them.
func NewLiar(arch *procstate.Arch, libs *procstate.AddressSpace, exe string) *Liar {
	return &Liar{arch: arch, libs: libs, exe: exe}
}

// LiveLiar is a Liar that runs on.
type LiveLiar struct{ *Liar }

// ReadLive implements procstate.LiveMemory.
func (l LiveLiar) ReadLive(addr uint64, buf []byte) int {
	n, _ := l.ReadMemory(addr, buf)
	return n
}

// Begin makes another memory, and registers for the next walk; pc is where it
// begins, sp the stack pointer.
func (l *Liar) Begin(seed, pc, sp uint64) *procstate.Regs {
	l.Seed, l.Reads, l.Bytes, l.regs = seed, 0, 0, procstate.Regs{}
	for r := range procstate.Reg(l.arch.NumRegs) {
		l.regs.Set(r, l.word(uint64(r)))
	}
	l.regs.ThreadPointer = l.word(uint64(l.arch.NumRegs))
	l.regs.Set(l.arch.PC, pc)
	l.regs.Set(l.arch.SP, sp)
	return &l.regs
}

// mix is a number made of the seed and another.
func (l *Liar) mix(v uint64) uint64 {
	v += l.Seed * 0x9e3779b97f4a7c15
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}

// word is the word at an address of eight bytes each.
func (l *Liar) word(addr uint64) uint64 {
	h := l.mix(addr)
	lead := func() uint64 {
		if len(l.Leads) == 0 {
			return addr
		}
		return l.Leads[h>>8%uint64(len(l.Leads))]
	}
	switch kind := h % 16; {
	case l.Seed%8 == 1: // one pointer everywhere
		h = 0
		return lead()
	case l.Seed%8 == 2:
		return l.Seed >> 3 // one number everywhere
	case l.Seed%8 == 3: // slices of slices
		if addr/8%3 != l.Seed>>8%3 {
			return 1 << (l.Seed >> 3 % 32)
		}
		v := lead()
		return v - v%24 + l.Seed>>8%3*8
	case kind < 2:
		return addr
	case kind < 4:
		return addr + h>>8%512&^7
	case kind < 9:
		return lead() + h>>32%8*8
	case kind < 12:
		return h >> 8 % 256
	case kind < 13:
		return h
	case kind < 14:
		return ^(h >> 8 % 4096)
	}
	return 0
}

// readable reports whether there is memory in the page of an address.
func (l *Liar) readable(addr uint64) bool { return l.Seed%4 != 0 || l.mix(^addr>>12)%8 != 0 }

// ReadMemory implements procstate.Memory.
func (l *Liar) ReadMemory(addr uint64, buf []byte) (int, error) {
	l.Reads++
	l.Bytes += uint64(len(buf))
	for _, r := range l.True {
		if addr-r.Addr < uint64(len(r.Data)) {
			if n := copy(buf, r.Data[addr-r.Addr:]); n < len(buf) {
				return n, procstate.ErrUnreadable
			}
			return len(buf), nil
		}
	}
	if l.libs.ReadFile(buf, addr) == nil {
		return len(buf), nil
	}
	n := 0
	for n < len(buf) && l.readable(addr+uint64(n)) {
		var b [8]byte
		at := addr + uint64(n)
		binary.LittleEndian.PutUint64(b[:], l.word(at&^7))
		n += copy(buf[n:], b[at%8:])
	}
	if n < len(buf) {
		return n, procstate.ErrUnreadable
	}
	return n, nil
}

// ReadWord implements procstate.Memory.
func (l *Liar) ReadWord(addr uint64) (uint64, bool) {
	var b [8]byte
	n, _ := l.ReadMemory(addr, b[:l.arch.AddressWidth])
	return binary.LittleEndian.Uint64(b[:]), n == l.arch.AddressWidth
}

// Arch implements procstate.ProcessState.
func (l *Liar) Arch() *procstate.Arch { return l.arch }

// PID implements procstate.ProcessState.
func (l *Liar) PID() int { return 1 }

// ExecutablePath implements procstate.ProcessState.
func (l *Liar) ExecutablePath() string { return l.exe }

// Threads implements procstate.ProcessState.
func (l *Liar) Threads() ([]procstate.ThreadID, error) { return []procstate.ThreadID{1}, nil }

// Registers implements procstate.ProcessState: those that Begin has made.
func (l *Liar) Registers(_ procstate.ThreadID, regs *procstate.Regs) error {
	*regs = l.regs
	return nil
}

// Libraries implements procstate.ProcessState.
func (l *Liar) Libraries() procstate.LibraryState { return l.libs }

// BeforeWalk implements procstate.ProcessState.
func (l *Liar) BeforeWalk(procstate.ThreadID) error { return nil }

// AfterWalk implements procstate.ProcessState.
func (l *Liar) AfterWalk(procstate.ThreadID) error { return nil }
