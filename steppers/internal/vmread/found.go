package vmread

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Found is when a virtual machine was last known to be in a process.
type Found struct {
	Walk       uint64 // in this walk
	generation uint32 // of the mappings then
}

// LastFound is for MachineOf.
func (f *Found) LastFound() *Found { return f }

// MachineOf returns what is known of the virtual machine of the process that w walks, and whether this is the first
// time in a walk. Where mappings may have changed find looks for it, which may be the one that is known.
func MachineOf[VM interface {
	comparable
	LastFound() *Found
}](w *unwind.Walker, s unwind.FrameStepper, find func(w *unwind.Walker, libs procstate.LibraryState, known VM) VM) (vm VM, isNew bool) {
	var none VM
	vm, _ = w.Kept(s).(VM)
	if vm != none && vm.LastFound().Walk == w.Walks() {
		return vm, false
	}
	libs := w.ProcessState().Libraries()
	generation, ok := GenerationOf(libs)
	if vm == none || !ok || generation != vm.LastFound().generation {
		vm = find(w, libs, vm)
		w.Keep(s, vm)
	}
	*vm.LastFound() = Found{w.Walks(), generation}
	return vm, true
}

// GenerationOf returns the generation of the mappings, where they have one.
func GenerationOf(libs procstate.LibraryState) (generation uint32, ok bool) {
	s, ok := libs.(*procstate.AddressSpace)
	if !ok {
		return 0, false
	}
	return s.Generation(), true
}
