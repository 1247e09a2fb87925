package procstate

import (
	"encoding/binary"
	"fmt"
)

// Region is a piece of captured memory: Data is what was at run-time address
// Addr. Regions of one capture that overlap hold the same bytes there.
type Region struct {
	Addr uint64
	Data []byte
}

// Snapshot is the ProcessState of one thread at one moment: its registers and
// some of its memory (the live top of the stack, and whatever else the
// capture added), with the code of the mapped files behind it. It is reused:
// Reset loads the next sample without allocating.
//
// Reads that no region answers are answered from the files of the address
// space (code and read-only data, as at link time; see [AddressSpace.ReadFile]).
// Code in no file may be read from the process; see SetLiveCode.
//
// The zero value is of a process of the running program's architecture that maps
// nothing.
type Snapshot struct {
	arch    *Arch
	pid     int
	tid     ThreadID
	exe     string
	libs    LibraryState
	regs    Regs
	regions []Region
	probes  UserProbes
	live    *LiveCode
	taken   uint64        // of SetTime; 0 where that is not known
	other   []*otherStack // of AddOtherStack: the first others of them are in regions
	others  int

	// The region of the last hit: nearly all reads are of one stack.
	hot Region

	// ReadWord reads files into it: a local array would escape to the heap.
	word [8]byte

	missAddr uint64 // address of the last read that nothing answered
	missed   bool
	late     bool // see IsLate
}

// NewSnapshot makes an empty Snapshot of a process. arch may be nil: that is
// HostArch, or x86-64 where that is none. libs may be nil: then no file is mapped.
func NewSnapshot(arch *Arch, pid int, exe string, libs LibraryState) *Snapshot {
	return &Snapshot{arch: arch, pid: pid, exe: exe, libs: libs}
}

// Reset loads the state of a thread. The regions are kept, not copied: they
// must stay unchanged while the Snapshot is in use.
func (s *Snapshot) Reset(tid ThreadID, regs *Regs, regions []Region) {
	s.arch = s.Arch()
	s.tid = tid
	s.regs = *regs
	s.regions = append(s.regions[:0], regions...)
	s.others = 0
	s.hot = Region{}
	if len(regions) > 0 {
		s.hot = regions[0]
	}
	s.missed, s.late = false, false
	s.probes = UserProbes{}
	s.taken = 0
	if s.live != nil {
		s.live.earlier, s.live.replaced = false, false
	}
}

// Forget lets go of the state that Reset loaded, and of what was read of code that
// is in no file.
func (s *Snapshot) Forget() {
	s.regions, s.hot, s.probes, s.other = nil, Region{}, UserProbes{}, nil
	if s.live != nil {
		s.live.forget()
	}
}

// SetUserProbes adds to the state loaded by Reset what uretprobes have
// replaced in it. The slice is kept, not copied.
func (s *Snapshot) SetUserProbes(r UserProbes) { s.probes = r }

// SetTime adds to the state loaded by Reset when it was captured, in ns of
// CLOCK_MONOTONIC: code that was read from the process since then is not read again.
func (s *Snapshot) SetTime(mono uint64) { s.taken = mono }

// Taken returns what SetTime was told, 0 where that is not known.
func (s *Snapshot) Taken() uint64 { return s.taken }

// SetLiveCode has ReadMemory read code that is in no file from the process that
// the Snapshot is of, and of what was read so when that has ended.
func (s *Snapshot) SetLiveCode(c *LiveCode) { s.live = c }

// UseEarlierCode has ReadMemory read code that is in no file as it was before, as far as
// that was read since Reset and has become other code between two reads, at some time
// around the capture: where a walk has failed, another may find what it was. So it does with
// what AddOtherStack adds. It returns whether there is any such code or stack, and holds until Reset.
func (s *Snapshot) UseEarlierCode() bool {
	if s.live == nil || !s.live.replaced {
		return false
	}
	s.live.earlier = true
	s.dropOtherStacks()
	return true
}

// ReadLive implements LiveMemory: it reads nothing without SetLiveCode.
func (s *Snapshot) ReadLive(addr uint64, buf []byte) int {
	if s.live == nil {
		return 0
	}
	n := s.live.read(addr, buf)
	s.late = s.late || n < len(buf) && s.live.ended
	return n
}

// IsLate reports whether ReadLive was asked, since Reset, for memory of a process that had ended.
func (s *Snapshot) IsLate() bool { return s.late }

// JITObjects returns the object files that the process has registered, as it says
// now; nil without SetLiveCode.
func (s *Snapshot) JITObjects() *JITObjects {
	if s.live == nil {
		return nil
	}
	if s.live.objects == nil {
		s.live.objects = newJITObjects(s)
	}
	return s.live.objects
}

// UserProbes implements ProbedState.
func (s *Snapshot) UserProbes() *UserProbes { return &s.probes }

// ReadCaptured implements CapturedMemory.
func (s *Snapshot) ReadCaptured(addr uint64, buf []byte) bool {
	r := s.RegionAt(addr)
	return addr-r.Addr < uint64(len(r.Data)) && copy(buf, r.Data[addr-r.Addr:]) == len(buf)
}

// CapturedMemory is implemented by a ProcessState that has copies of some memory.
type CapturedMemory interface {
	// ReadCaptured reads memory at addr as it was at the moment of the capture. It returns
	// whether all of it was copied, in one piece; that it was not is no miss.
	ReadCaptured(addr uint64, buf []byte) bool
}

