package loader

import (
	"errors"
	"slices"
	"unsafe"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/procstate"
)

// Waker tells of a sample that it is of the thread that woke another one up: see Config.Wakers. It comes before the
// sample of the other thread's time off the CPU, which it tells the end of. The zero Waker is that of other samples.
type Waker struct {
	// TID is the thread that was woken, which left the CPU at the time Left: Sample.Left of the other sample.
	TID  int32
	Left uint64
	// Interrupt says that it was no thread, but an interrupt, as of a timer, a disk or a network. The sample
	// has kernel code alone then, from where that began, and no process.
	Interrupt bool
}

// wakerBlocked stands in a record in place of a state: OFF_CPU_WAKER.
const wakerBlocked = Blocked(gen.SamplerOffCpuStateOFF_CPU_WAKER)

// emitWaker calls fn with the sample of a thread that wakes another one up.
func (s *Session) emitWaker(rec []byte, fn func(*Sample) error) error {
	p := &s.sample
	if err := p.decode(rec, nil); err != nil {
		return err
	}
	h := (*sampleHeader)(unsafe.Pointer(unsafe.SliceData(rec)))
	p.Blocked, p.Waker = NotBlocked, Waker{TID: int32(h.Woken), Left: p.Weight}
	p.Weight = 0
	s.code.leaveTracing(p)
	if n := slices.IndexFunc(p.Kernel, s.code.isInterrupt); n >= 0 {
		p.Waker.Interrupt = true
		p.Kernel = p.Kernel[:n+1]
		p.PID, p.TID, p.Comm, p.Cgroup = 0, 0, [16]byte{}, 0
		p.User, p.Arch, p.Regs, p.Probes = UserNone, nil, procstate.Regs{}, procstate.UserProbes{}
		p.Regions, p.StackEnd, p.LiveBytes = p.Regions[:0], StackEndNone, 0
		p.StackParts, p.FrameRegions, p.ContextRegions, p.LabelRegions = 0, 0, 0, 0
	}
	return fn(p)
}

// checkWakers reports whether wakers can be sampled.
func (s *Session) checkWakers() error {
	if !s.cfg.Wakers || len(s.code.interrupts) > 0 {
		return nil
	}
	return &MissingError{
		What:   "the addresses of the kernel's symbols, by which threads are told from interrupts that wake others up",
		Remedy: "CAP_SYSLOG, and kernel.kptr_restrict less than 2",
		Err:    errors.New("/proc/kallsyms does not tell"),
	}
}
