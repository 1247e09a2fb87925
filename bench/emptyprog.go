package main

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// emptyProgram is a BPF program that does nothing, on a timer on every CPU:
// what anyone who samples pays at least.
type emptyProgram struct {
	prog *ebpf.Program
	fds  []int
}

func startEmptyProgram(hz int) (*emptyProgram, error) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "bench_empty", Type: ebpf.PerfEvent, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return nil, fmt.Errorf("empty program: %w", err)
	}
	e := &emptyProgram{prog: prog}
	for cpu := range runtime.NumCPU() {
		if err := e.attach(cpu, hz); err != nil {
			e.close()
			return nil, fmt.Errorf("empty program on CPU %d: %w", cpu, err)
		}
	}
	return e, nil
}

func (e *emptyProgram) attach(cpu, hz int) error {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK,
		Size:   uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Sample: uint64(hz), Bits: unix.PerfBitFreq | unix.PerfBitDisabled,
	}
	fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return err
	}
	e.fds = append(e.fds, fd)
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, e.prog.FD()); err != nil {
		return err
	}
	return unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0)
}

// runs is what it has cost so far.
func (e *emptyProgram) runs() progRuns {
	st, err := e.prog.Stats()
	if err != nil {
		return progRuns{}
	}
	return progRuns{uint64(st.Runtime), st.RunCount}
}

func (e *emptyProgram) close() error {
	var err error
	for _, fd := range e.fds {
		err = errors.Join(err, unix.Close(fd))
	}
	return errors.Join(err, e.prog.Close())
}
