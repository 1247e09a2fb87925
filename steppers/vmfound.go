package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// vmFound is when a virtual machine was last known to be in a process.
type vmFound struct {
	found      uint64 // in this walk
	generation uint32 // of the mappings then
}

// lastFound is for machineOf.
func (f *vmFound) lastFound() *vmFound { return f }

// machineOf returns what is known of the virtual machine of the process that w walks, and whether this is the first
// time in a walk. Where mappings may have changed find looks for it, which may be the one that is known.
func machineOf[VM interface {
	comparable
	lastFound() *vmFound
}](w *unwind.Walker, s unwind.FrameStepper, find func(w *unwind.Walker, libs procstate.LibraryState, known VM) VM) (vm VM, isNew bool) {
	var none VM
	vm, _ = w.Kept(s).(VM)
	if vm != none && vm.lastFound().found == w.Walks() {
		return vm, false
	}
	libs := w.ProcessState().Libraries()
	generation, ok := generationOf(libs)
	if vm == none || !ok || generation != vm.lastFound().generation {
		vm = find(w, libs, vm)
		w.Keep(s, vm)
	}
	*vm.lastFound() = vmFound{w.Walks(), generation}
	return vm, true
}

// generationOf returns the generation of the mappings, where they have one.
func generationOf(libs procstate.LibraryState) (generation uint32, ok bool) {
	s, ok := libs.(*procstate.AddressSpace)
	if !ok {
		return 0, false
	}
	return s.Generation(), true
}
