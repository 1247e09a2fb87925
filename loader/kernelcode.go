package loader

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"slices"
	"strconv"
)

// kernelCode is what has to be known of the kernel's own code to read its stacks.
type kernelCode struct {
	tracing    []uint64    // where the tracingFunctions begin
	interrupts [][2]uint64 // from where to where there is code that interrupts enter the kernel by, in order
}

// tracingFunctions are between what the kernel side is called for and the frames that it
// leaves out: the first of each kind with several programs at the tracepoint, the second of each where frame
// pointers are followed, as on arm64, the others in stacks of some kernels, by the number of its arguments.
var tracingFunctions = []string{
	"__traceiter_sched_switch", "__bpf_trace_sched_switch", "bpf_trace_run3", "bpf_trace_run4",
	"__traceiter_sched_waking", "__bpf_trace_sched_wakeup_template", "bpf_trace_run1",
}

// tracingFunctionBytes is more than the length of each; what is in their vicinity is
// their like.
const tracingFunctionBytes = 512

// The section .irqentry.text has on arm64 the handlers of interrupt controllers. On x86 it has, in assembler,
// also exceptions and system calls of 32 bits, which are what the thread does itself.
const interruptsBegin, interruptsEnd = "__irqentry_text_start", "__irqentry_text_end"

// isInterruptEntry reports whether a function, of the section or not, is entered for interrupts alone: on x86 those
// that DEFINE_IDTENTRY_SYSVEC and DEFINE_IDTENTRY_IRQ make, and Xen's.
func isInterruptEntry(name []byte, inSection bool) bool {
	switch {
	case bytes.HasPrefix(name, []byte("sysvec_")):
		return true
	case inSection:
		return !bytes.HasPrefix(name, []byte("asm_")) && !bytes.HasSuffix(name, []byte("_entries_start"))
	}
	return string(name) == "common_interrupt" || string(name) == "xen_pv_evtchn_do_upcall"
}

// readKernelCode looks up what is known of the running kernel, interrupts only if they are wanted. Where addresses
// are hidden, frames of tracing stay in the stacks, and interrupts are not known.
func readKernelCode(interrupts bool) (kernelCode, error) {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return kernelCode{}, err
	}
	defer f.Close()
	return parseKernelCode(f, interrupts)
}

// parseKernelCode is readKernelCode for text like that of /proc/kallsyms, in order of addresses.
func parseKernelCode(r io.Reader, interrupts bool) (c kernelCode, err error) {
	inSection, from := false, uint64(0) // from: where an entry begins whose end is not known yet
	lines := bufio.NewScanner(r)
	for (interrupts || len(c.tracing) < len(tracingFunctions)) && lines.Scan() {
		text, rest, _ := bytes.Cut(lines.Bytes(), []byte{' '})
		_, name, _ := bytes.Cut(rest, []byte{' '})
		isTracing := bytes.Contains(name, []byte("trace")) && slices.ContainsFunc(tracingFunctions, func(f string) bool { return f == string(name) })
		if !isTracing && !interrupts {
			continue
		}
		addr, err := strconv.ParseUint(string(text), 16, 64)
		if err != nil || addr == 0 {
			continue
		}
		if from != 0 && addr > from {
			c.interrupts = append(c.interrupts, [2]uint64{from, addr})
			from = 0
		}
		switch {
		case isTracing:
			c.tracing = append(c.tracing, addr)
		case string(name) == interruptsBegin:
			inSection = true
		case string(name) == interruptsEnd:
			inSection = false
		case interrupts && isInterruptEntry(name, inSection):
			from = addr
		}
	}
	return c, lines.Err()
}

// isInterrupt reports whether an address of the kernel is in what interrupts enter it by.
func (c *kernelCode) isInterrupt(pc uint64) bool {
	i, at := slices.BinarySearchFunc(c.interrupts, pc, func(r [2]uint64, pc uint64) int {
		if r[0] < pc {
			return -1
		}
		return int(min(r[0]-pc, 1))
	})
	return at || i > 0 && pc < c.interrupts[i-1][1]
}

// leaveTracing takes the first frames from a sample's kernel stack that are in one of the tracingFunctions.
func (c *kernelCode) leaveTracing(p *Sample) {
	for len(p.Kernel) > 0 && slices.ContainsFunc(c.tracing, func(start uint64) bool { return p.Kernel[0]-start < tracingFunctionBytes }) {
		p.Kernel = p.Kernel[1:]
	}
}
