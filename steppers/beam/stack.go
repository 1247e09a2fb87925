package beam

import (
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Lacked returns where the runtime system has the stack of the Erlang process that a thread runs, if the
// last walk has come to it from another stack and the capture had not copied it.
func (s *Stepper) Lacked(w *unwind.Walker, tid int) (frames procstate.ThreadFrames, lacks bool) {
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.runtime == nil || vm.Walk != w.Walks() || !vm.lacks || vm.stack == 0 {
		return frames, false
	}
	vm.findSchedulers(vm.ReadNow)
	scheduler := vm.byStack[vm.stack]
	if scheduler == 0 || !vm.knowsFields(vm.ReadNow, scheduler) {
		return frames, true
	}
	if _, ask := vm.asked.Ask(tid, true, false); !ask {
		return frames, true
	}
	return procstate.ThreadFrames{
		Current: scheduler + vm.current, Head: processHead, IsFrame: true,
		Low: int(vm.stop), High: int(vm.end), IsDown: true, Below: vm.arch.below,
	}, true
}

// Knows reports whether walks of a Walker have met the runtime system.
func (s *Stepper) Knows(w *unwind.Walker) bool {
	vm, _ := w.Kept(s).(*machine)
	return vm != nil && vm.runtime != nil
}

// Collector returns a Collector of what walks need of Erlang's runtime system; nil where none of the
// libraries of the process is one.
func Collector(libs procstate.LibraryState) procstate.Collector {
	rt := find(libs, New().image)
	if rt == nil {
		return nil
	}
	return rt.collect
}

// collect is the Collector: it adds the stack of the Erlang process that a thread runs, and its scheduler's.
func (rt *runtime) collect(m procstate.Memory, _ procstate.ThreadID, regs *procstate.Regs, add func(addr uint64, n int)) {
	read := vmread.Reader(func(addr uint64, buf []byte) bool { return rt.pace.May(len(buf)) && vmread.ReadAll(m, addr, buf) })
	if !rt.isLaidOut && !rt.update(read) {
		return
	}
	rt.findSchedulers(read)
	stack := rt.stackOf(regs)
	scheduler := rt.byStack[stack]
	if scheduler == 0 {
		return
	}
	add(stack+rt.frame, stackBytes)
	if !rt.knowsFields(read, scheduler) {
		return
	}
	add(scheduler+rt.current, 8)
	process, _ := read.Word(scheduler + rt.current)
	if process == 0 {
		return
	}
	add(process, processHead)
	// Where it runs, what the process has of its stack pointer may be out of date: the heap below is added, too.
	top, ok1 := read.Word(process + rt.stop - 8)
	stop, ok2 := read.Word(process + rt.stop)
	end, ok3 := read.Word(process + rt.end)
	switch {
	case !ok1 || !ok2 || !ok3:
	case top < stop && stop < end && end-top <= maxStack:
		add(top, int(end-top))
	case stop < end && end-stop <= maxStack:
		add(stop, int(end-stop))
	default: // it is being moved: where it ends is not told yet
		const most = 64 << 10
		add(stop, most)
	}
}

// stackOf returns where the stack of a thread goes on that is a scheduler's: in a function of Erlang a register
// tells, else it is not far.
func (rt *runtime) stackOf(regs *procstate.Regs) (stack uint64) {
	const far = 256 << 10
	if stack = regs.Raw(rt.arch.registers) - rt.registers; rt.byStack[stack] != 0 {
		return stack
	}
	sp := regs.Raw(rt.arch.SP)
	if i, _ := slices.BinarySearch(rt.stacks, sp); i < len(rt.stacks) && rt.stacks[i]-sp < far {
		return rt.stacks[i]
	}
	return 0
}
