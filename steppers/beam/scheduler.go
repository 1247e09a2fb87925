package beam

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// scheduler walks to the function of the scheduler that has called process_main, which never returns. Its
// code begins by aligning the stack: the return address is in one of four places. It is behind a call in the
// function of C of that name, to where that does not know, or behind one of that function, which has jumped on.
func (vm *machine) scheduler(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	registers, ok := in.Regs.Value(vm.arch.registers)
	stack := registers - vm.registers
	if !ok || stack%align != 0 {
		return unwind.Failed, unwind.NoUnwindInfo
	}
	from := stack + vm.frame
	if vm.main.Start == 0 {
		vm.findSchedulers(vm.now)
	}
	if !vm.addStack(w, from) {
		return unwind.Failed, unwind.MemoryUnreadable
	}
	found, at := uint64(0), uint64(0)
	for a := from + 8; a < from+align; a += 16 {
		ra, ok := vm.Word(a)
		if !ok {
			return unwind.Failed, unwind.ReadFailure(w.ProcessState(), a)
		}
		m := w.MappingAt(ra - 1)
		if m == nil || m.Image == nil || ra-m.Start < mcode.MaxCallLen {
			continue
		}
		target, direct, ok := mcode.CallBefore(w.Arch(), mcode.Read(w, m, ra-mcode.MaxCallLen, vm.call[:]), ra)
		if !ok || direct != (target == vm.main.Start) || !direct && ra-vm.main.Start >= vm.main.End-vm.main.Start {
			continue
		}
		if found != 0 && (found != ra || !vm.arch.isLinked) { // the function of C may have had it below, before it has jumped on
			return unwind.Failed, unwind.BadPC
		}
		found, at = ra, a
	}
	if found == 0 {
		return unwind.Failed, unwind.BadPC
	}
	arch := w.Arch()
	out.SetPC(arch, found)
	out.SetSP(arch, at+8)
	out.PCLocation = unwind.InMemory(at)
	if vm.arch.isLinked { // with the frame pointer below
		if fp, ok := vm.Word(at - 8); ok {
			out.SetFP(arch, fp)
			out.FPLocation = unwind.InMemory(at - 8)
		}
	}
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	out.Flags |= unwind.StackSwitched
	return unwind.Success, nil
}

// addStack has what a scheduler has on its stack before it runs Erlang be part of what was captured: it is
// the same as long as the thread lives.
func (vm *machine) addStack(w *unwind.Walker, from uint64) bool {
	snapshot, ok := w.ProcessState().(*procstate.Snapshot)
	var word [8]byte
	if !ok || snapshot.ReadCaptured(from+8, word[:]) {
		return true
	}
	b := vm.scheds[from]
	if b == nil {
		b = make([]byte, stackBytes)
		for len(b) > 0 && !vm.ReadNow(from, b) {
			b = b[:len(b)/2]
		}
		if len(b) < align {
			return false
		}
		if len(vm.scheds) >= maxScheds {
			clear(vm.scheds)
		}
		vm.scheds[from] = b
	}
	snapshot.AddStanding(procstate.Region{Addr: from, Data: b})
	return true
}
