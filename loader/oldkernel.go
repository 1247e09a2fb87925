package loader

import (
	"math"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
)

// assumedRelease is what tests have the kernel take itself for, by
// -ldflags "-X github.com/swbpf/swbpf/loader.assumedRelease=5.8.0" too: nothing
// that is newer is used then.
var assumedRelease string

// haveNewHelpers reports whether the kernel has the helpers of Linux 5.15 that
// the programs use where they can (have_task_pt_regs of bpf/config.h). Some had
// them earlier: they are probed for.
func haveNewHelpers() bool {
	return assumedRelease == "" && features.HaveProgramHelper(ebpf.PerfEvent, asm.FnTaskPtRegs) == nil
}

// haveTaskWork reports whether the kernel may call a function of a program when
// a task goes back to user code (bpf/deferred.h).
func haveTaskWork() bool { return kernelSince(6, 18) }

// hasNewTaskWork reports whether the function that puts a call off has its name
// of Linux 7.0. By the older one there is another then, which programs cannot call.
func hasNewTaskWork(types *btf.Cache) bool {
	kernel, err := types.Kernel()
	var f *btf.Func
	return err == nil && kernel.TypeByName("bpf_task_work_schedule_resume", &f) == nil
}

// haveTaskStacks reports whether programs can have the stacks of other tasks
// (bpf_get_task_stack), as for threads that wait since before a recording.
func haveTaskStacks() bool { return kernelSince(5, 9) }

// maxValue is the most bytes that a value of a map may have.
func maxValue() int {
	if kernelSince(5, 18) {
		return math.MaxInt32
	}
	return 4 << 20
}

// withoutCallbacks returns a program without the functions that it hands to the
// kernel, and with NULL in their place. Where they are never called, kernels may
// reject the program for them all the same: before 5.13 they know no such
// functions, and later ones add up the stacks of these and of what they call.
func withoutCallbacks(insns asm.Instructions) asm.Instructions {
	callbacks := make(map[string]bool)
	for i := range insns {
		if isCallback(&insns[i]) {
			callbacks[insns[i].Reference()] = true
		}
	}
	var kept asm.Instructions
	inCallback := false
	for _, ins := range insns {
		if btf.FuncMetadata(&ins) != nil {
			inCallback = callbacks[ins.Symbol()]
		}
		if inCallback {
			continue
		}
		if isCallback(&ins) {
			ins = ins.WithReference("")
			ins.Src, ins.Constant = 0, 0
		}
		kept = append(kept, ins)
	}
	return kept
}

// withoutFunction returns a program with NULL in place of a function of the
// kernel, which it does not call then.
func withoutFunction(insns asm.Instructions, name string) asm.Instructions {
	for i := range insns {
		ins := &insns[i]
		if ins.Reference() != name {
			continue
		}
		if ins.IsKfuncCall() {
			*ins = asm.Mov.Imm(asm.R0, 0).WithSymbol(ins.Symbol())
		} else {
			*ins = asm.LoadImm(ins.Dst, 0, asm.DWord).WithSymbol(ins.Symbol())
		}
	}
	return insns
}

// isCallback reports whether an instruction takes the address of a function.
func isCallback(ins *asm.Instruction) bool {
	return ins.OpCode.IsDWordLoad() && ins.Src == asm.PseudoFunc
}
