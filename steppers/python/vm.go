package python

import (
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// machine is what is known of the interpreter of a process.
type machine struct {
	image    *procstate.Image
	bias     uint64
	fields   *layout
	runtime  uint64
	codeType uint64

	vmread.Memory

	threads []threadState
	listed  time.Time // when they were

	walk     uint64 // the calls are those of this walk
	begun    uint64 // the last walk in which a call of the interpreter's function begins, which may have said so or not
	calls    []calls
	currents []current  // what was copied that leads to the frames that run
	found    []frameRef // frames of all calls
	left     int        // frames that may still be read

	objects       []uint64 // PyFrameObjects, those of found
	next          int      // of these, the first that no frame on the C stack was found for yet
	above         uint64   // where that frame ends which was found last
	threadPointer uint64   // of the thread

	lacks      bool // what the thread runs was not captured
	lacksFrame bool // a frame was not
	runsOther  bool // what was captured is of none that it runs: it may run another interpreter
	asked      vmread.FramesAsked
	own        uint64 // the PyThreadState of the thread, where the kernel side has found it
	ownFrom    int64  // where from a thread pointer on there is the address of the PyThreadState; 0: not known
	follows    bool   // frames of some thread that are in no stack were wanted: others will have such, too

	codes  map[code]uint32 // numbers in unwind.Codes
	resets int             // of these
	known  map[uint64]*function
	serial uint32
}

// threadState is a PyThreadState, and which thread it is of.
type threadState struct{ addr, id uint64 }

// code is an instruction of a function, and the number of what that is called by.
type code struct {
	function    uint32
	instruction int32
	outer       uint32
}

// Limits on what is read.
const (
	maxThreads      = 1 << 14
	maxFrames       = 1 << 14 // of a thread
	maxCalls        = 1 << 12 // of the interpreter's function
	maxFunctions    = 1 << 15
	maxCodes        = 1 << 18
	maxName         = 1 << 10 // characters
	maxLines        = 1 << 20 // bytes of a table
	threadsInterval = 100 * time.Millisecond
)

func newVM(w *unwind.Walker, m *procstate.Mapping, p *image) *machine {
	return &machine{
		image: m.Image, bias: m.Bias, fields: p.fields, runtime: p.runtime + m.Bias, codeType: p.codeType + m.Bias,
		Memory: vmread.MemoryOf(w), known: map[uint64]*function{}, asked: vmread.FramesAsked{},
	}
}

// codeOf returns the number of the functions that run in a frame of the interpreter's
// function, up to cfa on the C stack; 0 when that is not known.
func (vm *machine) codeOf(w *unwind.Walker, in *unwind.Frame, cfa uint64) uint32 {
	sp := in.SP()
	codes := w.Codes()
	if vm.codes == nil || vm.resets != codes.Resets() {
		vm.codes, vm.resets = map[code]uint32{}, codes.Resets()
	}
	if vm.fields.isObject {
		return vm.objectCode(w, in, cfa)
	}
	if vm.walk != w.Walks() {
		vm.walk = w.Walks()
		vm.readThread(sp)
	}
	for i := range vm.calls {
		if c := &vm.calls[i]; c.at-sp < cfa-sp {
			return vm.number(codes, c.first, c.end)
		}
	}
	return 0
}

// number returns the number of the functions of some of the found frames, innermost first.
func (vm *machine) number(codes *unwind.Codes, first, end int) (number uint32) {
	for i := end - 1; i >= first; i-- {
		f := &vm.found[i]
		fn := &pythonNotCopied
		if f.code != notCopied {
			fn = vm.function(f.code)
		}
		switch {
		case fn == nil && i == 0:
			continue // it is being made
		case fn == nil:
			fn = &notRead
		}
		key := code{fn.serial, int32(vm.offset(fn, f)), number}
		n, ok := vm.codes[key]
		if !ok && len(vm.codes) < maxCodes {
			line := unwind.CodeLine{CodeFunction: fn.CodeFunction, Line: vm.fields.lines(fn.lineTable, fn.StartLine, int(key.instruction))}
			n = codes.Add(0, []unwind.CodeLine{line}, number)
			vm.codes[key] = n
		}
		if n == 0 {
			return 0 // there is no room: rather none than some
		}
		number = n
	}
	return number
}

// list lists the threads, if that was not done just before.
func (vm *machine) list() bool {
	if time.Since(vm.listed) < threadsInterval {
		return false
	}
	vm.threads, vm.listed = listThreads(vm.fields, vm.runtime, vm.WordNow), time.Now()
	return true
}

// listThreads lists the PyThreadStates of all interpreters.
func listThreads(f *layout, runtime uint64, word func(addr uint64) (uint64, bool)) (threads []threadState) {
	first := f.threads
	if f.debugOffsets {
		const toThreads = 72
		first, _ = word(runtime + toThreads)
	}
	eachInterpreter(f, runtime, word, func(interpreter uint64) {
		t, _ := word(interpreter + first)
		for t != 0 && len(threads) < maxThreads {
			id, _ := word(t + f.id)
			threads = append(threads, threadState{t, id})
			t, _ = word(t + f.nextThread)
		}
	})
	return threads
}

// eachInterpreter calls what with each PyInterpreterState.
func eachInterpreter(f *layout, runtime uint64, word func(addr uint64) (uint64, bool), what func(interpreter uint64)) {
	first, next := f.interpreters, f.nextInterpreter
	if f.debugOffsets {
		const toHead, toNext = 40, 64
		first, _ = word(runtime + toHead)
		next, _ = word(runtime + toNext)
	}
	interpreter, _ := word(runtime + first)
	for n := 0; interpreter != 0 && n < maxThreads; n++ {
		what(interpreter)
		interpreter, _ = word(interpreter + next)
	}
}
