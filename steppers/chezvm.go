package steppers

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// chezImage is what is known of a file that may be Chez Scheme's runtime, or have it: link-time addresses.
type chezImage struct {
	invoke uint64   // S_generic_invoke; 0: it is none
	words  []uint64 // that have the code objects by which C calls Scheme
}

// findChezImage looks for the runtime in a file. It exports what C may call.
func findChezImage(im *procstate.Image) (p chezImage) {
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

// chezVM is what is known of Scheme in a process.
type chezVM struct {
	runtime *procstate.Image // nil: there is none
	invoke  uint64           // link-time address of S_generic_invoke
	words   []uint64         // run-time addresses of those that have the code objects by which C calls Scheme
	vmMemory
	vmFound

	w *unwind.Walker

	layout  chezLayout // of headers
	context chezContextLayout
	points  map[uint64]chezPoint // by return address
	codes   map[uint64]chezName  // by PC
	funcs   map[string]*unwind.CodeFunction
	resets  int
	asked   framesAsked

	// Of the walk:
	thread   uint64   // the thread's context; 0: not known
	lacks    bool     // the stack was not copied
	isLinked bool     // segments of continuations are walked,
	link     uint64   // and the next one is this,
	segment  []byte   // which is of segment,
	start    uint64   // from there on
	segments uint64   // bytes of all
	invokes  []uint64 // code objects by which C calls Scheme; nil: not read yet

	code      chezCode
	paths     []chezPath
	seen      addrSet
	before    []byte // code before a place
	buffer    []byte // for segments
	reads     map[uint64]*chezRead
	keptReads int // bytes of these, about
}

// Limits on what is kept of a process, and on what is read.
const (
	maxChezPoints   = 1 << 16
	maxChezCodes    = 1 << 17
	maxChezSegments = 1 << 20 // bytes of continuations in a walk
	maxChezKept     = 4 << 20 // bytes of continuations that are kept
	maxChezFrame    = 1 << 20 // bytes
	maxChezCode     = 64 << 20
	maxChezName     = 512 // characters

	maxChezLinks          = 1 << 10 // continuations that are copied
	chezContinuationBytes = 64

	maxChezTouched = 256 << 10 // bytes of a segment of which pages are made

	chezRuntime = "scheme"
)

// machine returns what is known of Scheme in the process that w walks, nil where there is none.
func (s *Chez) machine(w *unwind.Walker) *chezVM {
	vm, isNew := machineOf(w, s, s.findMachine)
	if isNew {
		vm.w, vm.thread, vm.lacks, vm.isLinked, vm.link, vm.segment, vm.segments, vm.invokes = w, 0, false, false, 0, nil, 0, nil
	}
	if vm.runtime == nil {
		return nil
	}
	return vm
}

// findMachine is find in the process that w walks.
func (s *Chez) findMachine(w *unwind.Walker, libs procstate.LibraryState, known *chezVM) *chezVM {
	vm := s.find(libs, known)
	if vm.points == nil {
		vm.vmMemory, vm.asked = vmMemoryOf(w), framesAsked{}
		vm.points, vm.codes = map[uint64]chezPoint{}, map[uint64]chezName{}
	}
	return vm
}

// find looks for the runtime among libraries; what is known of it stays.
func (s *Chez) find(libs procstate.LibraryState, known *chezVM) *chezVM {
	vm := &chezVM{}
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
func (s *Chez) image(im *procstate.Image) *chezImage { return s.images.known(im, findChezImage) }

// isInvoke reports whether a code object is one by which C calls Scheme.
func (vm *chezVM) isInvoke(object uint64) bool {
	if vm.invokes == nil {
		vm.invokes = []uint64{}
		for _, word := range vm.words {
			if v, ok := vm.wordNow(word); ok {
				vm.invokes = append(vm.invokes, v+1)
			}
		}
	}
	return slices.Contains(vm.invokes, object)
}

// callsScheme reports whether a return address is behind a call of S_generic_invoke.
func (vm *chezVM) callsScheme(ra uint64) bool {
	m := vm.w.MappingAt(ra - 1)
	if m == nil || m.Image != vm.runtime {
		return false
	}
	var code [maxCallLen]byte
	vaddr := ra - m.Bias
	if m.Image.ReadVaddr(code[:], vaddr-maxCallLen) != nil {
		return false
	}
	target, direct, ok := callBefore(procstate.AMD64, code[:], vaddr)
	return ok && direct && target == vm.invoke
}

// Knows reports whether walks of a Walker have met Scheme.
func (s *Chez) Knows(w *unwind.Walker) bool {
	vm, _ := w.Kept(s).(*chezVM)
	return vm != nil && vm.runtime != nil
}
