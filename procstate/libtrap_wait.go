package procstate

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// A thread that blocks the signals of the library trap is stopped in another
// way: the program on the uprobe wakes the tracer, through a ring buffer, and
// has the thread wait in the kernel until the tracer has asked it to stop
// with PTRACE_INTERRUPT, which cannot be blocked. The request is a bit in the
// kernel's task, and the thread stops before it returns to the program.
//
// The wait is bounded: it ends with the tracer, when the thread is killed, and
// after a second. It gives the processor away whenever something else wants
// it: the helper that reads user memory reschedules, on kernels too that do
// not preempt themselves. A wait in vain, with a tracer that does not get to
// run, halves the time of those to come.
//
// All of this needs Linux 6.0.

const (
	trapPatience = 1 << 30 // nanoseconds that a thread waits for its tracer
	trapRingSize = 64 << 10
	trapTurns    = 1 << 23 // as many turns as bpf_loop makes
)

// Bits of task_struct.jobctl, include/linux/sched/jobctl.h: the thread is
// going to stop for its tracer.
const jobctlStops = 1<<17 | 1<<19 | 1<<20 // JOBCTL_STOP_PENDING, TRAP_STOP, TRAP_NOTIFY

const (
	pfExiting   = 4 // PF_EXITING of include/linux/sched.h
	ringbufWake = 2 // BPF_RB_FORCE_WAKEUP
)

// waitInstructions tell the tracer the ID of the current thread, as the
// tracer knows it, and wait for its answer. R8 is the task.
func waitInstructions(count, ring *ebpf.Map, task taskLayout) asm.Instructions {
	const deadlineAt, vainAt = -40, -32 // what the function gets
	ins := readTask(asm.R8, task.parent, 8)
	ins = append(ins, asm.Mov.Reg(asm.R7, asm.R6))
	ins = append(ins, readTask(asm.R7, task.threadPID, 8)...)
	ins = append(ins, asm.Mov.Reg(asm.R7, asm.R6))
	ins = append(ins, readTask(asm.R7, task.pidLevel, 4)...)
	ins = append(ins, asm.Mul.Imm(asm.R6, int32(task.upidSize)), asm.Mov.Reg(asm.R7, asm.R6))
	ins = append(ins, readTask(asm.R8, task.threadPID, 8)...)
	ins = append(ins, asm.Add.Reg(asm.R7, asm.R6))
	ins = append(ins, readTask(asm.R7, task.pidNumbers, 4)...)
	ins = append(ins, trapSlot(count, trapWaiter)...)
	ins = append(ins, asm.StoreMem(asm.R0, 0, asm.R6, asm.DWord))
	ins = append(ins, trapSlot(count, trapUnheld)...)
	ins = append(ins,
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, ring.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, taskValueAt), // the thread's ID
		asm.Mov.Imm(asm.R3, 8),
		asm.Mov.Imm(asm.R4, ringbufWake),
		asm.FnRingbufOutput.Call(),
		asm.FnKtimeGetNs.Call(),
		asm.Mov.Reg(asm.R7, asm.R0),
	)
	ins = append(ins, trapSlot(count, trapVain)...)
	ins = append(ins,
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.JLE.Imm(asm.R1, 30, "patience"),
		asm.Mov.Imm(asm.R1, 30),
		asm.Mov.Imm(asm.R2, trapPatience).WithSymbol("patience"),
		asm.RSh.Reg(asm.R2, asm.R1),
		asm.Add.Reg(asm.R7, asm.R2),
		asm.StoreMem(asm.RFP, deadlineAt, asm.R7, asm.DWord),
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, vainAt, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R1, trapTurns),
		asm.Instruction{OpCode: asm.LoadImmOp(asm.DWord), Dst: asm.R2, Src: asm.PseudoFunc, Constant: -1}.WithReference("wait"),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, deadlineAt),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnLoop.Call(),
	)
	ins = append(ins, trapSlot(count, trapVain)...)
	return append(ins,
		asm.LoadMem(asm.R1, asm.RFP, vainAt, asm.DWord),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Ja.Label("done"),
	)
}

