package procstate

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ProcSelf is the ProcessState of the calling process, for walks of the
// calling goroutine: a first-party walk. Only the goroutine that walks can be
// walked; its top frame is the one that called into package unwind.
//
// A goroutine's stack moves when it grows, which the walk itself may cause.
// BeforeWalk therefore copies the stack, and the copy is walked. Until the next
// walk, reads of where the stack was are answered from the copy, so that variables
// of the frames are what they were; frames of earlier walks are not to be walked
// from, or to be read for. Other memory is read as it is, by a system call, which
// fails where a direct read would fault.
type ProcSelf struct {
	arch *Arch
	pid  int
	exe  string
	libs liveLibraries

	probes liveProbes
	state  selfState
	regs   Regs
	buf    []uint64 // copy of the stack from state.sp on, of the last walk
	tid    ThreadID
	depth  int // nested walks
}

var errNoSelf = fmt.Errorf("a ProcSelf that NewProcSelf has not made: %w", ErrNoProcess)

// selfState is what the assembly routine stores: the registers of its caller.
type selfState struct {
	pc, sp, fp uint64
	g          uint64 // address of the runtime's g
	words      uint64 // 8-byte words from sp to the end of the goroutine's stack
}

// copySelf stores the registers of its caller, and copies the stack from SP
// on when it has at most words words; in one piece, so that the stack cannot
// be moved in between. It is written in assembly.
//
//go:noescape
func copySelf(s *selfState, buf *uint64, words uint64)

// NewProcSelf makes a ProcSelf.
func NewProcSelf() (*ProcSelf, error) {
	a := HostArch()
	if a == nil || a == I386 {
		return nil, fmt.Errorf("first-party walks on %s: %w", runtime.GOARCH, ErrNotSupported)
	}
	exe, err := os.Executable()
	if err != nil {
		exe = ""
	}
	return &ProcSelf{arch: a, pid: os.Getpid(), exe: exe, libs: liveLibraries{pid: os.Getpid()}}, nil
}

// Arch implements ProcessState.
func (p *ProcSelf) Arch() *Arch { return p.arch }

// PID implements ProcessState.
func (p *ProcSelf) PID() int { return p.pid }

// ExecutablePath implements ProcessState.
func (p *ProcSelf) ExecutablePath() string { return p.exe }

// Threads implements ProcessState: the thread that asks.
func (p *ProcSelf) Threads() ([]ThreadID, error) {
	if p.arch == nil {
		return nil, errNoSelf
	}
	return []ThreadID{ThreadID(unix.Gettid())}, nil
}

// Libraries implements ProcessState.
func (p *ProcSelf) Libraries() LibraryState { return &p.libs }

// SetProbes has each walk ask what uretprobes have replaced on the stack, see
// [ProcDebug.SetProbes].
func (p *ProcSelf) SetProbes(f func() map[ThreadID]UserProbes) { p.probes.ask = f }

// UserProbes implements ProbedState.
func (p *ProcSelf) UserProbes() *UserProbes { return &p.probes.now }

// InCall tells the Walker that the PC of Registers is a return address.
func (p *ProcSelf) InCall() bool { return true }

// BeforeWalk implements ProcessState. Until AfterWalk the goroutine stays on
// its thread, on whose own stack the C code is that it was called by.
func (p *ProcSelf) BeforeWalk(tid ThreadID) error {
	runtime.LockOSThread()
	if p.depth++; p.depth > 1 {
		return nil
	}
	p.tid = ThreadID(unix.Gettid())
	taken := false
	defer func() { // also when what SetProbes was given panics
		if !taken {
			_ = p.AfterWalk(tid)
		}
	}()
	err := p.takeState(tid)
	taken = err == nil
	return err
}

// takeState copies the goroutine's registers and stack, and finds out what else
// belongs to the walk that begins.
func (p *ProcSelf) takeState(tid ThreadID) error {
	if p.arch == nil {
		return errNoSelf
	}
	if tid != DefaultThread && tid != p.tid {
		return fmt.Errorf("thread %d: a process can walk the calling goroutine only: %w", tid, ErrNoThread)
	}
	for {
		copySelf(&p.state, unsafe.SliceData(p.buf), uint64(len(p.buf)))
		if p.state.words <= uint64(len(p.buf)) {
			break
		}
		p.buf = make([]uint64, p.state.words+1024)
	}
	p.skipCallers()
	p.regs.ThreadPointer = threadPointer()
	if err := p.libs.refreshOnce(); err != nil {
		return err
	}
	p.libs.again.Store(true)
	p.probes.look(p.tid)
	return nil
}

