package emulated

import (
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// anonymous returns how many mappings lie one behind the other, from the first on, that are of no file, and whether
// code in one of them has been executed: qemu lets nobody write to that.
func anonymous(entries []procstate.MapsEntry) (n int, executed bool) {
	for n < len(entries) && entries[n].Path == "" && (n == 0 || entries[n].Start == entries[n-1].End) {
		executed = executed || entries[n].Prot&^procstate.ProtExec == procstate.ProtRead
		n++
	}
	return n, executed
}

// Mappings returns the executable mappings of the program. For the host they are not
// executable: the headers of the files tell. Images are opened by images and belong to it.
func (p *Program) Mappings(images *procstate.Images) (*procstate.AddressSpace, error) {
	entries, err := procstate.ReadMaps(fmt.Sprintf("/proc/%d/maps", p.PID), false)
	if err != nil {
		return nil, err
	}
	space := &procstate.AddressSpace{}
	for i := 0; p.MakesCode && i < len(entries); {
		n, executed := anonymous(entries[i:])
		if executed {
			space.Insert(&procstate.Mapping{Start: entries[i].Start, End: entries[i+n-1].End})
		}
		i += max(n, 1)
	}
	for _, e := range entries {
		ref := procstate.FileRef{PID: int32(p.PID), TID: int32(p.PID), Path: e.Path, Start: e.Start, End: e.End,
			Dev: unix.Mkdev(e.Major, e.Minor), Inode: e.Inode}
		if e.Path == "" && e.Prot&^procstate.ProtExec == procstate.ProtRead && !p.MakesCode { // the signal trampoline
			space.Insert(&procstate.Mapping{Start: e.Start, End: e.End})
		}
		if p.MakesCode && strings.HasPrefix(e.Path, "/memfd:") && e.Prot&^procstate.ProtExec == procstate.ProtRead {
			space.Insert(&procstate.Mapping{Start: e.Start, End: e.End, Offset: e.Offset, Path: e.Path}) // to which code is written elsewhere
			continue
		}
		if !procstate.HasFile(e.Path) {
			continue
		}
		im, err := images.Open(&ref)
		if err != nil || im.Arch() != procstate.ARM64 {
			continue
		}
		for _, s := range im.Segments() {
			if s.Flags&elf.PF_X != 0 && e.Offset < s.Off+s.Filesz && s.Off < e.Offset+e.End-e.Start {
				space.Insert(procstate.NewFileMapping(&ref, e.Offset, im, nil))
				break
			}
		}
	}
	return space, nil
}

// ReadMemory reads the program's memory.
func (p *Program) ReadMemory(addr uint64, buf []byte) (int, error) {
	if len(buf) == 0 {
		return 0, nil
	}
	local := []unix.Iovec{{Base: &buf[0], Len: uint64(len(buf))}}
	n, err := unix.ProcessVMReadv(p.PID, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(buf)}}, 0)
	if n = max(n, 0); n < len(buf) {
		return n, fmt.Errorf("%d of %d bytes at %#x (%v): %w", n, len(buf), addr, err, procstate.ErrUnreadable)
	}
	return n, nil
}

// ReadWord reads a word of the program's memory.
func (p *Program) ReadWord(addr uint64) (uint64, bool) {
	var b [8]byte
	_, err := p.ReadMemory(addr, b[:])
	return binary.LittleEndian.Uint64(b[:]), err == nil
}

// threadPointer reads TPIDR_EL0 of the thread that Registers tells of.
func (p *Program) threadPointer() (uint64, error) {
	if p.tls == "" {
		registers := ""
		for more := true; more; {
			answer, err := p.ask(fmt.Sprintf("qXfer:features:read:system-registers.xml:%x,ffb", len(registers)))
			if err != nil {
				return 0, err
			}
			if answer == "" {
				return 0, errors.New("qemu's GDB server does not tell of system registers")
			}
			registers += answer[1:]
			more = answer[0] == 'm'
		}
		number := regexp.MustCompile(`"TPIDR_EL0"[^>]*regnum="(\d+)"`).FindStringSubmatch(registers)
		if number == nil {
			return 0, errors.New("qemu's GDB server does not tell of TPIDR_EL0")
		}
		n, _ := strconv.Atoi(number[1])
		p.tls = fmt.Sprintf("p%x", n)
	}
	answer, err := p.ask(p.tls)
	if err != nil {
		return 0, err
	}
	b, err := hex.DecodeString(answer)
	if err != nil || len(b) != 8 {
		return 0, fmt.Errorf("TPIDR_EL0 from qemu's GDB server: %q", answer)
	}
	return binary.LittleEndian.Uint64(b), nil
}

// State is the threads of a program, as they are while it stands. It is the program's until
// this goes on.
type State struct {
	*Program
	path    string
	threads []procstate.ThreadID
	names   map[procstate.ThreadID]string // that qemu has for them
	regs    map[procstate.ThreadID]procstate.Regs
	space   *procstate.AddressSpace
}

// State returns the state of a stopped program; path is its file. Images are opened by images and belong to it.
func (p *Program) State(images *procstate.Images, path string) (*State, error) {
	space, err := p.Mappings(images)
	if err != nil {
		return nil, err
	}
	threads, err := p.threads()
	if err != nil {
		return nil, err
	}
	s := &State{Program: p, path: path, names: threads, regs: map[procstate.ThreadID]procstate.Regs{}, space: space}
	s.threads = slices.Sorted(maps.Keys(threads)) // the main one has the lowest
	for tid, name := range threads {
		var regs procstate.Regs
		if err := p.follow(name); err != nil {
			return nil, err
		}
		if err := p.Registers(&regs); err != nil {
			return nil, err
		}
		if regs.ThreadPointer, err = p.threadPointer(); err != nil {
			return nil, err
		}
		s.regs[tid] = regs
	}
	return s, nil
}

// StepThread executes an instruction of a thread, and reads its registers. Others run meanwhile, and where the program was
// stopped by Stop alone: that holds the thread which has got the signal.
func (s *State) StepThread(tid procstate.ThreadID) error {
	s.thread = s.names[tid]
	if sig, err := s.Step(0); err != nil || sig != unix.SIGTRAP {
		return fmt.Errorf("a step of thread %d: signal %d, %w", tid, sig, err)
	}
	regs := s.regs[tid]
	if err := s.follow(s.thread); err != nil {
		return err
	}
	if err := s.Program.Registers(&regs); err != nil {
		return err
	}
	s.regs[tid] = regs
	return nil
}

// Arch implements procstate.ProcessState.
func (s *State) Arch() *procstate.Arch { return procstate.ARM64 }

// PID implements procstate.ProcessState.
func (s *State) PID() int { return s.Program.PID }

// ExecutablePath implements procstate.ProcessState.
func (s *State) ExecutablePath() string { return s.path }

// Threads implements procstate.ProcessState.
func (s *State) Threads() ([]procstate.ThreadID, error) { return s.threads, nil }

// Registers implements procstate.ProcessState.
func (s *State) Registers(tid procstate.ThreadID, regs *procstate.Regs) error {
	if tid == procstate.DefaultThread {
		tid = s.threads[0]
	}
	known, ok := s.regs[tid]
	if !ok {
		return procstate.ErrNoThread
	}
	*regs = known
	return nil
}

// Libraries implements procstate.ProcessState.
func (s *State) Libraries() procstate.LibraryState { return s.space }

// BeforeWalk implements procstate.ProcessState.
func (s *State) BeforeWalk(procstate.ThreadID) error { return nil }

// AfterWalk implements procstate.ProcessState.
func (s *State) AfterWalk(procstate.ThreadID) error { return nil }
