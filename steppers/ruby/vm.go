package ruby

import (
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// machine is what is known of the interpreter of a process.
type machine struct {
	image  *image
	file   *procstate.Image
	bias   uint64
	fields *fields
	vmread.Memory

	place       uint64            // where in the file's thread-local storage the variable is
	hasPlace    bool              // that was found
	vectorWords uint64            // how many words the C library keeps of each file's storage; 0: not found yet
	threads     map[uint64]uint64 // the variable's address by thread pointer
	owners      map[uint64]owner

	walk    uint64         // what follows is of this walk
	now     time.Time      // when it began
	at      uint64         // the variable's address, 0 where it is not known
	context uint64         // the rb_execution_context_t of the thread
	current uint64         // its control frames begin here
	end     uint64         // and end here,
	frames  []controlFrame // as far as they were copied
	next    int            // of these, the first that no frame on the C stack was found for yet

	isMaking bool // the innermost is not whole

	lacks bool // what the thread runs was not captured
	asked vmread.FramesAsked

	codes   map[code]uint32 // numbers in unwind.Codes
	resets  int             // of these
	known   map[uint64]*iSeq
	escaped map[uint64]escaped
	entries map[uint64]*methodEntry
	symbols uint64 // the Array of all Symbols that are not collected; 0: not found yet
	serial  uint32

	regs         procstate.Regs
	contextBytes [rubyContextBytes]byte
	frameBytes   [maxRubyFrameBytes]byte
	envBytes     [beforeFlags + 16]byte
	code         [160]byte
}

// code is an instruction of a method, and the number of what that is called by.
type code struct {
	function    uint32
	instruction int32
	outer       uint32
	isCompiled  bool
}

// owner is whose an rb_thread_t is, by its pthread_t.
type owner struct {
	id      uint64
	checked time.Time
}

// Limits on what is read.
const (
	maxThreads   = 1 << 12
	maxFrames    = 1 << 14 // of a thread
	maxFunctions = 1 << 15
	maxCodes     = 1 << 18
	maxName      = 1 << 10 // bytes
	maxLines     = 1 << 16 // entries of a table
	interval     = 100 * time.Millisecond
)

func newVM(w *unwind.Walker, m *procstate.Mapping, p *image) *machine {
	return &machine{
		image: p, file: m.Image, bias: m.Bias, fields: p.fields, Memory: vmread.MemoryOf(w),
		threads: map[uint64]uint64{}, owners: map[uint64]owner{}, asked: vmread.FramesAsked{},
		known: map[uint64]*iSeq{}, escaped: map[uint64]escaped{}, entries: map[uint64]*methodEntry{},
	}
}

// interpretedCode returns the number of the methods that run in a frame of the interpreter's
// function; 0 when that is not known.
func (vm *machine) interpretedCode(w *unwind.Walker, in *unwind.Frame) uint32 {
	at, known := in.Regs.Value(vm.image.arch.frame)
	if !known || !vm.hasFrames(w, in.Thread) {
		return 0
	}
	first, i, ok := vm.find(at)
	if !ok {
		return 0
	}
	if in.Flags&unwind.Interrupted != 0 {
		first = i // others are being made, or were left
	}
	end := i
	for end < len(vm.frames) && !vm.frames[end].isLast() {
		end++
	}
	vm.next = min(end+1, len(vm.frames))
	return vm.number(w.Codes(), vm.frames[first:vm.next], false)
}

// compiledCode is interpretedCode for a frame of compiled code: it has returned from, or
// called, others of such code, and none that are interpreted.
func (vm *machine) compiledCode(w *unwind.Walker, in *unwind.Frame) uint32 {
	at, known := in.Regs.Value(vm.image.arch.compiled)
	if vm.fields.jitReturn == 0 || !known || !vm.hasFrames(w, in.Thread) {
		return 0
	}
	interrupted := in.Flags&unwind.Interrupted != 0
	if interrupted && vm.isMaking && at == vm.current {
		at += vm.fields.frameBytes // that one is not there yet
	}
	first, i, ok := vm.find(at)
	if !ok {
		return 0
	}
	if interrupted {
		first, vm.frames[i].pc = i, 0 // others are being made, or were left; the instruction is told before calls
	}
	end := i
	for end < len(vm.frames) && vm.frames[end].isCompiled {
		if end++; vm.frames[end-1].isLast() {
			break
		}
	}
	if end == i {
		return 0
	}
	vm.next = end
	return vm.number(w.Codes(), vm.frames[first:end], true)
}

// hasFrames reports whether there are control frames of the thread that is walked.
func (vm *machine) hasFrames(w *unwind.Walker, tid procstate.ThreadID) bool {
	if vm.codes == nil || vm.resets != w.Codes().Resets() {
		vm.codes, vm.resets = map[code]uint32{}, w.Codes().Resets()
	}
	if vm.walk != w.Walks() {
		vm.walk = w.Walks()
		vm.readThread(w, tid)
	}
	return len(vm.frames) > 0
}

// number returns the number of methods that call each other, innermost first, in a frame of
// compiled code or of the interpreter's function.
func (vm *machine) number(codes *unwind.Codes, frames []controlFrame, isCompiled bool) (number uint32) {
	if vm.next == len(vm.frames) && !frames[len(frames)-1].isLast() && vm.isCut() {
		if number = vm.add(codes, &notCopied, -1, 0, isCompiled); number == 0 {
			return 0
		}
	}
	for i := len(frames) - 1; i >= 0; i-- {
		f := &frames[i]
		fn := vm.function(f)
		if fn == nil || i > 0 && vm.standsFor(&frames[i-1]) {
			continue // it is none that Ruby would tell of
		}
		n := vm.add(codes, fn, fn.instruction(f.pc), number, isCompiled || fn.iseq == nil)
		if n == 0 {
			return 0 // there is no room: rather none than some
		}
		number = n
	}
	return number
}

// add numbers a method at an instruction.
func (vm *machine) add(codes *unwind.Codes, fn *calledMethod, instruction int, outer uint32, isCompiled bool) uint32 {
	key := code{fn.serial, int32(instruction), outer, isCompiled}
	n, ok := vm.codes[key]
	if !ok && len(vm.codes) < maxCodes {
		n = codes.Add(0, []unwind.CodeLine{{CodeFunction: fn.CodeFunction, Line: fn.line(instruction), IsCompiled: isCompiled}}, outer)
		vm.codes[key] = n
	}
	return n
}
