package php

import (
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// machine is what is known of the interpreter of a process.
type machine struct {
	fields  *fields // nil: there is none
	image   *procstate.Image
	arch    *arch
	kept    kept // of execute_ex
	bias    uint64
	globals mcode.Range // where its executor_globals are
	sapi    uint64      // and its sapi_module

	vmread.Memory
	vmread.Found

	walk   uint64    // the frames are those of this walk
	now    time.Time // when that began
	frames []frame   // innermost first
	next   int       // of these, the first that no frame on the C stack has had yet
	looks  int       // at functions that may still be had in it
	lacks  bool      // what runs was not captured
	inside uint64    // what the register had in the frame of the C stack before,
	before uint64    // and what it had when that was entered
	asked  vmread.FramesAsked

	codes   map[code]uint32 // numbers in unwind.Codes
	resets  int             // of these
	recent  [1 << recentBits]recent
	known   map[uint64]*function
	shared  *sharedFiles
	inner   []*function          // closures and what files do themselves, by their instructions
	period  uint64               // the number of the time in which these hold
	began   time.Time            // when that did
	running map[uint64]*function // functions by instruction
	serial  uint32

	isSampled bool // what is read now is some time after what was captured
	once      bool // it runs a script, and ends
	changes   bool // requests have other functions where there were some

	frameBuf [phpFrameBytes]byte
	head     [phpHead]byte
}

// code is an instruction of a function, whether machine code of its own runs in its frame, and
// the number of what it is called by.
type code struct {
	function   uint32
	isCompiled bool
	outer      uint32
	opline     uint64
}

// recent is the number that a frame has had lately, which runs an instruction, and its function
// then. saved is the instruction that the frame has.
type recent struct {
	function, opline, saved uint64
	outer, number           uint32
	isCompiled              bool
	fn                      *function
}

const recentBits = 9

// Limits on what is read.
const (
	maxFrames    = 1 << 14
	maxFunctions = 1 << 15
	maxLooks     = 1 << 9 // at functions, in a walk
	maxCodes     = 1 << 18
	maxName      = 4 << 10
	maxOps       = 1 << 24
	maxClosures  = 1 << 10 // of a function
	maxInner     = 1 << 15

	checkInterval   = 100 * time.Millisecond // after which a function is looked at again
	innerInterval   = 10 * time.Second       // after which those that are found by their instructions are looked for anew
	runningInterval = time.Second            // and for how long instructions are of it when it is gone
)

// machine returns the interpreter of the process that w walks, nil when there is none.
func (s *Stepper) machine(w *unwind.Walker) *machine {
	vm, _ := vmread.MachineOf(w, s, s.findMachine)
	if vm.fields == nil {
		return nil
	}
	return vm
}

// findMachine looks for the interpreter, which may be the one that is known. What it returns has
// no fields when there is none.
func (s *Stepper) findMachine(w *unwind.Walker, libs procstate.LibraryState, known *machine) *machine {
	vm := &machine{Memory: vmread.MemoryOf(w), shared: &s.shared}
	if libs == nil {
		return vm
	}
	for _, lib := range libs.Libraries() {
		if lib.Image == nil {
			continue
		}
		p := s.image(lib.Image)
		if p.fields == nil || p.arch.Arch != w.Arch() {
			continue
		}
		if known != nil && known.image == lib.Image && known.bias == lib.Bias {
			return known
		}
		vm.fields, vm.image, vm.bias, vm.arch, vm.kept = p.fields, lib.Image, lib.Bias, p.arch, p.kept
		start := variable(libs, lib, "executor_globals", p.globals.Start)
		vm.globals, vm.sapi = mcode.Range{Start: start, End: start + p.globals.End - p.globals.Start}, variable(libs, lib, "sapi_module", p.sapi)
		vm.once = vm.isOnce()
		_, vm.isSampled = w.ProcessState().(*procstate.Snapshot)
		vm.known, vm.running, vm.asked = map[uint64]*function{}, map[uint64]*function{}, vmread.FramesAsked{}
		break
	}
	return vm
}

// variable returns where a variable of the interpreter is, which has a link-time address in its
// library: a program that names it has it instead.
func variable(libs procstate.LibraryState, php procstate.Library, name string, vaddr uint64) uint64 {
	for _, lib := range libs.Libraries() {
		if lib.Image != nil && lib.Image != php.Image {
			if sym, ok := lib.Image.ExportedSymbol(name); ok {
				return sym.Value + lib.Bias
			}
		}
	}
	return vaddr + php.Bias
}
