package main

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// timerProgram is a BPF program on a timer on every CPU, beside which profilers
// are judged.
type timerProgram struct {
	prog *ebpf.Program
	fds  []int
}

// startEmptyProgram starts a program that does nothing: what anyone who samples
// pays at least.
func startEmptyProgram(hz int) (*timerProgram, error) {
	return startProgram(hz, asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()})
}

// contextWords is how many registers a program on an event has in its context, of
// 8 bytes each, and contextSP which of them is SP.
var (
	contextWords = map[string]int{"amd64": 21, "arm64": 34}[runtime.GOARCH]
	contextSP    = map[string]int{"amd64": 19, "arm64": 31}[runtime.GOARCH]
)

// copyLimit is how much of a stack startCopyProgram copies at most.
const copyLimit = 256 << 10

// startCopyProgram starts a program that copies the registers of user code and
// the stack of a main thread from SP to its end, and does nothing else: what
// anyone pays at least who samples stacks by copying them.
func startCopyProgram(hz int) (*timerProgram, error) {
	mm, err := kernelOffset("task_struct", "mm")
	if err != nil {
		return nil, err
	}
	end, err := kernelOffset("mm_struct", "start_stack")
	if err != nil {
		return nil, err
	}
	const room = 512 // for the registers
	copies, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.Array, KeySize: 4, ValueSize: room + copyLimit, MaxEntries: uint32(runtime.NumCPU()),
	})
	if err != nil {
		return nil, fmt.Errorf("room for copies: %w", err)
	}
	defer copies.Close()                            // the program keeps it
	readWord := func(offset int) asm.Instructions { // at R3 + offset, to the stack; 0 when it cannot be read
		return asm.Instructions{
			asm.Add.Imm(asm.R3, int32(offset)),
			asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, -8), asm.Mov.Imm(asm.R2, 8),
			asm.FnProbeReadKernel.Call(),
		}
	}
	insns := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.FnGetCurrentTask.Call(), asm.Mov.Reg(asm.R3, asm.R0)}
	insns = append(insns, readWord(mm)...)
	insns = append(insns, asm.LoadMem(asm.R3, asm.RFP, -8, asm.DWord))
	insns = append(insns, readWord(end)...)
	insns = append(insns,
		asm.LoadMem(asm.R7, asm.RFP, -8, asm.DWord),
		asm.FnGetSmpProcessorId.Call(),
		asm.StoreMem(asm.RFP, -8, asm.R0, asm.Word),
		asm.LoadMapPtr(asm.R1, copies.FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "exit"))
	for i := range contextWords {
		insns = append(insns, asm.LoadMem(asm.R1, asm.R6, int16(8*i), asm.DWord), asm.StoreMem(asm.R0, int16(8*i), asm.R1, asm.DWord))
	}
	insns = append(insns,
		asm.LoadMem(asm.R3, asm.R6, int16(8*contextSP), asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R7), asm.Sub.Reg(asm.R2, asm.R3),
		asm.JGT.Imm(asm.R2, copyLimit, "exit"), // in the kernel, or on another stack
		asm.Mov.Reg(asm.R1, asm.R0), asm.Add.Imm(asm.R1, room),
		asm.FnProbeReadUser.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("exit"), asm.Return())
	return startProgram(hz, insns)
}

// kernelOffset is where a member of a structure of the running kernel is, in
// bytes.
func kernelOffset(name, member string) (int, error) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return 0, err
	}
	var s *btf.Struct
	if err := spec.TypeByName(name, &s); err != nil {
		return 0, err
	}
	if offset, ok := memberOffset(s.Members, member); ok {
		return offset, nil
	}
	return 0, fmt.Errorf("the kernel's %s has no %s", name, member)
}

// memberOffset looks in members without names, too.
func memberOffset(members []btf.Member, name string) (int, bool) {
	for _, m := range members {
		if m.Name == name {
			return int(m.Offset.Bytes()), true
		}
		if s, ok := m.Type.(*btf.Struct); ok && m.Name == "" {
			if inner, ok := memberOffset(s.Members, name); ok {
				return int(m.Offset.Bytes()) + inner, true
			}
		}
	}
	return 0, false
}

func startProgram(hz int, insns asm.Instructions) (*timerProgram, error) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "bench_timer", Type: ebpf.PerfEvent, License: "GPL", Instructions: insns})
	if err != nil {
		return nil, fmt.Errorf("program on a timer: %w", err)
	}
	e := &timerProgram{prog: prog}
	for cpu := range runtime.NumCPU() {
		if err := e.attach(cpu, hz); err != nil {
			e.close()
			return nil, fmt.Errorf("program on a timer on CPU %d: %w", cpu, err)
		}
	}
	return e, nil
}

func (e *timerProgram) attach(cpu, hz int) error {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK,
		Size:   uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Sample: uint64(hz), Bits: unix.PerfBitFreq | unix.PerfBitDisabled | unix.PerfBitExcludeIdle,
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
func (e *timerProgram) runs() progRuns {
	st, err := e.prog.Stats()
	if err != nil {
		return progRuns{}
	}
	return progRuns{uint64(st.Runtime), st.RunCount}
}

func (e *timerProgram) close() error {
	var err error
	for _, fd := range e.fds {
		err = errors.Join(err, unix.Close(fd))
	}
	return errors.Join(err, e.prog.Close())
}