// waitFunction is a turn of the loop; the result 1 ends it. R2 points to the
// deadline, behind which 1 is stored when it has come; at is an address of the
// thread's memory that can be read.
func waitFunction(task taskLayout, at uint64) asm.Instructions {
	const byteAt = -8
	ins := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R2),
		asm.FnGetCurrentTaskBtf.Call(),
		asm.Mov.Reg(asm.R7, asm.R0),
		// Asked to stop?
		asm.LoadMem(asm.R1, asm.R7, int16(task.jobctl), asm.DWord),
		asm.And.Imm(asm.R1, jobctlStops),
		asm.JNE.Imm(asm.R1, 0, "end"),
		// Has the tracer ended?
		asm.LoadMem(asm.R1, asm.R7, int16(task.ptrace), asm.Word),
		asm.JEq.Imm(asm.R1, 0, "end"),
		asm.LoadMem(asm.R1, asm.R7, int16(task.parent), asm.DWord),
		asm.LoadMem(asm.R1, asm.R1, int16(task.flags), asm.Word),
		asm.And.Imm(asm.R1, pfExiting),
		asm.JNE.Imm(asm.R1, 0, "end"),
		// Let others run. It fails when the thread is being killed.
		asm.Mov.Reg(asm.R1, asm.RFP),
		asm.Add.Imm(asm.R1, byteAt),
		asm.Mov.Imm(asm.R2, 1),
		asm.LoadImm(asm.R3, int64(at), asm.DWord),
		asm.Mov.Reg(asm.R4, asm.R7),
		asm.Mov.Imm(asm.R5, 0),
		asm.FnCopyFromUserTask.Call(),
		asm.JNE.Imm(asm.R0, 0, "end"),
		asm.FnKtimeGetNs.Call(),
		asm.LoadMem(asm.R1, asm.R6, 0, asm.DWord),
		asm.JGT.Reg(asm.R0, asm.R1, "late"),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
		asm.Mov.Imm(asm.R1, 1).WithSymbol("late"),
		asm.StoreMem(asm.R6, 8, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("end"),
		asm.Return(),
	}
	u32 := &btf.Int{Name: "unsigned int", Size: 4}
	ins[0] = btf.WithFuncMetadata(ins[0].WithSymbol("wait"), &btf.Func{
		Name: "wait", Linkage: btf.StaticFunc,
		Type: &btf.FuncProto{Return: trapInt, Params: []btf.FuncParam{
			{Name: "turn", Type: u32}, {Name: "deadline", Type: &btf.Pointer{Target: &btf.Void{}}},
		}},
	})
	return ins
}

var trapInt = &btf.Int{Name: "long", Size: 8, Encoding: btf.Signed}

// trapEntry is the first function of the program, as the kernel wants it
// described where there is a second one.
var trapEntry = &btf.Func{
	Name: "library_trap", Linkage: btf.GlobalFunc,
	Type: &btf.FuncProto{Return: trapInt, Params: []btf.FuncParam{
		{Name: "ctx", Type: &btf.Pointer{Target: &btf.Void{}}},
	}},
}

// taskLayout has offsets in structures of the kernel, in bytes.
type taskLayout struct {
	// Of task_struct.
	ptrace    uint32 // flags of the tracer, 32 bits; 0 without one
	blocked   uint32 // signal mask, 64 bits
	jobctl    uint32 // what it is to stop for, 64 bits
	flags     uint32 // PF_, 32 bits
	parent    uint32 // the tracer, where there is one
	threadPID uint32 // its struct pid

	// Of struct pid.
	pidLevel   uint32 // depth of the innermost PID namespace, 32 bits
	pidNumbers uint32 // nr of the first struct upid: the ID in the outermost, 32 bits
	upidSize   uint32
}

// taskOffsets asks the running kernel's BTF.
var taskOffsets = sync.OnceValues(func() (l taskLayout, err error) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return l, err
	}
	for name, members := range map[string]map[string]*uint32{
		"task_struct": {"ptrace": &l.ptrace, "blocked": &l.blocked, "jobctl": &l.jobctl,
			"flags": &l.flags, "parent": &l.parent, "thread_pid": &l.threadPID},
		"pid":  {"level": &l.pidLevel, "numbers": &l.pidNumbers},
		"upid": {},
	} {
		var s *btf.Struct
		if err := spec.TypeByName(name, &s); err != nil {
			return l, err
		}
		found := 0
		for _, m := range s.Members {
			if at := members[m.Name]; at != nil {
				*at = m.Offset.Bytes()
				found++
			}
		}
		if found != len(members) {
			return l, fmt.Errorf("the kernel's struct %s is not as expected", name)
		}
		if name == "upid" { // nr is its first member
			l.upidSize = s.Size
		}
	}
	return l, nil
})

// wakeTracer interrupts threads of p that the trap has told of, until the
// ring is closed.
func (p *ProcDebug) wakeTracer(tr *libraryTrap) {
	for {
		rec, err := tr.ring.Read()
		if err != nil {
			return
		}
		if len(rec.RawSample) < 4 {
			continue
		}
		tid := ThreadID(binary.NativeEndian.Uint32(rec.RawSample))
		p.e.do(func() {
			if t := p.threads[tid]; t != nil && t.runs() {
				ptraceInterrupt(tid)
			}
		})
	}
}

// claimsStop reports whether a thread that has stopped for its tracer is one
// that was waiting at the trap. On the engine's goroutine.
func (tr *libraryTrap) claimsStop(tid ThreadID) bool {
	n := tr.read(trapUnheld)
	if n == tr.stopped || tr.read(trapWaiter) != uint64(tid) {
		return false
	}
	tr.stopped = n
	tr.count.Put(uint32(trapVain), uint64(0))
	return true
}