// Missed returns the address of the last stack or data read that could not be
// answered since Reset, for the reason of a short walk.
func (s *Snapshot) Missed() (addr uint64, ok bool) { return s.missAddr, s.missed }

// Regions returns the captured memory.
func (s *Snapshot) Regions() []Region { return s.regions }

// RegionAt returns the first region that holds addr, an empty one when there is
// none.
func (s *Snapshot) RegionAt(addr uint64) Region {
	for _, r := range s.regions {
		if addr-r.Addr < uint64(len(r.Data)) {
			return r
		}
	}
	return Region{}
}

// Arch implements ProcessState.
func (s *Snapshot) Arch() *Arch {
	if s.arch == nil {
		if s.arch = HostArch(); s.arch == nil {
			s.arch = AMD64
		}
	}
	return s.arch
}

// PID implements ProcessState.
func (s *Snapshot) PID() int { return s.pid }

// ExecutablePath implements ProcessState.
func (s *Snapshot) ExecutablePath() string { return s.exe }

// Threads implements ProcessState: the one thread that was captured.
func (s *Snapshot) Threads() ([]ThreadID, error) { return []ThreadID{s.tid}, nil }

// Registers implements ProcessState.
func (s *Snapshot) Registers(tid ThreadID, regs *Regs) error {
	if tid != DefaultThread && tid != s.tid {
		return fmt.Errorf("thread %d is not in the snapshot of %d: %w", tid, s.tid, ErrNoThread)
	}
	*regs = s.regs
	return nil
}

// Libraries implements ProcessState.
func (s *Snapshot) Libraries() LibraryState { return s.libs }

// BeforeWalk implements ProcessState; a snapshot stands still by nature.
func (s *Snapshot) BeforeWalk(ThreadID) error { return nil }

// AfterWalk implements ProcessState.
func (s *Snapshot) AfterWalk(ThreadID) error { return nil }

// ReadWord implements Memory.
func (s *Snapshot) ReadWord(addr uint64) (uint64, bool) {
	if i := addr - s.hot.Addr; i < uint64(len(s.hot.Data)) {
		switch left := uint64(len(s.hot.Data)) - i; {
		case s.arch.AddressWidth == 4 && left >= 4:
			return uint64(binary.LittleEndian.Uint32(s.hot.Data[i:])), true
		case left >= 8:
			return binary.LittleEndian.Uint64(s.hot.Data[i:]), true
		}
	}
	return s.readWordCold(addr)
}

func (s *Snapshot) readWordCold(addr uint64) (uint64, bool) {
	if r := s.RegionAt(addr); len(r.Data) > 0 {
		s.hot = r
	}
	width := s.Arch().AddressWidth
	s.word = [8]byte{}
	if n, _ := s.readCaptured(addr, s.word[:width]); n < width {
		return 0, false
	}
	return binary.LittleEndian.Uint64(s.word[:]), true
}

// ReadMemory implements Memory.
func (s *Snapshot) ReadMemory(addr uint64, buf []byte) (int, error) {
	addrBefore, before := s.missAddr, s.missed
	n, err := s.readCaptured(addr, buf)
	if err == nil || n > 0 || s.live == nil || s.libs == nil {
		return n, err
	}
	m := s.libs.MappingAt(addr)
	if m == nil || m.Image != nil {
		return 0, err
	}
	if n = s.live.readCode(addr, buf[:min(uint64(len(buf)), m.End-addr)], s.taken); n == 0 {
		return 0, err
	}
	s.missAddr, s.missed = addrBefore, before
	if n < len(buf) {
		return n, ErrUnreadable
	}
	return n, nil
}

// HashCode returns a hash of the code [addr, addr+n) of a mapping of no file, and of what
// is around it, which is the same as long as these are. ok is false when ReadMemory has
// it from elsewhere than the process, or not at all.
func (s *Snapshot) HashCode(addr, n uint64) (hash uint64, ok bool) {
	if s.live == nil || s.libs == nil {
		return 0, false
	}
	for _, r := range s.regions {
		if r.Addr < addr+n && addr < r.Addr+uint64(len(r.Data)) {
			return 0, false
		}
	}
	if m := s.libs.MappingAt(addr); m == nil || m.Image != nil || m.End-addr < n {
		return 0, false
	}
	return s.live.hashCode(addr, n, s.taken)
}

// readCaptured reads what is in regions and files.
func (s *Snapshot) readCaptured(addr uint64, buf []byte) (int, error) {
	for _, r := range s.regions {
		if i := addr - r.Addr; i < uint64(len(r.Data)) {
			if n := copy(buf, r.Data[i:]); n == len(buf) {
				return n, nil
			} else {
				m, err := s.readCaptured(addr+uint64(n), buf[n:])
				return n + m, err
			}
		}
	}
	if len(buf) == 0 {
		return 0, nil
	}
	if err := readFiles(s.libs, addr, buf); err == nil {
		return len(buf), nil
	}
	s.missAddr, s.missed = addr, true
	return 0, ErrUnreadable
}

// readFiles reads bytes of the file whose code or constants are at addr.
func readFiles(libs LibraryState, addr uint64, buf []byte) error {
	switch libs := libs.(type) {
	case nil:
		return ErrUnreadable
	case *AddressSpace:
		return libs.ReadFile(buf, addr)
	}
	if m := libs.MappingAt(addr); m != nil && m.Image != nil {
		return m.Image.readConstant(buf, addr-m.Bias)
	}
	return ErrUnreadable
}
