package steppers

import (
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// phpVM is what is known of the interpreter of a process.
type phpVM struct {
	fields  *phpFields // nil: there is none
	image   *procstate.Image
	bias    uint64
	globals vaddrRange // where its executor_globals are
	sapi    uint64     // and its sapi_module

	vmMemory
	vmFound

	walk   uint64     // the frames are those of this walk
	now    time.Time  // when that began
	frames []phpFrame // innermost first
	next   int        // of these, the first that no frame on the C stack has had yet
	looks  int        // at functions that may still be had in it
	lacks  bool       // what runs was not captured
	asked  framesAsked

	codes   map[phpCode]uint32 // numbers in unwind.Codes
	resets  int                // of these
	recent  [1 << phpRecentBits]phpRecent
	known   map[uint64]*phpFunction
	inner   []*phpFunction          // closures and what files do themselves, by their instructions
	period  uint64                  // the number of the time in which these hold
	began   time.Time               // when that did
	running map[uint64]*phpFunction // functions by instruction
	serial  uint32

	isSampled bool // what is read now is some time after what was captured
	once      bool // it runs a script, and ends
	changes   bool // requests have other functions where there were some

	frameBuf [phpFrameBytes]byte
	head     [phpHead]byte
}

// phpCode is an instruction of a function, whether machine code of its own runs in its frame, and
// the number of what it is called by.
type phpCode struct {
	function   uint32
	isCompiled bool
	outer      uint32
	opline     uint64
}

// phpRecent is the number that a frame has had lately, which runs an instruction, and its function
// then. saved is the instruction that the frame has.
type phpRecent struct {
	function, opline, saved uint64
	outer, number           uint32
	isCompiled              bool
	fn                      *phpFunction
}

const phpRecentBits = 9

// Limits on what is read.
const (
	maxPHPFrames    = 1 << 14
	maxPHPFunctions = 1 << 15
	maxPHPLooks     = 1 << 9 // at functions, in a walk
	maxPHPCodes     = 1 << 18
	maxPHPName      = 4 << 10
	maxPHPOps       = 1 << 24
	maxPHPClosures  = 1 << 10 // of a function
	maxPHPInner     = 1 << 15

	phpCheckInterval   = 100 * time.Millisecond // after which a function is looked at again
	phpInnerInterval   = 10 * time.Second       // after which those that are found by their instructions are looked for anew
	phpRunningInterval = time.Second            // and for how long instructions are of it when it is gone
)

// machine returns the interpreter of the process that w walks, nil when there is none.
func (s *PHP) machine(w *unwind.Walker) *phpVM {
	vm, _ := machineOf(w, s, s.findMachine)
	if vm.fields == nil {
		return nil
	}
	return vm
}

// findMachine looks for the interpreter, which may be the one that is known. What it returns has
// no fields when there is none.
func (s *PHP) findMachine(w *unwind.Walker, libs procstate.LibraryState, known *phpVM) *phpVM {
	vm := &phpVM{vmMemory: vmMemoryOf(w)}
	if libs == nil {
		return vm
	}
	for _, lib := range libs.Libraries() {
		if lib.Image == nil {
			continue
		}
		p := s.image(lib.Image)
		if p.fields == nil {
			continue
		}
		if known != nil && known.image == lib.Image && known.bias == lib.Bias {
			return known
		}
		vm.fields, vm.image, vm.bias = p.fields, lib.Image, lib.Bias
		start := phpVariable(libs, lib, "executor_globals", p.globals.start)
		vm.globals, vm.sapi = vaddrRange{start, start + p.globals.end - p.globals.start}, phpVariable(libs, lib, "sapi_module", p.sapi)
		vm.once = vm.isOnce()
		_, vm.isSampled = w.ProcessState().(*procstate.Snapshot)
		vm.known, vm.running, vm.asked = map[uint64]*phpFunction{}, map[uint64]*phpFunction{}, framesAsked{}
		break
	}
	return vm
}

// phpVariable returns where a variable of the interpreter is, which has a link-time address in its
// library: a program that names it has it instead.
func phpVariable(libs procstate.LibraryState, php procstate.Library, name string, vaddr uint64) uint64 {
	for _, lib := range libs.Libraries() {
		if lib.Image != nil && lib.Image != php.Image {
			if sym, ok := lib.Image.ExportedSymbol(name); ok {
				return sym.Value + lib.Bias
			}
		}
	}
	return vaddr + php.Bias
}