// AfterWalk implements ProcessState.
func (p *ProcSelf) AfterWalk(ThreadID) error {
	p.depth--
	runtime.UnlockOSThread()
	return nil
}

// skipCallers sets the registers to those of the function that called into
// package unwind, by the frame pointers that Go functions keep.
func (p *ProcSelf) skipCallers() {
	s := p.state
	for at, n := s, 0; n < maxWrappers; n++ {
		f := runtime.FuncForPC(uintptr(at.pc) - 1)
		if f == nil {
			break
		}
		if strings.HasSuffix(f.Name(), "/swbpf/swbpf/unwind.(*Walker).beforeWalk") {
			s = at // what is in between belongs to a ProcessState that is made of this one
			break
		}
		if !p.toCaller(&at) {
			break
		}
	}
	for {
		f := runtime.FuncForPC(uintptr(s.pc) - 1)
		if f == nil || !isWalking(f) || !p.toCaller(&s) {
			break
		}
	}
	p.regs = Regs{}
	p.regs.Set(p.arch.PC, s.pc)
	p.regs.Set(p.arch.SP, s.sp)
	p.regs.Set(p.arch.FP, s.fp)
	if p.arch == ARM64 {
		p.regs.Set(28, s.g)
	}
}

// maxWrappers is how many calls there may be between a Walker and ProcSelf.
const maxWrappers = 32

// toCaller makes the registers of a Go function those of its caller.
func (p *ProcSelf) toCaller(s *selfState) bool {
	fp, ok1 := p.ReadWord(s.fp)
	pc, ok2 := p.ReadWord(s.fp + 8)
	if !ok1 || !ok2 {
		return false
	}
	// The word below a frame's caller's SP: the saved frame pointer on
	// amd64, where the return address follows. On arm64 the frame pointer
	// of a function points 8 below its SP.
	sp := s.fp + 16
	if p.arch == ARM64 {
		sp = fp + 8
	}
	s.pc, s.sp, s.fp = pc, sp, fp
	return true
}

// isWalking reports whether a function is part of the machinery of a walk.
func isWalking(f *runtime.Func) bool {
	if outer := runtime.FuncForPC(f.Entry()); outer != nil {
		f = outer // a function that was inlined has no frame
	}
	_, name, _ := strings.Cut(f.Name(), "/swbpf/swbpf/")
	return strings.HasPrefix(name, "procstate.(*ProcSelf).") ||
		name == "procstate.copySelf" || strings.HasPrefix(name, "unwind.(*Walker") // and WalkerSet
}

// Registers implements ProcessState. Outside of a walk they are those of the
// moment.
func (p *ProcSelf) Registers(tid ThreadID, regs *Regs) error {
	if p.depth == 0 {
		if err := p.BeforeWalk(tid); err != nil {
			return err
		}
		defer p.AfterWalk(tid)
	} else if tid != DefaultThread && tid != p.tid {
		return fmt.Errorf("thread %d: a process can walk the calling goroutine only: %w", tid, ErrNoThread)
	}
	*regs = p.regs
	return nil
}

// copied returns the copy of the stack.
func (p *ProcSelf) copied() []byte {
	if len(p.buf) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&p.buf[0])), p.state.words*8)
}

// ReadWord implements Memory.
func (p *ProcSelf) ReadWord(addr uint64) (uint64, bool) {
	stack := p.copied()
	if i := addr - p.state.sp; i < uint64(len(stack)) && uint64(len(stack))-i >= 8 {
		return binary.LittleEndian.Uint64(stack[i:]), true
	}
	var b [8]byte
	if n := ReadProcess(p.pid, addr, b[:]); n < 8 {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[:]), true
}

// ReadMemory implements Memory.
func (p *ProcSelf) ReadMemory(addr uint64, buf []byte) (int, error) {
	done := 0
	if stack := p.copied(); addr-p.state.sp < uint64(len(stack)) {
		done = copy(buf, stack[addr-p.state.sp:])
	}
	done += ReadProcess(p.pid, addr+uint64(done), buf[done:])
	if done < len(buf) {
		return done, fmt.Errorf("this process at %#x: %w", addr+uint64(done), ErrUnreadable)
	}
	return done, nil
}
