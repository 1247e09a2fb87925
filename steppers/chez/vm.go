package chez

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// image is what is known of a file that may be Chez Scheme's runtime, or have it: link-time addresses.
type image struct {
	invoke uint64   // S_generic_invoke; 0: it is none
	words  []uint64 // that have the code objects by which C calls Scheme
}

// findImage looks for the runtime in a file. It exports what C may call.
func findImage(im *procstate.Image) (p image) {
	const around = 4 << 10                               // bytes of S_call_help and what was split off
	const movRSI, call, movLen = "\x48\x8b\x35", 0xe8, 7 // mov n(%rip),%rsi
	if _, ok := im.ExportedSymbol("Sscheme_init"); !ok || im.Arch() != procstate.AMD64 {
		return p
	}
	help, ok1 := im.ExportedSymbol("S_call_help")
	invoke, ok2 := im.ExportedSymbol("S_generic_invoke")
	if !ok1 || !ok2 {
		return p
	}
	code := make([]byte, around)
	for len(code) > movLen && im.ReadVaddr(code, help.Value) != nil {
		code = code[:len(code)/2]
	}
	rel := func(at int) uint64 { // the address that the 32 bits there lead to, which an instruction ends with
		return help.Value + uint64(at) + 4 + uint64(int64(int32(binary.LittleEndian.Uint32(code[at:]))))
	}
	for i := movLen; i+5 <= len(code); i++ {
		if code[i] == call && rel(i+1) == invoke.Value && bytes.HasPrefix(code[i-movLen:], []byte(movRSI)) {
			p.words = append(p.words, rel(i-4))
		}
	}
	if len(p.words) > 0 {
		p.invoke = invoke.Value
	}
	return p
}

// machine is what is known of Scheme in a process.
type machine struct {
	runtime *procstate.Image // nil: there is none
	invoke  uint64           // link-time address of S_generic_invoke
	words   []uint64         // run-time addresses of those that have the code objects by which C calls Scheme
	vmread.Memory
	vmread.Found

	w *unwind.Walker

	layout  layout // of headers
	context contextLayout
	points  map[uint64]point // by return address
	codes   map[uint64]name  // by PC
	funcs   map[string]*unwind.CodeFunction
	resets  int
	asked   vmread.FramesAsked

	// Of the walk:
	thread   uint64   // the thread's context; 0: not known
	lacks    bool     // the stack was not copied
	isLinked bool     // segments of continuations are walked,
	link     uint64   // and the next one is this,
	segment  []byte   // which is of segment,
	start    uint64   // from there on
	segments uint64   // bytes of all
	invokes  []uint64 // code objects by which C calls Scheme; nil: not read yet

	code      code
	paths     []path
	seen      mcode.AddrSet
	before    []byte // code before a place
	buffer    []byte // for segments
	reads     map[uint64]*read
	keptReads int // bytes of these, about
}

// Limits on what is kept of a process, and on what is read.
const (
	maxPoints   = 1 << 16
	maxCodes    = 1 << 17
	maxSegments = 1 << 20 // bytes of continuations in a walk
	maxKept     = 4 << 20 // bytes of continuations that are kept
	maxFrame    = 1 << 20 // bytes
	maxCode     = 64 << 20
	maxName     = 512 // characters

	maxLinks          = 1 << 10 // continuations that are copied
	continuationBytes = 64

	maxTouched = 256 << 10 // bytes of a segment of which pages are made

	runtime = "scheme"
)

// machine returns what is known of Scheme in the process that w walks, nil where there is none.
func (s *Stepper) machine(w *unwind.Walker) *machine {
	vm, isNew := vmread.MachineOf(w, s, s.findMachine)
	if isNew {
		vm.w, vm.thread, vm.lacks, vm.isLinked, vm.link, vm.segment, vm.segments, vm.invokes = w, 0, false, false, 0, nil, 0, nil
	}
	if vm.runtime == nil {
		return nil
	}
	return vm
}

// findMachine is find in the process that w walks.
func (s *Stepper) findMachine(w *unwind.Walker, libs procstate.LibraryState, known *machine) *machine {
	vm := s.find(libs, known)
	if vm.points == nil {
		vm.Memory, vm.asked = vmread.MemoryOf(w), vmread.FramesAsked{}
		vm.points, vm.codes = map[uint64]point{}, map[uint64]name{}
	}
	return vm
}

// find looks for the runtime among libraries; what is known of it stays.
func (s *Stepper) find(libs procstate.LibraryState, known *machine) *machine {
	vm := &machine{}
	if libs == nil {
		return vm
	}
	for _, lib := range libs.Libraries() {
		if lib.Image == nil {
			continue
		}
		p := s.image(lib.Image)
		if p.invoke == 0 {
			continue
		}
		vm.runtime, vm.invoke = lib.Image, p.invoke
		for _, word := range p.words {
			vm.words = append(vm.words, word+lib.Bias)
		}
		if known != nil && known.runtime == vm.runtime && slices.Equal(known.words, vm.words) {
			return known
		}
		break
	}
	return vm
}

// image returns what is known of a file.
func (s *Stepper) image(im *procstate.Image) *image { return s.images.Known(im, findImage) }

// isInvoke reports whether a code object is one by which C calls Scheme.
func (vm *machine) isInvoke(object uint64) bool {
	if vm.invokes == nil {
		vm.invokes = []uint64{}
		for _, word := range vm.words {
			if v, ok := vm.WordNow(word); ok {
				vm.invokes = append(vm.invokes, v+1)
			}
		}
	}
	return slices.Contains(vm.invokes, object)
}

// callsScheme reports whether a return address is behind a call of S_generic_invoke.
func (vm *machine) callsScheme(ra uint64) bool {
	m := vm.w.MappingAt(ra - 1)
	if m == nil || m.Image != vm.runtime {
		return false
	}
	var code [mcode.MaxCallLen]byte
	vaddr := ra - m.Bias
	if m.Image.ReadVaddr(code[:], vaddr-mcode.MaxCallLen) != nil {
		return false
	}
	target, direct, ok := mcode.CallBefore(procstate.AMD64, code[:], vaddr)
	return ok && direct && target == vm.invoke
}

// Knows reports whether walks of a Walker have met Scheme.
func (s *Stepper) Knows(w *unwind.Walker) bool {
	vm, _ := w.Kept(s).(*machine)
	return vm != nil && vm.runtime != nil
}
