package procstate

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FloatState is implemented by a ProcessState that knows the registers for
// floating point and vectors. Walks do not need them; variables of the frame
// that runs can be in them.
type FloatState interface {
	// FloatRegister returns the bytes of a register of a thread as it stands,
	// by its number in DWARF. It is an error for other registers.
	FloatRegister(tid ThreadID, reg uint64) ([]byte, error)
}

// maxFloatBlock is the size of the largest block of such registers: struct
// user_fpsimd_state of arm64.
const maxFloatBlock = 528

// Notes of core files and register sets of ptrace.
const (
	ntPRFPReg  = 2          // NT_PRFPREG
	ntPRXFPReg = 0x46e62b7f // NT_PRXFPREG: what NT_PRFPREG is on amd64, of a 386 process
	ntXState   = 0x202      // NT_X86_XSTATE: begins with the same, in core files that gdb wrote
)

// floatNote is the block that has the registers of an architecture.
func floatNote(a *Arch) uint32 {
	if a == I386 {
		return ntPRXFPReg
	}
	return ntPRFPReg
}

// floatRange tells where registers are in the block.
type floatRange struct {
	first, n           uint64 // DWARF numbers [first, first+n)
	off, size, between int    // of the first, bytes of each, from one to the next
}

// The blocks are as FXSAVE writes them (Intel's manual, volume 1, 10.5.1), and
// struct user_fpsimd_state.
var floatRanges = map[*Arch][]floatRange{
	AMD64: {{17, 16, 160, 16, 16}, {33, 8, 32, 10, 16}}, // xmm0.., st0..
	I386:  {{21, 8, 160, 16, 16}, {11, 8, 32, 10, 16}},
	ARM64: {{64, 32, 0, 16, 16}}, // v0..
}

// floatRegister returns a register of a block.
func floatRegister(a *Arch, block []byte, reg uint64) ([]byte, error) {
	for _, r := range floatRanges[a] {
		if at := r.off + int(reg-r.first)*r.between; reg >= r.first && reg-r.first < r.n && at+r.size <= len(block) {
			return block[at : at+r.size], nil
		}
	}
	return nil, fmt.Errorf("register %d of %s: %w", reg, a.Name, ErrNotSupported)
}

// FloatRegister implements FloatState.
func (c *Core) FloatRegister(tid ThreadID, reg uint64) ([]byte, error) {
	t := c.find(tid)
	if t == nil {
		return nil, fmt.Errorf("thread %d: %w", tid, ErrNoThread)
	}
	return floatRegister(c.arch, t.floats, reg)
}

// FloatRegister implements FloatState. The thread is stopped for that, if it
// is not.
func (p *ProcDebug) FloatRegister(tid ThreadID, reg uint64) (b []byte, err error) {
	block := make([]byte, maxFloatBlock)
	p.e.do(func() {
		t, late, serr := p.stopOne(tid)
		if err = serr; err != nil {
			return
		}
		defer p.e.release([]*tracee{t})
		if late {
			err = fmt.Errorf("thread %d of process %d: %w", t.tid, p.pid, ErrNoThread)
			return
		}
		iov := unix.Iovec{Base: &block[0]}
		iov.SetLen(len(block))
		_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(t.tid), uintptr(floatNote(p.arch)),
			uintptr(unsafe.Pointer(&iov)), 0, 0)
		if errno != 0 {
			err = fmt.Errorf("registers of thread %d: %w", t.tid, errno)
			return
		}
		block = block[:iov.Len]
	})
	if err != nil {
		return nil, err
	}
	return floatRegister(p.arch, block, reg)
}
