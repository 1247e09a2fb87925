package loader

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
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
		p.StackParts, p.FrameRegions, p.LabelRegions = 0, 0, 0
	}
	return fn(p)
}

// kernelCode is what has to be known of the kernel's own code to read its stacks.
type kernelCode struct {
	tracing    []uint64  // where the tracingFunctions begin
	interrupts [2]uint64 // from where to where there is code that interrupts enter the kernel by
}

// tracingFunctions are between what the kernel side is called for and the frames that it
// leaves out: the first of each kind with several programs at the tracepoint, the second of each where frame
// pointers are followed, as on arm64, the others in stacks of some kernels, by the number of its arguments.
var tracingFunctions = []string{
	"__traceiter_sched_switch", "__bpf_trace_sched_switch", "bpf_trace_run3", "bpf_trace_run4",
	"__traceiter_sched_waking", "__bpf_trace_sched_wakeup_template", "bpf_trace_run1",
}

// The section .irqentry.text, to which the kernel's own stack depots cut stacks of interrupts (filter_irq_stacks).
const interruptsBegin, interruptsEnd = "__irqentry_text_start", "__irqentry_text_end"

// tracingFunctionBytes is more than the length of each; what is in their vicinity is
// their like.
const tracingFunctionBytes = 512

// readKernelCode looks that up; where addresses are hidden, frames of tracing
// stay in the stacks, and interrupts are not told from what they interrupt.
func readKernelCode() (c kernelCode, err error) {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return c, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for left := len(tracingFunctions) + len(c.interrupts); left > 0 && lines.Scan(); {
		text, rest, _ := bytes.Cut(lines.Bytes(), []byte{' '})
		_, name, _ := bytes.Cut(rest, []byte{' '})
		if len(name) == 0 || name[0] != '_' && name[0] != 'b' {
			continue
		}
		begins, ends := string(name) == interruptsBegin, string(name) == interruptsEnd
		if !begins && !ends && !slices.ContainsFunc(tracingFunctions, func(f string) bool { return f == string(name) }) {
			continue
		}
		left--
		addr, err := strconv.ParseUint(string(text), 16, 64)
		switch {
		case err != nil || addr == 0:
		case begins:
			c.interrupts[0] = addr
		case ends:
			c.interrupts[1] = addr
		default:
			c.tracing = append(c.tracing, addr)
		}
	}
	return c, lines.Err()
}

// tellsInterrupts reports whether isInterrupt can tell.
func (c *kernelCode) tellsInterrupts() bool {
	return c.interrupts[0] != 0 && c.interrupts[0] < c.interrupts[1]
}

// isInterrupt reports whether an address of the kernel is in what interrupts enter it by.
func (c *kernelCode) isInterrupt(pc uint64) bool {
	return pc >= c.interrupts[0] && pc < c.interrupts[1]
}

// leaveTracing takes the first frames from a sample's kernel stack that are in one of the tracingFunctions.
func (c *kernelCode) leaveTracing(p *Sample) {
	for len(p.Kernel) > 0 && slices.ContainsFunc(c.tracing, func(start uint64) bool { return p.Kernel[0]-start < tracingFunctionBytes }) {
		p.Kernel = p.Kernel[1:]
	}
}

// checkWakers reports whether wakers can be sampled.
func (s *Session) checkWakers() error {
	if !s.cfg.Wakers || s.code.tellsInterrupts() {
		return nil
	}
	return &MissingError{
		What:   "the addresses of the kernel's symbols, by which threads are told from interrupts that wake others up",
		Remedy: "CAP_SYSLOG, and kernel.kptr_restrict less than 2",
		Err:    fmt.Errorf("/proc/kallsyms has no %s", interruptsBegin),
	}
}
